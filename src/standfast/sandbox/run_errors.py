"""Errors and diagnostics that engines share: limits, crashes, values that are not JSON, unknown functions."""

from __future__ import annotations

from standfast.errors import Code, ErrorObject, Span, TypeCheckFailed
from standfast.model.code import Diagnostic, Severity
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellFunctions

AWAIT_HINT = "await a tool call where it is made: `await f(x)`, or `await asyncio.gather(f(x), f(y))`"


def diagnose(code: Code, message: str, span: Span | None = None, hint: str | None = None) -> Diagnostic:
    """Return a diagnostic with the severity of an error."""
    return Diagnostic(severity=Severity.ERROR, code=code, message=message, hint=hint, span=span)


def by_line(item: Diagnostic) -> tuple[int, int]:
    """Return the line and column where a diagnostic begins, as a sort key."""
    return (item.span.line, item.span.column) if item.span else (0, 0)


def too_slow(timeout_ms: int) -> TypeCheckFailed:
    return TypeCheckFailed(Code.TIMEOUT_WALL, f"the check took longer than {timeout_ms} ms")


def unknown_function(name: str, functions: CellFunctions, span: Span | None = None) -> ErrorObject:
    message = f"{name}() is neither defined nor a capability"
    hint = functions.suggest(name) or "list_tools() lists what can be called"
    return ErrorObject(code=Code.UNKNOWN_TOOL, message=message, hint=hint, span=span)


def stack_error(message: str, limits: SessionLimits, span: Span | None) -> ErrorObject:
    hint = f"the limit is {limits.max_stack_depth} frames (max_stack_depth)"
    return ErrorObject(code=Code.STACK_OVERFLOW, message=message, hint=hint, span=span)


def cancelled_error() -> ErrorObject:
    return ErrorObject(code=Code.CANCELLED, message="the run was cancelled")


def wall_error(limits: SessionLimits) -> ErrorObject:
    message = f"the run took longer than {limits.wall_ms} ms"
    hint = "raise timeout_ms (or wall_ms); time waiting for a person does not count"
    return ErrorObject(code=Code.TIMEOUT_WALL, message=message, hint=hint)


def cpu_error(limits: SessionLimits) -> ErrorObject:
    message = f"the code computed for more than {limits.cpu_ms} ms"
    return ErrorObject(code=Code.TIMEOUT_CPU, message=message, hint="raise cpu_ms, or do less per run")


def memory_error(limits: SessionLimits, span: Span | None = None) -> ErrorObject:
    message, hint = (
        f"the code needed more than {limits.memory_mb} MB",
        "raise memory_mb, or keep less at once",
    )
    return ErrorObject(code=Code.MEMORY_EXCEEDED, message=message, hint=hint, span=span)


def calls_error(limits: SessionLimits) -> ErrorObject:
    message = f"the run made {limits.max_external_calls} external calls and tried to make another"
    hint = "raise max_external_calls, or do less per run"
    return ErrorObject(code=Code.EXTERNAL_CALLS_EXCEEDED, message=message, hint=hint)


def stdout_error(limits: SessionLimits) -> ErrorObject:
    message = f"the run printed more than 16 times the {limits.max_stdout_bytes} bytes that are kept"
    return ErrorObject(
        code=Code.STDOUT_EXCEEDED, message=message, hint="print less, or raise max_stdout_bytes"
    )


def arguments_error(most: int, values: int) -> ErrorObject:
    size = f"{most} bytes or {values} values of arguments"
    message = f"the calls that the code made at once have more than {size}"
    hint = "make fewer calls at once, or smaller ones"
    return ErrorObject(code=Code.REQUEST_TOO_LARGE, message=message, hint=hint)


def died_error(status: int | None = None) -> ErrorObject:
    """Return the error of a run whose process died, with the exit *status* if it is known."""
    how = f" (status {status})" if status is not None else ""
    return ErrorObject(code=Code.INTERRUPTED, message=f"the process that ran the code died{how}")


def diverged_error(what: str) -> ErrorObject:
    message = f"the code behaved differently when it was replayed: {what}"
    hint = "the code must not depend on object addresses, threads or the machine"
    return ErrorObject(code=Code.INTERRUPTED, message=message, hint=hint)


def argument_not_json(name: str, foreign: str) -> ErrorObject:
    """Return the error of a call with an argument that has no JSON form; *foreign* names its type."""
    message = f"an argument of {name}() is not JSON: it holds {foreign}"
    return ErrorObject(code=Code.INVALID_ARGUMENT, message=message)


def request_too_large(name: str, limit: str) -> ErrorObject:
    """Return the error of a call whose arguments are too large; *limit* says what the limit is."""
    message = f"the arguments of {name}() are too large: {limit}"
    return ErrorObject(code=Code.REQUEST_TOO_LARGE, message=message, hint="pass less per call")


def deadlock_error() -> ErrorObject:
    message = "guest code waits, but none of its calls is pending"
    return ErrorObject(code=Code.INTERRUPTED, message=message)


def result_too_large(limit: str) -> ErrorObject:
    """Return the error of a run whose result is too large; *limit* says what the limit is."""
    hint = "leave it in a variable and return a part of it"
    return ErrorObject(code=Code.RESPONSE_TOO_LARGE, message=f"the result is too large: {limit}", hint=hint)


def not_serializable(type_name: str) -> ErrorObject:
    message = f"the result is not JSON: it holds {type_name}"
    return ErrorObject(code=Code.RESULT_NOT_SERIALIZABLE, message=message, hint=type_name)


def under_way_error(name: str) -> ErrorObject:
    message = f"{name}() was running when the run was stopped"
    hint = "whether it took effect is unknown; check before you call it again"
    return ErrorObject(code=Code.INTERRUPTED, message=message, hint=hint)
