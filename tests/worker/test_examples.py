"""One agent of `examples`, unchanged, on every store and engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet import Fleet, until
from restate_host import Restate, missing

from standfast import Runtime
from standfast.model.outcome import Finished
from standfast.model.session import TurnState
from standfast.runtime.app import load_app

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "refund_native.py"
TASK = "Pay back the orders of customer 7 that came late."


def _approval(fleet: Fleet) -> str:
    """Wait until the turn waits for a person; return the id of the approval."""
    until(lambda: any(turn.state is TurnState.WAITING for turn in fleet.turns()))

    async def ask(runtime: Runtime) -> str:
        (asked,) = await runtime.approvals(pending=True)
        return asked.approval_id

    return fleet.with_runtime(ask)


def _answer(fleet: Fleet) -> str:
    until(lambda: len(fleet.ended()) == 1)
    (turn,) = fleet.ended()
    assert turn.summary is not None
    assert isinstance(turn.summary.outcome, Finished)
    return turn.summary.outcome.text


def test_an_example_runs_unchanged_on_workers(fleet: Fleet) -> None:
    """Ours: the same agent code runs on a SQLite file and on PostgreSQL."""
    fleet.start(app=f"{EXAMPLE}:agent")
    (agent,) = load_app(f"{EXAMPLE}:agent").agents
    fleet.queue(("shop", TASK), agent=agent)
    approval_id = _approval(fleet)

    async def approve(runtime: Runtime) -> None:
        await runtime.approve(approval_id, decided_by="eve")

    fleet.with_runtime(approve)
    assert _answer(fleet) == "Paid back: A1."


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_an_example_runs_unchanged_on_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: the same agent code runs on Restate, over both stores."""
    listen = ("--engine", "restate", "--listen", f"{restate.here}:9080")
    fleet.start(*listen, "--admin", restate.admin, "--ingress", restate.ingress, app=f"{EXAMPLE}:agent")
    assert restate.call("shop", "turn", {"prompt": TASK})[1]["status"] == "waiting"
    assert restate.call("shop", "decide", {"approval_id": _approval(fleet), "approved": True})[0] == 200
    assert _answer(fleet) == "Paid back: A1."
