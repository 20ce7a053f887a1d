"""An approval records the person who decided it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, of_kind

from standfast import BlockingSandbox, tool
from standfast.errors import InvalidArgument
from standfast.model.approval import Decision
from standfast.model.events import WaitOver
from standfast.model.outcome import Approved, Denied
from standfast.runtime.turn import Subscription

REPLIES = (asks(("pay", {})), "end")


@tool(approval="manual")
def pay() -> str:
    return "paid"


@pytest.mark.parametrize("approve", [True, False])
def test_the_record_and_the_event_of_a_decision_name_the_decider(place: Place, approve: bool) -> None:
    """Ours: SPEC §14, the record of an approval names the person who decided it."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*REPLIES, tools=[pay]))
            wait_id = (await session.turn("pay")).waits[0].wait_id
        async with place.runtime() as runtime:
            decide = runtime.approve if approve else runtime.deny
            assert (await decide(wait_id, decided_by="ada")).decided_by == "ada"
            heard = runtime.live("s").events.feed.listen(Subscription())
            session = await runtime.session("s", agent=agent_of(*REPLIES, tools=[pay]))
            await session.follow((await session.turns())[0].turn_id).settled()
            (over,) = of_kind(WaitOver, iter(heard.take, None))
            assert over.outcome == (Approved(by="ada") if approve else Denied(by="ada"))
            (kept,) = await session.approvals()
            assert kept.decided_by == "ada"

    asyncio.run(main())


def test_sessions_and_sandboxes_record_the_decider_too(memory: Place) -> None:
    """Ours: every way to decide records the name."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*REPLIES, *REPLIES, tools=[pay]))
            await session.approve((await session.turn("a")).waits[0].wait_id, decided_by="ada")
            await session.deny((await session.turn("b")).waits[0].wait_id, decided_by="bob")
            assert {one.decided_by for one in await session.approvals()} == {"ada", "bob"}

    asyncio.run(main())
    with BlockingSandbox(tools=[pay]) as box:
        box.run("pay()")
        box.approve(box.approvals()[0].approval_id, decided_by="ada")
        box.run("pay()")
        box.deny(box.approvals(pending=True)[0].approval_id, decided_by="bob")
        assert {one.decided_by for one in box.approvals()} == {"ada", "bob"}


def test_a_decision_without_a_name_records_none_and_an_empty_name_is_refused() -> None:
    """Ours: a program that does not know who decided need not invent a name."""
    assert Decision(approved=True).decided_by is None
    bad: Any
    for bad in ("", "  ", "x" * 257, 5):
        with pytest.raises(InvalidArgument, match="decided_by"):
            Decision(approved=True, decided_by=bad)


def test_a_reason_that_is_not_text_is_refused(place: Place) -> None:
    """Bug: it was stored, and then no approval of the store could be read."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*REPLIES, tools=[pay]))
            await session.turn("pay")
            (asked,) = await runtime.approvals()
            bad: Any = {"why": "late"}
            for decide in (runtime.approve, runtime.deny):
                with pytest.raises(InvalidArgument, match="reason"):
                    await decide(asked.approval_id, reason=bad)
            assert await runtime.approvals(pending=True) == [asked]

    asyncio.run(main())
