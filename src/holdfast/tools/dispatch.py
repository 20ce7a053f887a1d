"""The one way a capability is called, whoever calls it.

Theory of operation
-------------------
A call passes the same steps from native tool use and from guest code::

    input validated → request size → rate → approval → concurrency → intent → execute → response → record

`admit` does everything up to the approval and answers with a value: the call is admitted, waits for a
person, or has failed already. `perform` does the rest. A slot of `concurrency` is taken only after the
approval, so that a person's absence blocks nobody else.

Rules
-----
1. Nothing a tool does escapes: whatever it raises or returns becomes a `SettledCall`.
2. `timeout_ms` holds whatever the tool does. A thread that does not come back is left behind; what it
   returns later is dropped.
3. An effect that is not idempotent is journaled before it happens. One that was journaled by a process
   that died is never run again: it settles as INTERRUPTED.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from holdfast.errors import Code, ErrorObject, HoldfastError, InvalidArgument
from holdfast.model.call import CallStatus, ExternalCallRecord, GuestException, SettledCall, ToolCallContext
from holdfast.model.canonical import Json, digest_bytes, encode_sorted, to_json
from holdfast.ports.clock import Clock
from holdfast.ports.journal import CallJournal
from holdfast.tools.registry import Bound, RegisteredTool, ToolRegistry
from holdfast.tools.schema import encode_output
from holdfast.tools.threads import DaemonThreads, hand_over

T = TypeVar("T")
RuleEvaluator = Callable[[str, list[Json], dict[str, Json], str], Awaitable[bool]]

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


class Dispatcher:
    """Admits and performs calls under the limits of their capabilities."""

    def __init__(
        self, registry: ToolRegistry, *, threads: DaemonThreads, clock: Clock, evaluate_rule: RuleEvaluator
    ) -> None:
        self.registry = registry
        self._threads = threads
        self._clock = clock
        self._evaluate_rule = evaluate_rule
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._recent: dict[str, deque[float]] = {}
        self.tool_loop: asyncio.AbstractEventLoop | None = None
        """Where async handlers run, if not on the loop that dispatches."""

    async def admit(
        self, name: str, args: object, kwargs: object, *, session_id: str, call_id: int
    ) -> Admission:
        """Check a call up to and including its approval policy."""
        tool = self.registry.require(name)
        admitted = self.check(tool, args, kwargs, session_id=session_id, call_id=call_id)
        if isinstance(admitted, SettledCall):
            return admitted
        policy = tool.capability.approval_policy
        if policy == "none":
            return admitted
        if not isinstance(policy, str) and await self._rule_approves(policy.auto.rule, admitted):
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

    async def perform(
        self, call: Admitted, deliver: Callable[[SettledCall], T], journal: CallJournal | None = None
    ) -> T:
        """Execute an admitted call and hand what came of it to *deliver*, off the loop.

        *deliver* runs on the thread that ran the tool, which saves a change of threads for each call.
        """
        slots = self._slots.get(call.tool.name)
        if slots is None:
            slots = self._slots[call.tool.name] = asyncio.Semaphore(call.tool.capability.limits.concurrency)
        await slots.acquire()
        released = _Once()

        def release() -> None:
            if released.claim():
                slots.release()

        try:
            if journal is not None and not call.tool.capability.idempotent:
                earlier = await self._threads.run(lambda: _intend(journal, call))
                if earlier is not None:
                    return await self._threads.run(lambda: deliver(earlier))
                deliver = _journaled(journal, call, deliver)
            if call.tool.async_mode:
                settled = await self._run_async(call)
                release()
                return await self._threads.run(lambda: deliver(settled))
            return await self._run_sync(call, deliver, release)
        finally:
            release()

    async def _rule_approves(self, rule: str, call: Admitted) -> bool:
        try:
            view_args, _ = to_json(call.bound.view_args)
            view_kwargs, _ = to_json(call.bound.view_kwargs)
            return await self._evaluate_rule(rule, view_args, view_kwargs, call.session_id)
        except HoldfastError:
            return False

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
        recent = self._recent.setdefault(name, deque())
        while recent and recent[0] <= now - 60:
            recent.popleft()
        if len(recent) >= rate_per_min:
            wait = max(0.0, recent[0] + 60 - now) if recent else 60.0
            raise _Refused(
                Code.RATE_LIMITED,
                f"{name}() may be called {rate_per_min} times a minute",
                hint=f"wait {wait:.0f} s",
            )
        recent.append(now)

    async def _run_async(self, call: Admitted) -> SettledCall:
        started = self._clock.monotonic()
        timeout = call.tool.capability.limits.timeout_ms / 1000
        task = self._start_async(call)
        try:
            done, _ = await asyncio.wait((task,), timeout=timeout)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            task.add_done_callback(_forget)
            return _timed_out(call)
        return self._settle(call, started, lambda: _result_of(task))

    def _start_async(self, call: Admitted) -> asyncio.Future[Any]:
        async def body() -> Any:
            return await call.tool.handler(*call.bound.args, **call.bound.kwargs)

        if self.tool_loop is None:
            return asyncio.ensure_future(body())
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(body(), self.tool_loop))

    async def _run_sync(
        self, call: Admitted, deliver: Callable[[SettledCall], T], release: Callable[[], None]
    ) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        first = _Once()

        def body() -> None:
            started = self._clock.monotonic()
            settled = self._settle(
                call, started, lambda: call.tool.handler(*call.bound.args, **call.bound.kwargs)
            )
            if first.claim():
                hand_over(loop, future, lambda: deliver(settled))

        def late() -> None:
            if first.claim():
                release()
                self._threads.start(lambda: hand_over(loop, future, lambda: deliver(_timed_out(call))))

        timer = loop.call_later(call.tool.capability.limits.timeout_ms / 1000, late)
        try:
            self._threads.start(body)
            return await future
        finally:
            first.claim()
            timer.cancel()

    def _settle(self, call: Admitted, started: float, produce: Callable[[], Any]) -> SettledCall:
        """Run *produce* and make a settled call of whatever happens."""
        tool = call.tool
        try:
            value, size = _to_output(produce())
            if size > tool.capability.limits.max_response_bytes:
                raise _Refused(
                    Code.RESPONSE_TOO_LARGE,
                    f"{tool.name}() returned {size} bytes, "
                    f"the limit is {tool.capability.limits.max_response_bytes}",
                )
            _check_output(tool, value)
        except HoldfastError as error:
            return settle_failure(tool, call.request_digest, error.error_object(), self._since(started))
        except BaseException as error:
            return self._settle_raised(call, started, error)
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

    def _since(self, started: float) -> int:
        return max(0, int((self._clock.monotonic() - started) * 1000))


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


class _Once:
    """A claim that exactly one of several threads wins."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def claim(self) -> bool:
        return self._lock.acquire(blocking=False)


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


def _journaled(
    journal: CallJournal, call: Admitted, deliver: Callable[[SettledCall], T]
) -> Callable[[SettledCall], T]:
    def durable(settled: SettledCall) -> T:
        journal.settle(call.call_id, settled)
        return deliver(settled)

    return durable


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
    except (TypeError, ValueError, NotImplementedError, RecursionError, msgspec.MsgspecError):
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


def _result_of(task: asyncio.Future[Any]) -> Any:
    if task.cancelled():
        raise RuntimeError("the tool was cancelled")
    return task.result()


def _forget(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


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
