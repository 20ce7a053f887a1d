"""The settlement of calls: checks results, classifies failures and creates records.

Rule: every return value and every exception of a tool becomes a `SettledCall`.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
from msgspec import UNSET, UnsetType

from standfast.errors import (
    CallRefused,
    Code,
    ErrorObject,
    InvalidArgument,
    StandfastError,
    ToolError,
    ValueTooLarge,
)
from standfast.model.canonical import (
    MAX_VALUE_BYTES,
    Json,
    digest_bytes,
    digest_sorted,
    encode_json,
    nested_deeper_than,
    to_json,
)
from standfast.model.capability import CallStatus, ExternalCallRecord, GuestException, SettledCall
from standfast.tools.context import LATER
from standfast.tools.registered_tool import Admitted, RegisteredTool, encode_output
from standfast.tools.tracebacks import PASSED_ON, log_raised, message_of

GUEST_EXCEPTION: dict[str, str] = {
    Code.PERMISSION_DENIED: "PermissionError",
    Code.TIMEOUT_TOOL: "TimeoutError",
    Code.INVALID_ARGUMENT: "TypeError",
    Code.REQUEST_TOO_LARGE: "ValueError",
    Code.UNKNOWN_TOOL: "NameError",
}
"""The exception that guest code sees for an error code; any other is a RuntimeError."""

_OK = CallStatus.OK  # reading an attribute of an enum takes long
_MAX_DEPTH = 128
"""The deepest nesting of a result. It can be encoded and decoded at any depth of the call stack."""

_OTHER_LOOP = ("attached to a different loop", "different event loop", "Event loop is closed")
"""Parts of the messages with which asyncio and others refuse an object of another event loop."""

_OTHER_LOOP_HINT = (
    "the tool uses an object that belongs to another event loop: make it inside the tool, or declare the "
    'tool with @tool(loop="runtime")'
)


def request_digest(name: str, args: list[Json], kwargs: dict[str, Json]) -> str:
    """Return the digest of a call's name and arguments, which must be plain JSON."""
    return digest_bytes(encode_json([name, args, kwargs], "sorted"))


def settle_failure(
    tool: RegisteredTool,
    digest: str,
    error: ErrorObject,
    duration_ms: int = 0,
    seen: GuestException | None = None,
    traceback: str | UnsetType = UNSET,
) -> SettledCall:
    """Settle a call that failed with *error*; guest code sees *seen*, or the exception for the error's code.

    If a call that is not idempotent timed out, its outcome is reported as unknown.
    """
    status = CallStatus.DENIED if error.code == Code.PERMISSION_DENIED else CallStatus.ERROR
    if error.code == Code.TIMEOUT_TOOL:
        status = CallStatus.TIMEOUT
        if not tool.capability.idempotent:
            advice = "it may have taken effect: look at its effect before calling again"
            error = ErrorObject(
                code=error.code,
                message=f"{error.message}; whether it took effect is unknown",
                hint=advice if error.hint is None else f"{error.hint}; {advice}",
                span=error.span,
            )
    record = ExternalCallRecord(
        name=tool.name,
        side_effect=tool.capability.side_effect,
        duration_ms=duration_ms,
        status=status,
        request_digest=digest,
        error=error,
        traceback=traceback,
    )
    if seen is None:
        kind = GUEST_EXCEPTION.get(error.code, "RuntimeError")
        seen = GuestException(type=kind, message=f"{error.code}: {error.message}")
    return SettledCall(record=record, exception=seen)


def settle_interrupted(tool: RegisteredTool, digest: str) -> SettledCall:
    """Settle a call that was running when its process died, and is not retried."""
    error = ErrorObject(
        code=Code.INTERRUPTED,
        message=f"the process died while {tool.name}() ran; whether it took effect is unknown",
        hint="the call is not repeated; look at its effect before calling again",
    )
    return settle_failure(tool, digest, error)


def settle_denied(call: Admitted, message: str) -> SettledCall:
    """Settle a call that a person denied, or whose approval expired."""
    error = ErrorObject(code=Code.PERMISSION_DENIED, message=message)
    return settle_failure(call.tool, call.request_digest, error)


def settle_continued(call: Admitted, started: float) -> SettledCall:
    """Settle a call that opened a new frame: it succeeded, and has no result of its contract's type."""
    value = "continued in a new frame"
    return SettledCall(record=_ok_record(call, started, value, len(value) + 2), value=value)


def settle_outcome(call: Admitted, started: float, raw: object, error: BaseException | None) -> SettledCall:
    """Settle a call whose handler returned *raw* or raised *error*."""
    tool = call.tool
    if error is not None:
        return _settle_raised(call, started, error)
    try:
        value, size = _checked_output(tool, raw)
    except StandfastError as failure:
        return settle_failure(tool, call.request_digest, failure.error_object(), _since(started))
    except BaseException as raised:  # raised by the result, while it was converted
        return _settle_raised(call, started, raised)
    return SettledCall(record=_ok_record(call, started, value, size), value=value)


def _ok_record(call: Admitted, started: float, value: Json, size: int) -> ExternalCallRecord:
    return ExternalCallRecord(
        name=call.tool.name,
        side_effect=call.tool.capability.side_effect,
        duration_ms=_since(started),
        status=_OK,
        request_digest=call.request_digest,
        response_digest=digest_sorted(value, size),
    )


def _settle_raised(call: Admitted, started: float, error: BaseException) -> SettledCall:
    """Settle a call whose handler raised. A `ToolError` is always shown; its traceback only in the record."""
    tool, name, seen = call.tool, call.tool.name, None
    if not tool.expose_errors and not isinstance(error, ToolError):
        message = f"{name}() failed (call {call.call_id}); the log of the program has the details"
        failure = ErrorObject(code=Code.TOOL_ERROR, message=message)
    elif isinstance(error, StandfastError):
        failure = error.error_object()
        most = tool.capability.limits.max_response_bytes
        if len(failure.message.encode()) > most:
            text = failure.message.encode()[:most].decode("utf-8", "ignore")
            failure = msgspec.structs.replace(failure, message=text)
    else:
        kind = type(error).__name__
        message = message_of(error)
        raised = f"{kind}: {message}" if message else kind
        own_loop = tool.async_mode and tool.loop == "own"
        hint = _OTHER_LOOP_HINT if own_loop and any(words in message for words in _OTHER_LOOP) else None
        failure = ErrorObject(code=Code.TOOL_ERROR, message=f"{name}() raised {raised}", hint=hint)
        passed = kind in PASSED_ON
        seen = GuestException(type=kind if passed else "RuntimeError", message=message if passed else raised)
    traceback = log_raised(call, error)
    settled = settle_failure(tool, call.request_digest, failure, _since(started), seen, traceback)
    ends_turn = isinstance(error, ToolError) and error.ends_turn
    return msgspec.structs.replace(settled, ends_turn=True) if ends_turn else settled


def _since(started: float) -> int:
    return max(0, int((time.monotonic() - started) * 1000))


def _checked_output(tool: RegisteredTool, raw: object) -> tuple[Json, int]:
    """Return a result as JSON, and its size; raise `CallRefused` if it breaks a limit or the schema."""
    if isinstance(raw, LATER):
        raise CallRefused(
            Code.TOOL_ERROR,
            f"{tool.name}() returned {type(raw).__name__}, which is supported only in a turn",
        )
    limit = tool.capability.limits.max_response_bytes
    try:
        value, size = output_json(raw, limit)
    except ValueTooLarge as error:
        raise CallRefused(
            Code.RESPONSE_TOO_LARGE, f"{tool.name}() returned a value that is too large: {error.limit}"
        ) from None
    except InvalidArgument as error:
        raise CallRefused(Code.SERIALIZE_ERROR, f"the tool's result is {error.message}") from None
    if size > limit:
        raise CallRefused(
            Code.RESPONSE_TOO_LARGE, f"{tool.name}() returned {size} bytes, the limit is {limit}"
        )
    if size > _MAX_DEPTH and nested_deeper_than(value, _MAX_DEPTH):  # a level takes two bytes
        raise CallRefused(
            Code.SERIALIZE_ERROR, f"{tool.name}() returned something nested over {_MAX_DEPTH} levels deep"
        )
    try:
        tool.check_output(value)
    except InvalidArgument as error:
        raise CallRefused(Code.TOOL_ERROR, error.message) from None
    return value, size


def output_json(value: object, max_bytes: int = MAX_VALUE_BYTES) -> tuple[Json, int]:
    """Return a tool's result as JSON data, and its size; raise as `to_json` does."""
    try:
        return to_json(value, max_bytes)
    except ValueTooLarge:
        raise
    except InvalidArgument as refused:
        plain, failure = value, refused
    with contextlib.suppress(Exception):  # a conversion of a user's class may raise anything
        plain = encode_output(value)
    if plain is value:
        raise failure
    return to_json(plain, max_bytes)


def settle_timed_out(call: Admitted) -> SettledCall:
    """Settle a call whose handler did not return within its time-out."""
    message = f"{call.tool.name}() did not answer within {call.timeout_ms} ms"
    error = ErrorObject(code=Code.TIMEOUT_TOOL, message=message)
    return settle_failure(call.tool, call.request_digest, error, call.timeout_ms)
