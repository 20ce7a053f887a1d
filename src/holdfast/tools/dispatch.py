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
2. `timeout_ms` holds whatever the tool does, in real time. A thread that does not come back is left behind;
   what it returns later is dropped.
3. An effect that is not idempotent is journaled before it happens. One that was journaled by a process
   that died is never run again: it settles as INTERRUPTED.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import Code, ErrorObject, HoldfastError, InvalidArgument
from holdfast.model.call import CallStatus, ExternalCallRecord, GuestException, SettledCall, ToolCallContext
from holdfast.model.canonical import Json, digest_bytes, encode_sorted, to_json
from holdfast.ports.clock import Clock
from holdfast.ports.journal import CallJournal
from holdfast.tools.loop_thread import LoopThread
from holdfast.tools.registry import Bound, RegisteredTool, ToolRegistry
from holdfast.tools.schema import encode_output
from holdfast.tools.slots import Slots
from holdfast.tools.threads import DaemonThreads

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

RuleEvaluator = Callable[[str, list[Json], dict[str, Json], str], bool]

GUEST_EXCEPTION = {
    Code.PERMISSION_DENIED: "PermissionError",
    Code.TIMEOUT_TOOL: "TimeoutError",
    Code.INVALID_ARGUMENT: "TypeError",
    Code.REQUEST_TOO_LARGE: "ValueError",
    Code.UNKNOWN_TOOL: "NameError",
}
"""What guest code sees for a failure of ours; everything else is a RuntimeError."""

_PASSED_ON = (
    ArithmeticError, AssertionError, AttributeError, FileExistsError, FileNotFoundError, IndexError,
    IsADirectoryError, KeyError, LookupError, NotADirectoryError, NotImplementedError, OSError, OverflowError,
    PermissionError, RuntimeError, TimeoutError, TypeError, ValueError, ZeroDivisionError,
)  # fmt: skip
_PASSED_ON_NAMES = {cls.__name__ for cls in _PASSED_ON}


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that may be executed now."""

    tool: RegisteredTool
    context: ToolCallContext
    bound: Bound
    session_id: str
    call_id: int
    request_digest: str


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """A call that waits for a person."""

    call: Admitted


Admission = Admitted | NeedsApproval | SettledCall


class RunningCall:
    """A call under way. Its handler's outcome arrives once, on `inbox`, unless it expires first.

    `deadline` is set when the handler starts; waiting for a slot does not count.
    """

    __slots__ = ("_finished", "_slots", "_task", "call", "deadline", "inbox", "journal", "started")

    def __init__(self, call: Admitted, inbox: Inbox, journal: CallJournal | None) -> None:
        self.call = call
        self.inbox = inbox
        self.journal = journal
        self.started = 0.0
        self.deadline: float | None = None
        self._finished = threading.Lock()
        self._slots: Slots | None = None
        self._task: concurrent.futures.Future[Any] | None = None

    def finish(self, value: object, error: BaseException | None) -> None:
        """Called by whoever ran the handler."""
        if self._end():
            self.inbox.put(Arrived(self, value, error))

    def run_here(self) -> Arrived | None:
        """Run the handler on this thread; None if it was abandoned meanwhile."""
        call = self.call
        try:
            arrived = Arrived(self, call.tool.handler(*call.bound.args, **call.bound.kwargs), None)
        except BaseException as error:
            arrived = Arrived(self, None, error)
        return arrived if self._end() else None

    def abandon(self) -> bool:
        """Give the handler up; what it does later is not heard. False if it had finished."""
        ended = self._end()
        if ended and self._task is not None:
            self._task.cancel()
        return ended

    def _end(self) -> bool:
        if not self._finished.acquire(blocking=False):
            return False
        if self._slots is not None:
            self._slots.give_back()
        return True


@dataclass(frozen=True, slots=True)
class Arrived:
    """A handler has returned or raised."""

    running: RunningCall
    value: object
    error: BaseException | None


Inbox = queue.SimpleQueue[Any]
"""Where a caller hears about its calls: `Arrived`, or the `RunningCall` itself when its handler starts."""

_UNHEARD: Inbox = queue.SimpleQueue()
"""The inbox of calls whose handlers the caller runs itself; nothing is ever put into it."""


class Dispatcher:
    """Admits and performs calls under the limits of their capabilities. Blocking; used on threads."""

    def __init__(
        self, registry: ToolRegistry, *, threads: DaemonThreads, clock: Clock, evaluate_rule: RuleEvaluator
    ) -> None:
        self.registry = registry
        self._threads = threads
        self._clock = clock
        self._evaluate_rule = evaluate_rule
        self._slots: dict[str, Slots] = {}
        self._recent: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._own_loop = LoopThread()
        self.tool_loop: asyncio.AbstractEventLoop | None = None
        """Where async handlers run; a loop of its own if there is none."""

    def close(self) -> None:
        self._own_loop.close()

    def admit(self, name: str, args: object, kwargs: object, *, session_id: str, call_id: int) -> Admission:
        """Check a call up to and including its approval policy."""
        tool = self.registry.require(name)
        admitted = self.check(tool, args, kwargs, session_id=session_id, call_id=call_id)
        policy = tool.capability.approval_policy
        if policy == "none" or isinstance(admitted, SettledCall):
            return admitted
        if not isinstance(policy, str) and self._rule_approves(policy.auto.rule, admitted):
            return admitted
        return NeedsApproval(admitted)

    def check(
        self, tool: RegisteredTool, args: object, kwargs: object, *, session_id: str, call_id: int
    ) -> Admitted | SettledCall:
        """Everything before the approval: JSON, schema, request size, rate."""
        digest = ""
        try:
            (clean_args, clean_kwargs), size = to_json([args, kwargs])
            digest = request_digest(tool.name, clean_args, clean_kwargs)
            context = ToolCallContext(name=tool.name, args=clean_args, kwargs=clean_kwargs)
            bound = tool.bind(context)
            self._check_request(tool, size)
        except HoldfastError as error:
            return settle_failure(tool, digest, error.error_object())
        return Admitted(tool, context, bound, session_id, call_id, digest)

    def perform(self, call: Admitted, journal: CallJournal | None = None) -> SettledCall:
        """Execute an admitted call and wait for what comes of it."""
        inbox: Inbox = queue.SimpleQueue()
        running = self.start(call, inbox, journal)
        if isinstance(running, SettledCall):
            return running
        while True:
            try:
                message = inbox.get(timeout=self.seconds_left(running))
            except queue.Empty:
                if (settled := self.expire(running)) is not None:
                    return settled
                continue
            if isinstance(message, Arrived):
                return self.settle(message)

    def start(self, call: Admitted, inbox: Inbox, journal: CallJournal | None) -> RunningCall | SettledCall:
        """Begin an admitted call; *inbox* hears about it. Settled at once if its outcome is known already."""
        if call.tool.capability.idempotent:
            journal = None
        if journal is not None and (earlier := _intend(journal, call)) is not None:
            return earlier
        running = RunningCall(call, inbox, journal)
        self._slots_of(call.tool).take(lambda: self._launch(running))
        return running

    def start_here(self, call: Admitted, journal: CallJournal | None) -> RunningCall | SettledCall | None:
        """Begin a call whose handler the caller runs itself; None if it must be `start`ed."""
        if call.tool.async_mode or not self._slots_of(call.tool).take_now():
            return None
        if call.tool.capability.idempotent:
            journal = None
        running = RunningCall(call, _UNHEARD, journal)
        running._slots = self._slots_of(call.tool)
        if journal is not None and (earlier := _intend(journal, call)) is not None:
            running.abandon()
            return earlier
        running.started = time.monotonic()
        return running

    def settle(self, arrived: Arrived) -> SettledCall:
        """Make a settled call of what a handler did, and journal it."""
        running = arrived.running
        settled = self._settle(running.call, running.started, arrived.value, arrived.error)
        if running.journal is not None:
            running.journal.settle(running.call.call_id, settled)
        return settled

    def expire(self, running: RunningCall) -> SettledCall | None:
        """Settle a call that is past its time; None if it still has some, or has just finished."""
        left = self.seconds_left(running)
        if left is None or left > 0 or not running.abandon():
            return None
        return self.settle_late(running)

    def settle_late(self, running: RunningCall) -> SettledCall:
        """Settle a call that was abandoned because it took too long."""
        settled = _timed_out(running.call)
        if running.journal is not None:
            running.journal.settle(running.call.call_id, settled)
        return settled

    def seconds_left(self, running: RunningCall) -> float | None:
        """How long the handler may still take; None while it waits for a slot."""
        deadline = running.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _slots_of(self, tool: RegisteredTool) -> Slots:
        slots = self._slots.get(tool.name)
        if slots is None:
            with self._lock:
                slots = self._slots.setdefault(tool.name, Slots(tool.capability.limits.concurrency))
        return slots

    def _launch(self, running: RunningCall) -> None:
        """Run the handler: a plain function on a thread, a coroutine function on a loop."""
        call = running.call
        running._slots = self._slots_of(call.tool)
        if running._finished.locked():  # given up while it waited
            running._slots.give_back()
            return
        running.started = time.monotonic()
        running.deadline = running.started + call.tool.capability.limits.timeout_ms / 1000
        if call.tool.async_mode:
            self._launch_async(running)
        else:
            self._threads.start(lambda: _call_handler(running))
        running.inbox.put(running)

    def _launch_async(self, running: RunningCall) -> None:
        import asyncio

        call = running.call

        async def body() -> None:
            # Whatever is raised stays in here: SystemExit would end the loop and everything else on it.
            try:
                value = await call.tool.handler(*call.bound.args, **call.bound.kwargs)
            except asyncio.CancelledError:
                running.finish(None, RuntimeError("the tool was cancelled"))
                raise
            except BaseException as error:
                running.finish(None, error)
            else:
                running.finish(value, None)

        running._task = asyncio.run_coroutine_threadsafe(body(), self.tool_loop or self._own_loop.loop)

    def _rule_approves(self, rule: str, call: Admitted) -> bool:
        try:
            view_args, _ = to_json(call.bound.view_args)
            view_kwargs, _ = to_json(call.bound.view_kwargs)
        except HoldfastError:
            return False
        return self._evaluate_rule(rule, view_args, view_kwargs, call.session_id)

    def _check_request(self, tool: RegisteredTool, size: int) -> None:
        limits = tool.capability.limits
        if size > limits.max_request_bytes:
            raise _Refused(
                Code.REQUEST_TOO_LARGE,
                f"the arguments of {tool.name}() are {size} bytes, the limit is {limits.max_request_bytes}",
            )
        if limits.rate_per_min is not None:
            self._check_rate(tool.name, limits.rate_per_min)

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
            raise _Refused(
                Code.RATE_LIMITED,
                f"{name}() may be called {rate_per_min} times a minute",
                hint=f"wait {wait:.0f} s",
            )

    def _settle(
        self, call: Admitted, started: float, raw: object, error: BaseException | None
    ) -> SettledCall:
        tool = call.tool
        if error is not None and not isinstance(error, HoldfastError):
            return self._settle_raised(call, started, error)
        try:
            if error is not None:
                raise error
            value, size = _to_output(raw)
            if size > tool.capability.limits.max_response_bytes:
                raise _too_large(tool, size)
            _check_output(tool, value)
        except HoldfastError as failure:
            return settle_failure(tool, call.request_digest, failure.error_object(), self._since(started))
        except BaseException as raised:  # by the result itself, while it was converted
            return self._settle_raised(call, started, raised)
        record = ExternalCallRecord(
            name=tool.name,
            side_effect=tool.capability.side_effect,
            duration_ms=self._since(started),
            status=CallStatus.OK,
            request_digest=call.request_digest,
            response_digest=digest_bytes(encode_sorted(value)),
        )
        return SettledCall(record=record, value=value)

    def _settle_raised(self, call: Admitted, started: float, error: BaseException) -> SettledCall:
        kind = type(error).__name__
        message = _message_of(error)
        raised = f"{kind}: {message}" if message else kind
        failure = ErrorObject(code=Code.TOOL_ERROR, message=f"{call.tool.name}() raised {raised}")
        passed = kind in _PASSED_ON_NAMES
        seen = GuestException(type=kind if passed else "RuntimeError", message=message if passed else raised)
        return settle_failure(call.tool, call.request_digest, failure, self._since(started), seen)

    @staticmethod
    def _since(started: float) -> int:
        return max(0, int((time.monotonic() - started) * 1000))


def request_digest(name: str, args: list[Json], kwargs: dict[str, Json]) -> str:
    """The digest of a call: its name and arguments, which must be plain JSON."""
    return digest_bytes(encode_sorted([name, args, kwargs]))


def settle_failure(
    tool: RegisteredTool,
    digest: str,
    error: ErrorObject,
    duration_ms: int = 0,
    seen: GuestException | None = None,
) -> SettledCall:
    """A call that failed with *error*; guest code sees *seen*, or what the code stands for."""
    record = ExternalCallRecord(
        name=tool.name,
        side_effect=tool.capability.side_effect,
        duration_ms=duration_ms,
        status=_status_of(error.code),
        request_digest=digest,
        error=error,
    )
    kind = GUEST_EXCEPTION.get(error.code, "RuntimeError")  # type: ignore[call-overload]
    return SettledCall(
        record=record, exception=seen or GuestException(type=kind, message=_seen_message(error))
    )


def settle_denied(call: Admitted, message: str) -> SettledCall:
    """A call that a person said no to, or that nobody decided in time."""
    error = ErrorObject(code=Code.PERMISSION_DENIED, message=message)
    return settle_failure(call.tool, call.request_digest, error)


class _Refused(HoldfastError):
    def __init__(self, code: Code, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def _too_large(tool: RegisteredTool, size: int) -> _Refused:
    limit = tool.capability.limits.max_response_bytes
    return _Refused(Code.RESPONSE_TOO_LARGE, f"{tool.name}() returned {size} bytes, the limit is {limit}")


def _call_handler(running: RunningCall) -> None:
    call = running.call
    try:
        value = call.tool.handler(*call.bound.args, **call.bound.kwargs)
    except BaseException as error:
        running.finish(None, error)
    else:
        running.finish(value, None)


def _intend(journal: CallJournal, call: Admitted) -> SettledCall | None:
    """Journal the intent; answer with the outcome if an earlier process got there first."""
    found = journal.found(call.call_id, call.request_digest)
    if isinstance(found, SettledCall):
        return found
    if found:
        error = ErrorObject(
            code=Code.INTERRUPTED,
            message=f"the process died while {call.tool.name}() ran; whether it took effect is unknown",
            hint="the call is not repeated; look at its effect before calling again",
        )
        return settle_failure(call.tool, call.request_digest, error)
    journal.intend(call.call_id, call.request_digest)
    return None


def _to_output(value: object) -> tuple[Json, int]:
    try:
        return to_json(value)
    except InvalidArgument as error:
        plain = _plain(value)
        if plain is value:
            raise _Refused(Code.SERIALIZE_ERROR, f"the tool's result is {error.message}") from None
    try:
        return to_json(plain)
    except InvalidArgument as error:
        raise _Refused(Code.SERIALIZE_ERROR, f"the tool's result is {error.message}") from None


def _plain(value: object) -> object:
    try:
        return encode_output(value)
    except Exception:  # a conversion that a user's own class brings may raise anything
        return value


def _check_output(tool: RegisteredTool, value: Json) -> None:
    try:
        tool.check_output(value)
    except InvalidArgument as error:
        raise _Refused(Code.TOOL_ERROR, error.message) from None


def _timed_out(call: Admitted) -> SettledCall:
    timeout_ms = call.tool.capability.limits.timeout_ms
    error = ErrorObject(
        code=Code.TIMEOUT_TOOL, message=f"{call.tool.name}() did not answer within {timeout_ms} ms"
    )
    return settle_failure(call.tool, call.request_digest, error, timeout_ms)


def _status_of(code: str) -> CallStatus:
    if code == Code.TIMEOUT_TOOL:
        return CallStatus.TIMEOUT
    return CallStatus.DENIED if code == Code.PERMISSION_DENIED else CallStatus.ERROR


def _seen_message(error: ErrorObject) -> str:
    return f"{error.code}: {error.message}"


def _message_of(error: BaseException) -> str:
    """The exception's text, made fit for JSON and for a guest."""
    try:
        text = str(error.args[0]) if isinstance(error, KeyError) and len(error.args) == 1 else str(error)
    except BaseException:
        return "(its message cannot be shown)"
    return text.encode("utf-8", "replace").decode()[:4096]
