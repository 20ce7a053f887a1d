"""Rolling history: the messages that the model is shown as the window fills."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from stand_ins import Place, StagedModel, asks, said

from standfast import Agent, Attachment, TurnStopped
from standfast.errors import ErrorObject, InvalidArgument
from standfast.graph.history import answered
from standfast.model.limits import Usage
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Message,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.model.outcome import StopReason
from standfast.plugins import PluginExtensions, TurnTransformContext
from standfast.plugins.shipped import RollingHistory
from standfast.providers.scripted import ScriptedModel

WORD = "word "


def dump(size: int) -> str:
    """Return `size` characters."""
    return "x" * size


def talk(number: int, output: Any = "y" * 4_000, **result: Any) -> list[Message]:
    """Return the messages of a turn with one call."""
    call = ToolCall(call_id=1, name="search", arguments={"q": number}, provider_id=f"p{number}")
    return [
        UserMessage(content=f"turn {number}"),
        AssistantMessage(tool_calls=(call,)),
        ToolMessage(call_id=1, name="search", provider_id=f"p{number}", **{"value": output, **result}),
        AssistantMessage(text=f"end {number}"),
    ]


def shown(plugin: RollingHistory, messages: list[Message], turn: int = 1, **told: Any) -> list[Message]:
    """Return the plugin's view of some messages, the last *turn* of which belong to the current turn."""
    ctx = TurnTransformContext(
        session_id="s", turn_id="t", extensions=PluginExtensions(), turn_messages=turn, **told
    )
    return asyncio.run(plugin.context_transform(ctx, messages))


def values(messages: list[Message]) -> list[Any]:
    return [one.value for one in messages if isinstance(one, ToolMessage)]


NOW: list[Message] = [UserMessage(content="now")]
NOTE = "[3.9 KB of output of search() left out]"


def test_the_view_is_unchanged_while_there_is_room() -> None:
    """Ours: the hook returns the same list object, so no view is journaled."""
    messages = talk(1) + talk(2) + NOW
    assert shown(RollingHistory(), messages) is messages
    assert shown(RollingHistory(), NOW) is NOW


def test_old_output_is_dropped_first_and_leaves_a_note() -> None:
    """Seed: the plugin drops old tool output from the view as the window fills."""
    messages = talk(1) + talk(2) + talk(3) + NOW
    found = shown(RollingHistory(window_tokens=4_000, keep_turns=1, fill=0.7), messages)
    assert values(found) == [NOTE, "y" * 4_000, "y" * 4_000]
    assert [type(one) for one in found] == [type(one) for one in messages]
    assert answered(found) == found
    assert found[3:] == messages[3:]


def test_a_shortened_result_still_belongs_to_its_call() -> None:
    """Ours: providers refuse a call without a result."""
    messages = talk(1, {"rows": [1] * 3_000}, shown="z" * 9_000) + NOW
    found = shown(RollingHistory(window_tokens=1_000, keep_turns=0), messages)
    (old,), (new,) = ([one for one in part if isinstance(one, ToolMessage)] for part in (messages, found))
    assert (new.call_id, new.provider_id, new.name) == (old.call_id, old.provider_id, old.name)
    assert (new.value, new.shown) == ("[8.8 KB of output of search() left out]", None)


def test_a_long_error_remains_an_error() -> None:
    """Ours: the model must not read a failure as a result."""
    error = ErrorObject(code="TOOL_ERROR", message="e" * 9_000, hint="try b")
    found = shown(RollingHistory(window_tokens=1_000, keep_turns=0), talk(1, None, error=error) + NOW)
    (new,) = [one for one in found if isinstance(one, ToolMessage)]
    assert new.error == ErrorObject(
        code="TOOL_ERROR", message="[8.8 KB of output of search() left out]", hint="try b"
    )


def test_the_note_names_the_attachment_that_holds_the_full_output() -> None:
    """Ours: the model can read a hidden result again by the attachment's name."""
    part = AttachmentPart(digest="ab" * 32, media_type="text/plain", size=9)
    found = shown(RollingHistory(window_tokens=1_000, keep_turns=0), talk(1, attachments=(part,)) + NOW)
    assert values(found) == [f"{NOTE[:-1]}; attachment abababababab has all of it]"]


def test_old_attachments_are_replaced_by_text() -> None:
    """Seed: the plugin drops old images from the view as the window fills."""
    photo = AttachmentPart(digest="d" * 64, media_type="image/png", size=2_048, name="cat.png")
    old = UserMessage(content=(TextPart(text="look"), photo))
    new = UserMessage(content=(photo,))
    found = shown(
        RollingHistory(window_tokens=3_000, keep_turns=0, fill=0.9), [old, AssistantMessage(text="ok"), new]
    )
    assert found[0] == UserMessage(
        content=(TextPart(text="look"), TextPart(text="[cat.png (image/png, 2.0 KB) left out]"))
    )
    assert found[2] is new


def test_short_output_is_not_replaced_by_a_note() -> None:
    """Ours: a note longer than the text it replaces saves nothing."""
    messages = talk(1, "ok") + talk(2) + NOW
    found = shown(RollingHistory(window_tokens=1_100, keep_turns=0), messages)
    assert values(found) == ["ok", NOTE]


def test_whole_turns_are_dropped_when_notes_are_not_enough() -> None:
    """Seed: turns are dropped as a whole."""
    old: list[Message] = [
        message
        for number in range(6)
        for message in (UserMessage(content=f"{number} {WORD * 400}"), AssistantMessage(text="ok"))
    ]
    found = shown(RollingHistory(window_tokens=2_000, keep_turns=2, fill=0.7), old + NOW)
    assert isinstance(found[0], UserMessage)
    assert [text[0] for text in said(found)] == ["4", "5", "n"]


def test_the_last_turns_are_kept_however_long_they_are() -> None:
    """Seed: the last turns are never shortened."""
    messages = talk(1, "a" * 90_000) + talk(2, "b" * 90_000) + talk(3, "c" * 90_000) + NOW
    found = shown(RollingHistory(window_tokens=1_000, keep_turns=2), messages)
    assert found == messages[4:]


def test_a_single_giant_message_is_unchanged() -> None:
    """Ours: there is nothing else that could be left out."""
    giant: list[Message] = [UserMessage(content="g" * 1_000_000)]
    assert shown(RollingHistory(window_tokens=10), giant) == giant
    assert shown(RollingHistory(window_tokens=10), giant, overflowed=True) == giant


def test_after_an_overflow_only_the_current_turn_is_kept_complete() -> None:
    """Seed: after an overflow the plugin drops more, but never from the current turn."""
    messages = talk(1) + talk(2) + talk(3) + NOW
    plugin = RollingHistory(keep_turns=4)
    assert shown(plugin, messages) is messages
    found = shown(plugin, messages, overflowed=True)
    assert values(found) == [NOTE, NOTE, NOTE]
    deep = [UserMessage(content=WORD * 5_000), AssistantMessage(text="ok"), *talk(2)]
    found = shown(plugin, deep, turn=4, overflowed=True)
    assert said(found) == ["turn 2"]
    assert values(found) == [NOTE]


def test_a_history_that_begins_mid_turn_is_handled() -> None:
    """Ours: the seed of a frame need not begin with a user message."""
    messages = [*talk(1)[1:], *talk(2), *NOW]
    found = shown(RollingHistory(window_tokens=500, keep_turns=0, fill=0.5), messages)
    assert answered(found) == found
    assert said(found)[-1] == "now"


def test_tokens_that_the_provider_counted_beyond_the_estimate_count() -> None:
    """Ours: four characters per token is wrong for a long system prompt and for other scripts."""
    charged = AssistantMessage(text="end", usage=Usage(input=50, cache_read=7_000, output=5))
    messages = [*talk(1)[:3], charged, *NOW]
    plugin = RollingHistory(window_tokens=10_000, keep_turns=0, fill=0.7)
    assert values(shown(plugin, messages)) == [NOTE]
    uncharged = [*talk(1), *NOW]
    assert shown(plugin, uncharged) is uncharged


def test_the_view_changes_in_steps() -> None:
    """Ours: a prefix that changed with every call would never be in the provider's cache."""
    plugin = RollingHistory(window_tokens=10_000, keep_turns=1, fill=0.5)
    messages: list[Message] = []
    views: list[int] = []
    for number in range(40):
        messages = messages + talk(number, "y" * 800)
        views.append(sum("left out" in value for value in values(shown(plugin, [*messages, *NOW]))))
    changes = [view for view, before in zip(views[1:], views, strict=False) if view != before]
    assert views == sorted(views)
    assert 2 <= len(changes) <= 8


def test_the_same_messages_give_the_same_view() -> None:
    """Seed: the view is a deterministic function of the messages."""
    messages = [message for number in range(30) for message in talk(number)] + NOW
    plugin = RollingHistory(window_tokens=9_000)
    copied = msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])
    assert shown(plugin, messages) == shown(plugin, copied)


@pytest.mark.parametrize(
    "options",
    [
        {"window_tokens": 0},
        {"window_tokens": True},
        {"window_tokens": "many"},
        {"keep_turns": -1},
        {"keep_turns": 1.5},
        {"fill": 0},
        {"fill": 1.01},
        {"fill": float("nan")},
        {"fill": "half"},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    """Ours: invalid options raise an error when the agent is created or the session is opened."""
    with pytest.raises(InvalidArgument, match="rolling-history"):
        RollingHistory(**options)
    with pytest.raises(InvalidArgument, match="rolling-history"):
        RollingHistory().configure(options)


# In a session


def test_a_session_keeps_the_messages_that_the_model_no_longer_sees(place: Place) -> None:
    """Seed: the plugin changes the model's view, not the stored history."""

    async def main() -> None:
        script: list[Any] = [
            asks(("dump", {"size": 8_000})),
            "one",
            asks(("dump", {"size": 9_000})),
            "two",
            "three",
        ]
        model = StagedModel(ScriptedModel(script).stream)
        agent = Agent(
            model, tools=[dump], plugins=[RollingHistory(window_tokens=4_000, keep_turns=1, fill=0.7)]
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            for prompt in ("a", "b", "c"):
                await session.turn(prompt)
            assert values(model.requests[-1].messages) == [
                "[7.8 KB of output of dump() left out]",
                dump(9_000),
            ]
            assert values(await session.messages()) == [dump(8_000), dump(9_000)]

    asyncio.run(main())


def test_an_image_is_shown_at_first_and_dropped_later(memory: Place) -> None:
    """Seed: old images are dropped from the view."""

    async def main() -> None:
        model = StagedModel(ScriptedModel(["a cat", "ok", "ok"]).stream)
        agent = Agent(model, plugins=[RollingHistory(window_tokens=2_000, keep_turns=1)])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn(["what is it?", Attachment(b"png", "image/png", "cat.png")])
            for prompt in ("thanks", "bye"):
                await session.turn(prompt)
        seen = [str(request.messages[0]) for request in model.requests]
        assert ["left out" in one for one in seen] == [False, False, True]

    asyncio.run(main())


def test_a_call_that_overflowed_is_repeated_with_a_smaller_view(place: Place) -> None:
    """Seed: an overflow is answered by a smaller view, once."""

    async def main() -> None:
        full = {"failure": {"code": "CONTEXT_OVERFLOW", "message": "too long"}}
        script: list[Any] = [asks(("dump", {"size": 90_000})), full, "short", "next", full, full]
        model = StagedModel(ScriptedModel(script).stream)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[dump], plugins=[RollingHistory()]))
            assert (await session.turn("go")).output == "short"
            assert [len(str(request.messages)) > 90_000 for request in model.requests] == [False, True, False]
            assert (await session.turn("go on")).output == "next"
            with pytest.raises(TurnStopped) as stopped:
                await session.turn("more")
            assert stopped.value.reason is StopReason.CONTEXT_OVERFLOW

    asyncio.run(main())
