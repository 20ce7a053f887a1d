"""Sixty small programs, each in Python and in TypeScript, give the right answers on every engine.

A program is three files of one name: the function in either language, typed as one would write it, and a JSON
file of calls and what they give. `needs` in it names the one Python engine that claims the Python
version; the other says what it does not have, before any of the code runs. `awaited` marks async functions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.errors import Code
from holdfast.model.capability import Capability
from holdfast.model.language import Language
from holdfast.model.limits import SessionLimits
from holdfast.ports.code_engine import CellEnd, CellRequest, CodeEngine
from holdfast.sandbox.cpython.cell_engine import CPythonCells
from holdfast.sandbox.monty.cell_engine import MontyCells
from holdfast.sandbox.quickjs.cell_engine import QuickJsCells

_HERE: Final = Path(__file__).parent / "programs"
_LIMITS: Final = SessionLimits(wall_ms=30_000)
_ENGINES: Final[dict[str, Callable[[], CodeEngine]]] = {
    "monty": lambda: MontyCells(capacity=2),
    "cpython": lambda: CPythonCells(capacity=2),
    "quickjs": lambda: QuickJsCells(capacity=2),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A function in both languages, and calls of it with what they give."""

    name: str
    code: dict[Language, str]
    args: list[list[Any]]
    gives: list[Any]
    needs: str | None
    awaited: bool

    def calls(self, language: Language) -> str:
        """A cell that calls the function for each of `calls`."""
        python = f"await {self.name}(*args)" if self.awaited else f"{self.name}(*args)"
        if language is Language.PYTHON:
            return f"[{python} for args in calls]"
        name = re.sub(r"_(\w)", lambda found: found[1].upper(), self.name)
        typescript = f"calls.map((args: [any]) => {name}(...args))"
        return f"await Promise.all({typescript})" if self.awaited else typescript


class NoFunctions:
    """The programs call nothing of the host's."""

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
    """The program whose calls are in a JSON file."""
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


def pairs(claimed: bool) -> list[Any]:
    """Each engine with each program that it claims, or that it does not."""
    return [
        pytest.param(engine, program, id=f"{engine}-{program.name}")
        for engine in _ENGINES
        for program in PROGRAMS
        if (engine == "quickjs" or program.needs in (None, engine)) is claimed
    ]


class Engines:
    """One engine of each kind, made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, CodeEngine] = {}

    def __getitem__(self, name: str) -> CodeEngine:
        if name not in self._made:
            self._made[name] = _ENGINES[name]()
        return self._made[name]

    def close(self) -> None:
        for engine in self._made.values():
            engine.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    made = Engines()
    yield made
    made.close()


def run(engine: CodeEngine, program: Program, code: str, state: bytes = b"", **inputs: Any) -> CellEnd:
    """Run a cell of a program's session, to its end."""
    asked = CellRequest(
        key=program.name, code=code, state=state, limits=_LIMITS, functions=NoFunctions(), inputs=inputs
    )
    end = engine.open(asked).start()
    assert isinstance(end, CellEnd), end
    return end


def same(found: Any, wanted: Any) -> bool:
    """Whether two JSON values are the same; floats may differ in their last digits."""
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


@pytest.mark.parametrize(("name", "program"), pairs(claimed=True))
def test_a_program_gives_the_right_answers(engines: Engines, name: str, program: Program) -> None:
    """Ours: what a model writes in either language, and defines in one cell, works in the next."""
    engine = engines[name]
    defined = run(engine, program, program.code[engine.language])
    assert (defined.error, defined.stdout) == (None, "")
    assert defined.state is not None
    calls = program.calls(engine.language)
    called = run(engine, program, calls, defined.state, calls=program.args)
    assert called.error is None
    for args, found, wanted in zip(program.args, called.result, program.gives, strict=True):
        assert same(found, wanted), f"{program.name}{tuple(args)} gives {found!r}, not {wanted!r}"


@pytest.mark.parametrize(("name", "program"), pairs(claimed=False))
def test_an_engine_says_what_it_does_not_have_before_anything_runs(
    engines: Engines, name: str, program: Program
) -> None:
    """Ours: a program that an engine does not claim is refused with a typed error, not half run."""
    engine = engines[name]
    code = program.code[engine.language]
    found = engine.check(code, state=b"", functions=NoFunctions(), inputs=(), check="types")
    assert Code.UNSUPPORTED_FEATURE in [diagnostic.code for diagnostic in found]


def test_there_are_sixty_programs_with_four_calls_or_more() -> None:
    """Ours: the suite is as large as it says, and Monty is asked for nearly all of it."""
    assert len(PROGRAMS) == 60
    assert len({program.name for program in PROGRAMS}) == 60
    assert min(len(program.args) for program in PROGRAMS) >= 4
    assert sum(program.needs is not None for program in PROGRAMS) <= 8
