"""The events that an observer of a session receives."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import ExternalCallRecord
from standfast.model.limits import Usage
from standfast.model.message import RequestedCall, ToolCall, UserMessage
from standfast.model.outcome import Ended, Wait, WaitOutcome
from standfast.model.session import HoldsSessionIds, Payload, SessionIdField
from standfast.model.task import TaskRecord


class TurnBegan(HoldsSessionIds, frozen=True, kw_only=True, tag="turn_began"):
    """A turn runs, for the first time or resumed after a crash or a wait."""

    turn_id: str
    session_id: SessionIdField
    resumed: bool = False


class ModelCallStarted(msgspec.Struct, frozen=True, kw_only=True, tag="model_call_started"):
    """A model call started."""

    turn_id: str
    number: int
    attempt: int = 1


class TextStreamed(msgspec.Struct, frozen=True, kw_only=True, tag="text_streamed"):
    """A piece of the reply in progress."""

    turn_id: str
    text: str


class ReasoningStreamed(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_streamed"):
    """A piece of the model's reasoning."""

    turn_id: str
    text: str


class TextRetracted(msgspec.Struct, frozen=True, kw_only=True, tag="text_retracted"):
    """The text streamed by this model call is void: the call failed or was cancelled."""

    turn_id: str
    number: int
    chars: int


class ReplyReceived(msgspec.Struct, frozen=True, kw_only=True, tag="reply_received"):
    """The model has replied."""

    turn_id: str
    text: str
    calls: tuple[RequestedCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""


class ModelCallFailed(msgspec.Struct, frozen=True, kw_only=True, tag="model_call_failed"):
    """Attempt number `attempt` of a model call failed; the call is retried if `retry_in_ms` is set."""

    turn_id: str
    error: ErrorObject
    retryable: bool
    attempt: int = 1
    retry_in_ms: int | None = None


class ToolCallStarted(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_started"):
    """A tool call is being executed."""

    turn_id: str
    call: ToolCall


class ToolCallSettled(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_settled"):
    """A tool call has settled, successfully or not."""

    turn_id: str
    call_id: int
    value: Json = None
    error: ErrorObject | None = None
    record: ExternalCallRecord | None = None


class ToolReported(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool_reported"):
    """A running tool call reports something, such as its progress. It is shown live and not stored."""

    turn_id: str
    call_id: int
    kind: str
    body: Json = None


class WaitBegan(msgspec.Struct, frozen=True, kw_only=True, tag="wait_began"):
    """A call waits for a person, a timer or an external result."""

    turn_id: str
    wait: Wait


class WaitOver(msgspec.Struct, frozen=True, kw_only=True, tag="wait_over"):
    """A call's wait has ended or timed out."""

    turn_id: str
    wait_id: str
    outcome: WaitOutcome


class MessagesDelivered(msgspec.Struct, frozen=True, kw_only=True, tag="messages_delivered"):
    """Injected messages reached the turn."""

    turn_id: str
    messages: tuple[UserMessage, ...]


class PluginEventEmitted(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="plugin_event_emitted"):
    """A plugin's event. It becomes a node of the history once the turn is committed."""

    turn_id: str
    plugin_id: str
    kind: str
    body: Json = None


class TaskChanged(msgspec.Struct, frozen=True, kw_only=True, tag="task_changed"):
    """A background task of the session was registered, has changed, or has ended."""

    record: TaskRecord


class TurnParked(msgspec.Struct, frozen=True, kw_only=True, tag="turn_parked"):
    """The turn waits and occupies no worker."""

    turn_id: str
    waits: tuple[Wait, ...]


class TurnBlocked(msgspec.Struct, frozen=True, kw_only=True, tag="turn_blocked"):
    """A turn or a queued input (without `turn_id`) cannot run in this process yet; `error` says why."""

    error: ErrorObject
    turn_id: str = ""
    input_id: str = ""


class TurnCommitted(msgspec.Struct, frozen=True, kw_only=True, tag="turn_committed"):
    """The turn has ended and is stored. It added `nodes` nodes; the path now has `depth`."""

    turn_id: str
    outcome: Ended
    usage: Usage
    depth: int
    nodes: int = 0


class NodeCommitted(msgspec.Struct, frozen=True, kw_only=True, tag="node_committed"):
    """A node of the history, read from the store."""

    node_id: str
    depth: int
    frame: str
    caused_by: str
    at_ms: int
    payload: Payload


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag="gap"):
    """Live events were missed: there were too many, or they are too old. Committed events follow as nodes."""

    missed: int | None = None


Event = (
    TurnBegan | ModelCallStarted | TextStreamed | ReasoningStreamed | TextRetracted | ReplyReceived
    | ModelCallFailed | ToolCallStarted | ToolReported | ToolCallSettled | WaitBegan | WaitOver
    | MessagesDelivered | PluginEventEmitted | TaskChanged | TurnParked | TurnBlocked | TurnCommitted
    | NodeCommitted | Gap
)  # fmt: skip
