"""Engines from other packages: found by entry point, built on a stepper, run in a sandbox."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from standfast import Agent, BlockingSandbox, CodeProtocol, ScriptedModel, tool
from standfast.errors import CodeExecutionUnavailable, InvalidArgument
from standfast.model.code import Diagnostic, Language
from standfast.ports.cell_stepper import CellStopped, EngineCall, Step, StepEnded, StepperHost
from standfast.ports.code_engine import CallAnswer, CellFunctions, Check, NamesRead
from standfast.sandbox import engine_kinds
from standfast.sandbox.cell_lifecycle import SteppedCells
from standfast.sandbox.engine_kinds import EngineKind

PACKAGE = "standfast_counting"


class CountingStepper:
    """A stepper that runs lines: `call NAME JSON`, `stop`, or a number to add to the session's total."""

    replayed = True
    wall_grace_s = 0.0
    instructions: int | None = None

    def __init__(self, host: StepperHost) -> None:
        self._host = host

    def prepare(self) -> None: ...

    def begin(self) -> Step:
        self._lines = self._host.request.code.splitlines()
        self._total = int(self._host.request.state or b"0")
        return self.proceed()

    def proceed(self) -> Step:
        while self._lines:
            if self._host.stopped is not None:
                raise CellStopped
            line = self._lines.pop(0)
            if line.startswith("call "):
                _, name, argument = line.split(" ", 2)
                return EngineCall(id=len(self._lines), name=name, args=[ast.literal_eval(argument)])
            self._host.output("stdout", f"{line}\n")
            self._total += int(line)
        return StepEnded(result=self._total)

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        self._total += answer.value if isinstance(answer.value, int) else 0
        return self.proceed()

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return False

    def keep(self) -> bytes | None:
        return str(self._total).encode()

    def put_aside(self) -> None: ...

    def dump(self) -> bytes:
        return b""

    def load(self) -> Step:
        raise AssertionError("it is replayed")

    def is_in_worker(self) -> bool:
        return True

    def memory_peak_bytes(self) -> int | None:
        return None

    def release(self, *, warm: bool) -> None: ...

    def kill(self) -> None: ...


class CountingCells(SteppedCells):
    language = Language.PYTHON

    def stepper(self, host: StepperHost, dump: bytes) -> CountingStepper:
        return CountingStepper(host)

    def names(self, state: bytes) -> list[str]:
        return ["total"]

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        return NamesRead({})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        return []


KIND = EngineKind(language=Language.PYTHON, version=lambda: "1", open=lambda settings: CountingCells())
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a package that offers the engine `counting`, with the given source."""

    def do(module: str = f"from {__name__} import KIND") -> None:
        site = tmp_path / "site"
        metadata = site / f"{PACKAGE}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (site / f"{PACKAGE}.py").write_text(module)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[standfast.engines]\ncounting = {PACKAGE}:KIND\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, PACKAGE, raising=False)

    monkeypatch.setattr(engine_kinds, "KINDS", dict(engine_kinds.KINDS))
    return do


@tool(side_effect="read")
def double(n: int) -> int:
    return 2 * n


@tool(approval="manual")
def ask(n: int) -> int:
    return n


def test_an_engine_from_another_package_runs_cells_in_a_sandbox(install: Install, tmp_path: Path) -> None:
    """Ours: an engine is added by an entry point and a stepper, without changes here."""
    install()
    with BlockingSandbox(tools=[double, ask], data_dir=tmp_path / "data", engine="counting") as box:
        assert box.run("1\n2", session="s").result == 3
        called = box.run("call double 5\n4", session="s")
        assert (called.result, called.stdout) == (3 + 10 + 4, "4\n")
        assert [call.name for call in called.external_calls] == ["double"]
        assert box.session("s").engine == "counting"
        waits = box.run("1\ncall double 2\ncall ask 100\n7", session="s")
        assert waits.status == "waiting_for_approval"
    with BlockingSandbox(tools=[double, ask], data_dir=tmp_path / "data") as box:
        (approval,) = box.approvals(pending=True)
        ended = box.approve(approval.approval_id)
        assert (ended.result, ended.stdout) == (17 + 1 + 4 + 100 + 7, "1\n7\n")
        assert box.run("1", session="s").result == 130


def test_an_engine_from_another_package_runs_an_agents_cells(install: Install) -> None:
    """Ours: an agent that acts in code may use any installed engine."""
    with pytest.raises(InvalidArgument, match="no engine 'counting'"):
        CodeProtocol(engine="counting")
    install()
    cell = "```python\n1\ncall double 5\n```"
    agent = Agent(ScriptedModel([cell, "done"]), protocol=CodeProtocol(engine="counting"), tools=[double])
    result = agent.run_sync("count")
    assert (result.status, result.output) == ("finished", "done")
    assert [call.name for call in result.calls] == ["double"]


def test_an_engine_that_is_not_installed_is_reported_with_instructions(
    install: Install, tmp_path: Path
) -> None:
    """Ours: a data directory may hold sessions of an engine that is gone."""
    with pytest.raises(InvalidArgument, match="no engine 'counting'"):
        BlockingSandbox(engine="counting")
    engine_kinds.KINDS["counting"] = KIND
    with BlockingSandbox(data_dir=tmp_path, engine="counting") as box:
        assert box.run("1", session="s").result == 1
    del engine_kinds.KINDS["counting"]
    with BlockingSandbox(data_dir=tmp_path) as box:
        error = box.run("1", session="s").error
        assert error is not None
        assert error.message == "the engine 'counting' is not installed"
        assert "standfast.engines" in (error.hint or "")
        assert box.destroy("s")


@pytest.mark.parametrize(
    ("module", "message"),
    [("import nothing_of_this_name", "cannot be imported"), ("KIND = 1", "int, not an EngineKind")],
)
def test_a_broken_entry_point_is_reported(install: Install, module: str, message: str) -> None:
    """Ours: the error names the package to repair."""
    install(module)
    with pytest.raises(CodeExecutionUnavailable, match=message) as caught:
        engine_kinds.find_kind("counting")
    assert PACKAGE in (caught.value.hint or "")


def test_the_shipped_engines_are_entry_points_too() -> None:
    """Ours: the table of shipped engines is a shortcut that must agree with the entry points."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = declared["entry-points"]["standfast.engines"]
    assert set(points) == {"monty", "cpython", "auto", "quickjs"}
    for name, target in points.items():
        module, _, attribute = target.partition(":")
        assert (module, getattr(engine_kinds, attribute)) == (
            engine_kinds.__name__,
            engine_kinds.KINDS[name],
        )


def test_the_hint_names_the_missing_package_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: heavy engines may be left out of an installation."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, hint in (
        ("monty", "pip install 'pydantic-monty'"),
        ("quickjs", "pip install 'standfast[typescript]'"),
    ):
        with pytest.raises(CodeExecutionUnavailable) as caught:
            engine_kinds.CodeEngines().get(name)
        assert caught.value.hint == hint
