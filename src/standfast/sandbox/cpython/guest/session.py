"""The session's namespace, and a run of code in it.

Theory of operation
-------------------
Names live in a module that calls itself `__main__`. What is not the session's own (functions of the host,
values that were loaded, an earlier `result`) lies beside the built-in names, where code finds it and nothing
keeps it. A run ends with two frames: `ran`, before anything is kept, and `end`.
"""

from __future__ import annotations

import _thread
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
from typing import Any, Final

from . import loop, packing
from .calls import SLEEP, Bridge, Tool, later_of, share
from .clearing import clear
from .clock import Surroundings, real_sleep, start_chance
from .clock import install as install_clock
from .printing import Printer, Stream
from .program import CAUGHT, LATER, LOAD, VALUE, compile_cell, filename_of
from .values import Foreign, to_json, untag
from .wire import Payload, Wire, encode

_OUT_OF_MEMORY: Final = b'{"t":"memory"}'
_MAX_MESSAGE: Final = 20_000
_OWN_FRAMES: Final = 16
"""How deep in frames of ours guest code begins, at most."""
_IMPORT_DEPTH: Final = 1_500
_MAX_RESULT: Final = 16 << 20
_MAX_STATE: Final = 64 << 20
_READ_BYTES: Final = 1 << 16
_missing: Final = object()
_import: Final = builtins.__import__


class Session:
    """The one session of this process."""

    def __init__(self, handle: int, home: str) -> None:
        self._handle = handle
        self._home = home
        self._wire = Wire(handle)
        self._around = Surroundings()
        self._printer = Printer(self._wire)
        self._bridge = Bridge(self._wire, self._around, self._printer)
        self._offered: list[str] = []
        self._kept_chance = False
        self._last_words = b""
        module = types.ModuleType("__main__")
        self._names: dict[str, Any] = module.__dict__
        self._beside = {
            **vars(builtins),
            LATER: later_of,
            LOAD: self._look_up,
            CAUGHT: self._look_at_caught,
            "__import__": self._import,
        }
        self._names["__builtins__"] = self._beside
        sys.modules["__main__"] = module
        share(self._bridge)
        install_clock(self._around, self._sleep)
        loop.install(self._bridge, self._around)

    def serve(self) -> None:
        """Run what the host sends, for ever."""
        self._wire.post('{"t":"ready"}')
        self._wire.flush()
        while True:
            request, state = self._wire.receive()
            self._run(request, state)

    # ── one run ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, request: dict[str, Any], state: Payload) -> None:
        self._wire.begin(bytes.fromhex(request["nonce"]))
        self._last_words = self._wire.framed(_OUT_OF_MEMORY)  # while there is memory for it
        if state.left and not self._load(state):
            return
        self._begin(request)
        inputs = {name: untag(value) for name, value in request["inputs"].items()}
        hidden = {name: self._names[name] for name in inputs if name in self._names}
        self._names.update(inputs)
        before = self._put_result_aside()
        end = self._executed(request, inputs)
        self._conclude(end, before)
        for name in inputs:
            self._names.pop(name, None)
        self._names.update(hidden)
        self._leave(end, request["pure"] or "syntax" in end.get("error", ()))

    def _load(self, state: Payload) -> bool:
        """Load the session, and let the host look at what that took; false if it cannot be loaded."""
        lost: dict[str, Any] | None = None
        try:
            self._kept_chance = packing.unpack(io.BufferedReader(state, _READ_BYTES), self._names)
        except MemoryError:
            state.skip()  # the host still sends, and would not hear the last words
            self._out_of_memory()
        except BaseException as error:
            lost = _told(error)
        state.skip()
        if lost is not None:
            self._end({"lost": lost})
            return False
        self._wire.ask('{"t":"loaded"}')
        return True

    def _begin(self, request: dict[str, Any]) -> None:
        for name in self._offered:
            self._beside.pop(name, None)
            if hasattr(builtins, name):
                self._beside[name] = getattr(builtins, name)
        self._offered = list(request["functions"])
        self._beside.update({name: Tool(name, self._bridge) for name in self._offered})
        self._bridge.begin(frozenset(self._offered))
        self._printer.begin(request["stdout_cap"])
        self._around.begin(request["now"], request["seed"])
        self._chance = random.getstate() if self._kept_chance else start_chance(self._around)
        sys.stdin = io.StringIO()
        sys.stdout = Stream("stdout", self._printer)
        sys.stderr = Stream("stderr", self._printer)
        os.chdir(self._home)

    def _executed(self, request: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        code = request["code"]
        try:
            known = _Either(self._names, self._beside)
            compiled = compile_cell(code, known, inputs, _sites(request["later"]), request["loads"])
        except BaseException as error:
            return {"error": _unreadable(error)}
        name = filename_of(code)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        sys.setrecursionlimit(_depth() + _OWN_FRAMES + request["depth"])
        try:
            made = eval(compiled, self._names)  # noqa: S307 - this is the jail
            if compiled.co_flags & inspect.CO_COROUTINE:
                loop.run_to_end(made)
            return {}
        except BaseException as error:
            sys.setrecursionlimit(_IMPORT_DEPTH)
            if type(error) is MemoryError and not error.args:
                self._out_of_memory()
            return {"error": _described(error, code)}
        finally:
            sys.setrecursionlimit(_IMPORT_DEPTH)
            linecache.cache.pop(name, None)

    def _conclude(self, end: dict[str, Any], before: Any) -> None:
        """Find the value of the run, and give `result` back what it had if the run did not bind it."""
        value = self._names.pop(VALUE, None)
        self._beside.pop("result", None)
        if "result" in self._names:
            value = self._names["result"]
        elif before is not _missing:
            self._names["result"] = before
        if "error" in end:
            return
        try:
            end.update(_sized(to_json(value)))
        except Foreign as foreign:
            end["foreign"] = str(foreign)
        except MemoryError:
            self._out_of_memory()
        except BaseException as error:  # a class of the guest's that will not be written
            end["error"] = _told(error)

    def _leave(self, end: dict[str, Any], unchanged: bool) -> None:
        """Keep what there is to keep, and say so."""
        self._names.pop("__annotations__", None)
        self._printer.post()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        self._wire.post(f'{{"t":"ran","peak":{peak}}}')
        self._wire.flush()
        data: bytes | None = None
        if not unchanged:
            chance = random.getstate()
            self._kept_chance = self._kept_chance or chance != self._chance
            try:
                data, names, plain, notes = packing.pack(self._names, chance if self._kept_chance else None)
            except MemoryError:
                self._out_of_memory()
            end.update(names=names, plain=plain, notes=notes)
        end["threads"] = _thread._count()  # also those that `threading` does not know
        self._clear_home()
        self._end(end, data)

    def _end(self, end: dict[str, Any], data: bytes | None = None) -> None:
        result = end.pop("result", None)
        body = encode(end)[1:-1]
        parts = ['"t":"end"', *([body] if body else []), *([f'"result":{result}'] if result else [])]
        if data is not None and len(data) > _MAX_STATE:
            self._wire.post(f'{{"t":"end","too_large":{len(data)}}}')
        else:
            self._wire.post("{" + ",".join(parts) + "}", data)
        self._wire.flush()

    # ── what code meets ──────────────────────────────────────────────────────────────────────────

    def _put_result_aside(self) -> Any:
        """Leave an earlier `result` readable, but so that it shows whether this run binds it."""
        before = self._names.pop("result", _missing)
        if before is not _missing:
            self._beside["result"] = before
        return before

    def _look_up(self, name: str) -> Any:
        """The value of a name that was not known when the code was compiled."""
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

    def _look_at_caught(self) -> None:
        caught = sys.exc_info()[1]
        if type(caught) is MemoryError and not caught.args:
            self._out_of_memory()

    def _out_of_memory(self) -> None:
        """Nothing goes on after this, whatever the code would like to do about it."""
        os.write(self._handle, self._last_words)
        os._exit(1)

    def _import(self, *args: Any, **options: Any) -> Any:
        """Import; that goes deeper than code does."""
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
            real_sleep(seconds)
        elif seconds > 0:
            self._bridge.call(SLEEP, (), {"seconds": float(seconds)})

    def _clear_home(self) -> None:
        """Files do not outlive their run."""
        os.chdir(self._home)
        clear(self._home)


def _depth() -> int:
    """How deep the caller is."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


class _Either:
    """Holds what either of two holds."""

    def __init__(self, *parts: dict[str, Any]) -> None:
        self._parts = parts

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self._parts)


def _sized(result: str) -> dict[str, Any]:
    """A result to be sent, or only its size if it is too large."""
    size = len(result) if result.isascii() else len(result.encode())
    return {"result": result} if size <= _MAX_RESULT else {"size": size}


def _sites(later: list[list[int]] | None) -> list[tuple[int, int, int, int]] | None:
    return None if later is None else [(a, b, c, d) for a, b, c, d in later]


def _unreadable(error: BaseException) -> dict[str, Any]:
    """Code that cannot be compiled."""
    if isinstance(error, (RecursionError, MemoryError)):  # the parser ran out of its own stack
        return {"kind": "SyntaxError", "syntax": True, "message": "the code is nested too deeply"}
    told = {**_told(error), "syntax": True}
    if isinstance(error, SyntaxError):
        told["message"] = (error.msg or "invalid syntax")[:_MAX_MESSAGE]
        told["span"] = _span(error.lineno, error.offset, error.end_lineno, error.end_offset)
    return told


def _span(
    line: int | None, column: int | None, end_line: int | None, end_column: int | None
) -> list[int | None]:
    line, column = max(1, line or 1), max(1, column or 1)
    if not end_line or not end_column or (end_line, end_column) < (line, column):
        return [line, column, None, None]
    return [line, column, end_line, end_column]


def _described(error: BaseException, code: str) -> dict[str, Any]:
    """An exception that nothing caught: what it is, and where in this code it came from."""
    told = _told(error)
    place = _place(error, filename_of(code), code)
    if place is not None:
        told["span"] = place
    name = getattr(error, "name", None)
    if isinstance(error, NameError) and isinstance(name, str):
        told["name"] = name
    return told


def _told(error: BaseException) -> dict[str, Any]:
    kind = type(error).__name__
    try:
        text = str(error)
        single = error.args[0] if len(error.args) == 1 and type(error.args[0]) is str else text
    except BaseException:
        text = single = "<its text cannot be shown>"
    text = text[:_MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    single = single[:_MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    return {"kind": kind, "text": single, "message": f"{kind}: {text}" if text else kind}


def _place(error: BaseException, filename: str, code: str) -> list[int | None] | None:
    """The innermost place of the traceback that lies in this run's own code."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            found = trace
        trace = trace.tb_next
    if found is None:
        return None
    positions = list(found.tb_frame.f_code.co_positions())[found.tb_lasti // 2]
    line, end_line, column, end_column = positions
    lines = code.split("\n")
    if line is None or column is None or end_line is None or end_column is None or end_line > len(lines):
        return [line or found.tb_lineno, 1, None, None]
    return [line, _column(lines[line - 1], column), end_line, _column(lines[end_line - 1], end_column)]


def _column(line: str, offset: int) -> int:
    """An offset in bytes as a column in characters, from 1."""
    return len(line.encode()[:offset].decode("utf-8", "replace")) + 1
