"""Everything that can happen to a turn, as values.

Rule: whatever may change what a turn does next is one of these, is journaled, and carries the time at which
it happened. The machine learns nothing in any other way.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json, encode_json
from standfast.model.capability import ExternalCallRecord, GuestException
from standfast.model.cell import CodeInput
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
from standfast.model.outcome import StopReason
from standfast.model.prompt import PromptLayer
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.session import PluginNode
from standfast.model.wait import Wait, WaitOutcome

CheckpointKind = Literal["after_work", "before_completion"]

Stage = Literal["before_turn", "prepare", "before_tool_call", "checkpoint", "after_turn"]
"""Where a turn lets plugins have their say, if any wants it there."""

HookStage = Literal["before_turn", "after_work", "before_completion", "after_turn"]
"""A stage whose hooks the machine itself asks for."""


class _Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_ms: int


class TurnStarted(_Input, frozen=True, kw_only=True, tag="turn_started"):
    """The turn's own input, a message or code, after what was injected while the session was idle.

    `nonce` is a secret of the turn: the tokens of its calls are made of it, the same in every process.
    `stages` are those at which plugins are asked; they stay the same for the whole turn. `extension` is for
    the protocol alone; `prompt` is what the turn adds to the system prompt. `warns`: the model is told when
    its budget is running out, and gets a last step when it has.
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


class HooksRan(_Input, frozen=True, kw_only=True, tag="hooks_ran"):
    """The plugins had their say at a stage."""

    stage: HookStage
    number: int
    ruling: Ruling = NOTHING_SAID


class Keep(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """A stretch of the messages as they are."""

    start: int
    stop: int


View = tuple[Keep | UserMessage | AssistantMessage | ToolMessage, ...]
"""What the model is shown of its messages: stretches of them, and some in other words."""


class CallPrepared(_Input, frozen=True, kw_only=True, tag="call_prepared"):
    """The plugins have prepared a model call: its prompt, its view of the messages, or another end.

    Without a `prompt` or a `view` there is nothing to change. `compaction` opens a frame before this turn,
    `switch` one instead of the call.
    """

    number: int
    prompt: str | None = None
    view: View | None = None
    compaction: FrameSwitch | None = None
    switch: FrameSwitch | None = None
    ruling: Ruling = NOTHING_SAID


class ModelReplied(_Input, frozen=True, kw_only=True, tag="model_replied"):
    """The model's whole reply. `raw` is what it wrote, where `text` is only the prose of it."""

    text: str = ""
    raw: str | None = None
    calls: tuple[RequestedCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    stop_reason: str = ""
    events: tuple[PluginNode, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    response_id: str = ""


class ModelFailed(_Input, frozen=True, kw_only=True, tag="model_failed"):
    """A model call failed, and what it had streamed is void. `attempt` is which try of it, from 1.

    `retry_after_ms` is how long the provider asks to wait; 0: another attempt may follow at once.
    """

    error: ErrorObject
    retryable: bool = False
    retry_after_ms: int | None = None
    attempt: int = 1


class CallRuled(_Input, frozen=True, kw_only=True, tag="call_ruled"):
    """The plugins have ruled on a call before it is executed."""

    call_id: int
    ruling: CallRuling = CallRuling()


class ToolSettled(_Input, frozen=True, kw_only=True, tag="tool_settled"):
    """A call has its result, good or bad. `ruling` is what plugins had to say about it.

    `exception` is what code sees of an error, where that does not follow from the error itself. With
    `ends_turn` the tool wants the turn to stop over its error. With `gives_up_calls` a cell has ended and its
    calls under way are not waited for.
    """

    call_id: int
    value: Json = None
    error: ErrorObject | None = None
    exception: GuestException | None = None
    record: ExternalCallRecord | None = None
    attachments: tuple[AttachmentPart, ...] = ()
    shown: str | None = None
    ruling: Ruling = NOTHING_SAID
    ends_turn: bool = False
    gives_up_calls: bool = False


class CallTimedOut(_Input, frozen=True, kw_only=True, tag="call_timed_out"):
    """An execution of a call exceeded its time-out, and its tool does not simply report this.

    `attempt` is the execution that ended; whether it took effect is unknown. `record` is its audit record.
    """

    call_id: int
    attempt: int
    record: ExternalCallRecord | None = None


class CellCalled(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call that a cell makes. One with an `error` cannot be carried out."""

    name: str
    arguments: dict[str, Json] = msgspec.field(default_factory=dict)
    args: tuple[Json, ...] = ()
    error: ErrorObject | None = None


class CellPaused(_Input, frozen=True, kw_only=True, tag="cell_paused"):
    """A cell, which is a call itself, cannot go on before one of its own calls has a result.

    `number` counts the pauses of the cell from 1; `calls` are those it has made since the last one.
    """

    call_id: int
    number: int
    calls: tuple[CellCalled, ...] = ()


class WaitOpened(_Input, frozen=True, kw_only=True, tag="wait_opened"):
    """A call cannot go on until something else happens."""

    wait: Wait


class WaitEnded(_Input, frozen=True, kw_only=True, tag="wait_ended"):
    """What a call waited for has happened, or its time is over."""

    wait_id: str
    outcome: WaitOutcome


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer as `output_type` has it, or why it does not fit."""

    value: Json = None
    problem: str | None = None


class CheckpointPassed(_Input, frozen=True, kw_only=True, tag="checkpoint_passed"):
    """The turn reached a checkpoint; these messages were waiting for it there."""

    kind: CheckpointKind
    messages: tuple[UserMessage, ...] = ()
    output: OutputCheck = OutputCheck()


class FrameSwitchRequested(_Input, frozen=True, kw_only=True, tag="frame_switch_requested"):
    """The turn is to end by opening a frame, once the calls under way have their results."""

    switch: FrameSwitch


class FinishRequested(_Input, frozen=True, kw_only=True, tag="finish_requested"):
    """The turn is to end with this answer of a call, once the calls under way have their results."""

    call_id: int
    text: str


class CancelRequested(_Input, frozen=True, kw_only=True, tag="cancel_requested"):
    """Somebody wants the turn to end now."""


class DeadlinePassed(_Input, frozen=True, kw_only=True, tag="deadline_passed"):
    """The turn has used up its time."""


class Aborted(_Input, frozen=True, kw_only=True, tag="aborted"):
    """The host cannot or will not go on with the turn."""

    reason: StopReason
    error: ErrorObject


class Resumed(_Input, frozen=True, kw_only=True, tag="resumed"):
    """Another process went on with the turn; the time in between does not count."""


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
"""An input as the journal holds it."""

decode_input = msgspec.json.Decoder(Input).decode
"""The input that a journal body stands for; `msgspec.DecodeError` if it is none."""
