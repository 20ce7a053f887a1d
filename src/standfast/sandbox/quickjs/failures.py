"""The errors that a run of TypeScript ends with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject, Span
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox import run_errors
from standfast.sandbox.quickjs.frames import GuestReply, Thrown
from standfast.sandbox.typescript.script import Script

_FRAME: Final = re.compile(r"\(?eval_script:(\d+):(\d+)\)?\s*$", re.M)
_UNDEFINED: Final = re.compile(r"([A-Za-z_$][\w$]*) is not defined")
_LIMITS: Final[dict[str, Callable[[SessionLimits], ErrorObject]]] = {
    "cpu": run_errors.cpu_error,
    "wall": run_errors.wall_error,
    "flood": run_errors.stdout_error,
    "memory": run_errors.memory_error,
}


@dataclass(frozen=True, slots=True)
class ErrorSource:
    """The code of a run, for locating errors in it.

    `lines` is the number of lines of other code before it.
    """

    script: Script
    lines: int
    limits: SessionLimits
    functions: CellFunctions


def stopped_error(reply: GuestReply, limits: SessionLimits) -> ErrorObject:
    """Return the error of a guest that was stopped."""
    if (exceeded := _LIMITS.get(reply.stop)) is not None:
        return exceeded(limits)
    if reply.stop == "stack":
        return ErrorObject(
            code=Code.STACK_OVERFLOW,
            message="the code, or a value that it works on, is nested too deeply",
            hint="a parser or a built-in function exceeded its stack, which code cannot catch",
        )
    why = reply.detail[0] if reply.detail else "for an unknown reason"
    return ErrorObject(code=Code.INTERRUPTED, message=f"the engine failed: {why}")


def syntax_error(detail: list[str], code: ErrorSource) -> ErrorObject:
    """Return the error for code that `read_script` accepts and the engine rejects."""
    name, message, stack = detail
    kind = Code.SYNTAX_ERROR if name == "SyntaxError" else Code.RUNTIME_ERROR
    return ErrorObject(code=kind, message=f"{name}: {message}", span=_span_of(stack, code))


def thrown_error(thrown: Thrown, code: ErrorSource) -> ErrorObject:
    """Return the error of an uncaught exception."""
    span = _span_of(thrown.stack, code)
    try:
        known = msgspec.json.decode(thrown.known, type=ErrorObject | None)
    except msgspec.DecodeError:
        known = None
    if known is not None:
        return known if known.span or span is None else known.with_span(span)
    message = f"{thrown.name}: {thrown.message}" if thrown.name else f"Uncaught {thrown.message}"
    name = _UNDEFINED.fullmatch(thrown.message) if thrown.name == "ReferenceError" else None
    if name is not None and re.search(rf"(?<![\w$.]){re.escape(name[1])}\s*\(", code.script.code):
        return run_errors.unknown_function(name[1], code.functions, span)
    if thrown.name == "RangeError" and thrown.message == "Maximum call stack size exceeded":
        return run_errors.stack_error(message, code.limits, span)
    return ErrorObject(code=Code.RUNTIME_ERROR, message=message, span=span)


def line_of(stack: str, name: str | None, code: ErrorSource) -> int | None:
    """Return the line of this run's code that called *name*, which is None for a timer.

    Return 0 if other code of the session made the call; None if the stack does not show it.
    """
    if (place := _place_of(stack, code)) is not None:
        # The engine reports the position of the end of the arguments.
        return place[0] if name is None else code.script.call_line(*place, name)
    return 0 if any(int(line[:9]) > 1 for line, _ in _FRAME.findall(stack)) else None  # line 1 is the bridge


def _span_of(stack: str, code: ErrorSource) -> Span | None:
    if (place := _place_of(stack, code)) is None:
        return None
    line, column = code.script.position(*place)
    return Span(line=line, column=column)


def _place_of(stack: str, code: ErrorSource) -> tuple[int, int] | None:
    """Return the innermost position of a stack that is in this run's code, for `Script.position`."""
    count = code.script.javascript.count("\n") + 1
    for line, column in _FRAME.findall(stack[:20_000]):
        here = int(line[:9]) - code.lines
        if 1 <= here <= count:
            at = int(column[:9])
            # `Script.position` expects for its first line what the engine reports for the first line of a
            # program.
            return here, at - 1 if here == 1 else at
    return None
