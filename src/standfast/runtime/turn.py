"""A turn as its caller holds it: something to iterate over, to await, to cancel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

import msgspec

from standfast.errors import RuntimeClosed
from standfast.model.canonical import Json
from standfast.model.events import Event
from standfast.model.limits import UsageLimits
from standfast.model.message import UserMessage
from standfast.model.prompt import PromptLayer
from standfast.ports.session_store import Blob
from standfast.runtime.live_feed import Subscription
from standfast.runtime.result import AwaitedResult, StoppedTurn, TurnResult, TurnStopped

Output = TypeVar("Output")


_NOBODY: list[asyncio.Future[None]] = []
"""The waiters of a turn that is over; compared by identity."""


class TurnRequest(msgspec.Struct, frozen=True):
    """What a turn is asked to do."""

    message: UserMessage
    blobs: tuple[Blob, ...] = ()
    deps: Any = None
    limits: UsageLimits | None = None
    idempotency_key: str | None = None
    consumes: str | None = None
    extension: Json = None
    prompt: PromptLayer | None = None


class Turn(Generic[Output]):
    """Starts when it is first awaited or iterated over, and goes on whether or not anybody listens.

    `async for event in turn` yields what happens; `await turn` gives the result and raises `TurnStopped` if
    the turn ended without an answer. Giving up the wait does not end the turn: `cancel` does.
    """

    __slots__ = (
        "_begin_waiter", "_cancel", "_run", "_subscriptions", "_task", "_waiters",
        "began", "request", "session_id", "turn_id", "withdrawn",
    )  # fmt: skip

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
        self.began = request is None
        self.withdrawn = False
        self._run = run
        self._cancel = cancel
        self._task: asyncio.Task[TurnResult[Any]] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._begin_waiter: asyncio.Future[None] | None = None
        self._subscriptions: list[Subscription] = []

    def start(self) -> None:
        """Begin now, without waiting for anything."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._main())
            self._task.add_done_callback(_heard)

    async def begun(self) -> None:
        """Until the turn is on disk, or is over without having come so far. For one at a time."""
        self.start()
        if not self.began and not self.done:
            self._begin_waiter = asyncio.get_running_loop().create_future()
            await self._begin_waiter

    def has_begun(self, turn_id: str) -> None:
        """The turn is on disk: this one, or an earlier one that it repeats."""
        self.turn_id, self.began = turn_id, True
        self._tell_begin_waiter()

    def continue_as(self, turn_id: str, request: TurnRequest) -> None:
        """Let this handle stand for the turn that continues the work in a new frame."""
        self.turn_id, self.request, self.began = turn_id, request, False

    def _tell_begin_waiter(self) -> None:
        if self._begin_waiter is not None and not self._begin_waiter.done():
            self._begin_waiter.set_result(None)

    async def settled(self) -> TurnResult[Output]:
        """The result, whatever it is: `await turn` without the `TurnStopped`."""
        self.start()
        task = self._task
        assert task is not None
        if not task.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if task.cancelled():
            raise RuntimeClosed(self.turn_id)
        return await task  # it has ended, or does so without waiting for anything

    async def cancel(self) -> bool:
        """End the turn. False if it had ended before: then the cancellation changed nothing."""
        if not self.began and not self.done:
            self.withdrawn = True  # nothing of it is on disk yet, and nothing will be
            return True
        return await self._cancel(self.turn_id)

    @property
    def done(self) -> bool:
        """Whether the turn has ended, or waits."""
        return self._task is not None and (self._task.done() or self._waiters is _NOBODY)

    def publish(self, event: Event) -> None:
        """Show an event to whoever iterates over the turn."""
        for subscription in self._subscriptions:
            subscription.hear(event)

    def __await__(self) -> Generator[Any, None, AwaitedResult[Output]]:
        return self._result().__await__()

    def subscribe(self, subscription: Subscription) -> None:
        """Let a reader of its own hear every event from here on."""
        self._subscriptions.append(subscription)

    def __aiter__(self) -> AsyncIterator[Event]:
        subscription = Subscription()
        self.subscribe(subscription)
        self.start()
        return self._events(subscription)

    async def _result(self) -> AwaitedResult[Output]:
        result = await self.settled()
        if isinstance(result, StoppedTurn):
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
            self._subscriptions.remove(subscription)
        await self.settled()  # what broke the turn is raised here as well

    async def _main(self) -> TurnResult[Any]:
        """Run, and tell whoever waits from within: a callback of the task would come a loop later."""
        try:
            return await self._run(self)
        finally:
            waiters, self._waiters = self._waiters, _NOBODY
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._tell_begin_waiter()
            for subscription in self._subscriptions:
                subscription.ring()

    def __repr__(self) -> str:
        return f"<Turn {self.turn_id} of {self.session_id}>"


def _heard(task: asyncio.Task[Any]) -> None:
    """Whoever awaits a turn hears what broke it; nobody has to."""
    if not task.cancelled():
        task.exception()


def new_turn_id() -> str:
    return f"t_{secrets.token_hex(10)}"


def is_turn_id(value: str) -> bool:
    """Whether this is the name of a turn, and not of nodes that the host has appended."""
    return value.startswith("t_")


def new_input_id() -> str:
    return f"in_{secrets.token_hex(8)}"
