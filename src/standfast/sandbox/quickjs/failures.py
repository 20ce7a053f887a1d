"""What went wrong in a guest, as our errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject, Span
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.quickjs.frames import Reply, Thrown
from standfast.sandbox.run_errors import cpu_error, memory_error, stdout_error, wall_error
from standfast.sandbox.typescript.script import Script

_FRAME: Final = re.compile(r"\(?eval_script:(\d+):(\d+)\)?\s*$", re.M)
_UNDEFINED: Final = re.compile(r"([A-Za-z_$][\w$]*) is not defined")
_TOO_DEEP: Final = "Maximum call stack size exceeded"
_TOOLS_HINT: Final = "list_tools() names what can be called"


@dataclass(frozen=True, slots=True)
class Source:
    """The code of a run, as far as errors in it go: `lines` is how many lines of other code are before it."""

    script: Script
    lines: int
    limits: SessionLimits
    functions: CellFunctions


def stopped_error(reply: Reply, source: Source) -> ErrorObject:
    """Why a guest was stopped."""
    limits = source.limits
    match reply.stop:
        case "cpu":
            return cpu_error(limits)
        case "wall":
            return wall_error(limits)
        case "flood":
            return stdout_error(limits)
        case "memory":
            return memory_error(limits)
        case "stack":
            return ErrorObject(
                code=Code.STACK_OVERFLOW,
                message="the code, or a value that it works on, is nested too deeply",
                hint="a parser or a built-in function ran out of stack; that cannot be caught",
            )
    why = reply.detail[0] if reply.detail else "it is not known why"
    return ErrorObject(code=Code.INTERRUPTED, message=f"the engine failed: {why}")


def syntax_error(detail: list[str], source: Source) -> ErrorObject:
    """Code that our reader takes and the engine does not."""
    name, message, stack = detail
    code = Code.SYNTAX_ERROR if name == "SyntaxError" else Code.RUNTIME_ERROR
    return ErrorObject(code=code, message=f"{name}: {message}", span=span_of(stack, source))


def thrown_error(thrown: Thrown, source: Source) -> ErrorObject:
    """An exception that nothing caught."""
    span = span_of(thrown.stack, source)
    if (known := _known(thrown.known)) is not None:
        return known if known.span or span is None else known.with_span(span)
    message = f"{thrown.name}: {thrown.message}" if thrown.name else f"Uncaught {thrown.message}"
    if thrown.name == "ReferenceError" and (unknown := _unknown_tool(thrown.message, source, span)):
        return unknown
    if thrown.name == "RangeError" and thrown.message == _TOO_DEEP:
        hint = f"the limit is {source.limits.max_stack_depth} frames (max_stack_depth)"
        return ErrorObject(code=Code.STACK_OVERFLOW, message=message, hint=hint, span=span)
    return ErrorObject(code=Code.RUNTIME_ERROR, message=message, span=span)


def span_of(stack: str, source: Source) -> Span | None:
    """The innermost place of a stack that lies in the code of this run."""
    count = source.script.javascript.count("\n") + 1
    for line, column in _FRAME.findall(stack[:20_000]):
        here = int(line[:9]) - source.lines
        if 1 <= here <= count:
            at = int(column[:9])
            # The reader expects of the first line what the engine tells of the first line of all code.
            place = source.script.position(here, at - 1 if here == 1 else at)
            return Span(line=place[0], column=place[1])
    return None


def _known(data: msgspec.Raw) -> ErrorObject | None:
    try:
        return msgspec.json.decode(data, type=ErrorObject | None)
    except msgspec.DecodeError:
        return None


def _unknown_tool(message: str, source: Source, span: Span | None) -> ErrorObject | None:
    """A name that is nowhere bound, if the code calls it."""
    found = _UNDEFINED.fullmatch(message)
    if found is None or not re.search(rf"(?<![\w$.]){re.escape(found[1])}\s*\(", source.script.code):
        return None
    return ErrorObject(
        code=Code.UNKNOWN_TOOL,
        message=f"{found[1]}() is neither defined nor a capability",
        hint=source.functions.suggest(found[1]) or _TOOLS_HINT,
        span=span,
    )
