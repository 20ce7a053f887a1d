"""The inputs of the turn machine: one type for each kind of event in a turn.

Rule: every event that can change a turn's course is one of these types, is journaled, and carries its time.
The machine has no other source of information.
"""

from __future__ import annotations

import functools
from typing import Literal, final

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json, encode_json
from standfast.model.capability import ExternalCallRecord, GuestException
from standfast.model.code import CodeInput
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageLimits
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Reasoning,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from standfast.model.outcome import StopReason, Wait, WaitOutcome
from standfast.model.prompt import PromptLayer
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.session import PluginNode

CheckpointKind = Literal["after_work", "before_completion"]

Stage = Literal["before_turn", "prepare", "before_tool_call", "checkpoint", "after_turn"]
"""A point in a turn at which plugins may have hooks."""

HookStage = Literal["before_turn", "after_work", "before_completion", "after_turn"]
"""A stage whose hooks the machine itself requests."""


class _Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_ms: int


class TurnStarted(_Input, frozen=True, kw_only=True, tag="turn_started"):
    """The turn's own input, a message or code, and the messages injected while the session was idle.

    `nonce` is a secret of the turn: the tokens of its calls are derived from it, the same in every process.
    `stages` are those at which plugins have hooks; they stay the same for the whole turn. `extension` is for
    the protocol alone; `prompt` is added to the system prompt. `warns`: the model gets warnings as its budget
    runs out, and then a last step. `settings` override those of the session's model for this turn.
    """

    turn_id: str
    message: UserMessage | None = None
    code: CodeInput | None = None
    injected: tuple[UserMessage, ...] = ()
    limits: UsageLimits = UsageLimits()
    nonce: str = ""
    stages: tuple[Stage, ...] = ()
    extension: Json = None
    prompt: PromptLayer | None = None
    warns: bool = False
    settings: dict[str, Json] = msgspec.field(default_factory=dict)


class HooksRan(_Input, frozen=True, kw_only=True, tag="hooks_ran"):
    """The plugins' hooks for a stage have run."""

    stage: HookStage
    number: int
    ruling: Ruling = NOTHING_SAID


class KeptRange(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """A range of the messages, unchanged."""

    start: int
    stop: int


View = tuple[KeptRange | UserMessage | AssistantMessage | ToolMessage, ...]
"""The messages as the model is to see them: unchanged ranges, and replacements."""


class CallPrepared(_Input, frozen=True, kw_only=True, tag="call_prepared"):
    """The plugins have prepared a model call.

    `prompt` and `view` are None if they do not change. `prompt_by` lists the author and length of each part
    of the prompt. `compaction` opens a frame before this turn; `switch` opens one instead of making the call.
    """

    number: int
    prompt: str | None = None
    prompt_by: tuple[tuple[str, int], ...] = ()
    view: View | None = None
    compaction: FrameSwitch | None = None
    switch: FrameSwitch | None = None
    ruling: Ruling = NOTHING_SAID


@final
class ModelReplied(_Input, frozen=True, kw_only=True, tag="model_replied"):
    """The model's whole reply. `raw` is everything that it wrote, if `text` is only the prose.

    `request` is the digest of the `PromptRecord` of the request.
    """

    text: str = ""
    raw: str | None = None
    calls: tuple[RequestedCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    stop_reason: str = ""
    events: tuple[PluginNode, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    response_id: str = ""
    request: str = ""


class ModelFailed(_Input, frozen=True, kw_only=True, tag="model_failed"):
    """A model call failed, and everything it streamed is void. `attempt` counts from 1.

    `retry_after_ms` is the provider's Retry-After; 0: another attempt may follow immediately.
    """

    error: ErrorObject
    retryable: bool = False
    retry_after_ms: int | None = None
    attempt: int = 1
    request: str = ""


class CallRuled(_Input, frozen=True, kw_only=True, tag="call_ruled"):
    """The plugins have ruled on a call before it is executed."""

    call_id: int
    ruling: CallRuling = CallRuling()


@final
class ToolSettled(_Input, frozen=True, kw_only=True, tag="tool_settled"):
    """A call has its result, successful or not. `ruling` is the plugins' ruling on it.

    `exception` is the exception that code sees, if it does not follow from `error` itself. `ends_turn`: the
    error stops the turn. `gives_up_calls`: a cell has ended and its unsettled calls are abandoned.
    """

    call_id: int
    value: Json = None
    error: ErrorObject | None = None
    exception: GuestException | None = None
    record: ExternalCallRecord | None = None
    attachments: tuple[AttachmentPart, ...] = ()
    texts: tuple[str, ...] = ()
    shown: str | None = None
    ruling: Ruling = NOTHING_SAID
    ends_turn: bool = False
    gives_up_calls: bool = False


class CallTimedOut(_Input, frozen=True, kw_only=True, tag="call_timed_out"):
    """An execution of a call exceeded its time-out, and its tool does not simply report this as an error.

    `attempt` is the execution that ended; whether it took effect is unknown. `record` is its audit record.
    """

    call_id: int
    attempt: int
    record: ExternalCallRecord | None = None


class CellCalled(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call that a cell makes. A call with an `error` cannot be executed; `line` is as in `ToolCall`."""

    name: str
    arguments: dict[str, Json] = msgspec.field(default_factory=dict)
    args: tuple[Json, ...] = ()
    error: ErrorObject | None = None
    line: int | None = None


class CellPaused(_Input, frozen=True, kw_only=True, tag="cell_paused"):
    """A cell, which is a call itself, cannot continue before one of its own calls has a result.

    `number` counts the pauses of the cell from 1; `calls` are those it has made since the last pause.
    """

    call_id: int
    number: int
    calls: tuple[CellCalled, ...] = ()


class WaitOpened(_Input, frozen=True, kw_only=True, tag="wait_opened"):
    """A call cannot continue until its wait ends."""

    wait: Wait


class WaitEnded(_Input, frozen=True, kw_only=True, tag="wait_ended"):
    """The wait of a call has ended: by a decision, by a completion, or because its time has come."""

    wait_id: str
    outcome: WaitOutcome


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer converted to `output_type`, or the reason why it cannot be converted."""

    value: Json = None
    problem: str | None = None


@final
class CheckpointPassed(_Input, frozen=True, kw_only=True, tag="checkpoint_passed"):
    """The turn passed a checkpoint, which delivered these injected messages."""

    kind: CheckpointKind
    messages: tuple[UserMessage, ...] = ()
    output: OutputCheck = OutputCheck()


class FrameSwitchRequested(_Input, frozen=True, kw_only=True, tag="frame_switch_requested"):
    """A request to end the turn by opening a frame, once the running calls have their results."""

    switch: FrameSwitch


class FinishRequested(_Input, frozen=True, kw_only=True, tag="finish_requested"):
    """A call's request to end the turn with the answer `text`, once the running calls have their results."""

    call_id: int
    text: str


class CancelRequested(_Input, frozen=True, kw_only=True, tag="cancel_requested"):
    """A caller has cancelled the turn."""


class DeadlinePassed(_Input, frozen=True, kw_only=True, tag="deadline_passed"):
    """The turn has used up its time."""


class Aborted(_Input, frozen=True, kw_only=True, tag="aborted"):
    """The host cannot continue the turn."""

    reason: StopReason
    error: ErrorObject


class Resumed(_Input, frozen=True, kw_only=True, tag="resumed"):
    """Another process has resumed the turn; the time in between does not count."""


Input = (
    TurnStarted
    | HooksRan
    | CallPrepared
    | ModelReplied
    | ModelFailed
    | CallRuled
    | ToolSettled
    | CallTimedOut
    | CellPaused
    | WaitOpened
    | WaitEnded
    | CheckpointPassed
    | FrameSwitchRequested
    | FinishRequested
    | CancelRequested
    | DeadlinePassed
    | Aborted
    | Resumed
)

encode_input = encode_json
"""Encode an input for the journal."""


def decode_input(body: bytes) -> Input:
    """Decode the input of a journal entry; raise `msgspec.DecodeError` if *body* is not one."""
    return _decoder().decode(body)


@functools.cache
def _decoder() -> msgspec.json.Decoder[Input]:
    return msgspec.json.Decoder(Input)  # slow to build, and most turns decode nothing
