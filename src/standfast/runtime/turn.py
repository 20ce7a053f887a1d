"""The caller's handle of a turn, and the live events of its session.

Theory of operation
-------------------
A `Turn` can be iterated over, awaited and cancelled. Its events are published to the readers of the turn, and
to the `LiveFeed` of its session, which keeps recent events for later observers.

Rules
-----
1. A feed keeps an event until 2,048 newer ones exist, or for 120 s. If no reader has had a position in it, it
   is dropped when the turn ends: a new reader begins after the last node that is committed.
2. Reading from a position that is no longer kept raises `Missed`; it never yields a wrong continuation.
3. A reader of one turn misses no events: unread ones are kept for it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from itertools import islice
from os import urandom
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from standfast.errors import RuntimeClosed, TurnStopped
from standfast.machine.commands import CallModel, Command, RunTool
from standfast.machine.inputs import (
    CallPrepared,
    CallRuled,
    CheckpointPassed,
    FinishRequested,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    ToolSettled,
    WaitEnded,
    WaitOpened,
)
from standfast.model.canonical import Json
from standfast.model.events import (
    Event,
    MessagesDelivered,
    ModelCallFailed,
    PluginEventEmitted,
    ReplyReceived,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    WaitBegan,
    WaitOver,
)
from standfast.model.limits import UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Approved
from standfast.model.prompt import PromptLayer
from standfast.model.session import PluginNode, check_idempotency_key
from standfast.plugins.running import HOOK
from standfast.plugins.turn_hooks import TurnContext
from standfast.ports.session_store import Blob
from standfast.runtime.result import AwaitedResult, StoppedTurn, TurnResult

if TYPE_CHECKING:
    from standfast.trace.turn_spans import TurnSpans

Output = TypeVar("Output")
RUNNING_TURN: Final[contextvars.ContextVar[TurnContext | None]] = contextvars.ContextVar(
    "standfast_running_turn", default=None
)
"""The turn in whose tools, hooks or cells the current code runs."""


def detached() -> contextvars.Context:
    """Copy the current context for work that is not a part of the running turn."""
    context = contextvars.copy_context()
    context.run(RUNNING_TURN.set, None)
    context.run(HOOK.set, "")
    return context


MAX_EVENTS: Final = 2048
MAX_AGE_S: Final = 120.0


class Missed(Exception):
    """Events after the requested position are no longer kept."""


class EventSignal:
    """Wakes one reader when an event is published. It keeps no events."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def receive(self, event: Event) -> None:
        """Receive a published event."""
        self.ring()

    def ring(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until an event is published, or for *timeout_s*."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self.ring)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


SignalKind = TypeVar("SignalKind", bound=EventSignal)


class Subscription(EventSignal):
    """All events for one reader, in order."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        super().__init__()
        self._events: deque[Event] = deque()

    def receive(self, event: Event) -> None:
        self._events.append(event)
        self.ring()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until there may be an event to take."""
        if not self._events:
            await super().wait(timeout_s)

    def take(self) -> Event | None:
        return self._events.popleft() if self._events else None


class LiveFeed:
    """Publishes the events of a session to its listeners, and keeps the recent ones."""

    __slots__ = ("_bells", "_clock", "_ring", "is_read", "last_seq")

    def __init__(
        self, clock: Callable[[], float] = monotonic, last_seq: int = 0, *, is_read: bool = False
    ) -> None:
        self._clock = clock
        self.is_read = is_read
        """Whether a reader has had a position in it, and may continue from there."""
        # Times and events alternate: a tuple for each would take half of an idle session's memory.
        self._ring: deque[Any] = deque(maxlen=2 * MAX_EVENTS)
        self._bells: list[EventSignal] = []
        self.last_seq = last_seq

    def publish(self, event: Event) -> None:
        self.last_seq += 1
        self._ring.extend((self._clock(), event))
        for bell in self._bells:
            bell.receive(event)

    def put(self, seq: int, event: Event) -> None:
        """Store an event that another process published as number *seq*, unless it is already known."""
        if seq <= self.last_seq:
            return
        if seq > self.last_seq + 1:
            self._ring.clear()
        self.last_seq = seq
        self._ring.append(self._clock())
        self._ring.append(event)

    def first(self) -> Event | None:
        """Return the oldest event that is kept."""
        return self._ring[1] if self._ring else None

    def last(self) -> Event | None:
        """Return the newest event that is kept."""
        return self._ring[-1] if self._ring else None

    def has(self, bell: EventSignal) -> bool:
        return bell in self._bells

    def listen(self, bell: SignalKind) -> SignalKind:
        """Pass events to *bell* until `leave` is called for it."""
        self.is_read = True
        self._bells.append(bell)
        return bell

    def leave(self, bell: EventSignal) -> None:
        if bell in self._bells:
            self._bells.remove(bell)

    @property
    def idle(self) -> bool:
        """Whether there are no listeners."""
        return not self._bells

    def since(self, seq: int) -> list[tuple[int, Event]]:
        """Return the events after *seq*, oldest first; raise `Missed` if some of them are no longer kept."""
        if not self.oldest() <= seq <= self.last_seq:
            raise Missed
        new = list(islice(reversed(self._ring), 0, 2 * (self.last_seq - seq), 2))
        return list(enumerate(reversed(new), seq + 1))

    def oldest(self) -> int:
        """Drop expired events; return the position before the oldest kept one. Numbers have no gaps."""
        horizon = self._clock() - MAX_AGE_S
        while self._ring and self._ring[0] < horizon:
            self._ring.popleft()
            self._ring.popleft()
        return self.last_seq - len(self._ring) // 2


_OVER: list[asyncio.Future[None]] = []
"""A marker, compared by identity, in place of the waiters of a turn that is over."""


class TurnRequest(msgspec.Struct, frozen=True):
    """The input and settings of a new turn."""

    message: UserMessage
    blobs: tuple[Blob, ...] = ()
    deps: Any = None
    limits: UsageLimits | None = None
    idempotency_key: str | None = None
    consumes: str | None = None
    extension: Json = None
    prompt: PromptLayer | None = None
    settings: Mapping[str, Json] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.idempotency_key is not None:
            check_idempotency_key(self.idempotency_key)


class Turn(Generic[Output]):
    """A turn. It starts when it is first awaited or iterated over, and runs even if its events are not read.

    `async for event in turn` yields its events; `await turn` returns the result, and raises `TurnStopped` if
    the turn ended without an answer. Cancelling the await does not end the turn; `cancel` does.
    """

    __slots__ = (
        "_begin_waiter", "_cancel", "_error", "_outcome", "_run", "_task", "_waiters",
        "began", "request", "session_id", "subscriptions", "turn_id", "withdrawn",
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
        self._task: asyncio.Task[None] | None = None
        self._outcome: TurnResult[Any] | None = None
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._begin_waiter: asyncio.Future[None] | None = None
        self.subscriptions: list[Subscription] = []
        """The readers of the turn; each gets every event."""

    def start(self) -> asyncio.Task[None]:
        """Start the turn without waiting; return the task that runs it. `settled` returns the result."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._main())
        return self._task

    async def begun(self) -> None:
        """Wait until the turn is stored, or has failed before that. Only one caller may wait."""
        self.start()
        if not self.began and not self.done:
            self._begin_waiter = asyncio.get_running_loop().create_future()
            await self._begin_waiter

    def has_begun(self, turn_id: str) -> None:
        """Record that the turn is stored: this one, or an earlier turn with the same idempotency key."""
        self.turn_id, self.began = turn_id, True
        self._tell_begin_waiter()

    def continue_as(self, turn_id: str, request: TurnRequest) -> None:
        """Make this handle refer to the turn that continues the work in a new frame."""
        self.turn_id, self.request, self.began = turn_id, request, False

    def _tell_begin_waiter(self) -> None:
        if self._begin_waiter is not None and not self._begin_waiter.done():
            self._begin_waiter.set_result(None)

    async def settled(self) -> TurnResult[Output]:
        """Return the result, whatever its status; unlike `await turn`, do not raise `TurnStopped`."""
        self.start()
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._outcome is None:
            raise self._error or RuntimeClosed(self.turn_id)
        return self._outcome

    async def cancel(self) -> bool:
        """Cancel the turn; return False if it has already ended."""
        if not self.began and not self.done:
            self.withdrawn = True  # nothing of it is stored yet, and nothing will be
            return True
        return await self._cancel(self.turn_id)

    @property
    def done(self) -> bool:
        """Whether the turn has ended or is waiting."""
        return self._task is not None and (self._task.done() or self._waiters is _OVER)

    def __await__(self) -> Generator[Any, None, AwaitedResult[Output]]:
        return self._result().__await__()

    def subscribe(self, subscription: Subscription) -> None:
        """Pass every event from now on to *subscription*."""
        self.subscriptions.append(subscription)

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
            self.subscriptions.remove(subscription)
        await self.settled()  # raises the error that made the turn fail

    async def _main(self) -> None:
        """Run the turn and wake its waiters. A done callback of the task would wake them one cycle later."""
        try:
            self._outcome = await self._run(self)
        except Exception as error:
            self._error = error
        finally:
            waiters, self._waiters = self._waiters, _OVER
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._tell_begin_waiter()
            for subscription in self.subscriptions:
                subscription.ring()

    def __repr__(self) -> str:
        return f"<Turn {self.turn_id} of {self.session_id}>"


def new_turn_id() -> str:
    return f"t_{urandom(10).hex()}"


def is_turn_id(value: str) -> bool:
    """Return whether this is the id of a turn, not of nodes that the host has appended."""
    return value.startswith("t_")


def new_input_id() -> str:
    return f"in_{urandom(8).hex()}"


class TurnEventPublisher:
    """The `TurnObserver` of one turn: publishes its events, and feeds the trace's `spans`, if any."""

    __slots__ = ("_show", "_spans", "_turn_id")

    def __init__(self, turn_id: str, show: Callable[[Event], None], spans: TurnSpans | None = None) -> None:
        self._turn_id = turn_id
        self._show = show
        self._spans = spans

    def running(self, command: RunTool) -> None:
        call, granted, arguments = command.call, command.granted, command.arguments
        if granted is not None and isinstance(granted, Approved) and granted.arguments is not None:
            arguments = granted.arguments
        if arguments is not None:
            call = msgspec.structs.replace(call, arguments=arguments)
        self._show(ToolCallStarted(turn_id=self._turn_id, call=call))

    def fed(self, given: Input, following: Sequence[Command]) -> None:
        if self._spans is not None:
            self._spans.fed(given, following)
        turn_id = self._turn_id
        if type(given) is ModelReplied:  # most frequent inputs first
            self._show(
                ReplyReceived(
                    turn_id=turn_id, text=given.text, calls=given.calls, usage=given.usage, model=given.model
                )
            )
            self._emit(given.events)
        elif type(given) is ToolSettled:
            record = given.record
            self._show(
                ToolCallSettled(
                    turn_id=turn_id,
                    call_id=given.call_id,
                    value=given.value,
                    error=given.error,
                    record=record if record is None or not record.traceback else record.without_traceback(),
                )
            )
            self._emit(given.ruling.events)
        elif type(given) is CheckpointPassed:
            if given.messages:
                self._show(MessagesDelivered(turn_id=turn_id, messages=given.messages))
        elif isinstance(given, HooksRan | CallPrepared | CallRuled):
            self._emit(given.ruling.events)
        elif (event := _event_of(turn_id, given, following)) is not None:
            self._show(event)

    def _emit(self, nodes: tuple[PluginNode, ...]) -> None:
        for node in nodes:
            self._show(
                PluginEventEmitted(
                    turn_id=self._turn_id, plugin_id=node.plugin_id, kind=node.kind, body=node.body
                )
            )


def _event_of(turn_id: str, given: Input, following: Sequence[Command]) -> Event | None:
    """Return the event of an input that few turns have; None if it has none."""
    match given:
        case ModelFailed(error=error, retryable=retryable, attempt=attempt):
            return ModelCallFailed(
                turn_id=turn_id,
                error=error,
                retryable=retryable,
                attempt=attempt,
                retry_in_ms=next((one.delay_ms for one in following if isinstance(one, CallModel)), None),
            )
        case FinishRequested(text=text):
            return TextStreamed(turn_id=turn_id, text=text)
        case WaitOpened(wait=wait):
            return WaitBegan(turn_id=turn_id, wait=wait)
        case WaitEnded(wait_id=wait_id, outcome=outcome):
            return WaitOver(turn_id=turn_id, wait_id=wait_id, outcome=outcome)
        case _:
            return None
