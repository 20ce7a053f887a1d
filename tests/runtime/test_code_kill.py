"""Kills from outside while a cell computes, calls, waits or has just been decided.

Afterwards the rules of `test_code_crash.py` hold, and no process started by the killed one is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_scenarios.code_theatre import CodeTruth
from crash_scenarios.theatre import WAYS

from standfast.store.sqlite.connection import open_checked

FOLDER = Path(__file__).parent / "crash_scenarios"
PROGRAM = (FOLDER / "code_program.py").read_text()
HEIRS = ("request", "resume", "recover")

pytestmark = pytest.mark.slow


class Home:
    """A directory in which successive processes run the same scenario."""

    def __init__(self, child: Callable[..., Any], path: Path, scenario: str) -> None:
        self._child = child
        self.path = path
        self.scenario = scenario

    def start(self, how: str = "request") -> Any:
        job = {"home": str(self.path), "scenario": self.scenario, "how": how}
        process = self._child(PROGRAM, FOLDER, json.dumps(job))
        assert process.line() == "ready"
        return process

    def says(self, process: Any, status: str) -> Any:
        assert json.loads(process.line()) == {"status": status}
        return process

    def ends(self, how: str) -> CodeTruth:
        """Let the last process finish, and check everything."""
        truth = CodeTruth(self.path, json.loads(self.start(how).line()))
        truth.check(self.scenario)
        return truth

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def acts(self, kind: str) -> list[Any]:
        path = self.path / "acts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one.get("act") == kind]

    def computes(self) -> bool:
        """Return whether the first call has its result in the journal."""
        return bool(self.acts("call")) and self.is_journaled("tool.2")

    def is_journaled(self, name: str) -> bool:
        with contextlib.closing(open_checked(str(self.path / "standfast.db"))) as database:
            found = database.execute("SELECT 1 FROM journal WHERE name = ? AND kind = 'input'", (name,))
            return found.fetchone() is not None


@pytest.fixture
def home(child: Callable[..., Any], tmp_path: Path) -> Callable[..., Home]:
    def make(scenario: str, name: str = "home") -> Home:
        (tmp_path / name).mkdir()
        return Home(child, tmp_path / name, scenario)

    return make


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", HEIRS)
def test_a_cell_killed_while_it_computes_is_rerun_and_repeats_no_call(
    home: Callable[..., Home], how: str
) -> None:
    """Ours: no call is running, so nothing is interrupted or requested again."""
    computing = _killed_while_it_computes(home)
    truth = computing.ends(how)
    assert [line["name"] for line in truth.ledger] == ["price", "charge"]
    assert len(computing.acts("begin")) == 4  # the cell twice, and two cells that read the variables


def _killed_while_it_computes(home: Callable[..., Home]) -> Home:
    """Return a home whose process was killed between two calls, retrying if it was too quick."""
    for number in range(10):
        computing = home("computes", f"home{number}")
        victim = computing.start()
        computing.until(computing.computes)
        victim.kill()
        if not computing.is_journaled("cell.1.2"):
            return computing
    raise AssertionError("it was always quicker")


def test_the_engine_of_a_process_killed_while_it_computes_does_not_outlive_it(
    home: Callable[..., Home],
) -> None:
    """Ours: only the process itself is killed; the processes that it started notice and end."""
    computing = home("computes")
    victim = computing.start()
    computing.until(computing.computes)
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.process.wait(timeout=10)
    computing.until(lambda: not _any_left(victim.process.pid))
    computing.ends("recover")


def _any_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize("how", HEIRS)
@pytest.mark.parametrize("name", ["stock", "charge", "book", "refund"])
def test_a_cell_killed_while_its_call_runs_gets_the_known_outcome_of_the_call(
    home: Callable[..., Home], name: str, how: str
) -> None:
    """Ours: a running call is repeated if it is idempotent, otherwise reported as interrupted."""
    hanging = home("five")
    gate = hanging.path / f"{name}.hang"
    gate.touch()
    victim = hanging.start()
    hanging.until(lambda: any(line["name"] == name for line in hanging.acts("call")))
    victim.kill()
    gate.unlink()
    truth = hanging.ends(how)
    hung = [call for call in truth.made.values() if call["name"] == name]
    assert [(call.get("error") or {}).get("code") for call in hung] == [
        None if name == "stock" else "INTERRUPTED"
    ]
    times = [line["name"] for line in truth.ledger].count(name)
    assert times <= (2 if name == "stock" else 1)  # a kill may come before the first execution is logged
    assert times >= (1 if name == "stock" else 0)


@pytest.mark.parametrize("how", HEIRS)
def test_a_waiting_cell_survives_the_process_that_ran_it(home: Callable[..., Home], how: str) -> None:
    """Ours: the suspended cell is stored and resumes where it stopped."""
    waiting = home("five")
    waiting.says(waiting.start("ask"), "waiting").kill()
    truth = waiting.ends(how)
    assert [line["name"] for line in truth.ledger].count("price") == 1
    assert [line["turn"] for line in waiting.acts("begin")].count(truth.turn) == 1
    assert [line["turn"] for line in waiting.acts("go on")] == [truth.turn]


@pytest.mark.parametrize("how", HEIRS)
def test_a_decision_that_was_just_made_survives_its_process(home: Callable[..., Home], how: str) -> None:
    """Ours: the first process dies after asking, the second after deciding, and a third resumes."""
    waiting = home("five")
    waiting.says(waiting.start("ask"), "waiting").kill()
    waiting.says(waiting.start("decide"), "decided").kill()
    truth = waiting.ends(how)
    assert len(truth.decisions) == len(truth.approvals) == 1
    assert truth.made[6].get("error") is None


def test_another_process_applies_a_decision_while_the_requesting_one_is_alive(
    home: Callable[..., Home],
) -> None:
    """Ours: SPEC §7, a waiting turn needs no process."""
    waiting = home("five")
    asked = waiting.says(waiting.start("ask"), "waiting")
    waiting.says(waiting.start("decide"), "decided").kill()
    truth = waiting.ends("recover")
    print(file=asked.process.stdin, flush=True)
    asked.output()
    assert [line["name"] for line in truth.ledger].count("refund") == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scenario", ["five", "steps", "chance", "order", "waits", "mode"])
def test_a_turn_that_is_killed_repeatedly_at_random_moments_still_ends(
    home: Callable[..., Home], scenario: str
) -> None:
    """Ours: the moments are not chosen; each process gets a little more time than the one before."""
    chance = random.Random(scenario)
    killed = home(scenario)
    for number in range(9):
        victim = killed.start(WAYS[number % len(WAYS)])
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.process.wait(timeout=chance.uniform(0, 0.05 * (number + 1)))
        victim.kill()
    killed.ends("resume")
