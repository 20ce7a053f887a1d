"""Deps of turns that the runtime starts by itself: their factories, their users, and turns without them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from stand_ins import HeldModel, Place, agent_of, asks, results, until

from standfast import CompleteAfter, ContinueAs, Plugin, RunContext, TurnInput, hook, tool
from standfast.errors import DepsMissing, InvalidArgument
from standfast.model.approval import ApprovalState
from standfast.model.directive import CreateSession, SessionRequest
from standfast.model.events import TurnBlocked
from standfast.model.message import UserMessage
from standfast.model.session import TurnState
from standfast.plugins.contexts import ToolCallHookContext, TurnHookContext, TurnResultHookContext
from standfast.plugins.shipped import Subagents
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.dependencies import DepsContext
from standfast.runtime.turn import Subscription


@dataclass
class Shop:
    name: str


Paid = list[str | None]


def pay_tool(paid: Paid, **options: Any) -> Any:
    """Return a tool that records the shop for which it was called."""

    @tool(name="pay", **options)
    def pay(ctx: RunContext[Shop]) -> str:
        paid.append(ctx.deps.name if ctx.deps is not None else None)
        return "paid"

    return pay


def shops(calls: list[DepsContext]) -> Callable[[DepsContext], Shop]:
    """Return a factory that makes a shop named after the session's tenant."""

    def make(session: DepsContext) -> Shop:
        calls.append(session)
        return Shop(str(session.metadata.get("tenant", "none")))

    return make


def shop_agent(*replies: Any, paid: Paid, **options: Any) -> Agent[Any, Any]:
    approval = options.pop("approval", "none")
    return agent_of(*replies, tools=[pay_tool(paid, approval=approval)], deps_type=Shop, **options)


PAYING = (asks(("pay", {})), "end")


async def ended(runtime: Runtime, session_id: str = "s") -> None:
    """Wait until the session's last turn has ended."""

    async def over() -> bool:
        turns = await runtime.store.turns(session_id)
        return bool(turns) and turns[-1].state is TurnState.ENDED

    await until(over)


async def parked(place: Place, agent: Agent[Any, Any], deps: Any = None) -> str:
    """Begin a turn that waits for an approval, in a process that ends; return the approval."""
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=agent, deps=deps, metadata={"tenant": "acme"})
        return (await session.turn("pay")).waits[0].wait_id


# Turns that the runtime resumes by itself


def test_an_approved_call_of_a_resumed_turn_has_the_factorys_deps(place: Place) -> None:
    """Bug: after an approval decided elsewhere, the call ran with `ctx.deps = None`."""
    paid: Paid = []
    calls: list[DepsContext] = []

    async def main() -> None:
        approval = await parked(place, shop_agent(PAYING[0], paid=paid, approval="manual"), Shop("ours"))
        agent = shop_agent(*PAYING, paid=paid, approval="manual")
        async with place.runtime(agents=[agent], deps=shops(calls)) as runtime:
            await runtime.approve(approval)
            await ended(runtime)

    asyncio.run(main())
    assert paid == ["acme"]
    (session,) = calls
    assert (session.session_id, session.agent, session.metadata) == ("s", "agent", {"tenant": "acme"})


def test_a_call_made_by_code_has_the_factorys_deps(memory: Place) -> None:
    """Ours: a cell that waited for an approval resumes elsewhere, and its call has the factory's deps."""
    paid: Paid = []
    cell = "```python\nfinish(pay())\n```"

    async def main() -> None:
        agent = shop_agent(cell, paid=paid, approval="manual", protocol="code")
        approval = await parked(memory, agent, Shop("ours"))
        agent = shop_agent(cell, paid=paid, approval="manual", protocol="code")
        async with memory.runtime(agents=[agent], deps=shops([])) as runtime:
            await runtime.approve(approval)
            await ended(runtime)

    asyncio.run(main())
    assert paid == ["acme"]


def test_a_turn_resumed_by_a_timer_has_the_factorys_deps(memory: Place) -> None:
    """Bug: a turn that a timer resumed had no deps."""
    paid: Paid = []

    @tool(side_effect="read")
    def nap() -> CompleteAfter:
        return CompleteAfter(60)

    async def main() -> None:
        tools = [nap, pay_tool(paid)]
        first = agent_of(asks(("nap", {})), tools=tools, deps_type=Shop)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=first, metadata={"tenant": "acme"})
            await session.turn("nap", deps=Shop("ours"))
        memory.clock.advance(61)
        second = agent_of(asks(("nap", {})), *PAYING, tools=tools, deps_type=Shop, deps=shops([]))
        async with memory.runtime(agents=[second]) as runtime:
            await ended(runtime)

    asyncio.run(main())
    assert paid == ["acme"]


@pytest.mark.parametrize("source", ["trigger", "queue", "inject", "monitor"])
def test_turns_without_a_caller_have_the_factorys_deps(memory: Place, source: str) -> None:
    """Bug: triggers, queued inputs and monitors' wakes ran without deps."""
    paid: Paid = []

    async def main() -> None:
        agent = shop_agent(*PAYING, paid=paid, deps=shops([]))
        async with memory.runtime(agents=[agent]) as runtime:
            session = await runtime.session("s", agent=agent, metadata={"tenant": "acme"})
            match source:
                case "trigger":
                    await runtime.add_trigger("t", "orders", "s")
                    assert await runtime.occur("orders", "1") == 1
                case "queue":
                    await session.queue("go")
                case "inject":
                    await session.inject("go")
                    await session.queue("on")
                case "monitor":
                    await runtime._open.queue_turn("s", "wake-1", UserMessage(content="a line"))
            await ended(runtime)

    asyncio.run(main())
    assert paid == ["acme"]


def test_a_turn_recovered_from_a_dead_process_has_the_factorys_deps(place: Place) -> None:
    """Bug: a recovered turn had no deps."""
    paid: Paid = []

    async def main() -> None:
        model = HeldModel()
        first = Agent(model, tools=[pay_tool(paid)], deps_type=Shop)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=first, metadata={"tenant": "acme"})
            session.turn("pay", deps=Shop("ours")).start()
            await model.started.wait()
        second = shop_agent(*PAYING, paid=paid)
        async with place.runtime(agents=[second], deps=shops([])) as runtime:
            await ended(runtime)

    asyncio.run(main())
    assert paid == ["acme"]


def test_the_task_of_a_new_frame_has_the_deps_of_the_turn_that_opened_the_frame(memory: Place) -> None:
    """Bug: a turn's own deps were lost when it continued in another frame."""
    paid: Paid = []

    @tool
    def move_on(ctx: RunContext[Shop]) -> ContinueAs:
        return ContinueAs("pay")

    async def main() -> None:
        replies = (asks(("move_on", {})), *PAYING)
        agent = agent_of(*replies, tools=[move_on, pay_tool(paid)], deps_type=Shop)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go", deps=Shop("ours"))).status == "frame_switched"
            await until(lambda: bool(paid))
            await ended(runtime)

    asyncio.run(main())
    assert paid == ["ours"]


# Factories


def test_an_agents_factory_takes_precedence_over_the_runtimes(memory: Place) -> None:
    """Ours: the agent's factory precedes the runtime's; deps from the caller precede both."""
    paid: Paid = []

    async def main() -> None:
        agent = shop_agent(*PAYING, *PAYING, *PAYING, paid=paid, deps=lambda session: Shop("agent's"))
        async with memory.runtime(deps=lambda session: Shop("runtime's")) as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("one")
            await session.turn("two", deps=Shop("caller's"))
            again = await runtime.session("s", agent=agent, deps=Shop("session's"))
            await again.turn("three")

    asyncio.run(main())
    assert paid == ["agent's", "caller's", "session's"]


async def _coroutine(session: DepsContext) -> Shop:
    await asyncio.sleep(0)
    return Shop("async")


class _Object:
    def __call__(self, session: DepsContext) -> Shop:
        return Shop("object")


@pytest.mark.parametrize(
    ("factory", "name"),
    [(_coroutine, "async"), (lambda session: _coroutine(session), "async"), (_Object(), "object")],
)
def test_a_factory_may_be_any_callable(memory: Place, factory: Any, name: str) -> None:
    """Ours: a factory may be sync or async, a function or an object."""
    paid: Paid = []

    async def main() -> None:
        async with memory.runtime(deps=factory) as runtime:
            session = await runtime.session("s", agent=shop_agent(*PAYING, paid=paid))
            await session.turn("pay")

    asyncio.run(main())
    assert paid == [name]


@pytest.mark.parametrize("decorated", [False, True])
def test_deps_that_a_factory_yields_are_released_when_the_turn_ends_or_parks(
    memory: Place, decorated: bool
) -> None:
    """Ours: a connection is held while the turn runs, not while it waits for a person."""
    log: list[str] = []
    paid: Paid = []

    async def connection(session: DepsContext) -> AsyncIterator[Shop]:
        log.append("open")
        try:
            yield Shop("pooled")
        finally:
            log.append("close")

    async def main() -> None:
        factory: Any = asynccontextmanager(connection) if decorated else connection
        agent = shop_agent(*PAYING, paid=paid, approval="manual")
        async with memory.runtime(deps=factory) as runtime:
            session = await runtime.session("s", agent=agent)
            wait = (await session.turn("pay")).waits[0]
            assert log == ["open", "close"]
            await session.approve(wait.wait_id)

    asyncio.run(main())
    assert (paid, log) == (["pooled"], ["open", "close"] * 2)


def test_a_factory_whose_cleanup_fails_does_not_change_the_result(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: the turn is already committed when the cleanup fails."""

    async def connection(session: DepsContext) -> AsyncIterator[Shop]:
        yield Shop("pooled")
        raise OSError("the pool is gone")

    async def main() -> None:
        async with memory.runtime(deps=connection) as runtime:
            session = await runtime.session("s", agent=shop_agent("hi", paid=[]))
            assert (await session.turn("hello")).output == "hi"

    with caplog.at_level(logging.WARNING, "standfast"):
        asyncio.run(main())
    assert "the pool is gone" in caplog.text


def test_a_value_that_is_not_a_factory_is_refused() -> None:
    """Ours: a value in place of a factory would be shared by all sessions without any error."""
    with pytest.raises(InvalidArgument, match="deps= takes a function"):
        Runtime(deps=Shop("x"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="deps= takes a function"):
        agent_of("x", deps_type=Shop, deps=Shop("x"))

    def generator(session: DepsContext) -> Any:
        yield Shop("x")

    with pytest.raises(InvalidArgument, match="generator function"):
        Runtime(deps=generator)


# Without deps


def test_a_turn_that_lacks_deps_stays_parked_and_its_approval_is_not_used_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: the approved call ran with None, failed, and the approval was used up."""
    paid: Paid = []

    async def main() -> None:
        approval = await parked(place, shop_agent(PAYING[0], paid=paid, approval="manual"), Shop("ours"))
        agent = shop_agent(*PAYING, paid=paid, approval="manual")
        async with place.runtime(agents=[agent]) as runtime:
            feed = runtime.live("s").events.feed
            heard = feed.listen(Subscription())
            await runtime.approve(approval)

            async def noted() -> bool:
                head = await runtime.store.head("s")
                return head is not None and head.blocked is not None

            await until(noted)
            for _ in range(3):
                await runtime.recover()
                await asyncio.sleep(0)
            (record,) = await runtime.store.turns("s")
            assert record.state is TurnState.WAITING
            (decided,) = await runtime.approvals()
            assert decided.state is ApprovalState.APPROVED
            head = await runtime.store.head("s")
            assert head is not None
            assert head.blocked is not None
            assert (head.blocked.turn_id, head.blocked.error.code) == (record.turn_id, "DEPS_MISSING")
            assert "Shop" in head.blocked.error.message
            events = []
            while (event := heard.take()) is not None:
                events.append(event)
            assert [type(one) for one in events] == [TurnBlocked]
            assert paid == []
            session = await runtime.session("s", agent=agent, deps=Shop("ours"))
            await ended(runtime)
            assert await session.blocked() is None
            assert (await session.head()).blocked is None

    with caplog.at_level(logging.WARNING, "standfast"):
        asyncio.run(main())
    assert paid == ["ours"]
    assert caplog.text.count("needs deps of type Shop") == 1


def test_a_caller_without_deps_gets_an_error_and_nothing_is_stored(memory: Place) -> None:
    """Ours: a turn whose agent declares `deps_type` does not run without deps."""
    paid: Paid = []
    agent = shop_agent(*PAYING, paid=paid)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            with pytest.raises(DepsMissing, match="needs deps of type Shop"):
                await session.turn("pay")
            assert await session.turns() == []

    asyncio.run(main())
    with pytest.raises(DepsMissing):
        agent.run_sync("pay")
    assert paid == []


def test_a_queued_input_waits_until_there_are_deps(memory: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Ours: the input stays queued, and the reason is recorded."""
    paid: Paid = []
    agent = shop_agent(*PAYING, paid=paid)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            input_id = await session.queue("pay")

            async def noted() -> bool:
                return await session.blocked() is not None

            await until(noted)
            blocked = await session.blocked()
            assert blocked is not None
            assert (blocked.input_id, blocked.error.code) == (input_id, "DEPS_MISSING")
            await runtime.session("s", agent=agent, deps=Shop("ours"))
            await ended(runtime)
            assert await session.blocked() is None

    asyncio.run(main())
    assert paid == ["ours"]


@pytest.mark.parametrize("problem", ["raises", "returns None"])
def test_a_failing_factory_leaves_the_turn_parked(memory: Place, problem: str) -> None:
    """Ours: the turn stays parked and reports what is missing; the next attempt may succeed."""
    paid: Paid = []
    works = False

    def factory(session: DepsContext) -> Shop:
        if works:
            return Shop("back")
        if problem == "raises":
            raise ConnectionError("no database")
        return None  # type: ignore[return-value]

    async def main() -> None:
        nonlocal works
        approval = await parked(memory, shop_agent(PAYING[0], paid=paid, approval="manual"), Shop("ours"))
        agent = shop_agent(*PAYING, paid=paid, approval="manual")
        async with memory.runtime(deps=factory) as runtime:
            session = await runtime.session("s", agent=agent)
            with pytest.raises(DepsMissing, match=r"no database|returned None"):
                await session.approve(approval)
            works = True
            result = await session.resume()
            assert result is not None
            assert (await result).output == "end"

    asyncio.run(main())
    assert paid == ["back"]


def test_a_cancelled_turn_ends_without_deps(memory: Place) -> None:
    """Ours: a turn that cannot run can still be cancelled."""
    paid: Paid = []

    async def main() -> None:
        await parked(memory, shop_agent(PAYING[0], paid=paid, approval="manual"), Shop("ours"))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=shop_agent("end", paid=paid, approval="manual"))
            assert await session.cancel()
            await ended(runtime)

    asyncio.run(main())
    assert paid == []


# Users of deps


def test_hooks_see_the_deps_of_their_turn(memory: Place) -> None:
    """Ours: hooks have the same deps as tools."""
    seen: list[Any] = []

    class Watcher(Plugin):
        @hook
        async def before_turn(self, ctx: TurnHookContext) -> None:
            seen.append(ctx.deps)

        @hook
        async def before_tool_call(self, ctx: ToolCallHookContext) -> None:
            seen.append(ctx.deps)

    async def main() -> None:
        async with memory.runtime(deps=lambda session: Shop("made")) as runtime:
            agent = shop_agent(*PAYING, *PAYING, paid=[], plugins=[Watcher()])
            session = await runtime.session("s", agent=agent)
            await session.turn("pay")
            await session.turn("pay", deps=Shop("passed"))

    asyncio.run(main())
    assert [one.name for one in seen] == ["made", "made", "passed", "passed"]


SPAWN = asks(("spawn_agent", {"task": "pay", "agent": "clerk"}))
WAIT = asks(("wait", {}))


def clerk(paid: Paid, *replies: Any, **options: Any) -> Agent[Any, Any]:
    return agent_of(*(replies or PAYING), name="clerk", tools=[pay_tool(paid)], deps_type=Shop, **options)


def test_a_subagent_has_the_deps_of_the_turn_that_started_it(memory: Place) -> None:
    """Bug: subagents had at most the session's deps, never the turn's."""
    paid: Paid = []

    async def main() -> None:
        worker = clerk(paid)
        boss = agent_of(SPAWN, WAIT, "end", plugins=[Subagents(agents=[worker])], deps_type=Shop)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=boss)
            await session.turn("go", deps=Shop("the turn's"))

    asyncio.run(main())
    assert paid == ["the turn's"]


def test_a_subagent_inherits_the_factory_of_its_parents_agent(memory: Place) -> None:
    """Ours: the factory gets the session's own id and the metadata of its parent."""
    paid: Paid = []
    calls: list[DepsContext] = []

    async def main() -> None:
        boss = agent_of(
            SPAWN, WAIT, "end", plugins=[Subagents(agents=[clerk(paid)])], deps_type=Shop, deps=shops(calls)
        )
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=boss, metadata={"tenant": "acme"})
            await session.turn("go")

    asyncio.run(main())
    assert paid == ["acme"]
    assert [(one.agent, one.parent_session_id) for one in calls] == [("agent", None), ("clerk", "s")]


def test_a_subagent_that_needs_a_different_type_of_deps_does_not_run(memory: Place) -> None:
    """Ours: the deps are checked against the subagent's own `deps_type`."""
    paid: Paid = []

    async def main() -> None:
        boss = agent_of(SPAWN, "end", plugins=[Subagents(agents=[clerk(paid)])], deps_type=str)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=boss)
            result = await session.turn("go", deps="a text")
            assert results(result.messages) == ["DEPS_MISSING"]

    asyncio.run(main())
    assert paid == []


def test_the_turn_of_a_subagent_has_deps_after_a_restart(place: Place) -> None:
    """Bug: a subagent's turn that another process resumed ran without deps."""
    paid: Paid = []

    async def main() -> None:
        model = HeldModel()
        worker = Agent(model, name="clerk", tools=[pay_tool(paid)], deps_type=Shop)
        boss = agent_of(SPAWN, plugins=[Subagents(agents=[worker])], deps_type=Shop)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=boss, metadata={"tenant": "acme"})
            session.turn("go", deps=Shop("ours")).start()
            await model.started.wait()
        team = Subagents(agents=[clerk(paid)])
        boss = agent_of(SPAWN, "end", plugins=[team], deps_type=Shop, deps=shops([]))
        async with place.runtime(agents=[boss]) as runtime:
            await until(lambda: bool(paid))

    asyncio.run(main())
    assert paid == ["acme"]


def test_metadata_is_kept_with_the_session_and_its_forks(place: Place) -> None:
    """Ours: the process that resumes a session has the metadata with which it was opened."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("a"), metadata={"tenant": "acme"})
            await session.turn("hi")
            assert (await (await session.fork("f")).head()).metadata == {"tenant": "acme"}
            await runtime.session("s", agent=agent_of("b"))
            assert (await session.head()).metadata == {"tenant": "acme"}
            await runtime.session("s", agent=agent_of("b"), metadata={"tenant": "other"})
            assert (await session.head()).metadata == {"tenant": "other"}
            with pytest.raises(InvalidArgument, match="metadata has"):
                await runtime.session("s", agent=agent_of("b"), metadata={"x": "y" * 20_000})

    asyncio.run(main())


def test_a_session_created_by_a_plugin_has_its_creators_deps_and_metadata(memory: Place) -> None:
    """Bug: the first turn of a session created by a directive ran without deps."""
    paid: Paid = []

    class Maker(Plugin):
        @hook
        async def after_turn(self, ctx: TurnResultHookContext) -> CreateSession | None:
            if ctx.session_id != "s":
                return None
            first = SessionRequest(session_id="made", first_input=UserMessage(content="pay"))
            return CreateSession(request=first)

    async def main() -> None:
        agent = shop_agent(*PAYING, paid=paid, plugins=[Maker()])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent, metadata={"tenant": "acme"})
            await session.turn("pay", deps=Shop("ours"))
            await ended(runtime, "made")
            head = await runtime.store.head("made")
            assert head is not None
            assert head.metadata == {"tenant": "acme"}

    asyncio.run(main())
    assert paid == ["ours", "ours"]


def test_an_evicted_session_finds_its_deps_again(memory: Place) -> None:
    """Ours: evicting a session from the cache must not lose its deps."""
    paid: Paid = []

    async def main() -> None:
        agent = shop_agent(*PAYING, *PAYING, paid=paid, deps=shops([]))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent, metadata={"tenant": "acme"})
            await session.turn("pay")
            runtime.live("s").forget()
            runtime._open.evict(runtime.live("s"))
            await runtime._open.queue_turn("s", "wake-1", UserMessage(content="pay"))
            await until(lambda: len(paid) == 2)

    asyncio.run(main())
    assert paid == ["acme", "acme"]


def test_a_turn_started_in_another_session_has_that_sessions_deps(memory: Place) -> None:
    """Ours: a tool that starts a turn for another user must not pass on its own deps."""
    paid: Paid = []

    @tool
    async def ask(ctx: RunContext[Shop]) -> str:
        asked = TurnInput(message=UserMessage(content="pay"))
        return (await ctx.host.start_turn("theirs", asked)).text

    async def main() -> None:
        asking = agent_of(asks(("ask", {})), "end", tools=[ask], deps_type=Shop)
        async with memory.runtime(deps=shops([])) as runtime:
            paying = shop_agent(*PAYING, paid=paid, name="paying")
            await runtime.session("theirs", agent=paying, metadata={"tenant": "acme"})
            session = await runtime.session("s", agent=asking)
            result = await session.turn("go", deps=Shop("ours"))
            assert results(result.messages) == ["end"]

    asyncio.run(main())
    assert paid == ["acme"]
