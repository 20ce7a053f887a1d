"""The execution of one cell's code in the engine: stepping, simple answers, and the code's value.

The engine stops whenever guest code needs the host. Lookups of function names, calls of unknown names and
requests to the operating system are answered here; calls of functions and sleeps become steps.

Rules
-----
1. The clock stands still between answers, and random numbers come from the seed, so a cell that is rerun sees
   the same values. The engine's dumps contain its random state, so only its seed is provided here.
2. The address in the default `repr` of an object may differ between a warm worker and a loaded one.
3. The engine passes functions, ranges, modules and cycles as their text, which looks like a string. If a text
   could be such a *stand-in*, the engine's dump is checked (`dump.stand_ins`).
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
from bisect import bisect_left
from collections.abc import Collection, Container, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, get_args

import msgspec

from standfast.errors import Code, ErrorObject, InvalidArgument, ValueTooLarge
from standfast.model.canonical import MAX_VALUE_BYTES, Json, check_bounds, to_json
from standfast.ports.cell_stepper import EngineCall, StepperHost
from standfast.ports.code_engine import SLEEP, CallAnswer
from standfast.sandbox import run_errors
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import stand_ins
from standfast.sandbox.monty.program import MARK_NAME, VALUE_NAME, last_expression, read_program
from standfast.sandbox.monty.syntax import Site
from standfast.sandbox.monty.workers import (
    NO_HASH,
    SMALL_FRAME_BYTES,
    TINY_FRAME_BYTES,
    UNREAD,
    MontyWorker,
    MontyWorkers,
    Unreadable,
    decode_dump,
    decode_state,
    stub,
)
from standfast.sandbox.workers import SlotStepper

OS_POLICY: Final = {
    "datetime": "call_host",
    "timezone": "utc",
    "random_start": "call_host",
    "sleep_system_max": float("inf"),
}
"""What the engine delegates to the host.

It is part of dumps. The default would limit sleeps to ten seconds.
"""
_SLEEPS: Final = ("system.sleep", "system.async_sleep")
_MAX_RANDOM_BYTES: Final = 64 << 10
_BRIEF_S: Final = 0.000_2
"""The host can read within a millisecond whatever the engine creates and sends within this time."""
_FEW: Final = 16
_SHORT_NAME_CHARS: Final = 100
_FEW_NUMBERS_BYTES: Final = 16 << 10
"""A request with a few numbers and short names is never longer than this."""
_KEPT: Final = "__standfast_kept_{}"
_STAND_IN: Final = re.compile(r"<.*>|[\w.]{1,200}\(.*\)|\[\.\.\.\]|\{\.\.\.\}|\(\.\.\.\)|\.\.\.", re.S)


class ForeignArgument(Exception):
    """An argument contains a value of this type, which has no JSON form."""


class EngineRun(SlotStepper[MontyWorker]):
    """The execution of one cell's code; base class of the engine's stepper.

    `borrowed` are names that are bound only until the cell ends: inputs and loaded values. `kept` are those
    that had a value before, which is restored. `call_errors` are the errors behind exceptions that the guest
    sees, by type and message. `plain_keys` means that neither the session nor the code can hash a value that
    has parts (`syntax.has_plain_keys`). `standing` is the snapshot at which the code is stopped.
    """

    loaded: MontyWorker
    """The worker that runs the code."""
    standing: engine.FunctionSnapshot | engine.FutureSnapshot | None = None
    names: frozenset[str] = frozenset()
    paused_dump, filename, draws = b"", "", 0
    was_brief = False
    """Whether the code ended, without a call, so soon that it can have used a megabyte of memory at most."""
    _asked_s = 0.0
    _line_ends: list[int] | None = None
    _sites: Mapping[str, Collection[Site]] = MappingProxyType({})

    def __init__(self, host: StepperHost, workers: MontyWorkers, dump: bytes) -> None:
        super().__init__(host, workers)
        request = host.request
        paused = decode_dump(dump) if dump else None
        before = paused.before if paused else (decode_state(request.state) if request.state else None)
        self._workers = workers
        self._before = before
        self._functions = request.functions
        last, result_later = request.last, False
        if before is not None:
            self.names, self._sites = frozenset(before.names), before.sites
            last, result_later = last - self.names, before.result_later
        self.program = program = read_program(request.code, result_may_be_bound=result_later, last=last)
        self.plain_keys = program.plain_keys and (before is None or before.plain_keys)
        self.call_errors: dict[tuple[str, str], ErrorObject] = {}
        self._max_bytes: dict[str, int] = {}
        """The limits of the requests of functions that the code has called."""
        if paused is not None:
            self.paused_dump, self.filename, self.draws = paused.dump, paused.filename, paused.draws
            self.borrowed, self.kept = list(paused.borrowed), paused.kept
            self.call_errors.update({(known.type, known.message): known.error for known in paused.errors})
            return
        self.borrowed = list(request.inputs)
        self.kept = [name for name in self.borrowed if name in self.names] if self.borrowed else []
        if program.result_mode == "maybe" and "result" in self.names and "result" not in self.kept:
            self.kept.append("result")

    # ── stepping: each method returns the engine's next snapshot ─────────────────────────────────

    def feed(self, worker: MontyWorker) -> Any:
        """Start the code in *worker*, and run it until it needs the host."""
        self.loaded = worker
        self.draws = 0  # a second attempt sees the same random numbers
        program = self.program
        if self.kept or program.result_mode == "maybe":
            self._set_up(worker)
        inputs, code = self._host.request.inputs or None, program.fed
        while True:
            self.filename = f"<python-input-{worker.next_input}>"
            worker.next_input += 1  # the engine numbers all sources, even those that it rejects
            self._asked_s = asked_s = time.perf_counter()
            try:
                snapshot = worker.feed(code, inputs=inputs, print_callback=self._host.output)
            except engine.MontySyntaxError:
                if code is program.unnamed or program.unnamed is None:
                    raise
                code = program.unnamed
                self.program = msgspec.structs.replace(program, fed=code, ends_with_value=False, inserted=())
                continue
            if isinstance(snapshot, engine.MontyComplete):
                self.was_brief = time.perf_counter() - asked_s < _BRIEF_S
            return snapshot

    def _set_up(self, worker: MontyWorker) -> None:
        """Save the values of names that the code rebinds for a while, and mark the place of its `result`."""
        program, kept = self.program, self.kept
        marked = program.result_mode == "maybe" and program.reads_result
        hide = "result" in kept and program.result_mode == "maybe" and not program.reads_result
        setup = [f"{MARK_NAME} = []"] if marked else []
        setup += [_copy(name, _KEPT.format(name)) for name in kept]
        if setup:
            worker.evaluate("\n".join([*setup, _unbind("result")] if hide else setup))

    def reload(self, worker: MontyWorker) -> Any:
        """Load a suspended run, and return the snapshot at which it is stopped."""
        self.loaded = worker
        worker.next_input = int(self.filename.removeprefix("<python-input-").removesuffix(">")) + 1
        self._asked_s = time.perf_counter()
        return worker.session.load_snapshot(self.paused_dump, print_callback=self._host.output)

    def resume(self, call_id: int, answer: CallAnswer) -> Any:
        """Answer the call at which the code is stopped, or one of those that it waits for."""
        standing, seen = self.standing, answer.exception
        result: Any = {"return_value": answer.value}
        if seen is not None:
            kind = seen.type if seen.type in _exceptions() else "RuntimeError"
            if answer.error is not None:
                self.call_errors[kind, seen.message] = answer.error
            result = {"exc_type": kind, "message": seen.message}
        self._asked_s = time.perf_counter()
        if type(standing) is engine.FunctionSnapshot:
            return standing.resume(result)
        assert isinstance(standing, engine.FutureSnapshot)
        return standing.resume({call_id: result})

    def promise(self) -> Any:
        """Answer the call at which the code is stopped with a future."""
        assert isinstance(self.standing, engine.FunctionSnapshot)
        self._asked_s = time.perf_counter()
        return self.standing.resume({"future": ...})

    # ── requests of the engine ───────────────────────────────────────────────────────────────────

    def _is_small(self) -> bool:
        """Return whether the engine's last message is small enough to convert to Python objects directly."""
        # A message that was created and sent in a very short time is small, unless tuples share their parts.
        if self.plain_keys and (self.was_brief or time.perf_counter() - self._asked_s < _BRIEF_S):
            return True
        return self.loaded.sent_bytes() <= (SMALL_FRAME_BYTES if self.plain_keys else TINY_FRAME_BYTES)

    def on_name(self, snapshot: engine.NameLookupSnapshot, name: str) -> Any:
        if name in self._functions:
            return snapshot.resume(value=stub(name))
        try:
            value = self._host.load(name)
        except LookupError:
            return snapshot.resume()
        if name not in self.borrowed:
            self.borrowed.append(name)
        return snapshot.resume(value=value)

    def on_function(self, snapshot: engine.FunctionSnapshot) -> Any:
        """Return a call as a step, or answer it and return the next snapshot."""
        name = str(snapshot.function_name)
        if snapshot.is_os_function:
            return self._on_system_call(snapshot, name)  # the engine has checked the types of its arguments
        if (max_bytes := self._max_bytes.get(name)) is None:
            if name not in self._functions:
                error = run_errors.unknown_function(name, self._functions)
                return self._raise(snapshot, "NameError", f"name {name!r} is not defined", error)
            max_bytes = self._functions.capability(name).limits.max_request_bytes
            self._max_bytes[name] = max_bytes
        args: Any = []
        kwargs: Any = {}
        problem: ErrorObject | None = None
        awaited, place = snapshot.allow_eager_await, snapshot.position
        here = place.filename == self.filename
        if not awaited:
            sites = self.program.awaited if here else self._sites.get(place.filename, ())
            if sites is None or place.filename == "<string>":  # its syntax tree is unknown
                awaited = self._functions.is_async(name)
            else:
                awaited = (place.start, place.end) in sites
        try:
            args, kwargs = self._arguments(snapshot, max_bytes)
        except ForeignArgument as foreign:
            problem = run_errors.argument_not_json(name, str(foreign))
        except ValueTooLarge as error:
            problem = run_errors.request_too_large(name, error.limit)
        return EngineCall(
            id=snapshot.call_id,
            name=name,
            args=args,
            kwargs=kwargs,
            problem=problem,
            stands=not awaited,
            line=self._line_at(place.start) if here else 0,
        )

    def _line_at(self, offset: int) -> int:
        """Return the line of this run's code at *offset*, which counts bytes."""
        if self._line_ends is None:
            self._line_ends = [found.start() for found in re.finditer(b"\n", self.program.fed.encode())]
        return bisect_left(self._line_ends, offset) + 1

    def _arguments(self, snapshot: engine.FunctionSnapshot, max_bytes: int) -> tuple[Json, Json]:
        """Read the arguments of a call as JSON; raise `ForeignArgument` or `ValueTooLarge`."""
        given = self.loaded.arguments(snapshot, small=self._is_small(), max_bytes=max_bytes)
        if not isinstance(given, tuple):
            if given.too_large is not None:
                raise ValueTooLarge(given.too_large)
            raise ForeignArgument(given.foreign)
        args, kwargs = list(given[0]), given[1]
        if max_bytes >= _FEW_NUMBERS_BYTES and _are_few_numbers(args, kwargs):
            return args, kwargs
        check_bounds([args, kwargs], max_bytes)
        values = [*args, *kwargs.values()]
        suspicious = bool(values) and _may_hold_stand_ins(values, self._functions)
        if suspicious and (found := stand_ins(self.loaded.dump(snapshot))):
            raise ForeignArgument(_type_of_stand_in(found[0]))
        try:
            clean, _ = to_json([args, kwargs])
        except InvalidArgument:
            raise ForeignArgument(_first_foreign([args, kwargs])) from None
        return clean[0], clean[1]

    def _on_system_call(self, snapshot: engine.FunctionSnapshot, name: str) -> Any:
        if name in _SLEEPS:
            place = snapshot.position
            seconds = max(0.0, float(snapshot.args[0])) if snapshot.args else 0.0
            return EngineCall(
                id=snapshot.call_id,
                name=SLEEP,
                kwargs={"seconds": seconds},
                stands=name == _SLEEPS[0],
                line=self._line_at(place.start) if place.filename == self.filename else 0,
            )
        if name in ("time.time", "datetime.now", "date.today"):
            now: Any = self._host.now_ms / 1000
            if name != "time.time":
                now = datetime.fromtimestamp(now, UTC)
                zone = snapshot.args[0] if snapshot.args else None
                if name == "date.today":
                    now = now.date()
                else:
                    now = now.replace(tzinfo=None) if zone is None else now.astimezone(zone)
            return snapshot.resume({"return_value": now})
        if name == "os.urandom":
            count = int(snapshot.args[0])
            if count > _MAX_RANDOM_BYTES:
                message = f"at most {_MAX_RANDOM_BYTES} random bytes at once, not {count}"
                return snapshot.resume({"exc_type": "ValueError", "message": message})
            self.draws += 1
            chance = hashlib.shake_256(f"{self.draws}:{self._host.request.seed}".encode())
            return snapshot.resume({"return_value": chance.digest(count)})
        if name.startswith("import"):
            return snapshot.resume_not_handled()
        if name == "open" or name.startswith("Path."):
            hint = "grant a mount and use read_text(), write_text() or list_dir()"
        else:
            hint = "the sandbox hides the machine from guest code; pass values as inputs"
        message = f"guest code may not use {name}"
        error = ErrorObject(code=Code.PERMISSION_DENIED, message=message, hint=hint)
        return self._raise(snapshot, "PermissionError", message, error)

    def _raise(self, snapshot: engine.FunctionSnapshot, kind: Any, text: str, error: ErrorObject) -> Any:
        """Raise an exception in the guest, and record the *error* behind it."""
        self.call_errors[kind, text] = error
        return snapshot.resume({"exc_type": kind, "message": text})

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def value(self, finished: engine.MontyComplete | None) -> object:
        """Return the code's value as the engine converts it; *finished* is None if the code failed."""
        program, value = self.program, None
        if finished is not None and self._is_small():
            try:
                value = finished.output
            except TypeError:
                value = NO_HASH
        elif finished is not None and (program.ends_with_value or program.result_mode == "always"):
            value = self._shown(self._value_expression())
        if program.result_mode == "maybe":
            bound, found = self._find_result()
            value = found if bound else value
        return value

    def as_json(self, value: object) -> tuple[Json, ErrorObject | None]:
        """Convert *value* to JSON; return the JSON and None, or None and the error if it has no JSON form."""
        if value is None or type(value) is bool or (type(value) is int and value.bit_length() <= 64):
            return value, None
        if isinstance(value, Unreadable):
            limit = value.too_large
            return None, run_errors.not_serializable(
                str(value.foreign)
            ) if limit is None else run_errors.result_too_large(limit)
        try:
            clean, size = to_json(value)
        except ValueTooLarge as error:
            return None, run_errors.result_too_large(error.limit)
        except InvalidArgument:
            return None, run_errors.not_serializable(_first_foreign(value))
        if size > MAX_VALUE_BYTES:
            return None, run_errors.result_too_large(
                f"it is {size} bytes as JSON, the limit is {MAX_VALUE_BYTES}"
            )
        if isinstance(clean, (int, float)):
            return clean, None
        functions = {*self._functions.names(), *self.names, *self.program.bound}
        if _may_hold_stand_ins(clean, functions):
            try:
                snapshot = self.loaded.show(self._value_expression(), functions)
                found = stand_ins(self.loaded.dump(snapshot))
                snapshot.resume({"return_value": None})
            except engine.MontyError:
                return clean, None
            if found:
                return None, run_errors.not_serializable(_type_of_stand_in(found[0]))
        return clean, None

    def give_names_back(self, *, drop_value: bool) -> None:
        """Restore borrowed names to their earlier values; with *drop_value*, also unbind the run's value."""
        # The engine has neither `del` nor a list of globals, but it unbinds the name of an `except` clause.
        lines = [_unbind(VALUE_NAME)] if drop_value else []
        for name in self.borrowed:
            if name != "result" or self.program.result_mode != "maybe":
                lines.append(_put_back(name) if name in self.kept else _unbind(name))
        if lines:
            self.loaded.evaluate("\n".join(lines))

    def _shown(self, expression: str) -> object:
        """Return the value of *expression*, unless a dump shows that it must not be converted."""
        worker = self.loaded
        snapshot = worker.show(expression, None)
        given = worker.arguments(snapshot, small=worker.sent_bytes() <= TINY_FRAME_BYTES)
        snapshot.resume({"return_value": None})
        return given if isinstance(given, Unreadable) else given[0][0]

    def _value_expression(self) -> str:
        """Return an expression for the run's value."""
        if self.program.reads_only is not None:
            return f"({last_expression(self.program.code)}\n)"
        return VALUE_NAME if self.program.result_mode == "never" else "result"

    def _find_result(self) -> tuple[bool, object]:
        """Return whether the run bound `result`, and its value."""
        # If the run also reads an earlier `result`, it bound `result` if it left a mark, or the object
        # differs.
        worker, existed, value = self.loaded, "result" in self.kept, None
        try:
            bound = True
            if existed and self.program.reads_result:
                aside = _KEPT.format("result")
                bound = worker.evaluate(f"bool({MARK_NAME}) or result is not {aside}") is True
            if bound:
                limit = SMALL_FRAME_BYTES if self.plain_keys else TINY_FRAME_BYTES
                value = worker.evaluate("result", max_frame_bytes=limit)
                value = self._shown("result") if value is UNREAD else value
        except engine.MontyRuntimeError as error:
            if "is not defined" not in str(error):
                raise
            bound, value = False, None
        if existed:
            worker.evaluate(_unbind(_KEPT.format("result")) if bound else _put_back("result"))
        return bound, value


def _copy(name: str, target: str) -> str:
    return f"try:\n    {target} = {name}\nexcept NameError:\n    pass"


def _unbind(name: str) -> str:
    return f"try:\n    raise ValueError\nexcept ValueError as {name}:\n    pass"


def _put_back(name: str) -> str:
    """Return code that restores the value of *name* that was saved before the run."""
    aside = _KEPT.format(name)
    return "\n".join([_unbind(name), _copy(aside, name), _unbind(aside)])


@functools.lru_cache(maxsize=1)
def _exceptions() -> frozenset[str]:
    """Return the names of the exceptions that the engine knows."""
    return frozenset(get_args(engine.ExcType))


def _type_of_stand_in(text: str) -> str:
    """Return the type name that the text of a stand-in shows."""
    if text == "<deeply nested>":
        return "a value nested too deeply"
    if text.startswith("<class "):
        return "type"
    if text.startswith("re.compile("):
        return "Pattern"
    found = re.match(r"<([\w.]+)|([\w.]+)\(", text)
    return (found[1] or found[2]) if found else "object"


def _are_few_numbers(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether the arguments are a few JSON numbers, booleans or None, which need no check."""
    if len(args) + len(kwargs) > _FEW or (kwargs and max(map(len, kwargs)) > _SHORT_NAME_CHARS):
        return False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is int:
            if value.bit_length() > 63:
                return False
        elif kind is float:
            if value - value != 0.0:  # infinite, or not a number
                return False
        elif value is not None and kind is not bool:
            return False
    return True


def _may_hold_stand_ins(value: Json, function_names: Container[str]) -> bool:
    """Return whether a string in *value* could be a stand-in for something that is not a string."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if item in function_names or _STAND_IN.fullmatch(item):
                return True
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
    return False


def _first_foreign(value: object) -> str:
    """Return the type name of the first part that has no JSON form."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return f"float {item}"
        if isinstance(item, int) and item.bit_length() > 14_000:
            return "int of more than 4300 digits"
        if item is None or isinstance(item, (bool, int, float, str)):
            continue
        if isinstance(item, (list, tuple)) and type(item) in (list, tuple):
            pending.extend(reversed(item))
        elif isinstance(item, dict):
            foreign = [key for key in item if not isinstance(key, (str, int, float, bool, type(None)))]
            if foreign:
                return f"dict with {type(foreign[0]).__name__} keys"
            pending.extend(item.values())
        else:
            proxied = {"MontyClassProxy": "name", "MontyStdTypeProxy": "kind"}.get(type(item).__name__)
            return type(item).__name__ if proxied is None else str(getattr(item, proxied, "object"))
    return "a value nested too deeply"
