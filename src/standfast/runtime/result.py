"""The result of a turn: a union of one class for each way in which a turn can end or pause.

After comparing `status`, a type checker knows the class of a result: `output` is the answer of a
`FinishedTurn` and `None` for every other result.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeVar, Union

import msgspec

from standfast.errors.codes import ErrorObject
from standfast.model.capability import ExternalCallRecord
from standfast.model.limits import Usage
from standfast.model.message import Message
from standfast.model.outcome import Finished, FrameSwitched, Stopped, StopReason, Wait, Waiting

Output = TypeVar("Output")
Output_co = TypeVar("Output_co", covariant=True)


class _TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every result. `messages` are those of this turn, including the user's own."""

    turn_id: str
    session_id: str
    usage: Usage
    calls: tuple[ExternalCallRecord, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        """The text of the answer; empty unless the turn finished."""
        return ""

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The turn's waits; empty unless it is waiting."""
        return ()

    @property
    def error(self) -> ErrorObject | None:
        """Why the turn stopped; None unless it has stopped."""
        return None


class FinishedTurn(_TurnFacts, Generic[Output_co], frozen=True, kw_only=True):
    """A turn that ended with an answer: `output` is text, or a value of the agent's `output_type`."""

    status: ClassVar[Literal["finished"]] = "finished"

    outcome: Finished
    output: Output_co

    @property
    def text(self) -> str:
        """The text of the answer, as the model wrote it."""
        return self.outcome.text


class FrameSwitchedTurn(_TurnFacts, frozen=True, kw_only=True):
    """A turn that ended by opening a new frame, in which another turn continues the work."""

    status: ClassVar[Literal["frame_switched"]] = "frame_switched"
    output: ClassVar[None] = None

    outcome: FrameSwitched


class WaitingTurn(_TurnFacts, frozen=True, kw_only=True):
    """A turn that is paused until one of its `waits` ends."""

    status: ClassVar[Literal["waiting"]] = "waiting"
    output: ClassVar[None] = None

    outcome: Waiting

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The turn's waits."""
        return self.outcome.waits


class StoppedTurn(_TurnFacts, frozen=True, kw_only=True):
    """A turn that ended without an answer: cancelled, out of budget, refused by the provider, and so on."""

    status: ClassVar[Literal["stopped"]] = "stopped"
    output: ClassVar[None] = None

    outcome: Stopped

    @property
    def reason(self) -> StopReason:
        return self.outcome.reason

    @property
    def error(self) -> ErrorObject:
        """Why the turn stopped."""
        return self.outcome.error


AwaitedResult = Union[FinishedTurn[Output], FrameSwitchedTurn, WaitingTurn]  # noqa: UP007 - generic
"""The result of `await turn`, which raises `TurnStopped` for a turn that stopped."""

TurnResult = Union[FinishedTurn[Output], FrameSwitchedTurn, WaitingTurn, StoppedTurn]  # noqa: UP007 - generic
"""The result of a turn. Compare `status`, or match the classes."""
