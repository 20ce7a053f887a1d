"""Sixty small programs, each in Python and in TypeScript, give the right answers on every engine.

A program is three files with the same name: the function in each language, with natural types, and a JSON
file of calls and their results. Its `needs` names the only Python engine that claims the Python
version; the other one says what it lacks before any code runs. `awaited` marks async functions.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from standfast.errors import Code
from standfast.model.capability import Capability
from standfast.model.code import Language
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellEnd, CellRequest, Check, CodeEngine
from standfast.sandbox.auto_python import AutoPython
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.quickjs.cell_engine import QuickJsCells

pytestmark = pytest.mark.slow

_HERE: Final = Path(__file__).parent / "programs"
_LIMITS: Final = SessionLimits(wall_ms=30_000)
_ENGINES: Final[dict[str, Callable[[], CodeEngine]]] = {
    "monty": lambda: MontyCells(capacity=2),
    "cpython": lambda: CPythonCells(capacity=2),
    "quickjs": lambda: QuickJsCells(capacity=2),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A function in both languages, and calls of it with their results."""

    name: str
    code: dict[Language, str]
    args: list[list[Any]]
    gives: list[Any]
    needs: str | None
    awaited: bool

    def calls(self, language: Language) -> str:
        """Return a cell that calls the function for each of `calls`."""
        python = f"await {self.name}(*args)" if self.awaited else f"{self.name}(*args)"
        if language is Language.PYTHON:
            return f"[{python} for args in calls]"
        name = re.sub(r"_(\w)", lambda found: found[1].upper(), self.name)
        typescript = f"calls.map((args: [any]) => {name}(...args))"
        return f"await Promise.all({typescript})" if self.awaited else typescript


class NoFunctions:
    """No functions: the programs call nothing of the host's."""

    def __contains__(self, name: object, /) -> bool:
        return False

    def names(self) -> list[str]:
        return []

    def capability(self, name: str) -> Capability:
        raise LookupError(name)

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


def read(path: Path) -> Program:
    """Read the program whose calls are in a JSON file."""
    told = json.loads(path.read_text())
    return Program(
        name=path.stem,
        code={
            Language.PYTHON: path.with_suffix(".py").read_text(),
            Language.TYPESCRIPT: path.with_suffix(".ts").read_text(),
        },
        args=[case["args"] for case in told["cases"]],
        gives=[case["gives"] for case in told["cases"]],
        needs=told.get("needs"),
        awaited=told.get("awaited", False),
    )


PROGRAMS: Final = [read(path) for path in sorted(_HERE.glob("*/*.json"))]


def claims(engine: str, program: Program) -> bool:
    """Return whether an engine is expected to run a program. Each has a TypeScript version."""
    return engine == "quickjs" or program.needs in (None, engine)


def cells(*, claimed: bool) -> list[Any]:
    """Return each engine with each program that it claims, or that it does not."""
    return [
        pytest.param(name, program, id=f"{name}-{program.name}")
        for name in _ENGINES
        for program in PROGRAMS
        if claims(name, program) is claimed
    ]


class Session:
    """One cell after another on an engine. If a cell leaves no state, the previous state is kept."""

    def __init__(self, engine: CodeEngine, key: str, state: bytes = b"") -> None:
        self.engine = engine
        self.state = state
        self._key = key

    def run(self, code: str, **inputs: Any) -> CellEnd:
        asked = CellRequest(
            key=self._key,
            code=code,
            state=self.state,
            limits=_LIMITS,
            functions=NoFunctions(),
            inputs=inputs,
        )
        end = self.engine.open(asked).start()
        assert isinstance(end, CellEnd), end
        self.state = self.state if end.state is None else end.state
        return end

    def check(self, program: Program, closely: Check) -> list[str]:
        """Return the codes of everything that is wrong with a program, found without running it."""
        code = program.code[self.engine.language]
        found = self.engine.check(code, state=self.state, functions=NoFunctions(), inputs=(), check=closely)
        return [diagnostic.code for diagnostic in found]

    def define(self, program: Program) -> CellEnd:
        """Run the definition of a program's function."""
        defined = self.run(program.code[self.engine.language])
        assert (defined.error, defined.stdout) == (None, "")
        return defined

    def must_answer(self, program: Program) -> None:
        """Call the function as the program says, and check its results."""
        called = self.run(program.calls(self.engine.language), calls=program.args)
        assert called.error is None
        for args, found, wanted in zip(program.args, called.result, program.gives, strict=True):
            assert same(found, wanted), f"{program.name}{tuple(args)} gives {found!r}, not {wanted!r}"


class Sessions:
    """An engine of each kind with one session, created at first use."""

    def __init__(self) -> None:
        self._made: dict[str, Session] = {}

    def __getitem__(self, name: str) -> Session:
        if name not in self._made:
            self._made[name] = Session(_ENGINES[name](), "programs")
        return self._made[name]

    def close(self) -> None:
        for session in self._made.values():
            session.engine.close()


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    made = Sessions()
    yield made
    made.close()


def same(found: Any, wanted: Any) -> bool:
    """Return whether two JSON values are the same; floats may differ in their last digits."""
    match found, wanted:
        case [*_], [*_]:
            return len(found) == len(wanted) and all(map(same, found, wanted))
        case dict(), dict():
            return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
        case (bool(), _) | (_, bool()):
            return found is wanted
        case int() | float(), int() | float():
            return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == wanted)


@pytest.mark.parametrize(("name", "program"), cells(claimed=True))
def test_a_program_returns_the_right_answers(sessions: Sessions, name: str, program: Program) -> None:
    """Ours: what a model defines in one cell works in the next, whatever the session held before."""
    session = sessions[name]
    assert session.check(program, "calls") == []
    session.define(program)
    session.must_answer(program)


@pytest.mark.parametrize(("name", "program"), cells(claimed=False))
def test_an_engine_says_what_it_lacks_before_anything_runs(
    sessions: Sessions, name: str, program: Program
) -> None:
    """Ours: a program that an engine does not claim is refused with a typed error, and not run in part."""
    session = Session(sessions[name].engine, "refused")
    assert Code.UNSUPPORTED_FEATURE in session.check(program, "types")
    assert session.run(program.code[session.engine.language]).error is not None
    assert session.run(program.name).error is not None


@pytest.mark.parametrize("program", [pytest.param(p, id=p.name) for p in PROGRAMS if p.needs])
def test_auto_moves_a_program_to_the_engine_that_claims_it(sessions: Sessions, program: Program) -> None:
    """Ours: a user need not know what each engine supports; the cell that moved the session says so."""
    monty, cpython = sessions["monty"].engine, sessions["cpython"].engine
    assert isinstance(monty, MontyCells)
    session = Session(AutoPython(monty, cpython), f"auto-{program.name}")
    assert any("cpython" in note.lower() for note in session.define(program).notes)
    session.must_answer(program)


@pytest.mark.parametrize("name", _ENGINES)
def test_definitions_of_programs_work_in_another_process(name: str) -> None:
    """Ours: functions, classes and enums are in the state itself, not in the process that created them."""
    kinds = ("cache_trace", "natural_order", "relay_teams", "transfer_ledger", "vending_machine")
    programs = [each for each in PROGRAMS if each.name in kinds and claims(name, each)]
    with contextlib.closing(_ENGINES[name]()) as engine:
        first = Session(engine, "first")
        for program in programs:
            first.define(program)
    with contextlib.closing(_ENGINES[name]()) as engine:
        second = Session(engine, "second", first.state)
        for program in programs:
            second.must_answer(program)


def test_there_are_sixty_programs_with_at_least_four_calls() -> None:
    """Ours: the suite is as large as it says, and Monty runs nearly all of it."""
    assert len(PROGRAMS) == 60
    assert len({program.name for program in PROGRAMS}) == 60
    assert min(len(program.args) for program in PROGRAMS) >= 4
    assert sum(program.needs is not None for program in PROGRAMS) <= 8
