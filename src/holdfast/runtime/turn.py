"""A turn as its caller holds it: something to iterate over, to await, to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.model.events import Event
from holdfast.model.message import UserMessage
from holdfast.model.outcome import Stopped
from holdfast.model.usage import UsageLimits
from holdfast.ports.session_store import Blob
from holdfast.runtime.live_feed import Subscription
from holdfast.runtime.result import TurnResult, TurnStopped

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a turn is asked to do."""

    message: UserMessage
    blobs: tuple[Blob, ...] = ()
    deps: Any = None
    limits: UsageLimits | None = None
    idempotency_key: str | None = None
    consumes: str | None = None


@dataclass(slots=True)
class _Progress:
    """What is known of a turn that was started."""

    task: asyncio.Task[TurnResult[Any]] | None = None
    subscriptions: list[Subscription] = field(default_factory=list)


class Turn(Generic[Output]):
    """Starts when it is first awaited or iterated over, and goes on whether or not anybody listens.

    `async for event in turn` yields what happens; `await turn` gives the result and raises `TurnStopped` if
    the turn ended without an answer. Giving up the wait does not end the turn: `cancel` does.
    """

    __slots__ = ("_cancel", "_progress", "_run", "request", "session_id", "turn_id")

    def __init__(
        self,
        turn_id: str,
        session_id: str,
        request: TurnRequest | None,
        run: Callable[[Turn[Any]], Awaitable[TurnResult[Any]]],
        cancel: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.turn_id = turn_id
        self.session_id = session_id
        self.request = request
        self._run = run
        self._cancel = cancel
        self._progress = _Progress()

    def start(self) -> None:
        """Begin now, without waiting for anything."""
        if self._progress.task is None:
            task = asyncio.ensure_future(self._run(self))
            task.add_done_callback(self._over)
            self._progress.task = task

    async def settled(self) -> TurnResult[Output]:
        """The result, whatever it is: `await turn` without the `TurnStopped`."""
        self.start()
        assert self._progress.task is not None
        return await asyncio.shield(self._progress.task)

    async def cancel(self) -> bool:
        """End the turn. False if it had ended before: then the cancellation changed nothing."""
        return await self._cancel(self.turn_id)

    @property
    def done(self) -> bool:
        """Whether the turn has ended, or waits."""
        return self._progress.task is not None and self._progress.task.done()

    def publish(self, event: Event) -> None:
        """Show an event to whoever iterates over the turn."""
        for subscription in self._progress.subscriptions:
            subscription.push(event)

    def __await__(self) -> Generator[Any, None, TurnResult[Output]]:
        return self._result().__await__()

    def __aiter__(self) -> AsyncIterator[Event]:
        subscription = Subscription()
        self._progress.subscriptions.append(subscription)
        self.start()
        return self._events(subscription)

    async def _result(self) -> TurnResult[Output]:
        result = await self.settled()
        if isinstance(result.outcome, Stopped):
            raise TurnStopped(result)
        return result

    async def _events(self, subscription: Subscription) -> AsyncIterator[Event]:
        try:
            while True:
                while (event := subscription.take()) is not None:
                    yield event
                if self.done:
                    break
                await subscription.wait()
        finally:
            self._progress.subscriptions.remove(subscription)
        await self.settled()  # what broke the turn is raised here as well

    def _over(self, task: asyncio.Future[Any]) -> None:
        for subscription in self._progress.subscriptions:
            subscription.wake()
        if not task.cancelled():
            task.exception()  # whoever awaits hears of it; nobody need to

    def __repr__(self) -> str:
        return f"<Turn {self.turn_id} of {self.session_id}>"
