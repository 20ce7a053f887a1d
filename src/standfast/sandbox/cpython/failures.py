"""What went wrong in a run, as our errors."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

from standfast.errors import Code, ErrorObject, Span
from standfast.model.call import GuestException
from standfast.model.limits import SessionLimits
from standfast.ports.cell_stepper import CellFailed
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.cpython.messages import GuestError
from standfast.sandbox.monty.syntax import parse

CallErrors = dict[tuple[str, str], ErrorObject]
"""Which of our errors an exception of the guest is, by its type and text."""
_RESET: Final = "reset the session, or go back to the Standfast that wrote it"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known about a run whose code raised something."""

    code: str
    limits: SessionLimits
    functions: CellFunctions
    call_errors: CallErrors
    packages: tuple[str, ...] = ()


def describe(error: GuestError, run: Circumstances) -> ErrorObject:
    """What an exception that nothing caught means."""
    span = span_of(error)
    if error.syntax:
        return ErrorObject(code=Code.SYNTAX_ERROR, message=error.message, span=span)
    if (known := run.call_errors.get((error.kind, error.text))) is not None:
        return known if known.span or span is None else known.with_span(span)
    if error.name is not None and _is_called(run.code, error.name, span):
        hint = run.functions.suggest(error.name) or "list_tools() names what can be called"
        message = f"{error.name}() is neither defined nor a capability"
        return ErrorObject(code=Code.UNKNOWN_TOOL, message=message, hint=hint, span=span)
    if error.kind == "RecursionError":
        hint = f"the limit is {run.limits.max_stack_depth} frames (max_stack_depth)"
        return ErrorObject(code=Code.STACK_OVERFLOW, message=error.message, hint=hint, span=span)
    code = Code.PERMISSION_DENIED if error.kind == "PermissionError" else Code.RUNTIME_ERROR
    return ErrorObject(code=code, message=error.message, hint=_hint(error, run), span=span)


def span_of(error: GuestError) -> Span | None:
    """The place that the guest tells; it may tell anything."""
    if error.span is None:
        return None
    line, column, end_line, end_column = error.span
    if line is None or column is None or line < 1 or column < 1:
        return None
    return Span(line=line, column=column, end_line=end_line, end_column=end_column)


def modules_hint(packages: tuple[str, ...]) -> str:
    return ", ".join(["the sandbox has Python's standard library", *packages])


def _hint(error: GuestError, run: Circumstances) -> str | None:
    if error.kind == "ModuleNotFoundError":
        return modules_hint(run.packages)
    if error.kind == "PermissionError":
        return "the sandbox has no network, no other processes, and no files but those a run makes itself"
    if error.kind == "TypeError" and "'await' expression" in error.message:
        return "a tool call is awaited where it is made: `await f(x)`, or `await asyncio.gather(f(x), f(y))`"
    return None


def _is_called(code: str, name: str, span: Span | None) -> bool:
    """Whether the name that is not there was called, in the line that the error came from."""
    tree = parse(code) if span is not None else None
    if tree is None or span is None:
        return False
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id, node.func.lineno) == (name, span.line)
        for node in ast.walk(tree)
    )


def threads_error() -> ErrorObject:
    return ErrorObject(
        code=Code.MEMORY_EXCEEDED,
        message="the code started too many threads",
        hint="a few threads are enough: they share one processor",
    )


def files_error() -> ErrorObject:
    return ErrorObject(
        code=Code.MEMORY_EXCEEDED,
        message="the files that the code made are too large, or too many",
        hint="write less; files are gone when the run ends",
    )


def not_loaded_error(limits: SessionLimits) -> ErrorObject:
    return ErrorObject(
        code=Code.MEMORY_EXCEEDED,
        message=f"the session's state cannot be loaded within {limits.memory_mb} MB",
        hint="run with the memory_mb that the session was last run with, or more",
    )


def not_kept_error(limits: SessionLimits) -> ErrorObject:
    return ErrorObject(
        code=Code.MEMORY_EXCEEDED,
        message=f"what the run left in the session cannot be stored and loaded within {limits.memory_mb} MB",
        hint="keep less in variables, or raise memory_mb",
    )


def not_loadable_error(why: str) -> ErrorObject:
    return ErrorObject(
        code=Code.SERIALIZE_ERROR,
        message=f"what the run left in the session cannot be loaded again: {why}",
        hint="keep data in variables, not objects that cannot be pickled and unpickled",
    )


def too_large_error(size: int) -> ErrorObject:
    return ErrorObject(
        code=Code.MEMORY_EXCEEDED,
        message=f"what the run left in the session takes {size} bytes, which is too much to store",
        hint="keep less in variables",
    )


def broken() -> CellFailed:
    error = ErrorObject(
        code=Code.INTERRUPTED,
        message="the process that ran the code sent something that makes no sense, and was ended",
        hint="code that changes the interpreter under its own feet cannot be run",
    )
    return CellFailed(error)


def lost_error(error: GuestError) -> ErrorObject:
    message = f"the session's state cannot be loaded: {error.message}"
    return ErrorObject(code=Code.INTERRUPTED, message=message, hint=_RESET)


def not_passed_error(error: Exception) -> ErrorObject:
    return ErrorObject(code=Code.INVALID_ARGUMENT, message=f"an input cannot be passed: {error}")


def remember(errors: CallErrors, seen: GuestException, error: ErrorObject) -> None:
    """Remember what an exception stands for; one that Python does not have arrives as a RuntimeError."""
    errors[seen.type, seen.message] = errors["RuntimeError", seen.message] = error
