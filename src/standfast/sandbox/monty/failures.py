"""The engine's exceptions as our errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from standfast.errors import Code, ErrorObject, Span
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.program import Program
from standfast.sandbox.run_errors import cpu_error, memory_error

_MEMORY = re.compile(r"memory limit exceeded: \d+ bytes > (\d+) bytes")
_MEMORY_KILLED: Final = "the worker exceeded its memory limit and was terminated"
_NOT_YET = re.compile(r"The monty syntax parser does not yet support (?:the )?(.*)")
_NO_SUSPEND = re.compile(r"external function '(\w+)' cannot suspend")
MODULES: Final = (
    "asyncio, base64, binascii, bisect, collections, copy, csv, dataclasses, datetime, decimal, "
    "functools, hashlib, itertools, json, math, os, pathlib, posixpath, random, re, sys, time, "
    "tomllib, typing, unicodedata"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ended. After a *hard* stop the session goes back to before the run."""

    error: ErrorObject
    hard: bool = False


def describe_failure(
    error: Exception,
    program: Program,
    limits: SessionLimits,
    call_errors: dict[tuple[str, str], ErrorObject],
) -> Failure:
    """What *error*, which the engine raised, means for the run."""
    match error:
        case engine.MontySyntaxError():
            span = span_of(error.traceback(), program)
            return Failure(ErrorObject(code=Code.SYNTAX_ERROR, message=error.display("msg"), span=span))
        case engine.MontyCrashedError(timed_out=True):
            return Failure(cpu_error(limits), hard=True)
        case engine.MontyCrashedError():
            return Failure(
                ErrorObject(code=Code.INTERRUPTED, message=f"the process that ran the code died: {error}"),
                hard=True,
            )
        case engine.MontyRuntimeError():
            return _describe_raised(error, program, limits, call_errors)
        case engine.MontyConversionError():
            return Failure(
                ErrorObject(code=Code.INVALID_ARGUMENT, message=f"an input cannot be passed: {error}")
            )
    return Failure(ErrorObject(code=Code.INTERRUPTED, message=f"the engine failed: {error}"), hard=True)


def _describe_raised(
    error: engine.MontyRuntimeError,
    program: Program,
    limits: SessionLimits,
    call_errors: dict[tuple[str, str], ErrorObject],
) -> Failure:
    frames = error.traceback()
    kind = type(error.exception()).__name__
    text = error.display("msg")
    message = error.display("type-msg")
    span = span_of(frames, program)
    if kind == "TimeoutError" and not frames and "time limit exceeded" in text:
        return Failure(cpu_error(limits), hard=True)
    if kind == "MemoryError" and _over_memory(text, limits):
        return Failure(memory_error(limits, span), hard=True)
    if kind == "NotImplementedError" and (refused := _unsupported(text, frames, span)):
        return Failure(refused)
    if (known := call_errors.get((kind, text))) is not None:
        return Failure(known if known.span else known.with_span(span) if span else known)
    if kind == "RecursionError":
        hint = f"the limit is {limits.max_stack_depth} frames (max_stack_depth)"
        return Failure(ErrorObject(code=Code.STACK_OVERFLOW, message=message, hint=hint, span=span))
    return Failure(ErrorObject(code=Code.RUNTIME_ERROR, message=message, hint=_hint(kind, text), span=span))


def span_of(frames: list[engine.Frame], program: Program) -> Span | None:
    """The innermost place of a traceback that lies in the code of this run."""
    if not frames:
        return None
    here = [frame for frame in frames if frame.filename == frames[0].filename]
    frame = here[-1]
    return Span(
        line=frame.line,
        column=program.column(frame.line, frame.column),
        end_line=frame.end_line,
        end_column=program.column(frame.end_line, frame.end_column),
    )


def unsupported_feature(text: str) -> str | None:
    """What the engine's parser says it does not support, if that is what it says."""
    found = _NOT_YET.match(text)
    return None if found is None else f"the sandbox's Python does not support {found[1]}"


def _unsupported(text: str, frames: list[engine.Frame], span: Span | None) -> ErrorObject | None:
    if found := _NO_SUSPEND.match(text):
        return ErrorObject(
            code=Code.UNSUPPORTED_FEATURE,
            message=f"{found[1]}() cannot be called by a built-in such as map() or sorted()",
            hint=f"call it in a loop or a comprehension: [{found[1]}(x) for x in ...]",
            span=span,
        )
    if frames and frames[-1].function_name is None and (what := unsupported_feature(text)):
        return ErrorObject(code=Code.UNSUPPORTED_FEATURE, message=what, span=span)
    return None


def _over_memory(text: str, limits: SessionLimits) -> bool:
    """Whether a MemoryError is the engine's own; guest code can raise one too."""
    if text == _MEMORY_KILLED:
        return True
    found = _MEMORY.match(text)
    return found is not None and int(found[1]) == limits.memory_mb << 20


def _hint(kind: str, text: str) -> str | None:
    if kind == "ModuleNotFoundError":
        return f"the sandbox has these modules: {MODULES}"
    if kind == "TypeError" and "can't be awaited" in text:
        return "a tool call is awaited where it is made: `await f(x)`, or `await asyncio.gather(f(x), f(y))`"
    return None
