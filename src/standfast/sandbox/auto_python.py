"""Python on Monty, then on CPython from the first cell that Monty cannot run.

Monty refuses a cell that needs a feature it lacks (a base class, `yield`, a module), nearly always before any
code has run. If the cell has made no call by then, the session *moves*: its variables are read from Monty and
recreated in CPython, and the cell runs there from its beginning::

    open ─ Monty: start ─ refused, nothing called ─ read variables ─ CPython: set them ─ CPython: start ─ …
                        └ anything else ─ Monty: answer ─ … ─ end

Rules
-----
1. A session moves at most once, and never back. It does not move if CPython raises the same error.
2. A cell that has made a call, even one that was answered immediately, stays on its engine.
3. The notes of the cell that moved the session name the variables that could not be moved.
4. A state that the engine `monty` wrote is read as a session that has not moved.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Collection
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject, StandfastError
from standfast.model.code import Diagnostic, Language
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellFunctions,
    CellOutput,
    CellRequest,
    CellRun,
    CellStep,
    Check,
    CodeEngine,
    NamesRead,
)
from standfast.sandbox.inspection import NO_FUNCTIONS
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.monty.session_source import definitions_in

_MISSING: Final = (
    (re.compile(r"ModuleNotFoundError: No module named '(\w+)"), sys.stdlib_module_names),
    (re.compile(r"(\w+)\(\) is neither defined nor"), frozenset(dir(builtins))),
    (re.compile(r"NameError: name '(\w+)' is not defined"), frozenset(dir(builtins))),
    (re.compile(r"AttributeError: module '(\w+)' has no"), sys.stdlib_module_names),
    (re.compile(r"ImportError: cannot import name '\w+' from '(\w+)'"), sys.stdlib_module_names),
)
"""Patterns of messages that name something missing, each with the names of that kind that CPython has."""
_DOUBTFUL: Final = frozenset({"AttributeError", "NotImplementedError", "TypeError", Code.MEMORY_EXCEEDED})
"""Errors that may be caused by the code itself, by a method that Monty lacks, or by a list that Monty builds
where CPython iterates. The session moves unless the cell ends with the same error on CPython."""


class _OnMonty(msgspec.Struct, frozen=True, tag="monty"):
    """A session that has not moved: Monty's state, and the source of the definitions needed to move it."""

    state: bytes
    definitions: dict[str, str]


class _OnCPython(msgspec.Struct, frozen=True, tag="cpython"):
    state: bytes


class _Suspended(msgspec.Struct, frozen=True):
    """A suspended cell, and the session as it was when the cell began on its engine."""

    before: _OnMonty | _OnCPython
    data: bytes
    notes: tuple[str, ...] = ()


_Place = _OnMonty | _OnCPython
_places: Final = msgspec.msgpack.Decoder(_Place)
_suspended: Final = msgspec.msgpack.Decoder(_Suspended)
_encode: Final = msgspec.msgpack.Encoder().encode


class AutoPython:
    """A `CodeEngine` built on two others, which their owner closes."""

    language = Language.PYTHON

    def __init__(self, monty: MontyCells, cpython: CodeEngine) -> None:
        self.monty = monty
        self.cpython = cpython

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        place = _place_of(state)
        if isinstance(place, _OnCPython):
            return self.cpython.check(
                code, state=place.state, functions=functions, inputs=inputs, check=check
            )
        found = self.monty.check(code, state=place.state, functions=functions, inputs=inputs, check=check)
        rest = [one for one in found if one.code != Code.UNSUPPORTED_FEATURE]
        if len(rest) == len(found):
            return found
        there = self.cpython.check(code, state=b"", functions=functions, inputs=inputs, check="calls")
        return [*rest, *(one for one in there if one.code == Code.UNSUPPORTED_FEATURE)]

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        return self.monty.touched(code, names)

    def names(self, state: bytes) -> list[str]:
        place = _place_of(state)
        return self.engine_of(place).names(place.state)

    def prepare(self) -> None:
        """Do nothing: most sessions never need CPython."""

    def open(self, request: CellRequest) -> AutoRun:
        return AutoRun(self, request)

    def forget(self, key: str) -> None:
        self.monty.forget(key)
        self.cpython.forget(key)

    def close(self) -> None:
        """Do nothing: the owner of the two engines closes them."""

    def engine_of(self, place: _Place) -> CodeEngine:
        return self.monty if isinstance(place, _OnMonty) else self.cpython

    def moved(self, place: _OnMonty, request: CellRequest) -> tuple[_OnCPython, list[str]]:
        """Recreate the session in CPython; return it and the names of the variables that were not moved."""
        source = self.monty.session_source(place.state, place.definitions)
        making = self.cpython.open(
            CellRequest(
                key=request.key,
                code=source.code(),
                limits=request.limits,
                functions=NO_FUNCTIONS,
                now_ms=request.now_ms,
                seed=request.seed,
            )
        )
        ended = making.start()
        making.close()  # a cell that waits would keep its worker
        if not isinstance(ended, CellEnd) or ended.error is not None:
            problem = ended.error if isinstance(ended, CellEnd) else None
            raise _CannotMove(problem.message if problem else "recreating its variables did not end")
        lost = ended.result if isinstance(ended.result, list) else []
        return _OnCPython(ended.state or b""), [*source.lost, *map(str, lost)]


class _CannotMove(StandfastError):
    """The variables of a session cannot be recreated in CPython."""

    code = Code.UNSUPPORTED_FEATURE


class AutoRun:
    """One cell, on the engine that runs it. One thread at a time uses it; any thread may call `stop`."""

    def __init__(self, engine: AutoPython, request: CellRequest) -> None:
        self._engine = engine
        self._request = request
        self._called = bool(request.paused)
        self._stopped: ErrorObject | None = None
        if request.paused:
            suspended = _suspended.decode(request.paused)
        else:
            suspended = _Suspended(_place_of(request.state), b"")
        self._place, self._notes = suspended.before, suspended.notes
        self._began_on_cpython = isinstance(self._place, _OnCPython)
        self._run = self._open(suspended.data)

    def start(self) -> CellStep:
        return self._checked(self._run.start())

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        self._called = True
        return self._checked(self._run.answer(number, answer))

    def printed(self) -> CellOutput:
        return self._run.printed()

    def suspend(self) -> bytes:
        return _encode(_Suspended(self._place, self._run.suspend(), self._notes))

    def stop(self, error: ErrorObject) -> None:
        self._stopped = error
        self._run.stop(error)

    def close(self) -> None:
        self._run.close()

    def _open(self, paused: bytes = b"") -> CellRun:
        """Open the cell on the engine where its session is."""
        answer_now, through = self._request.answer_now, self._request.through

        def answer(call: CellCall) -> CallAnswer | None:
            found = answer_now(call) if answer_now is not None else None
            self._called = True
            return found

        def report(end: CellEnd) -> None:
            """Report *end* early, unless the session may still move because of it, or a move be undone."""
            if through is not None and (end.error is None or self._called or self._began_on_cpython):
                through(msgspec.structs.replace(end, notes=(*self._notes, *end.notes)))

        request = msgspec.structs.replace(
            self._request,
            state=self._place.state,
            paused=paused,
            answer_now=answer if answer_now is not None else None,
            through=report if through is not None else None,
        )
        return self._engine.engine_of(self._place).open(request)

    def _checked(self, step: CellStep) -> CellStep:
        """Return *step*, but move the session if a feature missing in Monty may have caused an end."""
        if not isinstance(step, CellEnd):
            return step
        if self._called or isinstance(self._place, _OnCPython) or step.error is None:
            return self._ended(step)
        if lacking(step.error) or _kind_of(step.error) in _DOUBTFUL:
            return self._move(self._place, step, step.error)
        return self._ended(step)

    def _move(self, before: _OnMonty, refused: CellEnd, error: ErrorObject) -> CellStep:
        """Run the cell in CPython; return *refused*, Monty's end, if that fails, or the error is the same."""
        try:
            self._place, lost = self._engine.moved(before, self._request)
        except StandfastError as problem:
            note = f"the session could not be moved to CPython: {problem.message}"
            return self._ended(msgspec.structs.replace(refused, notes=(*refused.notes, note)))
        note = f"from this cell on, the session runs on CPython, because of: {error.message}"
        if lost:
            note += f"; these variables could not be moved: {', '.join(sorted(lost))}"
        self._notes = (note,)
        self._run = self._open()
        if self._stopped is not None:
            self._run.stop(self._stopped)
        step = self._run.start()
        again = step.error if isinstance(step, CellEnd) else None
        if again is not None and _kind_of(again) == _kind_of(error) and not lacking(error):
            self._place, self._notes = before, ()
            return self._ended(refused)
        return self._checked(step)

    def _ended(self, ended: CellEnd) -> CellEnd:
        """Return *ended* with a state that names its engine."""
        place, state = self._place, ended.state
        if isinstance(place, _OnCPython):
            if state is not None or (self._notes and not ended.hard):
                state = _encode(_OnCPython(state or place.state))
        elif state is not None:
            bound = set(self._engine.monty.names(state))
            known = {**place.definitions, **definitions_in(self._request.code)}
            kept = {name: text for name, text in known.items() if name in bound}
            state = _encode(_OnMonty(state, kept))
        return msgspec.structs.replace(ended, state=state, notes=(*self._notes, *ended.notes))


def lacking(error: ErrorObject) -> bool:
    """Return whether *error* says that Monty lacks something that CPython has."""
    found = ((pattern.match(error.message), known) for pattern, known in _MISSING)
    return error.code == Code.UNSUPPORTED_FEATURE or any(name and name[1] in known for name, known in found)


def _kind_of(error: ErrorObject) -> str:
    """Return the type of the exception that the code raised; for any other error, its code."""
    return error.message.partition(":")[0] if error.code == Code.RUNTIME_ERROR else error.code


def _place_of(state: bytes) -> _Place:
    if not state:
        return _OnMonty(b"", {})
    try:
        place: _Place = _places.decode(state)
    except msgspec.ValidationError:
        return _OnMonty(state, {})  # a state of the engine `monty`, or one that Monty will reject
    return place
