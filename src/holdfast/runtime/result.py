"""What comes of a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.errors import ErrorObject, HoldfastError
from holdfast.model.call import ExternalCallRecord
from holdfast.model.message import Message
from holdfast.model.outcome import Finished, Outcome, Stopped, Waiting
from holdfast.model.usage import Usage
from holdfast.model.wait import Wait

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class TurnResult(Generic[Output]):
    """How a turn ended, or that it waits.

    `output` is the answer: text, or a value of the agent's `output_type`. It is None unless `status` is
    "finished". `messages` are those of this turn, the user's own included.
    """

    turn_id: str
    session_id: str
    outcome: Outcome
    output: Output
    usage: Usage
    calls: tuple[ExternalCallRecord, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def status(self) -> str:
        """`finished`, `waiting`, `frame_switched` or `stopped`."""
        return str(type(self.outcome).__struct_config__.tag)

    @property
    def text(self) -> str:
        return self.outcome.text if isinstance(self.outcome, Finished) else ""

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What the turn waits for."""
        return self.outcome.waits if isinstance(self.outcome, Waiting) else ()

    @property
    def error(self) -> ErrorObject | None:
        return self.outcome.error if isinstance(self.outcome, Stopped) else None


class TurnStopped(HoldfastError):
    """A turn ended without an answer. `result` holds everything that it said and did until then."""

    def __init__(self, result: TurnResult[Any]) -> None:
        assert isinstance(result.outcome, Stopped)
        error = result.outcome.error
        super().__init__(error.message, hint=error.hint)
        self.code = error.code
        self.reason = result.outcome.reason
        self.result = result

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said in the turn, every call with a result."""
        return self.result.messages
