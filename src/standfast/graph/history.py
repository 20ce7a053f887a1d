"""What the model sees of a session: the messages of the current frame.

Rule: every call that the model sees has a result. Where the history was cut between a call and its result,
by a rewind for instance, the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from standfast.errors import Code, ErrorObject
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.model.node import Entry, FrameOpened, PluginNode, Segment, TurnEnded


def messages_of(segments: Sequence[Segment]) -> list[Message]:
    """The messages of a frame, in order, every call answered."""
    messages: list[Message] = []
    for entry in _frame_entries(segments):
        payload = entry.payload
        if isinstance(payload, (UserMessage, AssistantMessage, ToolMessage)):
            messages.append(payload)
        elif isinstance(payload, FrameOpened):
            messages.extend(payload.switch.seed)
        else:
            assert isinstance(payload, (TurnEnded, PluginNode))
    return answered(messages)


def answered(messages: list[Message]) -> list[Message]:
    """The messages with one result for every call, and no result without a call."""
    open_calls: dict[int, ToolCall] = {}
    whole: list[Message] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if open_calls.pop(message.call_id, None) is None:
                continue  # a result whose call is not in view
        elif open_calls:
            whole.extend(_cut_off(open_calls))
        if isinstance(message, AssistantMessage) and message.tool_calls:
            open_calls = {call.call_id: call for call in message.tool_calls}
        whole.append(message)
    whole.extend(_cut_off(open_calls))
    return whole


def _frame_entries(segments: Sequence[Segment]) -> list[Entry]:
    """The entries from the last `FrameOpened` on, or all of them."""
    first, opening = 0, 0
    for number, segment in enumerate(segments):
        if segment.opens_frame:
            first, opening = number, _last_opening(segment)
    entries = [entry for segment in segments[first:] for entry in segment.entries]
    return entries[opening:]


def _last_opening(segment: Segment) -> int:
    """The place of the last node of *segment* that opens a frame."""
    return max(index for index, entry in enumerate(segment.entries) if isinstance(entry.payload, FrameOpened))


def _cut_off(calls: dict[int, ToolCall]) -> list[ToolMessage]:
    error = ErrorObject(
        code=Code.CANCELLED, message="the conversation was taken back to before this call had its result"
    )
    found = [
        ToolMessage(call_id=call.call_id, name=call.name, error=error, provider_id=call.provider_id)
        for call in calls.values()
    ]
    calls.clear()
    return found
