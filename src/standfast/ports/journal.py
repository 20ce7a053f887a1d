"""What is written about a call before and after it touches the outside world."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from standfast.model.call import SettledCall
from standfast.model.canonical import Json


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person. `awaited` tells whether guest code holds a future of it."""

    call_id: int
    name: str
    args: list[Json]
    kwargs: dict[str, Json]
    approval_id: str
    contract: str
    awaited: bool = False


class CallJournal(Protocol):
    """Intents and outcomes of the calls of one run. Blocking; called off the loop."""

    def intend(self, call_id: int, request_digest: str) -> None:
        """Make it durable that the call is about to be executed."""

    def settle(self, call_id: int, settled: SettledCall) -> None:
        """Make the call's outcome durable before anything that follows from it happens."""

    def found(self, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None:
        """What an earlier process left: the outcome, True for an intent alone, None for nothing."""
