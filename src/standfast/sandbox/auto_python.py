"""Python on Monty, and on CPython from the first cell on that Monty cannot run.

Theory of operation
-------------------
A session begins on Monty. A cell that needs what Monty lacks (a base class, `yield`, a module) is refused by
it, nearly always before anything ran. If the cell has called nothing by then, the session *moves*: its
variables are taken out of Monty and made again in CPython, and the cell is run there from its beginning. From
then on the session is CPython's::

    open ─ Monty: start ─ refused, nothing called ─ take out ─ CPython: make again ─ CPython: start ─ …
                        └ anything else ─ Monty: answer ─ … ─ end

Rules
-----
1. A session moves at most once, and never back. An error that CPython raises as well moves nothing.
2. A cell that has called something, or has been answered on the spot, stays where it is: its calls happened.
3. What could not be taken along is said in the notes of the cell that moved the session.
4. A state that Monty alone has written is a session on Monty.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Collection
from typing import Any, Final

import msgspec

from standfast.errors import Code, ErrorObject, StandfastError
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
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
    Touched,
)
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.monty.taking_out import TakenOut, definitions_in

_MISSING: Final = (
    (re.compile(r"ModuleNotFoundError: No module named '(\w+)"), sys.stdlib_module_names),
    (re.compile(r"(\w+)\(\) is neither defined nor"), frozenset(dir(builtins))),
    (re.compile(r"NameError: name '(\w+)' is not defined"), frozenset(dir(builtins))),
    (re.compile(r"AttributeError: module '(\w+)' has no"), sys.stdlib_module_names),
    (re.compile(r"ImportError: cannot import name '\w+' from '(\w+)'"), sys.stdlib_module_names),
)
"""What an error says is missing, and what CPython has of that kind."""
_DOUBTFUL: Final = frozenset({"AttributeError", "NotImplementedError", "TypeError", Code.MEMORY_EXCEEDED})
"""Errors that may be the code's own, or for want of a method, or because Monty makes lists of what CPython
iterates over: CPython tells by ending in the same way, or not."""


class _OnMonty(msgspec.Struct, frozen=True, tag="monty"):
    """A session that has not moved: Monty's state, and what it has defined, for the day it moves."""

    state: bytes
    definitions: dict[str, str]


class _OnCPython(msgspec.Struct, frozen=True, tag="cpython"):
    state: bytes


class _Standing(msgspec.Struct, frozen=True):
    """A suspended cell: where it stands, and the session as it was when it began there."""

    before: _OnMonty | _OnCPython
    data: bytes
    notes: tuple[str, ...] = ()


_Place = _OnMonty | _OnCPython
_places: Final = msgspec.msgpack.Decoder(_Place)
_standing: Final = msgspec.msgpack.Decoder(_Standing)
_encode: Final = msgspec.msgpack.Encoder().encode


class AutoPython:
    """A `CodeEngine` over two others. Closing those is up to whoever made them."""

    language = Language.PYTHON

    def __init__(self, monty: MontyCells, cpython: CodeEngine) -> None:
        self.monty = monty
        self.cpython = cpython

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        """What is wrong with the code, wherever it is going to run."""
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

    def touched(self, code: str, names: Collection[str]) -> Touched:
        return self.monty.touched(code, names)

    def names(self, state: bytes) -> list[str]:
        place = _place_of(state)
        return self._engine_of(place).names(place.state)

    def prepare(self) -> None:
        """Most sessions never need the other engine."""

    def open(self, request: CellRequest) -> AutoRun:
        return AutoRun(self, request)

    def forget(self, key: str) -> None:
        self.monty.forget(key)
        self.cpython.forget(key)

    def close(self) -> None:
        """Nothing here is open but the engines of others."""

    def _engine_of(self, place: _Place) -> CodeEngine:
        return self.monty if isinstance(place, _OnMonty) else self.cpython

    def moved(self, place: _OnMonty, request: CellRequest) -> tuple[_OnCPython, list[str]]:
        """The session in CPython, and what could not be taken along."""
        taken = self.monty.take_out(place.state, place.definitions)
        making = self.cpython.open(
            CellRequest(
                key=request.key,
                code=_making(taken),
                limits=request.limits,
                functions=_NoFunctions(),
                now_ms=request.now_ms,
                seed=request.seed,
            )
        )
        ended = making.start()
        making.close()  # one that stands still would keep its place among the workers
        if not isinstance(ended, CellEnd) or ended.error is not None:
            problem = ended.error.message if isinstance(ended, CellEnd) and ended.error else "it stands still"
            raise _CannotMove(problem)
        lost = ended.result if isinstance(ended.result, list) else []
        return _OnCPython(ended.state or b""), [*taken.lost, *map(str, lost)]


class _CannotMove(StandfastError):
    """What a session holds cannot be made again."""

    code = Code.UNSUPPORTED_FEATURE


class AutoRun:
    """One cell, on the engine that runs it. One thread at a time uses it; `stop` may come from others."""

    def __init__(self, engine: AutoPython, request: CellRequest) -> None:
        self._engine = engine
        self._request = request
        self._place: _Place
        self._notes: tuple[str, ...] = ()
        self._called = False
        self._stopped: ErrorObject | None = None
        data = b""
        if request.paused:
            standing = _standing.decode(request.paused)
            self._place, data, self._notes, self._called = (
                standing.before,
                standing.data,
                standing.notes,
                True,
            )
        else:
            self._place = _place_of(request.state)
        self._began_on_cpython = isinstance(self._place, _OnCPython)
        self._run = self._open(data)

    def start(self) -> CellStep:
        return self._came_to(self._run.start())

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        self._called = True
        return self._came_to(self._run.answer(number, answer))

    def printed(self) -> CellOutput:
        return self._run.printed()

    def suspend(self) -> bytes:
        return _encode(_Standing(self._place, self._run.suspend(), self._notes))

    def stop(self, error: ErrorObject) -> None:
        self._stopped = error
        self._run.stop(error)

    def close(self) -> None:
        self._run.close()

    def _open(self, paused: bytes = b"") -> CellRun:
        """The cell on the engine where its session is."""
        request = msgspec.structs.replace(
            self._request,
            state=self._place.state,
            paused=paused,
            answer_now=self._answer_now if self._request.answer_now is not None else None,
            through=self._through if self._request.through is not None else None,
        )
        return self._engine._engine_of(self._place).open(request)

    def _answer_now(self, call: CellCall) -> CallAnswer | None:
        assert self._request.answer_now is not None
        answer = self._request.answer_now(call)
        self._called = True
        return answer

    def _through(self, end: CellEnd) -> None:
        """Tell an end early, unless the cell may still be moved, or the move be undone, because of it."""
        assert self._request.through is not None
        if end.error is None or self._called or self._began_on_cpython:
            self._request.through(msgspec.structs.replace(end, notes=(*self._notes, *end.notes)))

    def _came_to(self, step: CellStep) -> CellStep:
        if not isinstance(step, CellEnd):
            return step
        if self._called or isinstance(self._place, _OnCPython) or step.error is None:
            return self._ended(step)
        if lacking(step.error) or _kind_of(step.error) in _DOUBTFUL:
            return self._move(self._place, step, step.error)
        return self._ended(step)

    def _move(self, before: _OnMonty, refused: CellEnd, error: ErrorObject) -> CellStep:
        """Go on in CPython; where that cannot be, or leads to the same error, the refusal stands."""
        try:
            self._place, lost = self._engine.moved(before, self._request)
        except StandfastError as problem:
            note = f"the session could not be moved to CPython: {problem.message}"
            return self._ended(msgspec.structs.replace(refused, notes=(*refused.notes, note)))
        self._notes = (_moved_note(error.message, lost),)
        self._run = self._open()
        if self._stopped is not None:
            self._run.stop(self._stopped)
        step = self._run.start()
        if isinstance(step, CellEnd) and not lacking(error) and _same(step.error, error):
            self._place, self._notes = before, ()
            return self._ended(refused)
        return self._came_to(step)

    def _ended(self, ended: CellEnd) -> CellEnd:
        """The end, with a state that says whose it is."""
        return msgspec.structs.replace(ended, state=self._left(ended), notes=(*self._notes, *ended.notes))

    def _left(self, ended: CellEnd) -> bytes | None:
        place = self._place
        if isinstance(place, _OnCPython):
            unchanged = ended.state is None and (ended.hard or not self._notes)
            return None if unchanged else _encode(_OnCPython(ended.state or place.state))
        if ended.state is None:
            return None
        bound = set(self._engine.monty.names(ended.state))
        known = {**place.definitions, **definitions_in(self._request.code)}
        return _encode(_OnMonty(ended.state, {name: text for name, text in known.items() if name in bound}))


def lacking(error: ErrorObject) -> bool:
    """Whether an error says that Monty lacks something which CPython has."""
    if error.code == Code.UNSUPPORTED_FEATURE:
        return True
    for pattern, known in _MISSING:
        found = pattern.match(error.message)
        if found is not None and found[1] in known:
            return True
    return False


def _kind_of(error: ErrorObject) -> str:
    """The type of an exception that the code raised, as its error tells it, or what else it ended with."""
    return error.message.partition(":")[0] if error.code == Code.RUNTIME_ERROR else error.code


def _same(error: ErrorObject | None, other: ErrorObject) -> bool:
    return error is not None and _kind_of(error) == _kind_of(other)


def _moved_note(lacks: str, lost: list[str]) -> str:
    note = f"from this cell on, the session runs on CPython, because of: {lacks}"
    return f"{note}; these variables could not be taken along: {', '.join(sorted(lost))}" if lost else note


def _making(taken: TakenOut) -> str:
    """Code that makes a session's variables; its value are the names of those that it could not make."""
    lines = [f"{name} = {text}" for name, text in taken.values.items()]
    lines.append("__standfast_lost = []")
    for text, names in _by_text(taken.definitions).items():
        lines += [
            "try:",
            f"    exec({text!r}, globals())",
            "except Exception:",
            f"    __standfast_lost += {names!r}",
        ]
    return "\n".join([*lines, 'globals().pop("__standfast_lost")'])


def _by_text(definitions: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, text in definitions.items():
        found.setdefault(text, []).append(name)
    return found


def _place_of(state: bytes) -> _Place:
    if not state:
        return _OnMonty(b"", {})
    try:
        place: _Place = _places.decode(state)
    except msgspec.ValidationError:
        return _OnMonty(state, {})  # it is Monty's own, which says itself if it cannot be read
    return place


class _NoFunctions:
    """Nothing can be called."""

    def __contains__(self, name: object, /) -> bool:
        return False

    def names(self) -> list[str]:
        return []

    def capability(self, name: str) -> Any:
        raise LookupError(name)

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None
