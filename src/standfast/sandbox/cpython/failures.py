"""The errors that a run of full Python ends with."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Final

from standfast.errors import Code, ErrorObject, Span
from standfast.model.capability import GuestException
from standfast.model.limits import SessionLimits
from standfast.ports.cell_stepper import CellFailed
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.cpython.messages import GuestError
from standfast.sandbox.monty.syntax import parse
from standfast.sandbox.run_errors import AWAIT_HINT, stack_error, unknown_function

THREADS_ERROR: Final = ErrorObject(
    code=Code.MEMORY_EXCEEDED,
    message="the code started too many threads",
    hint="a few threads are enough: they share one processor",
)
FILES_ERROR: Final = ErrorObject(
    code=Code.MEMORY_EXCEEDED,
    message="the files that the code wrote are too large, or too many",
    hint="write less; files are deleted when the run ends",
)


@dataclass(frozen=True, slots=True)
class ExceptionReader:
    """Converts uncaught exceptions of a run. `call_errors` has errors of its calls, by type and message."""

    code: str
    limits: SessionLimits
    functions: CellFunctions
    packages: tuple[str, ...]
    call_errors: dict[tuple[str, str], ErrorObject] = field(default_factory=dict)

    def remember(self, seen: GuestException, error: ErrorObject) -> None:
        """Record the *error* behind an exception. Guest code gets a RuntimeError if Python lacks the type."""
        self.call_errors[seen.type, seen.message] = self.call_errors["RuntimeError", seen.message] = error

    def convert(self, error: GuestError) -> ErrorObject:
        """Convert an uncaught exception into an error."""
        span = None
        line, column, end_line, end_column = error.span or (None, None, None, None)
        if line and column and min(line, column) >= 1:  # the guest is not trusted
            span = Span(line=line, column=column, end_line=end_line, end_column=end_column)
        if error.syntax:
            return ErrorObject(code=Code.SYNTAX_ERROR, message=error.message, span=span)
        if (known := self.call_errors.get((error.kind, error.text))) is not None:
            return known if known.span or span is None else known.with_span(span)
        if error.name is not None and span is not None and self._calls(error.name, span.line):
            return unknown_function(error.name, self.functions, span)
        if error.kind == "RecursionError":
            return stack_error(error.message, self.limits, span)
        code, found = Code.RUNTIME_ERROR, None
        if error.kind == "PermissionError":
            code = Code.PERMISSION_DENIED
            found = (
                "the sandbox has no network, no other processes, and no files but those that a run creates"
            )
        elif error.kind == "ModuleNotFoundError":
            found = modules_hint(self.packages)
        elif error.kind == "TypeError" and "'await' expression" in error.message:
            found = AWAIT_HINT
        return ErrorObject(code=code, message=error.message, hint=found, span=span)

    def _calls(self, name: str, line: int) -> bool:
        """Return whether the code calls *name* on this line."""
        tree = parse(self.code)
        return tree is not None and any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and (node.func.id, node.func.lineno) == (name, line)
            for node in ast.walk(tree)
        )


def modules_hint(packages: tuple[str, ...]) -> str:
    return ", ".join(["the sandbox has Python's standard library", *packages])


def not_loaded_error(limits: SessionLimits) -> ErrorObject:
    message = f"the session's state cannot be loaded within {limits.memory_mb} MB"
    hint = "run with the memory_mb that the session was last run with, or more"
    return ErrorObject(code=Code.MEMORY_EXCEEDED, message=message, hint=hint)


def not_kept_error(limits: SessionLimits) -> ErrorObject:
    message = f"the session's variables cannot be stored and loaded within {limits.memory_mb} MB"
    hint = "keep less in variables, or raise memory_mb"
    return ErrorObject(code=Code.MEMORY_EXCEEDED, message=message, hint=hint)


def not_loadable_error(why: str) -> ErrorObject:
    message = f"the session's variables cannot be loaded again: {why}"
    hint = "keep data in variables, not objects that cannot be pickled and unpickled"
    return ErrorObject(code=Code.SERIALIZE_ERROR, message=message, hint=hint)


def too_large_error(size: int) -> ErrorObject:
    message = f"the session's variables take {size} bytes, which is too much to store"
    return ErrorObject(code=Code.MEMORY_EXCEEDED, message=message, hint="keep less in variables")


def lost_error(error: GuestError) -> ErrorObject:
    message = f"the session's state cannot be loaded: {error.message}"
    hint = "reset the session, or use the Standfast release that wrote it"
    return ErrorObject(code=Code.INTERRUPTED, message=message, hint=hint)


def broken() -> CellFailed:
    """Return the failure of a cell whose guest broke the protocol."""
    message = "the process that ran the code sent an invalid message, and was ended"
    hint = "code that modifies the interpreter itself cannot be run"
    return CellFailed(ErrorObject(code=Code.INTERRUPTED, message=message, hint=hint))
