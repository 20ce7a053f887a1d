"""What an observer of a session sees, one file for each event."""

from __future__ import annotations

from standfast.model.events.gap import Gap
from standfast.model.events.messages_delivered import MessagesDelivered
from standfast.model.events.model_call_failed import ModelCallFailed
from standfast.model.events.model_call_started import ModelCallStarted
from standfast.model.events.node_committed import NodeCommitted
from standfast.model.events.plugin_event_emitted import PluginEventEmitted
from standfast.model.events.reasoning_streamed import ReasoningStreamed
from standfast.model.events.reply_received import ReplyReceived
from standfast.model.events.task_changed import TaskChanged
from standfast.model.events.text_retracted import TextRetracted
from standfast.model.events.text_streamed import TextStreamed
from standfast.model.events.tool_call_settled import ToolCallSettled
from standfast.model.events.tool_call_started import ToolCallStarted
from standfast.model.events.turn_began import TurnBegan
from standfast.model.events.turn_blocked import TurnBlocked
from standfast.model.events.turn_committed import TurnCommitted
from standfast.model.events.turn_parked import TurnParked
from standfast.model.events.wait_began import WaitBegan
from standfast.model.events.wait_over import WaitOver

Event = (
    TurnBegan
    | ModelCallStarted
    | TextStreamed
    | ReasoningStreamed
    | TextRetracted
    | ReplyReceived
    | ModelCallFailed
    | ToolCallStarted
    | ToolCallSettled
    | WaitBegan
    | WaitOver
    | MessagesDelivered
    | PluginEventEmitted
    | TaskChanged
    | TurnParked
    | TurnBlocked
    | TurnCommitted
    | NodeCommitted
    | Gap
)

__all__ = [
    "Event",
    "Gap",
    "MessagesDelivered",
    "ModelCallFailed",
    "ModelCallStarted",
    "NodeCommitted",
    "PluginEventEmitted",
    "ReasoningStreamed",
    "ReplyReceived",
    "TaskChanged",
    "TextRetracted",
    "TextStreamed",
    "ToolCallSettled",
    "ToolCallStarted",
    "TurnBegan",
    "TurnBlocked",
    "TurnCommitted",
    "TurnParked",
    "WaitBegan",
    "WaitOver",
]
