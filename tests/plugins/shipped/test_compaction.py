"""Compaction: a frame that begins with a summary of the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, StagedModel, asks, results, said

from standfast import Agent, Attachment, TurnStopped, tool
from standfast.errors import InvalidArgument
from standfast.graph.history import answered
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, ToolMessage, UserMessage, text_of
from standfast.model.outcome import StopReason
from standfast.model.session import FrameOpened
from standfast.plugins.shipped import Compaction, Redact
from standfast.plugins.shipped.compaction import INSTRUCTIONS
from standfast.providers.scripted import ScriptedModel

LONG = "word " * 300
SUMMARY = "Summary of the conversation so far:\n\n"
FULL = {"failure": {"code": "CONTEXT_OVERFLOW", "message": "too long"}}


@tool(approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen " * 1_000


def staged(*replies: Any) -> StagedModel:
    """Return a scripted model that records its requests."""
    return StagedModel(ScriptedModel(replies).stream)


def agent_on(model: StagedModel, *more: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent whose earlier turns may take up 700 tokens."""
    settings = {"window_tokens": 1_000, "fill": 0.7, "keep_turns": 1, **options}
    return Agent(model, tools=[pay, look], plugins=[*more, Compaction(**settings)])


async def frames(session: Any) -> list[FrameOpened]:
    return [node.payload for node in await session.nodes() if isinstance(node.payload, FrameOpened)]


def test_a_short_history_is_not_compacted(memory: Place) -> None:
    """Ours: the user does not pay for an unnecessary summary."""

    async def main() -> None:
        model = staged("one", "two", "three")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in ("a", "b", "c"):
                await session.turn(prompt)
            assert said(model.requests[-1].messages) == ["a", "b", "c"]
            assert await frames(session) == []

    asyncio.run(main())


def test_a_full_window_opens_a_frame_with_a_summary_and_the_last_turns(place: Place) -> None:
    """Seed: compaction opens a frame seeded with a summary; older history stays readable."""

    async def main() -> None:
        model = staged("one", "two", "  they talked \n", "three", "four")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (f"a {LONG}", f"b {LONG}", "c", "d"):
                await session.turn(prompt)
            asked = model.requests[2]
            assert (asked.instructions, asked.tools) == (INSTRUCTIONS, ())
            assert said(asked.messages) == [f"User: a {LONG}\n\nAssistant: one"]
            assert said(model.requests[3].messages) == [SUMMARY + "they talked", f"b {LONG}", "c"]
            assert said(model.requests[4].messages)[-1] == "d"
            (frame,) = await frames(session)
            assert (frame.switch.reason, len(frame.switch.seed)) == ("compaction", 3)
            nodes = [node.payload for node in await session.nodes()]
            assert [text[0] for text in said(nodes)] == ["a", "b", "c", "d"]

    asyncio.run(main())


def test_the_summary_is_recorded_in_the_ledger_under_its_own_source(memory: Place) -> None:
    """Seed: usage is recorded by source."""

    async def main() -> None:
        told = {"text": "told", "usage": {"input": 700, "output": 7}}
        model = staged("one", "two", told, "three")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, LONG, LONG):
                result = await session.turn(prompt)
            lines = {line.source: line.usage for line in await session.usage()}
            assert lines["compaction"] == Usage(input=700, output=7, calls=1, priced=1)
            assert lines["turn"].calls == 3
            assert result.usage.calls == 2

    asyncio.run(main())


def test_tokens_counted_by_the_provider_trigger_compaction(memory: Place) -> None:
    """Ours: the estimate alone misses the system prompt and the tools."""

    async def main() -> None:
        model = staged("one", {"text": "two", "usage": {"input": 701}}, "told", "three")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, "b", "c"):
                await session.turn(prompt)
            assert len(await frames(session)) == 1
            kept = [
                one for one in (await frames(session))[0].switch.seed if isinstance(one, AssistantMessage)
            ]
            assert [(one.text, one.usage) for one in kept] == [("two", Usage())]

    asyncio.run(main())


def test_short_turns_are_not_summarized_when_something_else_fills_the_window(memory: Place) -> None:
    """Ours: with such a long system prompt, every turn would request a summary of almost nothing."""

    async def main() -> None:
        model = staged("one", {"text": "two", "usage": {"input": 900}}, "three")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in ("a", "b", "c"):
                await session.turn(prompt)
            assert await frames(session) == []

    asyncio.run(main())


def test_a_turn_requests_one_summary_however_many_calls_it_makes(place: Place) -> None:
    """Seed: a turn is compacted at most once."""

    async def main() -> None:
        model = staged("one", "two", "told", asks(("look", {})), asks(("look", {})), "three")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, LONG, LONG):
                await session.turn(prompt)
            assert len(await frames(session)) == 1
            first = [text_of(request.messages[0].content)[:7] for request in model.requests[3:]]
            assert first == [SUMMARY[:7]] * 3

    asyncio.run(main())


def test_an_empty_summary_leaves_the_history_unchanged(place: Place) -> None:
    """Ours: a failed summary keeps the history and is not retried in the same turn."""

    async def main() -> None:
        model = staged("one", "two", " \n", asks(("look", {})), "three", "told", "four")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, LONG, LONG):
                await session.turn(prompt)
            assert await frames(session) == []
            assert said(model.requests[4].messages) == [LONG] * 3
            await session.turn("again")
            assert len(await frames(session)) == 1

    asyncio.run(main())


def test_a_failed_summary_fails_the_turn_but_not_the_session(place: Place) -> None:
    """Seed: a failing compactor fails the turn."""

    async def main() -> None:
        model = staged("one", "two", {"failure": {"message": "no"}}, "told", "four")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, LONG):
                await session.turn(prompt)
            with pytest.raises(TurnStopped) as stopped:
                await session.turn("c")
            assert stopped.value.reason is StopReason.PLUGIN_ABORT
            assert await frames(session) == []
            assert (await session.turn("d")).output == "four"

    asyncio.run(main())


def test_a_call_that_overflowed_is_repeated_in_a_new_frame(place: Place) -> None:
    """Seed: after a context overflow the history is compacted and the call repeated."""

    async def main() -> None:
        model = staged("one", FULL, "told", "two")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model, window_tokens=100_000, keep_turns=9))
            await session.turn("a")
            assert (await session.turn("b")).output == "two"
            assert said(model.requests[-1].messages) == [SUMMARY + "told", "b"]

    asyncio.run(main())


def test_a_first_turn_that_does_not_fit_fails(memory: Place) -> None:
    """Ours: without earlier turns there is nothing to compact."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(staged(FULL, FULL)))
            with pytest.raises(TurnStopped) as stopped:
                await session.turn("g" * 1_000_000)
            assert stopped.value.reason is StopReason.CONTEXT_OVERFLOW

    asyncio.run(main())


def test_another_runtime_continues_from_the_summary(place: Place) -> None:
    """Seed: a reopened session continues in the frame."""

    async def main() -> None:
        model = staged("one", "two", "told", "three", "four")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, LONG, "c"):
                await session.turn(prompt)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            await session.turn("d")
            assert said(model.requests[-1].messages) == [SUMMARY + "told", LONG, "c", "d"]

    asyncio.run(main())


def test_a_turn_that_waits_after_a_compaction_resumes_elsewhere_without_another(place: Place) -> None:
    """Ours: the summary is journaled with the turn, so the model is not asked for it again."""

    async def main() -> None:
        model = staged("one", "two", "told", asks(("pay", {"cents": 5})), "three")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for prompt in (LONG, LONG):
                await session.turn(prompt)
            wait = (await session.turn("pay")).waits[0]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            result = await session.approve(wait.wait_id)
            assert (result.output, results(result.messages)) == ("three", ["paid 5"])
            assert len(model.requests) == 5
            assert said(model.requests[-1].messages) == [SUMMARY + "told", LONG, "pay"]
            assert len(await frames(session)) == 1
            assert sum(line.usage.calls for line in await session.usage()) == 5

    asyncio.run(main())


def test_a_summary_is_summarized_again_later(memory: Place) -> None:
    """Ours: a session may continue indefinitely, so summaries are themselves summarized."""

    async def main() -> None:
        rules = ScriptedModel([f"r{number}" for number in range(1, 60)], strict=False)
        model = StagedModel(rules.stream)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            for _ in range(20):
                await session.turn(LONG)
            opened = await frames(session)
            assert len(opened) > 3
            longest = max(len(str(request.messages)) for request in model.requests)
            assert longest < 6 * len(LONG)
            again = [said(request.messages)[0] for request in model.requests if not request.tools][1]
            assert again.startswith(f"User: {SUMMARY}")

    asyncio.run(main())


def test_turns_that_are_too_long_to_keep_are_summarized(memory: Place) -> None:
    """Ours: a giant turn would fill every frame that keeps it."""

    async def main() -> None:
        model = staged("one", "two", "told", "three")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model, keep_turns=2))
            for prompt in ("a", "g" * 5_000_000, "c"):
                await session.turn(prompt)
            (frame,) = await frames(session)
            assert said(frame.switch.seed) == [SUMMARY + "told"]
            assert len(said(model.requests[2].messages)[0]) < 5_000

    asyncio.run(main())


def test_the_summarizer_is_shown_shortened_calls_results_and_files(memory: Place) -> None:
    """Ours: a summary needs the findings, not the full output."""

    async def main() -> None:
        model = staged(asks(("look", {}), ("look", {"broken": "é"})), "ok", "told", "two")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_on(model))
            await session.turn(["see", Attachment(b"png", "image/png", "cat.png")])
            await session.turn("b")
            (record,) = said(model.requests[2].messages)
            lines = record.split("\n")
            assert lines[:4] == ["User: see", "[cat.png]", "", "Assistant: "]
            assert lines[4:6] == ["calls look({})", 'calls look({"broken":"é"})']
            assert "Result of look(): seen seen" in record
            assert " [...] " in record
            assert len(record) < 2_800

    asyncio.run(main())


def test_kept_turns_are_complete(memory: Place) -> None:
    """Seed: turns are kept whole, and every call keeps its result."""

    async def main() -> None:
        model = staged("one", asks(("look", {})), "two", "told", "three")
        async with memory.runtime() as runtime:
            agent = agent_on(model, window_tokens=3_000)
            session = await runtime.session("s", agent=agent)
            for prompt in (LONG * 3, "b", "c"):
                await session.turn(prompt)
            (frame,) = await frames(session)
            kinds = [type(one) for one in frame.switch.seed]
            assert kinds == [UserMessage, UserMessage, AssistantMessage, ToolMessage, AssistantMessage]
            assert answered(list(frame.switch.seed)) == list(frame.switch.seed)

    asyncio.run(main())


def test_a_secret_typed_by_a_user_is_not_sent_to_the_summarizer(memory: Place) -> None:
    """Ours: the request for a summary is a model call like any other."""

    async def main() -> None:
        model = staged("one", "two", "told", "three")
        async with memory.runtime() as runtime:
            agent = agent_on(model, Redact(secrets=["hunter2!"]))
            session = await runtime.session("s", agent=agent)
            for prompt in (f"it is hunter2! {LONG}", LONG, "c"):
                await session.turn(prompt)
            assert "it is [redacted] word" in said(model.requests[2].messages)[0]
            assert all("hunter2!" not in str(request.messages) for request in model.requests)

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [{"window_tokens": 0}, {"fill": 2}, {"keep_turns": -1}, {"instructions": " "}, {"instructions": 1}],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    """Ours: invalid options raise an error when the agent is created or the session is opened."""
    with pytest.raises(InvalidArgument, match="compaction"):
        Compaction(**options)
    with pytest.raises(InvalidArgument, match="compaction"):
        Compaction().configure(options)
