"""Subagents that outlive their process: after a SIGKILL at any point, all four reach the right state."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.testing.crash_points import CRASH_AT

HERE = Path(__file__).parents[1]
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); import subagent_program; subagent_program.main()"

pytestmark = pytest.mark.slow

Start = Callable[..., Any]


class Stage:
    """A directory in which the program runs, in one process after another."""

    def __init__(self, child: Start, home: Path) -> None:
        self._child = child
        self.home = home
        self.ledger = home / "ledger"
        self.gate = home / "ledger.hold"
        self.ledger.touch()

    def start(self, *options: str, crash_at: int | None = None) -> Any:
        env = {} if crash_at is None else {CRASH_AT: str(crash_at)}
        return self._child(PROGRAM, HERE, self.home, *options, env=env)

    def marks(self) -> Counter[str]:
        return Counter(self.ledger.read_text().splitlines())

    def finish(self) -> dict[str, Any]:
        """Run the rest in a new process, in which a person approves."""
        return dict(json.loads(self.start("--decide").output(timeout=60).splitlines()[-1]))


@pytest.fixture
def stage(child: Start, tmp_path: Path) -> Stage:
    return Stage(child, tmp_path)


def until(condition: Callable[[], object]) -> None:
    """Wait until another process has made the condition true."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def check(stage: Stage, told: dict[str, Any]) -> None:
    """Check everything that must hold at the end, whatever was killed along the way."""
    good, bad, slow, payer = told["reports"]
    assert [one["status"] for one in told["reports"]] == ["finished", "failed", "cancelled", "finished"]
    assert (good["text"], payer["text"]) == ("all good", "paid")
    assert (bad["error"]["code"], slow["error"]["code"]) == ("PROVIDER_ERROR", "CANCELLED")
    assert told["states"] == {
        "Good.": "completed",
        "Bad.": "failed",
        "Slow.": "cancelled",
        "Payer.": "completed",
    }
    assert (told["tasks"], told["turns"]) == (4, [1] * 5)
    marks = stage.marks()
    assert set(marks) <= {"mark one", "mark two", "mark three", "mark four", "pay 7"}
    assert max(marks.values(), default=1) == 1
    assert told["ledgers fit"]
    usage = told["usage"]
    counted = {name: tokens(usage[name]) for name in ("own", "subagents", "total")}
    assert counted["total"] == counted["own"] + counted["subagents"] == told["tokens"]
    assert counted["subagents"] == sum(tokens(one["usage"]) for one in told["reports"])


def tokens(usage: dict[str, int]) -> int:
    return usage.get("input", 0) + usage.get("output", 0)


def test_four_subagents_end_in_four_ways(stage: Stage) -> None:
    """Ours: the scenario works without a crash."""
    told = stage.finish()
    check(stage, told)
    assert sum(stage.marks().values()) >= 4


def test_subagents_recover_from_a_crash_during_their_turns(stage: Stage) -> None:
    """Seed: after kill -9 and recovery, all four end in the right state, and usage adds up."""
    stage.gate.touch()
    first = stage.start()
    until(lambda: {"mark two", "mark three"} <= set(stage.marks()))
    first.kill()
    before = stage.marks()
    stage.gate.unlink()
    check(stage, stage.finish())
    assert stage.marks() - before <= Counter(["mark four", "pay 7"])


def test_subagents_recover_from_a_crash_while_one_waits_for_a_person(stage: Stage) -> None:
    """Seed: the approval is decided in another process, and the call happens there, once."""
    first = stage.start()
    assert json.loads(first.line()) == {"waits": "pay"}
    until(lambda: "mark two" in stage.marks())
    first.kill()
    assert "pay 7" not in stage.marks()
    check(stage, stage.finish())
    assert stage.marks()["pay 7"] == 1


def test_subagents_recover_from_several_crashes_in_a_row(stage: Stage) -> None:
    """Ours: a recovered turn can be recovered again."""
    for crash_at in (40, 60, 25):
        stage.start("--decide", crash_at=crash_at).process.wait(timeout=60)
    check(stage, stage.finish())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("crash_at", range(5, 200, 13))
def test_subagents_recover_from_a_crash_at_any_point(stage: Stage, crash_at: int) -> None:
    """Seed: a crash before, inside and after each write, model call and effect; this is a sample of them."""
    stage.start("--decide", crash_at=crash_at).process.wait(timeout=60)
    check(stage, stage.finish())
