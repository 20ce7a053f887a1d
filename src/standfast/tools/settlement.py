"""Calls once they are over: results checked, failures typed, records made.

Rule: nothing a tool returns or raises escapes as it is. It becomes a `SettledCall`.
"""

from __future__ import annotations

import time

import msgspec
from msgspec import UNSET, UnsetType

from standfast.errors import Code, ErrorObject, InvalidArgument, StandfastError, ToolError, ValueTooLarge
from standfast.model.canonical import (
    Json,
    check_bounds,
    digest_bytes,
    encode_sorted,
    nested_deeper_than,
    to_json,
)
from standfast.model.capability import CallStatus, ExternalCallRecord, GuestException, SettledCall
from standfast.tools.admission import Admitted
from standfast.tools.context import Later
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.schema import encode_output
from standfast.tools.tracebacks import log_raised

GUEST_EXCEPTION: dict[str, str] = {
    Code.PERMISSION_DENIED: "PermissionError",
    Code.TIMEOUT_TOOL: "TimeoutError",
    Code.INVALID_ARGUMENT: "TypeError",
    Code.REQUEST_TOO_LARGE: "ValueError",
    Code.UNKNOWN_TOOL: "NameError",
}
"""What guest code sees for a failure of ours; everything else is a RuntimeError."""

_MAX_DEPTH = 128
"""Results are written and read again with other call stacks above them; this depth fits into any."""

_PASSED_ON = (
    ArithmeticError, AssertionError, AttributeError, FileExistsError, FileNotFoundError, IndexError,
    IsADirectoryError, KeyError, LookupError, NotADirectoryError, NotImplementedError, OSError, OverflowError,
    PermissionError, RuntimeError, TimeoutError, TypeError, ValueError, ZeroDivisionError,
)  # fmt: skip
_OTHER_LOOP = (
    "attached to a different loop",
    "different event loop",
    "Event loop is closed",
)
"""What asyncio and libraries over it say of an object that was made on another event loop."""

_OTHER_LOOP_HINT = (
    "the tool uses an object that belongs to another event loop: make it inside the tool, or declare the "
    'tool with @tool(loop="runtime")'
)

_PASSED_ON_NAMES = {cls.__name__ for cls in _PASSED_ON}


def request_digest(name: str, args: list[Json], kwargs: dict[str, Json]) -> str:
    """The digest of a call: its name and arguments, which must be plain JSON."""
    return digest_bytes(encode_sorted([name, args, kwargs]))


def settle_failure(
    tool: RegisteredTool,
    digest: str,
    error: ErrorObject,
    duration_ms: int = 0,
    seen: GuestException | None = None,
    traceback: str | UnsetType = UNSET,
) -> SettledCall:
    """A call that failed with *error*; guest code sees *seen*, or what the code stands for.

    However a call that is not idempotent timed out, its outcome is reported as unknown.
    """
    if error.code == Code.TIMEOUT_TOOL and not tool.capability.idempotent:
        error = _outcome_unknown(error)
    record = ExternalCallRecord(
        name=tool.name,
        side_effect=tool.capability.side_effect,
        duration_ms=duration_ms,
        status=_status_of(error.code),
        request_digest=digest,
        error=error,
        traceback=traceback,
    )
    kind = GUEST_EXCEPTION.get(error.code, "RuntimeError")
    return SettledCall(
        record=record, exception=seen or GuestException(type=kind, message=_seen_message(error))
    )


def settle_interrupted(tool: RegisteredTool, digest: str) -> SettledCall:
    """A call that was under way when its process died, and is not repeated."""
    error = ErrorObject(
        code=Code.INTERRUPTED,
        message=f"the process died while {tool.name}() ran; whether it took effect is unknown",
        hint="the call is not repeated; look at its effect before calling again",
    )
    return settle_failure(tool, digest, error)


def settle_denied(call: Admitted, message: str) -> SettledCall:
    """A call that a person said no to, or that nobody decided in time."""
    error = ErrorObject(code=Code.PERMISSION_DENIED, message=message)
    return settle_failure(call.tool, call.request_digest, error)


def settle_continued(call: Admitted, started: float) -> SettledCall:
    """A call that opened a new frame: it went well, and has no result of the kind that its contract names."""
    value = "continued in a new frame"
    return SettledCall(record=_ok_record(call, started, value), value=value)


def settle_outcome(call: Admitted, started: float, raw: object, error: BaseException | None) -> SettledCall:
    """Make a settled call of what a handler returned or raised, whatever that is."""
    tool = call.tool
    if error is not None:
        return _settle_raised(call, started, error)
    try:
        value = _checked_output(tool, raw)
    except StandfastError as failure:
        return settle_failure(tool, call.request_digest, failure.error_object(), _since(started))
    except BaseException as raised:  # by the result itself, while it was converted
        return _settle_raised(call, started, raised)
    return SettledCall(record=_ok_record(call, started, value), value=value)


def _ok_record(call: Admitted, started: float, value: Json) -> ExternalCallRecord:
    return ExternalCallRecord(
        name=call.tool.name,
        side_effect=call.tool.capability.side_effect,
        duration_ms=_since(started),
        status=CallStatus.OK,
        request_digest=call.request_digest,
        response_digest=digest_bytes(encode_sorted(value)),
    )


def _settle_raised(call: Admitted, started: float, error: BaseException) -> SettledCall:
    """A call whose handler raised. Its traceback is logged and kept in the record, and shown nowhere else."""
    tool, digest, took_ms = call.tool, call.request_digest, _since(started)
    failure, seen = _seen_of(call, error)
    settled = settle_failure(tool, digest, failure, took_ms, seen, log_raised(call, error))
    ends_turn = isinstance(error, ToolError) and error.ends_turn
    return msgspec.structs.replace(settled, ends_turn=True) if ends_turn else settled


def _seen_of(call: Admitted, error: BaseException) -> tuple[ErrorObject, GuestException | None]:
    """What the model and guest code see of an exception. A `ToolError` is always meant for them."""
    name = call.tool.name
    if not call.tool.expose_errors and not isinstance(error, ToolError):
        message = f"{name}() failed (call {call.call_id}); the log of the program has the details"
        return ErrorObject(code=Code.TOOL_ERROR, message=message), None
    if isinstance(error, StandfastError):
        return error.error_object(), None
    kind = type(error).__name__
    message = _message_of(error)
    raised = f"{kind}: {message}" if message else kind
    hint = _OTHER_LOOP_HINT if _is_of_other_loop(call.tool, message) else None
    failure = ErrorObject(code=Code.TOOL_ERROR, message=f"{name}() raised {raised}", hint=hint)
    passed = kind in _PASSED_ON_NAMES
    seen = GuestException(type=kind if passed else "RuntimeError", message=message if passed else raised)
    return failure, seen


def _is_of_other_loop(tool: RegisteredTool, message: str) -> bool:
    return tool.async_mode and tool.loop == "own" and any(words in message for words in _OTHER_LOOP)


def _since(started: float) -> int:
    return max(0, int((time.monotonic() - started) * 1000))


def _checked_output(tool: RegisteredTool, raw: object) -> Json:
    """The result as JSON, if it is as large and of the kind that the contract allows."""
    if isinstance(raw, Later):
        raise Refused(
            Code.TOOL_ERROR,
            f"{tool.name}() answered with {type(raw).__name__}, which only a turn understands",
        )
    limit = tool.capability.limits.max_response_bytes
    try:
        value, size = _to_output(raw, limit)
    except ValueTooLarge as error:
        raise Refused(
            Code.RESPONSE_TOO_LARGE, f"{tool.name}() returned a value that is too large: {error.limit}"
        ) from None
    if size > limit:
        raise Refused(Code.RESPONSE_TOO_LARGE, f"{tool.name}() returned {size} bytes, the limit is {limit}")
    if nested_deeper_than(value, _MAX_DEPTH):
        raise Refused(
            Code.SERIALIZE_ERROR, f"{tool.name}() returned something nested over {_MAX_DEPTH} levels deep"
        )
    try:
        tool.check_output(value)
    except InvalidArgument as error:
        raise Refused(Code.TOOL_ERROR, error.message) from None
    return value


class Refused(StandfastError):
    """A call that breaks a limit or a promise of its contract."""

    def __init__(self, code: Code, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def _to_output(value: object, max_bytes: int) -> tuple[Json, int]:
    """The result as JSON, and its size. Raise `ValueTooLarge` before anything else looks at the result."""
    try:
        return to_json(value, max_bytes)
    except ValueTooLarge:
        raise
    except InvalidArgument as error:
        plain = _plain(value)
        if plain is value:
            raise Refused(Code.SERIALIZE_ERROR, f"the tool's result is {error.message}") from None
    try:
        return to_json(plain, max_bytes)
    except ValueTooLarge:
        raise
    except InvalidArgument as error:
        raise Refused(Code.SERIALIZE_ERROR, f"the tool's result is {error.message}") from None


def _plain(value: object) -> object:
    try:
        return encode_output(value)
    except Exception:  # a conversion that a user's own class brings may raise anything
        return value


def settle_timed_out(call: Admitted) -> SettledCall:
    """A call whose handler did not return within its time-out."""
    message = f"{call.tool.name}() did not answer within {call.timeout_ms} ms"
    error = ErrorObject(code=Code.TIMEOUT_TOOL, message=message)
    return settle_failure(call.tool, call.request_digest, error, call.timeout_ms)


def _outcome_unknown(error: ErrorObject) -> ErrorObject:
    advice = "it may have taken effect: look at its effect before calling again"
    return ErrorObject(
        code=error.code,
        message=f"{error.message}; whether it took effect is unknown",
        hint=advice if error.hint is None else f"{error.hint}; {advice}",
        span=error.span,
    )


def _status_of(code: str) -> CallStatus:
    if code == Code.TIMEOUT_TOOL:
        return CallStatus.TIMEOUT
    return CallStatus.DENIED if code == Code.PERMISSION_DENIED else CallStatus.ERROR


def _seen_message(error: ErrorObject) -> str:
    return f"{error.code}: {error.message}"


def _message_of(error: BaseException) -> str:
    """The exception's text, made fit for JSON and for a guest."""
    try:
        check_bounds(error.args)
        text = str(error.args[0]) if isinstance(error, KeyError) and len(error.args) == 1 else str(error)
    except BaseException:
        return "(its message cannot be shown)"
    return text.encode("utf-8", "backslashreplace").decode()[:4096]
