"""What an observer of a session sees, one file for each event."""

from __future__ import annotations

from holdfast.model.events.gap import Gap
from holdfast.model.events.messages_delivered import MessagesDelivered
from holdfast.model.events.model_call_failed import ModelCallFailed
from holdfast.model.events.model_call_started import ModelCallStarted
from holdfast.model.events.node_committed import NodeCommitted
from holdfast.model.events.plugin_event_emitted import PluginEventEmitted
from holdfast.model.events.reasoning_streamed import ReasoningStreamed
from holdfast.model.events.reply_received import ReplyReceived
from holdfast.model.events.task_changed import TaskChanged
from holdfast.model.events.text_retracted import TextRetracted
from holdfast.model.events.text_streamed import TextStreamed
from holdfast.model.events.tool_call_settled import ToolCallSettled
from holdfast.model.events.tool_call_started import ToolCallStarted
from holdfast.model.events.turn_began import TurnBegan
from holdfast.model.events.turn_blocked import TurnBlocked
from holdfast.model.events.turn_committed import TurnCommitted
from holdfast.model.events.turn_parked import TurnParked
from holdfast.model.events.wait_began import WaitBegan
from holdfast.model.events.wait_over import WaitOver

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
