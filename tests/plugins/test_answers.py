"""Validation of hooks' answers: wrong types, values that are too large, values that cannot be stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_bench import Actor, label
from stand_ins import Place

from standfast import Agent
from standfast.errors import PluginFailed
from standfast.model.capability import ToolAvailability
from standfast.model.frame import FrameSwitch
from standfast.model.message import AssistantMessage, Message, RequestedCall, ToolMessage, UserMessage
from standfast.model.outcome import Stopped
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.model.session import SessionPolicy
from standfast.plugins.answers import (
    read_catalog,
    read_chunk,
    read_compaction,
    read_contributions,
    read_json,
    read_messages,
    read_policy,
    read_response,
    read_switch,
    read_text,
    read_triggers,
)
from standfast.plugins.contexts import (
    AssistantResponseTransform,
    AssistantStreamTransform,
    ContextCompaction,
    SwitchAgentFrame,
    TriggerEvent,
)
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.running import RegisteredHook
from standfast.ports.model_provider import ReplyEnded
from standfast.tools.registry import ToolCatalogContribution

MIB = 1 << 20
HI = UserMessage(content="hi")


def nothing() -> None: ...


HOOK = RegisteredHook("one", "somewhere", nothing)


def refused(read: Any, *given: Any) -> str:
    """Return the message of the error that refuses an answer and names the plugin."""
    with pytest.raises(PluginFailed, match="plugin 'one' failed in somewhere: ") as caught:
        read(HOOK, *given)
    return caught.value.message.partition("somewhere: ")[2]


# Messages


def test_valid_messages_are_accepted_unchanged() -> None:
    """Seed: a transform answers with the messages to show to the model."""
    given: list[Message] = [HI, AssistantMessage(text="yes"), ToolMessage(call_id=1, name="look", value=1)]
    assert read_messages(HOOK, given, given[:2]) == given[:2]
    assert read_messages(HOOK, given, list(given)) == given


def test_a_message_created_by_a_transform_is_converted_to_its_stored_form() -> None:
    """Bug: a message that the journal cannot hold broke the turn."""
    own = ToolMessage(call_id=1, name="look", value=(1, 2))
    [first, second] = read_messages(HOOK, [HI], [own, HI])
    assert first == ToolMessage(call_id=1, name="look", value=[1, 2])
    assert second is HI


@pytest.mark.parametrize("answer", [None, "hi", (HI,), ["hi"], [HI, None], 3, {}])
def test_an_answer_that_is_not_a_list_of_messages_is_refused(answer: Any) -> None:
    """Ours: an answer of another type is refused."""
    assert "not with a list of messages" in refused(read_messages, [HI, HI], answer)


@pytest.mark.parametrize(
    "message",
    [
        UserMessage(content="\ud800"),
        UserMessage(content=3),  # type: ignore[arg-type]
        ToolMessage(call_id=1, name="look", value=object()),
        ToolMessage(call_id="one", name="look"),  # type: ignore[arg-type]
    ],
    ids=["surrogate", "number", "object", "id"],
)
def test_a_message_that_cannot_be_stored_is_refused(message: Message) -> None:
    """Bug: such a message entered the turn, which then could not be stored or could not be read again."""
    assert "cannot be stored" in refused(read_messages, [HI], [HI, message])


def test_messages_that_are_too_large_are_refused() -> None:
    """Ours: the size of every answer is limited."""
    assert "the limit is" in refused(read_messages, [HI], [UserMessage(content="x" * (17 * MIB))])


def test_an_invalid_message_from_a_transform_stops_the_turn_but_not_the_session(memory: Place) -> None:
    """Bug: the turn stayed unfinished with an error from the encoder."""

    class Breaker(Plugin):
        @hook
        async def context_transform(self, ctx: Any, messages: list[Message]) -> list[Message]:
            if "break" in str(messages[-1]):
                messages[-1] = UserMessage(content="\ud800")
            return messages

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), plugins=[Breaker()]))
            outcome = (await session.turn("break").settled()).outcome
            assert isinstance(outcome, Stopped)
            assert "'breaker'" in outcome.error.message
            assert await session.unfinished() is None

    asyncio.run(main())


def test_a_transform_may_modify_the_list_in_place(memory: Place) -> None:
    """Bug: messages removed in place were still shown."""

    class Forgetful(Plugin):
        @hook
        async def context_transform(self, ctx: Any, messages: list[Message]) -> list[Message]:
            del messages[:-1]
            return messages

    async def main() -> None:
        model = Actor()
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, plugins=[Forgetful()]))
            await session.turn("one")
            await session.turn("two")
            assert len(await session.messages()) == 4
        assert [len(one.messages) for one in model.requests] == [1, 1]

    asyncio.run(main())


# Compactions and frames


def test_a_valid_compaction_is_accepted() -> None:
    """Seed: a compactor answers with a compaction."""
    assert read_compaction(HOOK, ContextCompaction(seed=(HI,))).seed == (HI,)
    assert read_compaction(HOOK, ContextCompaction()).is_empty


def test_an_invalid_compaction_is_refused() -> None:
    """Ours: a compaction of the wrong type or size is refused."""
    assert "not with ContextCompaction" in refused(read_compaction, "short")
    assert "cannot be stored" in refused(read_compaction, ContextCompaction(seed=("hi",)))  # type: ignore[arg-type]
    assert "cannot be stored" in refused(read_compaction, ContextCompaction(reason=3))  # type: ignore[arg-type]
    assert "limit" in refused(
        read_compaction, ContextCompaction(seed=(UserMessage(content="x" * (5 * MIB)),))
    )


def test_a_valid_frame_switch_is_accepted() -> None:
    """Seed: a hook may answer with SwitchAgentFrame."""
    assert read_switch(HOOK, SwitchAgentFrame("f", "dig")) == FrameSwitch(frame_id="f", task="dig")


@pytest.mark.parametrize(
    "answer",
    ["f", SwitchAgentFrame(1, "dig"), SwitchAgentFrame("f", 2), SwitchAgentFrame("\ud800", "dig")],  # type: ignore[arg-type]
    ids=["text", "id", "task", "surrogate"],
)
def test_an_invalid_frame_switch_is_refused(answer: Any) -> None:
    """Bug: a frame whose name was not a string was stored, and the history could not be read again."""
    refused(read_switch, answer)


# Prompts


def test_contributions_may_have_several_forms() -> None:
    """Ours: a contribution may be plain text."""
    piece = PromptContribution(content="x", slot=PromptSlot.INTRO, priority=3)
    assert read_contributions(HOOK, None) == []
    assert read_contributions(HOOK, "text") == [PromptContribution(content="text")]
    assert read_contributions(HOOK, ["text", piece]) == [PromptContribution(content="text"), piece]
    assert read_contributions(HOOK, piece) == [piece]


@pytest.mark.parametrize(
    "answer",
    [
        3, [None], {"a": 1}, b"bytes", PromptContribution(content=3),  # type: ignore[arg-type]
        PromptContribution(content="x", slot="nowhere"),  # type: ignore[arg-type]
        PromptContribution(content="x", priority="high"),  # type: ignore[arg-type]
        "\ud800", "x" * (MIB + 1), ["x" * (MIB // 2)] * 3,
    ],
    ids=label,
)  # fmt: skip
def test_an_invalid_contribution_is_refused(answer: Any) -> None:
    """Ours: contributions of the wrong type, or larger than the prompt, are refused."""
    refused(read_contributions, answer)


# Replies


def test_a_stream_hooks_answer_must_be_text() -> None:
    """Seed: a stream hook answers with text, or with a transform."""
    assert read_chunk(HOOK, "a") == AssistantStreamTransform("a")
    assert read_chunk(HOOK, AssistantStreamTransform("b")) == AssistantStreamTransform("b")
    assert read_text(HOOK, "") == ""
    for wrong in (None, 3, b"a", ["a"], "\ud800", "x" * (MIB + 1), AssistantStreamTransform(3)):  # type: ignore[arg-type]
        refused(read_chunk, wrong)


def test_a_response_hooks_answer_must_be_a_reply_that_can_be_stored() -> None:
    """Seed: a response hook answers with a reply, or with a transform."""
    reply = ReplyEnded(text="yes", calls=(RequestedCall(name="look"),))
    assert read_response(HOOK, reply) == AssistantResponseTransform(reply)
    assert read_response(HOOK, AssistantResponseTransform(reply)) == AssistantResponseTransform(reply)
    for wrong in (
        None,
        "yes",
        ReplyEnded(text=3),  # type: ignore[arg-type]
        ReplyEnded(text="\ud800"),
        ReplyEnded(text="", calls=("look",)),  # type: ignore[arg-type]
        ReplyEnded(text="", calls=(RequestedCall(name="look", arguments={}),)),  # type: ignore[arg-type]
        ReplyEnded(text="x" * (17 * MIB)),
    ):
        refused(read_response, wrong)


# Other answers


def test_a_mutators_answer_must_be_a_valid_policy() -> None:
    """Seed: a mutator answers with a session policy."""
    assert read_policy(HOOK, SessionPolicy(model="m")) == SessionPolicy(model="m")
    without: Any = None
    assert read_policy(HOOK, SessionPolicy(limits=without)) == SessionPolicy()
    for wrong in (
        None,
        {"model": "m"},
        SessionPolicy(model=3),  # type: ignore[arg-type]
        SessionPolicy(limits=3),  # type: ignore[arg-type]
        SessionPolicy(instructions="x" * (2 * MIB)),
    ):
        refused(read_policy, wrong)


def test_a_catalog_contribution_is_validated_completely() -> None:
    """Bug: an invalid availability failed without the plugin's name."""
    given = ToolCatalogContribution({"look": ToolAvailability.OFF}, frozenset({"find"}))
    assert read_catalog(HOOK, given) == given
    spelt = read_catalog(HOOK, ToolCatalogContribution({"look": "off"}))  # type: ignore[dict-item]
    assert spelt.availability == {"look": ToolAvailability.OFF}
    for wrong in (
        {"hidden": ["find"]},
        ToolCatalogContribution({"look": "on"}),  # type: ignore[dict-item]
        ToolCatalogContribution(3),  # type: ignore[arg-type]
        ToolCatalogContribution({}, 3),  # type: ignore[arg-type]
        ToolCatalogContribution({}, [[]]),  # type: ignore[arg-type]
    ):
        refused(read_catalog, wrong)


def test_a_trigger_catalog_must_be_a_list_of_events() -> None:
    """Seed: the trigger catalog is a list of trigger events."""
    assert read_triggers(HOOK, [TriggerEvent(name="mail")]) == [TriggerEvent(name="mail")]
    assert read_triggers(HOOK, ()) == []
    for wrong in (
        None,
        TriggerEvent(name="mail"),
        ["mail"],
        iter(()),
        [TriggerEvent(name=3)],  # type: ignore[arg-type]
        [TriggerEvent(name="x" * MIB)],
    ):
        refused(read_triggers, wrong)


def test_an_actions_answer_must_be_json() -> None:
    """Seed: actions take and return JSON."""
    assert read_json(HOOK, {"a": (1, 2)}) == {"a": [1, 2]}
    assert read_json(HOOK, SessionPolicy(model="m"))["model"] == "m"
    cycle: list[Any] = []
    cycle.append(cycle)
    for wrong in (object(), float("nan"), "\ud800", cycle, "x" * (17 * MIB)):
        refused(read_json, wrong)
