"""Model calls by plugins and tools: the ledger they are charged to, and the limits that apply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from host_stage import said, staged
from plugin_stand_ins import ObedientModel, call
from stand_ins import EchoModel, Place

from standfast import Plugin, RunContext, action, hook, tool
from standfast.errors import InvalidArgument, ModelError, ServiceUnavailable
from standfast.model.host_requests import DirectRequest
from standfast.model.limits import Usage, UsageEntry, UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Stopped
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived


class CountingModel(EchoModel):
    """A model that uses three tokens per reply."""

    def __init__(self, model_id: str = "echo:one") -> None:
        super().__init__()
        self.model_id = model_id
        self.go: asyncio.Event | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        if self.go is not None:
            await self.go.wait()
        text = request.messages[-1].content
        yield ReplyEnded(text=f"re: {text}", usage=Usage(input=2, output=1))


def _ledger(entries: tuple[UsageEntry, ...]) -> dict[str, int]:
    return {entry.source: entry.usage.total for entry in entries}


async def _stored(stage: Any, session_id: str = "root") -> tuple[UsageEntry, ...]:
    head = await stage.runtime.store.head(session_id)
    usage: tuple[UsageEntry, ...] = head.usage
    return usage


def test_a_completion_outside_of_turns_is_in_the_ledger_when_it_returns(place: Place) -> None:
    """Seed: DirectCompletionHost.direct_completion; usage_source in the session's ledger, durably."""

    async def main() -> None:
        model = CountingModel()
        async with staged(place, model=model) as stage:
            done = await stage.host.direct_completion(
                DirectRequest(prompt="sum it up", instructions="Be brief."), "summary"
            )
            assert (done.text, done.usage.total, done.usage.calls) == ("re: sum it up", 3, 1)
            assert model.requests[-1].instructions == "Be brief."
            assert _ledger(await _stored(stage)) == {"summary": 3}
            await stage.host.direct_completion(DirectRequest(prompt="again"), "summary")
            await stage.session.turn("hello")
            assert _ledger(await _stored(stage)) == {"summary": 6, "turn": 3}
            assert [one.call_number for one in model.requests] == [1, 2, 3]
            assert (await stage.session.head()).revision == 1
        async with staged(place, model=model) as stage:
            assert _ledger(await _stored(stage)) == {"summary": 6, "turn": 3}

    asyncio.run(main())


def test_direct_llm_completion_returns_the_whole_reply_to_a_custom_request(place: Place) -> None:
    """Seed: direct_llm_completion returns the whole reply."""

    async def main() -> None:
        model = CountingModel()
        async with staged(place, model=model) as stage:
            request = ModelRequest(messages=[UserMessage(content="x")], settings={"temperature": 0})
            done = await stage.host.direct_llm_completion(request, "extract")
            assert done.response.text == "re: x"
            asked = model.requests[-1]
            assert (asked.session_id, asked.settings) == ("root", {"temperature": 0})
            assert asked.idempotency_key
            assert _ledger(await _stored(stage)) == {"extract": 3}

    asyncio.run(main())


@pytest.mark.parametrize("within", ["a turn", "no turn"])
def test_a_whole_reply_comes_with_its_usage_and_cost(memory: Place, within: str) -> None:
    """Bug: the seed's DirectLlmCompletion.usage was missing."""
    found: list[Usage] = []
    request = ModelRequest(messages=[UserMessage(content="x")])

    class Extracts(Plugin):
        @tool(side_effect="read")
        async def extract(self, ctx: RunContext[None]) -> None:
            """Ask the model."""
            found.append((await ctx.host.direct_llm_completion(request, "extract")).usage)

    async def main() -> None:
        model = ObedientModel("echo:one") if within == "a turn" else CountingModel()
        prices = {"echo:one": {"input": 2, "output": 8}}
        async with staged(memory, Extracts(), model=model, prices=prices) as stage:
            if within == "a turn":
                await stage.session.turn("call extract")
            else:
                found.append((await stage.host.direct_llm_completion(request, "extract")).usage)
            [entry] = [one for one in await _stored(stage) if one.source == "extract"]
        assert found == [entry.usage]
        assert (found[0].calls, found[0].priced) == (1, 1)
        assert found[0].cost_nano_usd == 2_000 * found[0].input + 8_000 * found[0].output

    asyncio.run(main())


class Asker(Plugin):
    """A plugin that calls the model from a tool, from a prompt hook and from a task."""

    @hook
    async def prompt_contributor(self, ctx: Any) -> None:
        if ctx.iteration == 1:
            await ctx.host.direct_completion(DirectRequest(prompt="hook"), "hook")

    @tool(side_effect="read")
    async def ask(self, ctx: RunContext[None]) -> str:
        """Ask the model."""
        return (await ctx.host.direct_completion(DirectRequest(prompt="tool"), "tool")).text

    @tool(side_effect="read")
    async def ask_beside(self, ctx: RunContext[None]) -> str:
        """Ask the model from a task."""

        async def work() -> str:
            return (await ctx.host.direct_completion(DirectRequest(prompt="task"), "task")).text

        await ctx.host.spawn_hidden_task(ctx.session_id, "ask", work)
        return "asked"

    @action(kind="command")
    async def ask_now(self, ctx: Any) -> str:
        """Ask the model from an action."""
        return str((await ctx.host.direct_completion(DirectRequest(prompt="action"), "action")).text)


class ObedientCounting(ObedientModel):
    """An obedient model that uses three tokens per reply."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        async for delta in super().stream(request):
            assert isinstance(delta, ReplyEnded)
            yield ReplyEnded(text=delta.text, calls=delta.calls, usage=Usage(input=2, output=1))


def test_a_completion_in_a_turn_is_charged_to_the_turn(place: Place) -> None:
    """Ours: the usage is journaled with the turn, and the call counts against its limits."""

    async def main() -> None:
        model = ObedientCounting()
        async with staged(place, Asker(), model=model) as stage:
            done = await stage.session.turn("call ask")
            assert done.usage.calls == 4
            assert _ledger(await _stored(stage)) == {"turn": 6, "hook": 3, "tool": 3}
            assert sorted(one.call_number for one in model.requests) == [1, 2, 3, 4]
            await stage.session.plugins.invoke("asker.ask_now")
            assert _ledger(await _stored(stage))["action"] == 3

    asyncio.run(main())


def test_a_completion_in_a_turn_obeys_the_turns_limits(place: Place) -> None:
    """Ours: UsageLimits also apply to model calls by plugins and tools in the turn."""

    async def main() -> None:
        async with staged(place, Asker(), model=ObedientCounting()) as stage:
            done = await stage.host.start_turn("root", said("call ask", limits=UsageLimits(max_calls=2)))
            assert isinstance(done.outcome, Stopped)
            assert sum(_ledger(await _stored(stage)).values()) == 6

    asyncio.run(main())


def test_a_completion_in_a_task_is_charged_to_the_session(place: Place) -> None:
    """Ours: a task is not part of the turn that spawned it."""

    async def main() -> None:
        async with staged(place, Asker(), model=ObedientCounting()) as stage:
            (answer,) = await call(stage.session, "ask_beside")
            assert answer.value == "asked"
            await stage.host.await_hidden_tasks("root")
            assert _ledger(await _stored(stage)) == {"turn": 6, "hook": 3, "task": 3}

    asyncio.run(main())


class Straggler(Plugin):
    """A plugin whose tool makes a model call that is answered after the turn."""

    def __init__(self, left: list[asyncio.Task[Any]]) -> None:
        self._left = left

    def __deepcopy__(self, memo: Any) -> Straggler:
        return Straggler(self._left)

    @tool(side_effect="read", loop="runtime")
    async def leave(self, ctx: RunContext[None]) -> str:
        """Ask without waiting."""
        asked = ctx.host.direct_completion(DirectRequest(prompt="late", model="late:one"), "late")
        self._left.append(asyncio.ensure_future(asked))
        await asyncio.sleep(0)
        return "left"


def test_a_completion_that_ends_after_its_turn_is_not_lost_from_the_ledger(place: Place) -> None:
    """Ours: a call that begins in a turn and ends after it is charged to the session."""
    left: list[asyncio.Task[Any]] = []

    async def main() -> None:
        late = CountingModel("late:one")
        late.go = asyncio.Event()
        async with staged(
            place, Straggler(left), model=ObedientCounting(), models={"late:one": late}
        ) as stage:
            await call(stage.session, "leave")
            assert "late" not in _ledger(await _stored(stage))
            late.go.set()
            assert (await left[0]).text == "re: late"
            assert _ledger(await _stored(stage))["late"] == 3

    asyncio.run(main())


def test_a_request_may_name_a_model_other_than_the_sessions(place: Place) -> None:
    """Ours: the ledger names the model."""

    async def main() -> None:
        other = CountingModel("other:one")
        async with staged(place, models={"other:one": other}) as stage:
            done = await stage.host.direct_completion(DirectRequest(prompt="x", model="other:one"), "s")
            assert done.text == "re: x"
            assert [(entry.source, entry.model) for entry in await _stored(stage)] == [("s", "other:one")]

    asyncio.run(main())


class BrokenModel(EchoModel):
    """A model that never finishes a reply."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        yield TextArrived("so")


def test_a_failed_completion_raises_the_models_error_and_is_not_charged(place: Place) -> None:
    """Ours: a failing model, a missing source and a missing prompt have their documented errors."""

    async def main() -> None:
        async with staged(place, model=BrokenModel()) as stage:
            with pytest.raises(ModelError):
                await stage.host.direct_completion(DirectRequest(prompt="x"), "s")
            with pytest.raises(InvalidArgument):
                await stage.host.direct_completion(DirectRequest(prompt="x"), "")
            with pytest.raises(InvalidArgument):
                await stage.host.direct_completion(DirectRequest(prompt=()), "s")
            assert await _stored(stage) == ()

    asyncio.run(main())


def test_without_a_known_model_completions_are_unavailable(place: Place) -> None:
    """Seed: the trait's default; a session whose agent is not known here has no model."""

    async def main() -> None:
        async with staged(place):
            pass
        async with place.runtime() as runtime:
            host = runtime.host("root")
            with pytest.raises(ServiceUnavailable, match="direct completions"):
                await host.direct_completion(DirectRequest(prompt="x"), "s")
            with pytest.raises(ServiceUnavailable, match="direct LLM completions"):
                await host.direct_llm_completion(ModelRequest(messages=[UserMessage(content="x")]), "s")

    asyncio.run(main())
