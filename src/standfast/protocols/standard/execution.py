"""One tool call while it is executed, heard on the turn's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar, assert_never

from standfast.durable.effects import Deliver
from standfast.errors import InvalidArgument, StandfastError
from standfast.machine.inputs import (
    CallTimedOut,
    FrameSwitchRequested,
    Input,
    ToolSettled,
    WaitOpened,
    decode_input,
    encode_input,
)
from standfast.model.bounds import check_bounds
from standfast.model.call import CallStatus, SettledCall
from standfast.model.canonical import to_json
from standfast.model.frame import FrameSwitch
from standfast.model.wait import Wait
from standfast.ports.clock import Clock
from standfast.tools.admission import Admitted
from standfast.tools.context import CompleteAfter, CompleteLater, ContinueAs, Later
from standfast.tools.dispatch import Dispatcher
from standfast.tools.running import Arrived, RunningCall
from standfast.tools.settlement import settle_continued

_LONGEST_S: Final = 100 * 366 * 24 * 3600

T = TypeVar("T")


class Execution:
    """Starts a call, waits for its handler or its timeout, and delivers what came of it, once."""

    def __init__(
        self, dispatcher: Dispatcher, clock: Clock, call: Admitted, turn_id: str, deliver: Deliver
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._call = call
        self._turn_id = turn_id
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._running: RunningCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def start(self) -> None:
        self._running = self._dispatcher.start(self._call, self)

    def put(self, message: Arrived | RunningCall, /) -> None:
        """Hear from the dispatcher, on any thread."""
        if isinstance(message, RunningCall):
            self._on_loop(self._set_timer, message)
        else:
            self._on_loop(self._finish, self._inputs_of(message))

    def abandon(self) -> None:
        """Give the call up; nothing is delivered any more."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.abandon()

    def _on_loop(self, function: Callable[[T], None], given: T) -> None:
        if asyncio._get_running_loop() is self._loop:
            function(given)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, given)

    def _set_timer(self, running: RunningCall) -> None:
        left = self._dispatcher.seconds_left(running)
        if left is not None and not self._over:
            self._timer = self._loop.call_later(left, self._expire, running)

    def _expire(self, running: RunningCall) -> None:
        if self._dispatcher.seconds_left(running):
            self._set_timer(running)  # the loop's clock is a little ahead of ours
            return
        settled = self._dispatcher.expire(running)
        if settled is not None:
            self._finish([self._settled(settled)])

    def _finish(self, inputs: list[Input]) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for given in inputs:
            self._deliver(given)

    def _inputs_of(self, arrived: Arrived) -> list[Input]:
        value = arrived.value
        if arrived.error is None and isinstance(value, Later):
            try:
                return self._later(value, arrived.running)
            except StandfastError as error:
                arrived = Arrived(arrived.running, None, error)
            except Exception as error:  # a tool may put anything into its answer
                problem = f"{self._call.tool.name}() gave a broken {type(value).__name__}: {error}"
                arrived = Arrived(arrived.running, None, InvalidArgument(problem))
        return [self._settled(self._dispatcher.settle(arrived))]

    def _settled(self, settled: SettledCall) -> ToolSettled | CallTimedOut:
        """The call's result; or, if its tool does not simply report it, that the call timed out."""
        call, tool, now = self._call, self._call.tool, self._clock.now_ms()
        timed_out = settled.record.status is CallStatus.TIMEOUT
        if timed_out and tool.on_timeout != "report" and not tool.capability.idempotent:
            return CallTimedOut(at_ms=now, call_id=call.call_id, attempt=call.attempt, record=settled.record)
        return as_input(call.call_id, settled, now)

    def _later(self, value: Later, running: RunningCall) -> list[Input]:
        """What a tool's answer that is no value means."""
        now, call_id = self._clock.now_ms(), self._call.call_id
        match value:
            case CompleteLater():
                return [WaitOpened(at_ms=now, wait=self._completion(value, now))]
            case CompleteAfter():
                return [WaitOpened(at_ms=now, wait=self._timer_wait(value, now))]
            case ContinueAs():
                check_bounds(value.seed)
                switch = FrameSwitch(
                    frame_id=f"{self._turn_id}.f{call_id}",
                    reason=value.reason,
                    task=value.task,
                    seed=tuple(value.seed),
                )
                requested = FrameSwitchRequested(at_ms=now, switch=switch)
                decode_input(encode_input(requested))  # refuses what the journal could not be read back from
                return [requested, self._settled(settle_continued(self._call, running.started))]
            case _:
                assert_never(value)

    def _completion(self, value: CompleteLater, now: int) -> Wait:
        if not value.token.startswith(f"cpl_{self._turn_id}.{self._call.call_id}-"):
            raise InvalidArgument(
                f"{self._call.tool.name}() gave a token that is not this call's",
                hint="use ctx.completion_token()",
            )
        due = now + _whole_ms(value.expires_in_s)
        return Wait(wait_id=value.token, kind="completion", call_id=self._call.call_id, due_at=due)

    def _timer_wait(self, value: CompleteAfter, now: int) -> Wait:
        clean, _ = to_json(value.value)
        return Wait(
            wait_id=f"tmr_{self._turn_id}.{self._call.call_id}",
            kind="timer",
            call_id=self._call.call_id,
            due_at=now + _whole_ms(value.seconds),
            value=clean,
        )


def _whole_ms(seconds: float) -> int:
    if not seconds <= _LONGEST_S:  # nor a number that is none
        raise InvalidArgument(f"a call can wait for {_LONGEST_S} seconds, not for {seconds}")
    return int(max(0.0, seconds) * 1000)


def as_input(call_id: int, settled: SettledCall, now_ms: int) -> ToolSettled:
    """A settled call as the machine takes it."""
    return ToolSettled(
        at_ms=now_ms,
        call_id=call_id,
        value=settled.value,
        error=settled.record.error,
        exception=settled.exception,
        record=settled.record,
        ends_turn=settled.ends_turn,
    )
