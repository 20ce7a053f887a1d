"""Accepted state can be loaded again, under the limits it was created with."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast import BlockingSandbox, RunResult, tool

pytestmark = pytest.mark.slow

LIMITS = {"memory_mb": 16, "cpu_ms": 20_000, "wall_ms": 60_000}
GROWTH = {
    "large keys": "d{n} = {{str(i) * 20: i for i in range(12_000)}}\nlen(d{n})",
    "lists": "d{n} = [[i] for i in range(15_000)]\nlen(d{n})",
    "short text": "d{n} = [str(i) for i in range(25_000)]\nlen(d{n})",
    "functions": "d{n} = [(lambda: i) for i in range(20_000)]\nlen(d{n})",
}


@tool(side_effect="external_system", approval="manual")
def ask(x: int) -> int:
    """Ask a person."""
    return x


def _opened(path: Path) -> BlockingSandbox:
    return BlockingSandbox(tools=[ask], data_dir=path, engine="monty", limits=LIMITS)


@pytest.mark.parametrize("kind", GROWTH)
def test_a_stored_session_can_be_opened_again(tmp_path: Path, kind: str) -> None:
    """Bug: runs succeeded, but after a timeout or a restart the state could not be loaded."""
    ended: list[RunResult] = []
    with _opened(tmp_path) as box:
        while len(ended) < 12 and (not ended or ended[-1].error is None):
            ended.append(box.run(GROWTH[kind].format(n=len(ended)), session="s"))
        assert len(ended) > 1
        assert ended[-1].error is not None, "the limit was never reached"
        assert ended[-1].error.code == "MEMORY_EXCEEDED"
        stopped = box.run("while True: pass", session="s", limits={**LIMITS, "cpu_ms": 100})
        assert stopped.error is not None
        assert stopped.error.code == "TIMEOUT_CPU"
        kept = [f"len(d{n})" for n in range(len(ended) - 1)]
        expected = [one.result for one in ended[:-1]]
        assert box.run(f"[{', '.join(kept)}]", session="s").result == expected
    with _opened(tmp_path) as box:
        assert box.run(f"[{', '.join(kept)}]", session="s").result == expected
        gone = box.run(f"d{len(kept)}", session="s")
        assert gone.error is not None
        assert "not defined" in gone.error.message


def test_a_run_that_could_not_be_resumed_does_not_wait(tmp_path: Path) -> None:
    """Bug: a run that waits for a person had the same fault; it is refused before the person is asked."""
    with _opened(tmp_path) as box:
        for size in range(12):
            made = "\n".join(f"d{n} = [[i] for i in range(15_000)]" for n in range(size))
            result = box.run(f"{made}\nask(1)", session=f"s{size}")
            if result.status != "waiting_for_approval":
                break
        assert size > 1
        assert result.error is not None
        assert result.error.code == "MEMORY_EXCEEDED"
    with _opened(tmp_path) as box:
        for approval in box.approvals(pending=True):
            assert box.approve(approval.approval_id).result == 1


def test_a_state_too_large_for_a_run_is_reported_as_such(tmp_path: Path) -> None:
    """Ours: the error says that the run has less memory than the session needs, and the session is kept."""
    with _opened(tmp_path) as box:
        assert box.run("d = [[i] for i in range(40_000)]", session="s").error is None
        small = box.run("while True: pass", session="s", limits={"memory_mb": 2, "cpu_ms": 100})
        assert small.error is not None
        assert small.error.code == "MEMORY_EXCEEDED"
        assert box.run("len(d)", session="s").result == 40_000
