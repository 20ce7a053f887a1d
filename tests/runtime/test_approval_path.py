"""The one path of approvals: for a sandbox run as for an agent's turn."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from stand_ins import Place, agent_of, asks

from standfast import BlockingSandbox, tool

SHARED = {
    "sessions/approvals.py get_approval",
    "sessions/approvals.py decide",
    "sessions/approvals.py checked_arguments",
    "durable/journal.py LeaseKeeper.owner",
    "durable/journal.py LeaseKeeper.claimant",
    "durable/journal.py replay",
    "durable/journal.py LeaseKeeper.hold",
    "durable/driver.py TurnDriver.resume",
    "durable/driver.py TurnDriver.drive",
    "durable/journal.py LeaseKeeper.let_go",
    "store/memory_sessions.py MemorySessionStore.decide",
    "store/memory_sessions.py MemorySessionStore.take_over",
    "store/memory_sessions.py MemorySessionStore.ended_waits",
}


@tool(approval="manual")
def pay(amount: int) -> str:
    return f"paid {amount}"


@contextmanager
def called() -> Iterator[set[str]]:
    """Collect the functions called on this thread, with the last two parts of their file's path."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, value: object) -> None:
        if event == "call":
            code = frame.f_code
            seen.add(f"{'/'.join(code.co_filename.split('/')[-2:])} {code.co_qualname}")

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def test_approvals_of_a_run_and_of_a_turn_pass_through_the_same_functions(memory: Place) -> None:
    """Ours: a decision is checked, recorded, claimed and applied by one set of rules."""

    async def decide_turn() -> set[str]:
        async with memory.runtime() as runtime:
            agent = agent_of(asks(("pay", {"amount": 1})), "done", tools=[pay])
            session = await runtime.session("s", agent=agent)
            wait_id = (await session.turn("pay")).waits[0].wait_id
            with called() as seen:
                assert (await session.approve(wait_id, arguments={"amount": 2})).text == "done"
            return seen

    of_turn = asyncio.run(decide_turn())
    with BlockingSandbox(tools=[pay]) as box:
        box.run("pay(1)")
        (approval,) = box.approvals(pending=True)
        box._runs.services.jobs.start = lambda job: job() and None  # type: ignore[method-assign]
        with called() as of_run:
            assert box.approve(approval.approval_id, args=[2]).result == "paid 2"
    assert of_turn >= SHARED
    assert of_run >= SHARED
