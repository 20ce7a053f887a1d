"""The error of a turn that ended without an answer, for any reason.

It has its own module because it names, for type checkers only, a class of a higher layer. The layers in
between import the other modules of this package, so no import cycle arises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors.kinds import StandfastError

if TYPE_CHECKING:
    from standfast.runtime.result import StoppedTurn


class TurnStopped(StandfastError):
    """A turn ended without an answer. `result` has everything that it produced until then.

    `messages` are those of the turn, every call with a result.
    """

    def __init__(self, result: StoppedTurn) -> None:
        super().__init__(result.error.message, hint=result.error.hint)
        self.code = result.error.code
        self.reason = result.reason
        self.result = result
        self.messages = result.messages
