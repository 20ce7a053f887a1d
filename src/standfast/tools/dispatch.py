"""The one way a capability is called, whoever calls it.

Theory of operation
-------------------
A call passes the same steps from native tool use and from guest code::

    input validated → request size → rate → approval → concurrency → intent → execute → response → record

`admit` does everything up to the approval and answers with a value: the call is admitted, waits for a
person, or has failed already. `start` does the rest and tells an inbox; `perform` is `start` and the wait. A
slot of `concurrency` is taken only after the approval, so that a person's absence blocks nobody else.

Rules
-----
1. Nothing a tool does escapes: whatever it raises or returns becomes a `SettledCall`.
2. `timeout_ms` holds whatever the tool does, in real time. A handler runs on a thread of its own, an async
   one with an event loop of its own, so one that blocks delays nothing else. A thread that does not come back
   is left behind; what it returns later is dropped. Only a tool that is declared with `loop="runtime"` runs
   on the runtime's loop; if it blocks, everything waits, and it has timed out once it is over.
3. An effect that is not idempotent is journaled before it happens. One that was journaled by a process
   that died is never run again: it settles as INTERRUPTED.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from standfast.errors import Code, StandfastError, ValueTooLarge
from standfast.model.canonical import Json, to_json
from standfast.model.capability import SettledCall, ToolCallContext
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.model.trace_record import span_id_of
from standfast.ports.clock import Clock
from standfast.ports.trace import UNDER, Under
from standfast.tools.admission import Admission, Admitted, NeedsApproval
from standfast.tools.loop_thread import LoopThread
from standfast.tools.loop_threads import LoopJob, LoopThreads
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolRegistry
from standfast.tools.running import Arrived, Inbox, Listener, RunningCall, Slots, invoke
from standfast.tools.settlement import (
    Refused,
    request_digest,
    settle_failure,
    settle_outcome,
    settle_timed_out,
)
from standfast.tools.stalls import StallWatch, watched
from standfast.tools.threads import DaemonThreads

RuleEvaluator = Callable[[str, list[Json], dict[str, Json], str], bool]


class Dispatcher:
    """Admits and performs calls under the limits of their capabilities. Blocking; used on threads."""

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        threads: DaemonThreads,
        clock: Clock,
        evaluate_rule: RuleEvaluator,
        default_timeout_ms: int = SANDBOX_TIMEOUT_MS,
        loops: LoopThreads | None = None,
        stalls: StallWatch | None = None,
    ) -> None:
        self.registry = registry
        self._default_timeout_ms = default_timeout_ms
        self._threads = threads
        self._loops = loops or LoopThreads("standfast-tools")
        self._owns_loops = loops is None
        self._stalls = stalls or StallWatch()
        self._clock = clock
        self._evaluate_rule = evaluate_rule
        self._slots: dict[str, Slots] = {}
        self._recent: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._own_loop = LoopThread()
        self.home: asyncio.AbstractEventLoop | None = None
        """The runtime's loop, for tools with `loop="runtime"`. Without one they share a loop made here."""
        self.traced = False
        """Whether somebody keeps a trace: what an async handler does is then told as a part of its call."""

    def close(self) -> None:
        self._own_loop.close()
        if self._owns_loops:
            self._loops.close(wait_s=0.5)

    def admit(self, name: str, args: object, kwargs: object, *, session_id: str, call_id: int) -> Admission:
        """Check a call up to and including its approval policy."""
        return self.admit_tool(
            self.registry.require(name), args, kwargs, session_id=session_id, call_id=call_id
        )

    def admit_tool(
        self, tool: RegisteredTool, args: object, kwargs: object, *, session_id: str, call_id: int
    ) -> Admission:
        """The same for a tool that the caller has found."""
        admitted = self._in_rate(self.check(tool, args, kwargs, session_id=session_id, call_id=call_id))
        policy = tool.capability.approval_policy
        if policy == "none" or isinstance(admitted, SettledCall):
            return admitted
        if not isinstance(policy, str) and self._rule_approves(policy.auto.rule, admitted):
            return admitted
        return NeedsApproval(admitted)

    def check(
        self, tool: RegisteredTool, args: object, kwargs: object, *, session_id: str, call_id: int
    ) -> Admitted | SettledCall:
        """JSON, schema, request size: what must hold again when a person has edited the arguments."""
        digest = ""
        try:
            (clean_args, clean_kwargs), size = _bounded(tool, args, kwargs)
            digest = request_digest(tool.name, clean_args, clean_kwargs)
            context = ToolCallContext(name=tool.name, args=clean_args, kwargs=clean_kwargs)
            bound = tool.bind(context)
            self._check_request(tool, size)
        except StandfastError as error:
            return settle_failure(tool, digest, error.error_object())
        timeout_ms = self.timeout_ms(tool)
        return Admitted(tool, context, bound, session_id, call_id, digest, timeout_ms=timeout_ms)

    def timeout_ms(self, tool: RegisteredTool) -> int:
        """How long a call of *tool* may take here."""
        return tool.capability.limits.timeout_ms or self._default_timeout_ms

    def perform(self, call: Admitted) -> SettledCall:
        """Execute an admitted call and return its result."""
        inbox: Inbox = queue.SimpleQueue()
        running = self.start(call, inbox)
        while True:
            try:
                message = inbox.get(timeout=self.seconds_left(running))
            except queue.Empty:
                if (settled := self.expire(running)) is not None:
                    return settled
                continue
            if isinstance(message, Arrived):
                return self.settle(message)

    def start(self, call: Admitted, inbox: Listener) -> RunningCall:
        """Begin an admitted call; *inbox* gets its outcome."""
        running = RunningCall(call, inbox)
        # The thread that gives back a slot may be another call's, so the context is taken here.
        context = contextvars.copy_context() if call.tool.async_mode else None
        self._slots_of(call.tool).take(lambda: self._launch(running, context))
        return running

    def settle(self, arrived: Arrived) -> SettledCall:
        """Return the settled call of a handler that has returned or raised."""
        running = arrived.running
        return settle_outcome(running.call, running.started, arrived.value, arrived.error)

    def expire(self, running: RunningCall) -> SettledCall | None:
        """Settle a call that is past its time; None if it still has some, or has just finished."""
        left = self.seconds_left(running)
        if left is None or left > 0 or not running.abandon():
            return None
        return self.settle_late(running)

    def settle_late(self, running: RunningCall) -> SettledCall:
        """Settle a call that was abandoned because it took too long."""
        return settle_timed_out(running.call)

    def seconds_left(self, running: RunningCall) -> float | None:
        """How long the handler may still take; None while it waits for a slot."""
        deadline = running.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _slots_of(self, tool: RegisteredTool) -> Slots:
        slots = self._slots.get(tool.digest)
        if slots is None:
            with self._lock:
                slots = self._slots.setdefault(tool.digest, Slots(tool.capability.limits.concurrency))
        return slots

    def _launch(self, running: RunningCall, context: contextvars.Context | None) -> None:
        """Run the handler: a plain function on a thread, a coroutine function on a loop."""
        call = running.call
        running._slots = self._slots_of(call.tool)
        if running._finished.locked():  # given up while it waited
            running._slots.give_back()
            return
        running.started = time.monotonic()
        running.deadline = running.started + call.timeout_ms / 1000
        try:
            if context is None:
                self._threads.start(lambda: _call_handler(running))
            elif call.tool.loop == "runtime":
                self._launch_at_home(running, context)
            else:
                self._launch_apart(running, context)
        except (RuntimeError, OSError) as error:  # no thread is to be had
            running.finish(None, error)
        running.inbox.put(running)

    def _launch_apart(self, running: RunningCall, context: contextvars.Context) -> None:
        """Run an async handler on a loop of its own."""
        call = running.call
        if self.traced:
            context.run(_enter_span, call)
        job = running._task = LoopJob(partial(invoke, call), partial(_finish_async, running), context)
        self._loops.start(job)

    def _launch_at_home(self, running: RunningCall, context: contextvars.Context) -> None:
        """Run an async handler on the runtime's loop, under the watch for handlers that block it."""
        call = running.call
        loop = self.home or self._own_loop.loop

        async def body() -> None:
            if self.traced:
                _enter_span(call)
            # Whatever is raised stays in here: SystemExit would end the loop and everything else on it.
            value, error = None, None
            try:
                value = await watched(invoke(call), self._stalls, _described(call))
            except asyncio.CancelledError as cancelled:
                _finish_async(running, None, cancelled)
                raise
            except BaseException as raised:
                error = raised
            if self.seconds_left(running):
                running.finish(value, error)
            # else it has blocked the loop for longer than it has; whoever waits for it finds it late

        def begin() -> None:
            task = loop.create_task(body(), context=context)
            running._task = task
            if running._finished.locked():  # given up in between
                task.cancel()

        if loop is asyncio._get_running_loop():
            begin()
        else:
            loop.call_soon_threadsafe(begin)

    def _rule_approves(self, rule: str, call: Admitted) -> bool:
        try:
            view_args, _ = to_json(call.bound.view_args)
            view_kwargs, _ = to_json(call.bound.view_kwargs)
        except StandfastError:
            return False
        return self._evaluate_rule(rule, view_args, view_kwargs, call.session_id)

    def _check_request(self, tool: RegisteredTool, size: int) -> None:
        limits = tool.capability.limits
        if size > limits.max_request_bytes:
            raise Refused(
                Code.REQUEST_TOO_LARGE,
                f"the arguments of {tool.name}() are {size} bytes, the limit is {limits.max_request_bytes}",
            )

    def _in_rate(self, call: Admitted | SettledCall) -> Admitted | SettledCall:
        """Count a call, once: one that a person approves was counted when it was asked for."""
        if isinstance(call, SettledCall) or call.tool.capability.limits.rate_per_min is None:
            return call
        try:
            self._check_rate(call.tool.name, call.tool.capability.limits.rate_per_min)
        except StandfastError as error:
            return settle_failure(call.tool, call.request_digest, error.error_object())
        return call

    def _check_rate(self, name: str, rate_per_min: int) -> None:
        now = self._clock.monotonic()
        with self._lock:
            recent = self._recent.setdefault(name, deque())
            while recent and recent[0] <= now - 60:
                recent.popleft()
            refused = len(recent) >= rate_per_min
            if not refused:
                recent.append(now)
        if refused:
            wait = max(0.0, recent[0] + 60 - now) if recent else 60.0
            raise Refused(
                Code.RATE_LIMITED,
                f"{name}() may be called {rate_per_min} times a minute",
                hint=f"wait {wait:.0f} s",
            )


def _bounded(tool: RegisteredTool, args: object, kwargs: object) -> tuple[Json, int]:
    """The arguments as JSON, and their size. Raise `Refused` for what surely exceeds the request size."""
    try:
        return to_json([args, kwargs], tool.capability.limits.max_request_bytes)
    except ValueTooLarge as error:
        raise Refused(
            Code.REQUEST_TOO_LARGE,
            f"the arguments of {tool.name}() are too large: {error.limit}",
        ) from None


def _enter_span(call: Admitted) -> None:
    """Say in the context of a handler which call it is."""
    about = call.run_context
    if about is not None and about.turn_id:
        UNDER.set(Under(about.session_id, about.turn_id, span_id_of(about.turn_id, f"tool.{about.call_id}")))


def _finish_async(running: RunningCall, value: object, error: BaseException | None) -> None:
    if isinstance(error, asyncio.CancelledError):
        error = RuntimeError("the tool was cancelled")
    running.finish(value, error)


def _described(call: Admitted) -> str:
    return f"tool {call.tool.name}() of session {call.session_id}, call {call.call_id},"


def _call_handler(running: RunningCall) -> None:
    call = running.call
    try:
        value = invoke(call)
    except BaseException as error:
        running.finish(None, error)
    else:
        running.finish(value, None)
