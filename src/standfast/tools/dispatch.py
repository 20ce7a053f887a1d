"""The dispatcher: the steps of every call of a capability, whether made natively or by guest code.

Theory of operation
-------------------
A call passes these steps::

    input validated → request size → rate → approval → concurrency → intent → execute → response → record

`admit_tool` performs the steps up to the approval and returns a value: the call is admitted, waits for a
person, or has already failed. `start` performs the rest and passes the outcome to the `RunningCall`. A slot
of `concurrency` is taken only after the approval, so that a call that waits for a person does not block
others.

Rules
-----
1. Anything a tool raises or returns becomes a `SettledCall`.
2. `timeout_ms` is enforced in real time, whatever the tool does. A handler runs on a thread that no other
   work needs, an async one with an event loop of its own, so a handler that blocks delays nothing else. A
   thread that does not return is abandoned, and its later result is dropped. Only a tool declared with
   `loop="runtime"` runs on the runtime's loop; if it blocks, everything waits, and its timeout takes effect
   only when it returns.
3. An effect that is not idempotent is journaled before it happens. If the process dies after that, the effect
   is never run again: it settles as INTERRUPTED.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from standfast.errors import CallRefused, Code, StandfastError, ValueTooLarge
from standfast.model.canonical import Json, digest_sorted, to_json
from standfast.model.capability import SettledCall, ToolCallContext
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.model.trace_record import span_id_of
from standfast.ports.clock import Clock
from standfast.ports.trace import UNDER, EnclosingSpan
from standfast.tools.context import RunContext
from standfast.tools.loop_threads import LoopJob, LoopThread, LoopThreads, Then
from standfast.tools.registered_tool import Admission, Admitted, NeedsApproval, RegisteredTool
from standfast.tools.registry import ToolRegistry
from standfast.tools.settlement import settle_failure, settle_timed_out
from standfast.tools.stalls import StallWatch, watched
from standfast.tools.threads import DaemonThreads


class CallSlots:
    """A fixed number of slots, granted in order; releasing one lets *launch* start the next call in line."""

    def __init__(self, count: int, launch: Callable[[RunningCall], None]) -> None:
        self._free = count
        self._launch = launch
        self._queue: OrderedDict[RunningCall, None] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, call: RunningCall) -> bool:
        """Take a slot. If none is free, return False; the thread that releases one launches *call* later."""
        with self._lock:
            if self._free == 0:
                self._queue[call] = None
                return False
            self._free -= 1
            return True

    def give_back(self, call: RunningCall) -> None:
        """Release the slot of *call*, or its place in the queue."""
        with self._lock:
            if not self._queue:
                self._free += 1
                return
            if call in self._queue:
                del self._queue[call]
                return
            following, _ = self._queue.popitem(last=False)
        self._launch(following)


class RunningCall(LoopJob[Any], ABC):
    """A call that runs, or waits for a slot. A subclass receives its outcome.

    `started` and `deadline` are set when the handler starts. An async handler is run as a `LoopJob`.
    """

    started = 0.0
    deadline: float | None = None
    _context: contextvars.Context | None = None
    _slots: CallSlots | None = None

    def __init__(self, call: Admitted) -> None:
        self.call = call
        self._finished = threading.Lock()

    def launched(self) -> None:
        """Note that the handler has started after waiting for a slot. Called on any thread."""

    @abstractmethod
    def returned(self, value: object, error: BaseException | None) -> Then | None:
        """Receive the handler's outcome, once and on any thread; must not raise.

        It may return a function that wakes the receiver, which the handler's thread calls once it is free.
        """

    def _work(self) -> Any:
        return invoke(self.call)

    def _done(self, value: object, error: BaseException | None) -> Then | None:
        """Pass the outcome to `returned`, unless the handler was abandoned; return what that returns."""
        if not self._end():
            return None
        if self._task is not None and isinstance(error, asyncio.CancelledError):
            error = RuntimeError("the tool was cancelled")
        return self.returned(value, error)

    def seconds_left(self) -> float | None:
        """Return how long the handler may still take; None while the call waits for a slot."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def expire(self) -> SettledCall | None:
        """Settle the call if its timeout has expired; None if it has time left, or has just finished."""
        left = self.seconds_left()
        if left is None or left > 0 or not self.abandon():
            return None
        return settle_timed_out(self.call)

    def abandon(self) -> bool:
        """Abandon the handler and drop its outcome; return False if it has already finished."""
        if not self._end():
            return False
        self.cancel()
        return True

    def _end(self) -> bool:
        if not self._finished.acquire(blocking=False):
            return False
        if self._slots is not None:
            self._slots.give_back(self)
        return True


def invoke(call: Admitted) -> Any:
    """Call the handler and return its result, which for an async tool is an awaitable."""
    tool, bound = call.tool, call.bound
    if tool.isolate:
        return tool.handler(*bound.args, timeout_ms=call.timeout_ms)
    if not tool.takes_context:
        return tool.handler(*bound.args, **bound.kwargs)
    context = call.run_context or RunContext(None, call.session_id, call_id=call.call_id)
    return tool.handler(context, *bound.args, **bound.kwargs)


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
        self._slots: dict[str, CallSlots] = {}
        self._recent: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._own_loop = LoopThread()
        self.home: asyncio.AbstractEventLoop | None = None
        """The runtime's loop, for tools with `loop="runtime"`. Without it, they share a loop created here."""
        self.traced = False
        """Whether tracing is on; then spans of an async handler are children of its call's span."""

    def close(self) -> None:
        self._own_loop.close()
        if self._owns_loops:
            self._loops.close(wait_s=0.5)

    def admit_tool(
        self,
        tool: RegisteredTool,
        args: object,
        kwargs: object,
        *,
        session_id: str,
        call_id: int,
        copied: tuple[Json, int] | None = None,
    ) -> Admission:
        """Check a call up to and including its approval policy; *copied* is as in `check`."""
        admitted = self.check(tool, args, kwargs, session_id=session_id, call_id=call_id, copied=copied)
        if type(admitted) is SettledCall:
            return admitted
        contract = tool.capability
        policy, rate_per_min = contract.approval_policy, contract.limits.rate_per_min
        if rate_per_min is not None:  # an approved call was counted when it was requested
            try:
                self._check_rate(tool.name, rate_per_min)
            except StandfastError as error:
                return settle_failure(tool, admitted.request_digest, error.error_object())
        if policy == "none":
            return admitted
        if isinstance(policy, str) or not self.meets(policy.auto.rule, admitted):
            return NeedsApproval(admitted)
        return admitted

    def meets(self, rule: str, call: Admitted) -> bool:
        """Return whether *rule*, evaluated in the sandbox, is true for a call; false if it fails."""
        try:
            (args, kwargs), _ = to_json(call.tool.view(call.context))
        except StandfastError:
            return False
        return self._evaluate_rule(rule, args, kwargs, call.session_id)

    def check(
        self,
        tool: RegisteredTool,
        args: object,
        kwargs: object,
        *,
        session_id: str,
        call_id: int,
        copied: tuple[Json, int] | None = None,
    ) -> Admitted | SettledCall:
        """Check that the arguments are JSON and within the schema and request limit; also after an edit.

        *copied* is what `copied_if_small([args, kwargs])` has returned, if the caller has called it.
        """
        digest, name, limits = "", tool.name, tool.capability.limits
        limit = limits.max_request_bytes
        try:
            try:
                (clean_args, clean_kwargs), size = copied or to_json([args, kwargs], limit)
            except ValueTooLarge as error:
                message = f"the arguments of {name}() are too large: {error.limit}"
                raise CallRefused(Code.REQUEST_TOO_LARGE, message) from None
            digest = digest_sorted([name, clean_args, clean_kwargs], size)
            context = ToolCallContext(name=name, args=clean_args, kwargs=clean_kwargs)
            bound = tool.bind(context)
            if size > limit:
                message = f"the arguments of {name}() are {size} bytes, the limit is {limit}"
                raise CallRefused(Code.REQUEST_TOO_LARGE, message)
        except StandfastError as error:
            return settle_failure(tool, digest, error.error_object())
        timeout_ms = limits.timeout_ms or self._default_timeout_ms
        return Admitted(tool, context, bound, session_id, call_id, digest, None, timeout_ms)

    def timeout_ms(self, tool: RegisteredTool) -> int:
        """Return the timeout of a call of *tool*."""
        return tool.capability.limits.timeout_ms or self._default_timeout_ms

    def start(self, running: RunningCall) -> None:
        """Begin an admitted call, or let it wait for a slot."""
        tool = running.call.tool
        if tool.async_mode:  # the thread that releases a slot may belong to another call
            running._context = contextvars.copy_context()
        slots = self._slots.get(tool.digest)
        if slots is None:
            with self._lock:
                new = CallSlots(tool.capability.limits.concurrency, self._launch_waiting)
                slots = self._slots.setdefault(tool.digest, new)
        running._slots = slots
        if slots.take(running):
            self._launch(running)

    def _launch(self, running: RunningCall) -> None:
        """Run the handler: a plain function on a thread, a coroutine function on a loop."""
        call, context = running.call, running._context
        running.started = started = time.monotonic()
        running.deadline = started + call.timeout_ms / 1000
        try:
            if context is None:
                self._threads.start(partial(_call_handler, running))
            elif call.tool.loop == "runtime":
                self._launch_at_home(running, context)
            else:  # on a loop of its own
                if self.traced:
                    context.run(_enter_span, call)
                self._loops.start(running)
        except (RuntimeError, OSError) as error:  # no thread can be started
            running.report(None, error)

    def _launch_waiting(self, running: RunningCall) -> None:
        if not running._finished.locked():  # it has not been abandoned in the meantime
            self._launch(running)
            running.launched()

    def _launch_at_home(self, running: RunningCall, context: contextvars.Context) -> None:
        """Run an async handler on the runtime's loop, under the watch for handlers that block it."""
        call = running.call
        loop = self.home or self._own_loop.loop

        async def body() -> None:
            if self.traced:
                _enter_span(call)
            # Catch every exception: SystemExit would end the loop and everything else on it.
            value, error = None, None
            try:
                described = f"tool {call.tool.name}() of session {call.session_id}, call {call.call_id},"
                value = await watched(invoke(call), self._stalls, described)
            except asyncio.CancelledError as cancelled:
                running.report(None, cancelled)
                raise
            except BaseException as raised:
                error = raised
            if running.seconds_left():
                running.report(value, error)
            # otherwise it has blocked the loop past its deadline, and the caller times it out

        def begin() -> None:
            running._task, running._loop = loop.create_task(body(), context=context), loop
            if running._finished.locked():  # abandoned in the meantime
                running._task.cancel()

        if loop is asyncio._get_running_loop():
            begin()
        else:
            loop.call_soon_threadsafe(begin)

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
            raise CallRefused(
                Code.RATE_LIMITED,
                f"{name}() may be called {rate_per_min} times a minute",
                hint=f"wait {wait:.0f} s",
            )


def _enter_span(call: Admitted) -> None:
    """Set the span of *call* in the context of its handler."""
    about = call.run_context
    if about is not None and about.turn_id:
        UNDER.set(
            EnclosingSpan(about.session_id, about.turn_id, span_id_of(about.turn_id, f"tool.{about.call_id}"))
        )


def _call_handler(running: RunningCall) -> Then | None:
    call = running.call
    try:
        value = invoke(call)
    except BaseException as error:
        return running._done(None, error)
    return running._done(value, None)
