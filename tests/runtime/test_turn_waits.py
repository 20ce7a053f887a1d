"""Turns that wait: for a person, for a time, for a result from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, events_of, go_on, of_kind, results, until

from standfast import CompleteAfter, CompleteLater, RunContext, ToolError, TurnStopped, UsageLimits, tool
from standfast.errors import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    InvalidArgument,
    TokenAlreadyUsed,
    TokenNotFound,
    WrongAgent,
)
from standfast.model.approval import ApprovalState, Decision
from standfast.model.capability import CallStatus
from standfast.model.events import ToolCallStarted, TurnParked, WaitBegan, WaitOver
from standfast.model.limits import CapabilityLimits
from standfast.model.message import AssistantMessage
from standfast.model.outcome import StopReason
from standfast.model.session import TurnState

pytestmark = pytest.mark.slow


@tool(approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool(side_effect="read")
def look() -> str:
    return "seen"


PAYING = (asks(("pay", {"cents": 5})), "end")


# Approvals


def test_a_call_that_needs_a_person_parks_its_turn(place: Place) -> None:
    """Seed: a turn that needs a person ends as waiting and resumes when the decision comes."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            turn = session.turn("pay")
            events = await events_of(turn)
            waiting = await turn
            assert (waiting.status, waiting.output, waiting.calls) == ("waiting", None, ())
            assert [type(one) for one in events[-2:]] == [WaitBegan, TurnParked]
            assert of_kind(ToolCallStarted, events) == []
            (asked,) = await session.approvals(pending=True)
            assert (asked.capability, asked.kwargs) == ("pay", {"cents": 5})
            assert asked.approval_id == waiting.waits[0].wait_id
            result = await session.approve(asked.approval_id)
            assert (result.output, results(result.messages)) == ("end", ["paid 5"])
            assert [one.status for one in result.calls] == [CallStatus.OK]
            assert result.turn_id == waiting.turn_id
            assert await session.approvals(pending=True) == []

    asyncio.run(main())


def test_a_person_may_edit_the_arguments(place: Place) -> None:
    """Seed: the digest of the edited arguments is recorded."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            with pytest.raises(InvalidArgument, match="are invalid"):
                await session.approve(wait.wait_id, arguments={"cents": "many"})
            result = await session.approve(wait.wait_id, arguments={"cents": 3})
            assert results(result.messages) == ["paid 3"]
            (decided,) = await session.approvals()
            assert (decided.state, decided.kwargs) == (ApprovalState.APPROVED, {"cents": 3})
            assert decided.edited_digest == result.calls[0].request_digest

    asyncio.run(main())


def test_a_denied_call_gets_a_result_with_the_reason(place: Place) -> None:
    """Seed: a denial has a reason."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            result = await session.deny(wait.wait_id, reason="too much")
            assert result.output == "end"
            assert results(result.messages) == ["PERMISSION_DENIED"]
            assert "too much" in str(result.messages[2])
            assert [one.status for one in result.calls] == [CallStatus.DENIED]

    asyncio.run(main())


def test_an_approval_that_expires_ends_its_wait_with_a_result(place: Place) -> None:
    """Seed: an approval must expire instead of blocking the conversation forever."""

    async def main() -> None:
        async with place.runtime(approval_ttl_s=60) as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            place.clock.advance(61)
            assert await session.approvals(pending=True) == []
            result = await go_on(session)
            assert (result.output, results(result.messages)) == ("end", ["PERMISSION_DENIED"])
            with pytest.raises(ApprovalAlreadyDecided):
                await session.approve(wait.wait_id)

    asyncio.run(main())


def test_a_decision_that_comes_too_late_approves_nothing(place: Place) -> None:
    """Seed: an approval expires."""

    async def main() -> None:
        async with place.runtime(approval_ttl_s=60) as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            place.clock.advance(61)
            decided = await runtime.approve(wait.wait_id)
            assert decided.state is ApprovalState.EXPIRED
            assert results((await go_on(session)).messages) == ["PERMISSION_DENIED"]

    asyncio.run(main())


def test_a_new_turn_may_begin_once_the_previous_turns_wait_is_over(place: Place) -> None:
    """Ours: the previous turn is completed first."""

    async def main() -> None:
        async with place.runtime(approval_ttl_s=60) as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, "next", tools=[pay]))
            await session.turn("pay")
            place.clock.advance(61)
            assert (await session.turn("go on")).output == "next"
            assert [one.state for one in await session.turns()] == [TurnState.ENDED] * 2

    asyncio.run(main())


def test_approvals_work_with_parallel_calls(place: Place) -> None:
    """Seed: other calls of the reply are executed meanwhile, and each wait is decided separately."""

    async def main() -> None:
        script = [asks(("pay", {"cents": 1}), ("look", {}), ("pay", {"cents": 2})), "end"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[pay, look]))
            waiting = await session.turn("pay")
            assert len(waiting.waits) == 2
            assert [one.name for one in waiting.calls] == ["look"]
            still = await session.approve(waiting.waits[1].wait_id)
            assert still.status == "waiting"
            assert [one.wait_id for one in still.waits] == [waiting.waits[0].wait_id]
            result = await session.deny(waiting.waits[0].wait_id)
            assert results(result.messages) == ["PERMISSION_DENIED", "seen", "paid 2"]

    asyncio.run(main())


def test_two_concurrent_decisions_both_count(place: Place) -> None:
    """Ours: each caller that decides gets the result of the turn."""

    async def main() -> None:
        script = [asks(("pay", {"cents": 1}), ("pay", {"cents": 2})), "end"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[pay]))
            one, other = (await session.turn("pay")).waits
            await asyncio.gather(session.approve(one.wait_id), session.approve(other.wait_id))
            ended = await session.turns()
            assert [record.state for record in ended] == [TurnState.ENDED]
            assert results(await session.messages()) == ["paid 1", "paid 2"]

    asyncio.run(main())


def test_an_approval_is_decided_once(place: Place) -> None:
    """Seed: deciding is a compare-and-set."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            await session.approve(wait.wait_id)
            for decide in (session.approve, session.deny):
                with pytest.raises(ApprovalAlreadyDecided):
                    await decide(wait.wait_id)
            with pytest.raises(ApprovalNotFound):
                await session.approve("apr_never")

    asyncio.run(main())


def test_a_session_can_decide_only_its_own_calls(place: Place) -> None:
    """Bug: the other session's turn resumed with this one's history."""

    async def main() -> None:
        async with place.runtime() as runtime:
            mine = await runtime.session("mine", agent=agent_of(*PAYING, tools=[pay]))
            other = await runtime.session("other", agent=agent_of("hello", tools=[pay]))
            wait = (await mine.turn("pay")).waits[0]
            for decide in (other.approve, other.deny):
                with pytest.raises(ApprovalNotFound):
                    await decide(wait.wait_id)
            assert len(await mine.approvals(pending=True)) == 1

    asyncio.run(main())


def test_a_decision_made_in_another_runtime_is_used_after_restarts(place: Place) -> None:
    """Seed: the turn resumes when the decision comes, after any number of restarts."""

    async def main() -> None:
        async with place.runtime() as first:
            session = await first.session("s", agent=agent_of(*PAYING, tools=[pay]))
            waiting = await session.turn("pay")
        async with place.runtime() as second:  # knows no agent: it only decides
            (asked,) = await second.approvals(pending=True)
            assert asked.approval_id == waiting.waits[0].wait_id
            await second.approve(asked.approval_id)
        async with place.runtime() as third:
            session = await third.session("s", agent=agent_of(*PAYING, tools=[pay]))
            result = await go_on(session)
            assert (result.turn_id, result.output) == (waiting.turn_id, "end")
            assert results(result.messages) == ["paid 5"]

    asyncio.run(main())


def test_a_turn_resumes_by_itself_in_a_process_that_knows_its_agent(place: Place) -> None:
    """Ours: the process that decides need not be the one that runs the turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            await runtime.approve(wait.wait_id)

            async def ended() -> bool:
                return await session.unfinished() is None

            await until(ended)
            assert results(await session.messages()) == ["paid 5"]

    asyncio.run(main())


def test_a_changed_contract_voids_the_approval(place: Place) -> None:
    """Seed: an approval is bound to the digest of the capability's contract."""
    ran: list[int] = []

    @tool(name="pay", approval="manual")
    def pay_twice(cents: int) -> str:
        """Pay, twice."""
        ran.append(cents)
        return "paid twice"

    async def main() -> None:
        async with place.runtime() as first:
            session = await first.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
        async with place.runtime() as second:
            session = await second.session("s", agent=agent_of(*PAYING, tools=[pay_twice]))
            result = await session.approve(wait.wait_id)
            assert results(result.messages) == ["PERMISSION_DENIED"]
            assert "changed" in str(result.messages[2])
        assert ran == []

    asyncio.run(main())


def test_an_approved_call_of_a_missing_tool_waits_for_the_tool(place: Place) -> None:
    """Bug: the approved call failed as UNKNOWN_TOOL, and the approval was used up."""

    async def main() -> None:
        async with place.runtime() as first:
            session = await first.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
        async with place.runtime() as second:
            session = await second.session("s", agent=agent_of(*PAYING))
            with pytest.raises(WrongAgent, match="no tool 'pay'"):
                await session.approve(wait.wait_id)
            session = await second.session("s", agent=agent_of(*PAYING, tools=[pay]))
            assert results((await go_on(session)).messages) == ["paid 5"]

    asyncio.run(main())


def test_a_denied_call_is_not_requested_forever(place: Place) -> None:
    """Seed: a denial must not send the model into an endless retry (no-progress budget)."""

    async def main() -> None:
        again = [asks(("pay", {"cents": 5}))] * 10
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*again, tools=[pay]))
            result: Any = await session.turn("pay")
            for _ in range(3):
                result = await session.deny(result.waits[0].wait_id)
            with pytest.raises(TurnStopped) as caught:
                await session.deny(result.waits[0].wait_id)
            assert caught.value.reason is StopReason.NO_PROGRESS
            assert await session.approvals(pending=True) == []

    asyncio.run(main())


def test_an_approved_call_is_not_refused_by_its_rate_limit(memory: Place) -> None:
    """Bug: the call was counted when it was requested and again when it was approved."""

    @tool(name="pay", approval="manual", limits=CapabilityLimits(rate_per_min=1))
    def once(cents: int) -> str:
        return f"paid {cents}"

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[once]))
            wait = (await session.turn("pay")).waits[0]
            assert results((await session.approve(wait.wait_id)).messages) == ["paid 5"]

    asyncio.run(main())


def test_events_report_the_end_of_a_wait(memory: Place) -> None:
    """Ours: an observer sees the decision as an event."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            wait = (await session.turn("pay")).waits[0]
            await runtime.store.decide(
                wait.wait_id, Decision(approved=True), now_ms=memory.clock.now_ms(), edited_digest=None
            )
            turn = await session.resume()
            assert turn is not None
            events = await events_of(turn)
            assert [one.wait_id for one in of_kind(WaitOver, events)] == [wait.wait_id]

    asyncio.run(main())


# Timers


def test_a_timer_ends_when_it_is_due(place: Place) -> None:
    """Seed: a turn may wait for an approval, a timer or an external completion without a worker."""

    def later() -> CompleteAfter:
        return CompleteAfter(3600, {"slept": True})

    async def main() -> None:
        agent = agent_of(asks(("later", {})), "end", tools=[later])
        async with place.runtime() as first:
            session = await first.session("s", agent=agent)
            waiting = await session.turn("hi")
            assert [one.kind for one in waiting.waits] == ["timer"]
            assert (await go_on(session)).status == "waiting"
        place.clock.advance(3600)
        async with place.runtime() as second:
            session = await second.session("s", agent=agent)
            result = await go_on(session)
            assert (result.output, results(result.messages)) == ("end", [{"slept": True}])

    asyncio.run(main())


def test_the_keeper_resumes_a_turn_when_its_timer_is_due(memory: Place) -> None:
    """Ours: no caller has to resume it."""

    def later() -> CompleteAfter:
        return CompleteAfter(-5, "at once")

    async def main() -> None:
        runtime = memory.runtime()
        runtime.poll_s = 0.001
        async with runtime:
            session = await runtime.session("s", agent=agent_of(asks(("later", {})), "end", tools=[later]))
            assert (await session.turn("hi")).status == "waiting"

            async def ended() -> bool:
                return await session.unfinished() is None

            await until(ended)
            assert results(await session.messages()) == ["at once"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        CompleteAfter(float("nan")),
        CompleteAfter(float("inf")),
        CompleteAfter(1e30),
        CompleteAfter("soon"),  # type: ignore[arg-type]
        CompleteAfter(1, object()),
        CompleteLater("cpl_t_other.1-abc"),
        CompleteLater(5),  # type: ignore[arg-type]
    ],
)
def test_a_result_that_cannot_be_stored_is_the_tools_error(place: Place, answer: Any) -> None:
    """Bug: the call had no result until its timeout, or none that could be read back."""

    def broken() -> Any:
        return answer

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("broken", {})), "end", tools=[broken]))
            assert results((await session.turn("hi")).messages) == ["INVALID_ARGUMENT"]

    asyncio.run(main())


# Completions from outside


class Outside:
    """A tool that leaves its result to an outside system, and keeps the token."""

    def __init__(self, expires_in_s: float = 60.0) -> None:
        self.tokens: list[str] = []

        @tool(name="outside")
        def outside(ctx: RunContext[None]) -> CompleteLater:
            self.tokens.append(ctx.completion_token())
            return CompleteLater(self.tokens[-1], expires_in_s)

        self.agent = agent_of(asks(("outside", {})), "end", "next", tools=[outside])


def test_an_outside_system_can_deliver_the_result(place: Place) -> None:
    """Seed: an outside system completes a call by its token."""

    async def main() -> None:
        outside = Outside()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=outside.agent)
            waiting = await session.turn("hi")
            assert [(one.kind, one.wait_id) for one in waiting.waits] == [("completion", outside.tokens[0])]
            await runtime.complete(outside.tokens[0], {"ok": 1})
            assert results((await result_of_first_turn(session)).messages) == [{"ok": 1}]

    asyncio.run(main())


async def result_of_first_turn(session: Any) -> Any:
    """Return the result of the first turn, whichever process ends it."""
    record = (await session.turns())[0]
    return await session._live.turn_of(record.turn_id).settled()


def test_a_result_may_arrive_after_a_restart_and_is_delivered_once(place: Place) -> None:
    """Seed: a completion works after any number of restarts, and is used once."""

    async def main() -> None:
        outside = Outside()
        async with place.runtime() as first:
            await (await first.session("s", agent=outside.agent)).turn("hi")
        async with place.runtime() as second:  # a webhook's process, without the agent
            await second.complete(outside.tokens[0], "paid")
            with pytest.raises(TokenAlreadyUsed):
                await second.complete(outside.tokens[0], "again")
        async with place.runtime() as third:
            session = await third.session("s", agent=outside.agent)
            assert results((await result_of_first_turn(session)).messages) == ["paid"]
            with pytest.raises(TokenNotFound):
                await third.complete(outside.tokens[0], "late")

    asyncio.run(main())


def test_a_result_may_arrive_before_the_turn_waits_for_it(place: Place) -> None:
    """Ours: the outside system may be faster than the tool."""

    async def main() -> None:
        @tool(loop="runtime")
        async def outside(ctx: RunContext[None]) -> CompleteLater:
            token = ctx.completion_token()
            await runtime.complete(token, "early")
            return CompleteLater(token)

        async with place.runtime() as runtime:
            agent = agent_of(asks(("outside", {})), "end", tools=[outside])
            session = await runtime.session("s", agent=agent)
            await session.turn("hi")
            assert results((await result_of_first_turn(session)).messages) == ["early"]

    asyncio.run(main())


def test_an_outside_system_may_report_a_failure(place: Place) -> None:
    """Ours: a failure outside is a failed call with its code."""

    async def main() -> None:
        outside = Outside()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=outside.agent)
            await session.turn("hi")
            await runtime.fail(outside.tokens[0], ToolError("DECLINED", "no funds"))
            result = await result_of_first_turn(session)
            assert (result.output, results(result.messages)) == ("end", ["DECLINED"])

    asyncio.run(main())


def test_a_result_that_never_arrives_ends_the_wait_with_a_timeout(place: Place) -> None:
    """Seed: every wait ends."""

    async def main() -> None:
        outside = Outside(expires_in_s=60)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=outside.agent)
            await session.turn("hi")
            place.clock.advance(60)
            with pytest.raises(TokenAlreadyUsed):
                await runtime.complete(outside.tokens[0], "late")
            result = await result_of_first_turn(session)
            assert results(result.messages) == ["TIMEOUT_TOOL"]

    asyncio.run(main())


@pytest.mark.parametrize("token", ["", "cpl_", "cpl_t_never.1-x", "apr_1", "nonsense"])
def test_an_unknown_token_is_refused(place: Place, token: str) -> None:
    """Ours: no result is stored without a wait."""

    async def main() -> None:
        async with place.runtime() as runtime:
            with pytest.raises(TokenNotFound):
                await runtime.complete(token, 1)

    asyncio.run(main())


def test_a_value_that_is_not_json_cannot_be_a_result(place: Place) -> None:
    """Ours: the value is refused before the token is used up."""

    async def main() -> None:
        outside = Outside()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=outside.agent)
            await session.turn("hi")
            with pytest.raises(InvalidArgument):
                await runtime.complete(outside.tokens[0], object())
            await runtime.complete(outside.tokens[0], "good")
            assert results((await result_of_first_turn(session)).messages) == ["good"]

    asyncio.run(main())


def test_the_token_of_another_call_is_refused(place: Place) -> None:
    """Bug: two calls that returned one token waited for each other forever."""
    tokens: list[str] = []

    @tool
    def outside(ctx: RunContext[None]) -> CompleteLater:
        tokens.append(ctx.completion_token())
        return CompleteLater(tokens[0])

    async def main() -> None:
        script = [asks(("outside", {})), asks(("outside", {})), "end"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[outside]))
            await session.turn("hi")
            await runtime.complete(tokens[0], "first")
            assert results((await result_of_first_turn(session)).messages) == ["first", "INVALID_ARGUMENT"]

    asyncio.run(main())


def test_waiting_does_not_count_as_wall_time(place: Place) -> None:
    """Ours: max_wall_ms does not include waiting for people and timers."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*PAYING, tools=[pay]))
            waiting = await session.turn("pay", limits=UsageLimits(max_wall_ms=50_000))
            place.clock.advance(3600)
            result = await session.approve(waiting.waits[0].wait_id)
            assert result.output == "end"
            assert sum(isinstance(one, AssistantMessage) for one in result.messages) == 2

    asyncio.run(main())
