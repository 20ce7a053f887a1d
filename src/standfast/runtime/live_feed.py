"""Live events of one session: those that its turns become, a bounded past, and everything to come.

Rules
-----
1. An event is kept until 2,048 newer ones are there, or for 120 s.
2. Whoever reads from a place that is gone is told so (`Missed`), never given a wrong continuation.
3. A subscriber of one turn misses nothing: what it has not read yet is kept for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

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
from standfast.model.session import PluginNode
from standfast.model.wait import Approved

if TYPE_CHECKING:
    from standfast.trace.turn_spans import TurnSpans

MAX_EVENTS: Final = 2048
MAX_AGE_S: Final = 120.0


class Missed(Exception):
    """The events after this place are gone."""


class EventSignal:
    """Tells one reader to look. It keeps nothing: whoever does not look misses nothing but the ringing."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def hear(self, event: Event) -> None:
        """Something was published."""
        self.ring()

    def ring(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until it rings, or the time is over."""
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
    """Events for one reader, in order, none left out."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        super().__init__()
        self._events: deque[Event] = deque()

    def hear(self, event: Event) -> None:
        self._events.append(event)
        self.ring()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until there may be something to take."""
        if not self._events:
            await super().wait(timeout_s)

    def take(self) -> Event | None:
        return self._events.popleft() if self._events else None


class LiveFeed:
    """Publishes to whoever listens, and remembers a while for those who come later."""

    __slots__ = ("_bells", "_clock", "_ring", "last_seq")

    def __init__(self, clock: Callable[[], float] = monotonic, last_seq: int = 0) -> None:
        self._clock = clock
        self._ring: deque[tuple[int, float, Event]] = deque(maxlen=MAX_EVENTS)
        self._bells: list[EventSignal] = []
        self.last_seq = last_seq

    def publish(self, event: Event) -> None:
        self.last_seq += 1
        self._ring.append((self.last_seq, self._clock(), event))
        for bell in self._bells:
            bell.hear(event)

    def listen(self, bell: SignalKind) -> SignalKind:
        """Let *bell* hear of what is published, until it leaves."""
        self._bells.append(bell)
        return bell

    def leave(self, bell: EventSignal) -> None:
        if bell in self._bells:
            self._bells.remove(bell)

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._bells

    def since(self, seq: int) -> list[tuple[int, Event]]:
        """The events after *seq*, oldest first."""
        self._forget_old()
        if seq > self.last_seq:
            raise Missed
        first = self._ring[0][0] if self._ring else self.last_seq + 1
        if seq + 1 < first:
            raise Missed
        return [(number, event) for number, _, event in self._ring if number > seq]

    def oldest(self) -> int:
        """The place before the oldest event that is still there."""
        self._forget_old()
        return self._ring[0][0] - 1 if self._ring else self.last_seq

    def _forget_old(self) -> None:
        horizon = self._clock() - MAX_AGE_S
        while self._ring and self._ring[0][1] < horizon:
            self._ring.popleft()


class TurnEventPublisher:
    """The `TurnObserver` of one turn. If somebody keeps a trace, its `spans` are told as well."""

    __slots__ = ("_show", "_spans", "_turn_id")

    def __init__(self, turn_id: str, show: Callable[[Event], None], spans: TurnSpans | None = None) -> None:
        self._turn_id = turn_id
        self._show = show
        self._spans = spans

    def running(self, command: RunTool) -> None:
        call, granted, arguments = command.call, command.granted, command.arguments
        if isinstance(granted, Approved) and granted.arguments is not None:
            arguments = granted.arguments
        if arguments is not None:
            call = msgspec.structs.replace(call, arguments=arguments)
        self._show(ToolCallStarted(turn_id=self._turn_id, call=call))

    def fed(self, given: Input, following: Sequence[Command]) -> None:
        if self._spans is not None:
            self._spans.fed(given, following)
        event = self._event_of(given, following)
        if event is not None:
            self._show(event)
        for node in _emitted(given):
            self._show(
                PluginEventEmitted(
                    turn_id=self._turn_id, plugin_id=node.plugin_id, kind=node.kind, body=node.body
                )
            )

    def _event_of(self, given: Input, following: Sequence[Command]) -> Event | None:
        turn_id = self._turn_id
        match given:
            case ModelReplied(text=text, calls=calls, usage=usage, model=model):
                return ReplyReceived(turn_id=turn_id, text=text, calls=calls, usage=usage, model=model)
            case ToolSettled(call_id=call_id, value=value, error=error, record=record):
                shown = None if record is None else record.without_traceback()
                return ToolCallSettled(
                    turn_id=turn_id, call_id=call_id, value=value, error=error, record=shown
                )
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
            case CheckpointPassed(messages=messages) if messages:
                return MessagesDelivered(turn_id=turn_id, messages=messages)
            case _:
                return None


def _emitted(given: Input) -> tuple[PluginNode, ...]:
    """What plugins tell observers with this."""
    if isinstance(given, (HooksRan, CallPrepared, CallRuled, ToolSettled)):
        return given.ruling.events
    return given.events if isinstance(given, ModelReplied) else ()
