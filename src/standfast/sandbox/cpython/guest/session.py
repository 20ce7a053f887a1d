"""The session's namespace, and a run of code in it.

The session's names are those of a module named `__main__`. Names that are not the session's own (host
functions, loaded values, an earlier `result`) are added to the built-in names, where guest code finds them
and which are not stored. A run ends with two frames: `ran`, before the session is packed, and `end`.
"""

from __future__ import annotations

import _thread
import asyncio
import builtins
import inspect
import io
import linecache
import math
import os
import random
import resource
import sys
import threading
import types
from collections import ChainMap
from typing import Any, Final, NoReturn

from . import calls, clock, packing
from .calls import SLEEP, Bridge, GuestTool, later_of
from .channel import HostChannel, NotJson, Payload, Printer, Stream, encode, to_json, untag
from .clearing import clear
from .program import CAUGHT, LATER, LOAD, VALUE, compile_cell, filename_of

_OUT_OF_MEMORY: Final = b'{"t":"memory"}'
_MAX_MESSAGE: Final = 20_000
_OWN_FRAMES: Final = 16
"""The greatest number of our own stack frames below the first frame of guest code."""
_IMPORT_DEPTH: Final = 1_500
_MAX_RESULT: Final = 16 << 20
_MAX_STATE: Final = 64 << 20
_READ_BYTES: Final = 1 << 16
_missing: Final = object()
_import: Final = builtins.__import__


class GuestSession:
    """The one session of this process."""

    def __init__(self, handle: int, home: str) -> None:
        self._handle = handle
        self._home = home
        self._channel = HostChannel(handle)
        self._clock = clock.RunClock()
        self._printer = Printer(self._channel)
        self._bridge = Bridge(self._channel, self._clock, self._printer)
        self._offered: list[str] = []
        self._kept_chance = False
        self._last_words = b""
        module = types.ModuleType("__main__")
        self._names: dict[str, Any] = module.__dict__
        self._beside = {
            **vars(builtins),
            LATER: later_of,
            LOAD: self._look_up,
            CAUGHT: self._check_caught,
            "__import__": self._import,
        }
        self._names["__builtins__"] = self._beside
        sys.modules["__main__"] = module
        clock.install_clocks(self._clock, self._sleep)
        clock.install_dates(self._clock)
        clock.install_chance(self._clock)
        calls.install(self._bridge, self._clock)

    def serve(self) -> NoReturn:
        """Execute the runs that the host sends, until the process is killed."""
        self._channel.post('{"t":"ready"}')
        self._channel.flush()
        while True:
            request, state = self._channel.receive()
            self._run(request, state)

    # ── one run ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, request: dict[str, Any], state: Payload) -> None:
        self._channel.begin(bytes.fromhex(request["nonce"]))
        self._last_words = self._channel.framed(_OUT_OF_MEMORY)  # allocated while there is memory
        if state.left and not self._load(state):
            return
        self._begin(request)
        inputs = {name: untag(value) for name, value in request["inputs"].items()}
        hidden = {name: self._names[name] for name in inputs if name in self._names}
        self._names.update(inputs)
        before = self._names.pop("result", _missing)  # still readable; removed to see if this run binds it
        if before is not _missing:
            self._beside["result"] = before
        end = self._execute(request, inputs)
        self._find_value(end, before)
        for name in inputs:
            self._names.pop(name, None)
        self._names.update(hidden)
        self._pack(end, request["pure"] or "syntax" in end.get("error", ()))

    def _load(self, state: Payload) -> bool:
        """Load the session, and let the host measure its memory; return False if it cannot be loaded."""
        lost: dict[str, Any] | None = None
        try:
            self._kept_chance = packing.unpack(io.BufferedReader(state, _READ_BYTES), self._names)
        except MemoryError:
            state.skip()  # the host must finish sending before it can read our last message
            self._out_of_memory()
        except BaseException as error:
            lost = _described(error)
        state.skip()
        if lost is not None:
            self._end({"lost": lost})
            return False
        self._channel.ask('{"t":"loaded"}')
        return True

    def _begin(self, request: dict[str, Any]) -> None:
        for name in self._offered:
            self._beside.pop(name, None)
            if hasattr(builtins, name):
                self._beside[name] = getattr(builtins, name)
        self._offered = list(request["functions"])
        self._beside.update({name: GuestTool(name, self._bridge) for name in self._offered})
        self._bridge.begin(frozenset(self._offered), filename_of(request["code"]))
        self._printer.begin(request["stdout_cap"])
        self._clock.begin(request["now"], request["seed"])
        self._chance = random.getstate() if self._kept_chance else self._clock.start_chance()
        sys.stdin = io.StringIO()
        sys.stdout = Stream("stdout", self._printer)
        sys.stderr = Stream("stderr", self._printer)
        os.chdir(self._home)

    def _execute(self, request: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """Compile and run the code; return a dict whose key "error" has the error that it raised, if any."""
        code = request["code"]
        try:
            known = ChainMap(self._names, self._beside)
            later = [(a, b, c, d) for a, b, c, d in request["later"]]
            compiled = compile_cell(code, known, inputs, later, request["loads"])
        except BaseException as error:
            return {"error": _not_compiled(error)}
        name = filename_of(code)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        depth, frame = 0, sys._getframe()
        while frame.f_back is not None:
            depth, frame = depth + 1, frame.f_back
        sys.setrecursionlimit(depth + _OWN_FRAMES + request["depth"])
        try:
            made = eval(compiled, self._names)  # noqa: S307 - this is the jail
            if compiled.co_flags & inspect.CO_COROUTINE:
                with asyncio.Runner() as runner:
                    runner.run(made)
            return {}
        except BaseException as error:
            sys.setrecursionlimit(_IMPORT_DEPTH)
            if type(error) is MemoryError and not error.args:
                self._out_of_memory()
            return {"error": _uncaught(error, code)}
        finally:
            sys.setrecursionlimit(_IMPORT_DEPTH)
            linecache.cache.pop(name, None)

    def _find_value(self, end: dict[str, Any], before: Any) -> None:
        """Add the run's value to *end*; restore `result`, which was *before*, if the run did not bind it."""
        value = self._names.pop(VALUE, None)
        self._beside.pop("result", None)
        if "result" in self._names:
            value = self._names["result"]
        elif before is not _missing:
            self._names["result"] = before
        if "error" in end:
            return
        try:
            result = to_json(value)
            size = len(result) if result.isascii() else len(result.encode())
            end.update({"result": result} if size <= _MAX_RESULT else {"size": size})
        except NotJson as problem:
            end["foreign"] = str(problem)
        except MemoryError:
            self._out_of_memory()
        except BaseException as error:  # raised by the methods of a guest's class
            end["error"] = _described(error)

    def _pack(self, end: dict[str, Any], unchanged: bool) -> None:
        """Pack the session, unless it is *unchanged*, and send the end of the run."""
        self._names.pop("__annotations__", None)
        self._printer.post()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        self._channel.post(f'{{"t":"ran","peak":{peak}}}')
        self._channel.flush()
        data: bytes | None = None
        if not unchanged:
            chance = random.getstate()
            self._kept_chance = self._kept_chance or chance != self._chance
            try:
                data, names, plain, notes = packing.pack(self._names, chance if self._kept_chance else None)
            except MemoryError:
                self._out_of_memory()
            end.update(names=names, plain=plain, notes=notes)
        end["threads"] = _thread._count()  # including those not started by `threading`
        os.chdir(self._home)
        clear(self._home)  # files do not outlive the run that wrote them
        self._end(end, data)

    def _end(self, end: dict[str, Any], data: bytes | None = None) -> None:
        result = end.pop("result", None)
        body = encode(end)[1:-1]
        parts = ['"t":"end"', *([body] if body else []), *([f'"result":{result}'] if result else [])]
        if data is not None and len(data) > _MAX_STATE:
            self._channel.post(f'{{"t":"end","too_large":{len(data)}}}')
        else:
            self._channel.post("{" + ",".join(parts) + "}", data)
        self._channel.flush()

    # ── called by guest code ─────────────────────────────────────────────────────────────────────

    def _look_up(self, name: str) -> Any:
        """Return the value of a name that was not known when the code was compiled."""
        if name in self._names:
            return self._names[name]
        if name in self._beside:
            return self._beside[name]
        answer = self._bridge.load(name)
        if "value" not in answer:
            raise NameError(f"name {name!r} is not defined", name=name)
        value = self._beside[name] = untag(answer["value"])
        self._offered.append(name)
        return value

    def _check_caught(self) -> None:
        caught = sys.exc_info()[1]
        if type(caught) is MemoryError and not caught.args:
            self._out_of_memory()

    def _out_of_memory(self) -> NoReturn:
        """Report an allocation failure and exit, without letting guest code handle it."""
        os.write(self._handle, self._last_words)
        os._exit(1)

    def _import(self, *args: Any, **options: Any) -> Any:
        """Import a module with a higher recursion limit than guest code has."""
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(max(depth, _IMPORT_DEPTH))
        try:
            return _import(*args, **options)
        finally:
            sys.setrecursionlimit(depth)

    def _sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if not math.isfinite(seconds):
            raise OverflowError("timestamp too large to convert to C _PyTime_t")
        if threading.current_thread() is not threading.main_thread():
            clock.real_sleep(seconds)
        elif seconds > 0:
            self._bridge.call(SLEEP, (), {"seconds": float(seconds)})


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────


def _described(error: BaseException) -> dict[str, Any]:
    kind = type(error).__name__
    try:
        text = str(error)
        single = error.args[0] if len(error.args) == 1 and type(error.args[0]) is str else text
    except BaseException:
        text = single = "<its text cannot be shown>"
    text = text[:_MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    single = single[:_MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    return {"kind": kind, "text": single, "message": f"{kind}: {text}" if text else kind}


def _not_compiled(error: BaseException) -> dict[str, Any]:
    """Describe why code cannot be compiled."""
    if isinstance(error, (RecursionError, MemoryError)):  # the parser exceeded the depth of its own stack
        return {"kind": "SyntaxError", "syntax": True, "message": "the code is nested too deeply"}
    described = {**_described(error), "syntax": True}
    if isinstance(error, SyntaxError):
        start = max(1, error.lineno or 1), max(1, error.offset or 1)
        end = error.end_lineno, error.end_offset
        if not end[0] or not end[1] or (end[0], end[1]) < start:
            end = None, None
        described["message"] = (error.msg or "invalid syntax")[:_MAX_MESSAGE]
        described["span"] = [*start, *end]
    return described


def _uncaught(error: BaseException, code: str) -> dict[str, Any]:
    """Describe an uncaught exception, with the innermost position of its traceback in this run's code."""
    described = _described(error)
    filename, found, trace = filename_of(code), None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            found = trace
        trace = trace.tb_next
    if found is not None:
        lines = code.split("\n")
        positions = list(found.tb_frame.f_code.co_positions())[found.tb_lasti // 2]
        line, end_line, column, end_column = positions
        if line is None or column is None or end_line is None or end_column is None or end_line > len(lines):
            described["span"] = [line or found.tb_lineno, 1, None, None]
        else:
            end_column = _column(lines[end_line - 1], end_column)
            described["span"] = [line, _column(lines[line - 1], column), end_line, end_column]
    name = getattr(error, "name", None)
    if isinstance(error, NameError) and isinstance(name, str):
        described["name"] = name
    return described


def _column(line: str, offset: int) -> int:
    """Convert an offset in bytes into a column in characters, counted from 1."""
    return len(line.encode()[:offset].decode("utf-8", "replace")) + 1
