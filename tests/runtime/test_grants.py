"""Grants approve calls in advance: which calls, until when, and how this is recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, of_kind

from standfast import Agent, AskPerson, BlockingSandbox, RunContext, Runtime, tool
from standfast.durable import grants
from standfast.errors import GrantNotFound, InvalidArgument, InvalidToolName, SessionNotFound
from standfast.machine.inputs import WaitEnded, decode_input
from standfast.model.approval import ApprovalState
from standfast.model.events import WaitOver
from standfast.model.outcome import Approved, Finished
from standfast.plugins.shipped.guard import Guard

HOUR_MS = 3_600_000
SMALL = "kwargs['cents'] <= 1000"


@tool(approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents}"


def refunds(*cents: int, **options: Any) -> Agent[Any, Any]:
    """Return an agent that refunds these amounts, one per turn."""
    replies = [
        part for sum_ in cents for part in (asks(("refund", {"order_id": "A1", "cents": sum_})), "end")
    ]
    return agent_of(*replies, tools=[refund], name="clerk", **options)


def end_of(runtime: Runtime) -> int:
    return runtime.now_ms() + HOUR_MS


def test_a_grant_approves_only_the_calls_that_satisfy_its_rule(place: Place) -> None:
    """Ours: a grant is for a tool, with a rule over its arguments, for a session, until a date."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=refunds(900, 1001))
            terms: dict[str, Any] = {"given_by": "ada", "expires_at": end_of(runtime), "session": "s"}
            grant = await runtime.grant("refund", rule=SMALL, reason="small sums", **terms)
            assert await runtime.grants() == [grant]
            assert isinstance((await session.turn("small")).outcome, Finished)
            (approval,) = await runtime.approvals()
            assert (approval.state, approval.decided_by) == (ApprovalState.APPROVED, "ada")
            assert (approval.grant, approval.reason) == (grant.grant_id, "small sums")
            assert (await session.turn("large")).waits
            assert len(await runtime.approvals(pending=True)) == 1

    asyncio.run(main())


def test_the_journal_and_the_event_name_the_grant_that_approved_the_call(place: Place) -> None:
    """Ours: the journal records which grant approved a call."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of(
                asks(("refund", {"order_id": "A1", "cents": 5}), ("stop", {})),
                "end",
                tools=[refund, tool(approval="manual")(stop)],
                name="clerk",
            )
            session = await runtime.session("s", agent=agent)
            terms: dict[str, Any] = {"given_by": "ada", "expires_at": end_of(runtime)}
            grant = await runtime.grant("refund", agent="clerk", **terms)
            seen = [event async for event in session.turn("go")]
            (over,) = of_kind(WaitOver, seen)
            assert over.outcome == Approved(by="ada", grant=grant.grant_id)
            parked = await runtime.store.open_turn_journal("s")
            assert parked is not None
            fed = [decode_input(entry.body) for entry in parked.journal if entry.kind == "input"]
            (ended,) = of_kind(WaitEnded, fed)
            assert ended.outcome == Approved(by="ada", grant=grant.grant_id)

    asyncio.run(main())


def stop() -> str:
    """Needs a person."""
    return "stopped"


def test_an_expired_or_revoked_grant_approves_nothing(place: Place) -> None:
    """Ours: a grant ends at its date, or when it is revoked, in every process."""

    async def main() -> None:
        async with place.runtime() as runtime, place.runtime() as other:
            for number, ends in enumerate(("revoked", "expired")):
                session = await runtime.session(f"s{number}", agent=refunds(5, 5))
                end = end_of(runtime)
                grant = await runtime.grant(
                    "refund", given_by="ada", expires_at=end, session=session.session_id
                )
                assert isinstance((await session.turn("go")).outcome, Finished)
                if ends == "revoked":
                    revoked = await other.revoke_grant(grant.grant_id, revoked_by="bob")
                    assert (revoked.revoked_by, revoked.revoked_at) == ("bob", runtime.now_ms())
                    again = await other.revoke_grant(grant.grant_id, revoked_by="eve")
                    assert again == revoked
                else:
                    place.clock.advance(3600)
                assert (await session.turn("go")).waits
                assert await runtime.grants(in_force=True) == []
            assert len(await runtime.grants()) == 2

    asyncio.run(main())


def test_a_grant_covers_only_its_session_or_the_agent_of_its_tenant(memory: Place) -> None:
    """Ours: tenants are isolated; a grant of one approves no call of another."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            end = end_of(runtime)
            for agent, tenant in (("clerk", "acme"), ("other", "")):
                await runtime.grant("refund", given_by="ada", expires_at=end, agent=agent, tenant=tenant)
            asked = {}
            for session_id, metadata in (
                ("one", {}),
                ("two", {}),
                ("_acme_a", {"tenant": "acme"}),
                ("child", {"tenant": "acme"}),
                ("_rival_a", {"tenant": "rival"}),
                ("_rival_b", {"tenant": "acme"}),
            ):
                session = await runtime.session(session_id, agent=refunds(5), metadata=metadata)
                if session_id == "one":
                    await runtime.grant("refund", given_by="ada", expires_at=end, session="one")
                asked[session_id] = bool((await session.turn("go")).waits)
                covering = await runtime.grants(session=session_id)
                assert bool(covering) is not asked[session_id]
            approved = [session_id for session_id, waits in asked.items() if not waits]
            assert approved == ["one", "_acme_a", "child"]

    asyncio.run(main())


def test_a_rule_that_fails_or_does_not_return_true_requires_a_person(memory: Place) -> None:
    """Ours: approvals fail closed."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=refunds(5))
            for rule in ("kwargs['missing'] > 1", "1", "1 / 0", "__import__('os')"):
                await runtime.grant(
                    "refund", given_by="ada", expires_at=end_of(runtime), session="s", rule=rule
                )
            assert (await session.turn("go")).waits

    asyncio.run(main())


def test_a_grant_never_answers_the_questions_of_plugins_or_tools(memory: Place) -> None:
    """Ours: a grant replaces only the approval policy of a tool."""

    @tool
    def ask(ctx: RunContext[None]) -> AskPerson:
        """Ask a person something."""
        return AskPerson("how much?", {"type": "object", "properties": {"n": {"type": "integer"}}})

    async def main() -> None:
        async with memory.runtime() as runtime:
            guarded = refunds(5, plugins=[Guard(ask=["refund"])])
            asking = agent_of(asks(("ask", {})), "end", tools=[ask])
            for session_id, agent, name in (("g", guarded, "refund"), ("q", asking, "ask")):
                session = await runtime.session(session_id, agent=agent)
                end = end_of(runtime)
                await runtime.grant(name, given_by="ada", expires_at=end, session=session_id)
                assert (await session.turn("go")).waits

    asyncio.run(main())


def test_a_grant_covers_calls_made_by_code(tmp_path: Any) -> None:
    """Ours: a run requests approvals as a turn does, so the same grant approves its calls."""

    async def give(runtime: Runtime) -> None:
        async with runtime:
            await runtime.grant(
                "refund", given_by="ada", expires_at=end_of(runtime), session="default", rule=SMALL
            )

    with BlockingSandbox(tools=[refund], data_dir=tmp_path) as box:
        box.run("total = 0")
        asyncio.run(give(Runtime(tmp_path)))
        assert box.run("[refund('A1', n) for n in (1, 2)]").result == ["refunded 1", "refunded 2"]
        assert box.run("refund('A1', 5000)").status == "waiting_for_approval"
        assert len([one for one in box.approvals() if one.grant]) == 2


def test_an_invalid_grant_is_refused(memory: Place) -> None:
    """Ours: the error names the invalid value."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            await runtime.session("s", agent=refunds(5))
            good: dict[str, Any] = {"given_by": "ada", "expires_at": end_of(runtime), "session": "s"}
            for change, words in (
                ({"session": None}, "for a session or for an agent"),
                ({"agent": "clerk"}, "for a session or for an agent"),
                ({"given_by": " "}, "given_by"),
                ({"expires_at": runtime.now_ms()}, "in the future"),
                ({"rule": "kwargs["}, "not a Python expression"),
                ({"rule": "x = 1"}, "not a Python expression"),
                ({"rule": " "}, "characters"),
                ({"rule": "1" * 5000}, "5000 characters"),
                ({"rule": "(" * 3000}, "not a Python expression"),
            ):
                with pytest.raises(InvalidArgument, match=words):
                    await runtime.grant("refund", **{**good, **change})
            with pytest.raises(InvalidToolName, match="identifier"):
                await runtime.grant("no tool", **good)
            with pytest.raises(SessionNotFound):
                await runtime.grant("refund", **{**good, "session": "missing"})
            with pytest.raises(GrantNotFound, match="grt_none"):
                await runtime.revoke_grant("grt_none")
            assert await runtime.grants() == []

    asyncio.run(main())


@pytest.mark.parametrize("change", [{"agent": 5}, {"reason": 5}, {"given_by": 5}, {"expires_at": 1e15 + 0.5}])
def test_a_grant_that_could_not_be_read_back_is_refused(place: Place, change: dict[str, Any]) -> None:
    """Bug: it was stored, and every later call that needs approval failed with `RecordCorrupt`."""

    async def main() -> None:
        async with place.runtime() as runtime:
            await runtime.session("s", agent=refunds(5))
            good: dict[str, Any] = {"given_by": "ada", "expires_at": end_of(runtime), "agent": "clerk"}
            with pytest.raises(InvalidArgument, match="Expected `"):
                await runtime.grant("refund", **{**good, **change})
            made = await runtime.grant("refund", **good)
            bad: Any = 5
            with pytest.raises(InvalidArgument, match="revoked_by"):
                await runtime.revoke_grant(made.grant_id, revoked_by=bad)
            assert await runtime.grants(in_force=True) == [made]

    asyncio.run(main())


def test_the_number_of_grants_is_limited_and_long_expired_ones_are_deleted(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: grants do not accumulate."""
    monkeypatch.setattr(grants, "MAX_IN_FORCE", 3)

    async def main() -> None:
        async with memory.runtime() as runtime:
            await runtime.session("s", agent=refunds(5))
            for _ in range(3):
                await runtime.grant("refund", given_by="ada", expires_at=end_of(runtime), session="s")
            with pytest.raises(InvalidArgument, match="the limit is 3"):
                await runtime.grant("refund", given_by="ada", expires_at=end_of(runtime), session="s")
            memory.clock.advance(91 * 86_400)
            kept = await runtime.grant("refund", given_by="ada", expires_at=end_of(runtime), session="s")
            assert await runtime.grants() == [kept]

    asyncio.run(main())
