"""The messages of a path that the model sees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import Code, ErrorObject
from standfast.graph.history import answered, has_attachments, messages_of
from standfast.model.frame import FrameSwitch
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.model.outcome import Stopped, StopReason
from standfast.model.session import Entry, FrameOpened, Payload, PluginNode, Segment, TurnEnded


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def reply(*calls: int) -> AssistantMessage:
    """Return a reply that requests calls with these ids."""
    asked = (ToolCall(call_id=call, name=f"tool{call}", provider_id=f"p{call}") for call in calls)
    return AssistantMessage(text="so be it", tool_calls=tuple(asked))


def result(call_id: int) -> ToolMessage:
    return ToolMessage(call_id=call_id, name=f"tool{call_id}", value="done", provider_id=f"p{call_id}")


def frame(frame_id: str, *seed: str) -> FrameOpened:
    return FrameOpened(switch=FrameSwitch(frame_id=frame_id, seed=tuple(user(text) for text in seed)))


def segments(*payloads: Payload) -> list[Segment]:
    """Return a segment for each payload."""
    return [
        Segment(
            segment_id=f"t{number}",
            session_id="s",
            parent=None,
            caused_by="t",
            depth=number,
            frame="initial",
            entries=(Entry(at_ms=1, payload=payload),),
            opens_frame=isinstance(payload, FrameOpened),
        )
        for number, payload in enumerate(payloads)
    ]


def test_the_model_sees_only_messages() -> None:
    """Ours: events and plugins' nodes are in the history, not in the conversation."""
    stopped = Stopped(reason=StopReason.CANCELLED, error=ErrorObject(code="CANCELLED", message="x"))
    path = segments(user("a"), reply(), PluginNode(plugin_id="p", kind="k"), TurnEnded(outcome=stopped))
    assert messages_of(path) == [user("a"), reply()]


def test_the_model_sees_the_current_frame_beginning_with_its_seed() -> None:
    """Seed: frames are context boundaries; the one opened last is the current one."""
    path = segments(user("old"), frame("f", "f seed"), user("older"), frame("g", "one", "two"), user("new"))
    assert messages_of(path) == [user("one"), user("two"), user("new")]


def test_an_empty_history_has_no_messages() -> None:
    """Ours: a session without turns is valid."""
    assert messages_of([]) == []


def test_a_complete_conversation_is_unchanged() -> None:
    """Ours: results stay in place if none is missing."""
    whole: list[Message] = [user("a"), reply(1, 2), result(1), result(2), reply(1), result(1), reply()]
    assert answered(list(whole)) == whole


def test_a_call_without_its_result_gets_a_cancelled_one() -> None:
    """Seed: every call in the history has a result, CANCELLED if necessary."""
    found = answered([reply(1, 2), result(2), user("and?"), reply(3)])
    assert [type(message) for message in found] == [
        AssistantMessage,
        ToolMessage,
        ToolMessage,
        UserMessage,
        AssistantMessage,
        ToolMessage,
    ]
    missing = [found[2], found[5]]
    for message, number in zip(missing, (1, 3), strict=True):
        assert isinstance(message, ToolMessage)
        assert message.error is not None
        assert message.error.code == Code.CANCELLED
        assert (message.call_id, message.name) == (number, f"tool{number}")
        assert message.provider_id == f"p{number}"


def test_a_second_reply_ends_the_calls_of_the_first() -> None:
    """Ours: call ids count within a turn, so the next reply may reuse them."""
    found = answered([reply(1), reply(1), result(1)])
    assert [isinstance(message, ToolMessage) and message.error is None for message in found] == [
        False,
        False,
        False,
        True,
    ]


def test_a_result_without_a_call_is_dropped() -> None:
    """Ours: providers reject a result without a call, and a second result for one call."""
    assert answered([result(1), user("a"), reply(1), result(1), result(1), result(7)]) == [
        user("a"),
        reply(1),
        result(1),
    ]


conversations = st.lists(
    st.one_of(
        st.just(user("hi")),
        st.builds(result, st.integers(0, 3)),
        st.builds(lambda calls: reply(*calls), st.lists(st.integers(0, 3), unique=True)),
    )
)


@given(conversations)
def test_in_any_history_every_call_is_followed_by_exactly_one_result(messages: list[Message]) -> None:
    """Seed: an interrupted tool must not make a session unusable."""
    found = answered(messages)
    said = [message for message in found if not isinstance(message, ToolMessage)]
    assert said == [message for message in messages if not isinstance(message, ToolMessage)]
    asked: list[int] = []
    for message in found:
        if isinstance(message, ToolMessage):
            asked.remove(message.call_id)
            continue
        assert asked == []
        if isinstance(message, AssistantMessage):
            asked = [call.call_id for call in message.tool_calls]
    assert asked == []
    assert answered(found) == found


def test_attachments_of_results_are_found_but_not_those_of_users() -> None:
    """Ours: only results show attachments in a separate message."""
    image = AttachmentPart(digest="d", media_type="image/png", size=3, shown=True)
    said: list[Message] = [UserMessage(content=(image,)), reply(1), result(1)]
    assert not has_attachments(said)
    assert has_attachments([*said, ToolMessage(call_id=2, name="paint", value="done", attachments=(image,))])
