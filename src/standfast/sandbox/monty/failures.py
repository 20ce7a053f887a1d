"""Conversion of the engine's exceptions into errors."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject, Span
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.engine_run import EngineRun
from standfast.sandbox.monty.program import Program
from standfast.sandbox.run_errors import AWAIT_HINT, cpu_error, memory_error, stack_error

_MEMORY: Final = r"memory limit exceeded: \d+ bytes > (\d+) bytes"
_MEMORY_KILLED: Final = "the worker exceeded its memory limit and was terminated"
_NOT_YET: Final = r"The monty syntax parser does not yet support (?:the )?(.*)"
_NO_SUSPEND: Final = r"external function '(\w+)' cannot suspend"
MODULES: Final = (
    "asyncio, base64, binascii, bisect, collections, copy, csv, dataclasses, datetime, decimal, "
    "functools, hashlib, itertools, json, math, os, pathlib, posixpath, random, re, sys, time, "
    "tomllib, typing, unicodedata"
)


class MontyFailure(msgspec.Struct, frozen=True):
    """The reason why a run failed. After a *hard* failure, the session is rolled back to before the run."""

    error: ErrorObject
    hard: bool = False


def describe_failure(error: Exception, run: EngineRun, limits: SessionLimits) -> MontyFailure:
    """Convert *error*, which the engine raised, into the failure of the run."""
    match error:
        case engine.MontySyntaxError():
            span = span_of(error.traceback(), run.program)
            return MontyFailure(ErrorObject(code=Code.SYNTAX_ERROR, message=error.display("msg"), span=span))
        case engine.MontyCrashedError(timed_out=True):
            return MontyFailure(cpu_error(limits), hard=True)
        case engine.MontyCrashedError():
            return MontyFailure(
                ErrorObject(code=Code.INTERRUPTED, message=f"the process that ran the code died: {error}"),
                hard=True,
            )
        case engine.MontyRuntimeError():
            return _describe_raised(error, run, limits)
        case engine.MontyConversionError():
            return MontyFailure(
                ErrorObject(code=Code.INVALID_ARGUMENT, message=f"an input cannot be passed: {error}")
            )
    return MontyFailure(ErrorObject(code=Code.INTERRUPTED, message=f"the engine failed: {error}"), hard=True)


def _describe_raised(error: engine.MontyRuntimeError, run: EngineRun, limits: SessionLimits) -> MontyFailure:
    frames = error.traceback()
    kind = type(error.exception()).__name__
    text = error.display("msg")
    message = error.display("type-msg")
    span = span_of(frames, run.program)
    if kind == "TimeoutError" and not frames and "time limit exceeded" in text:
        return MontyFailure(cpu_error(limits), hard=True)
    if kind == "MemoryError":  # guest code can raise one too
        found = re.match(_MEMORY, text)
        if text == _MEMORY_KILLED or (found and int(found[1]) == limits.memory_mb << 20):
            return MontyFailure(memory_error(limits, span), hard=True)
    if kind == "NotImplementedError":
        refused = hint = None
        if found := re.match(_NO_SUSPEND, text):
            refused = f"{found[1]}() cannot be called by a built-in such as map() or sorted()"
            hint = f"call it in a loop or a comprehension: [{found[1]}(x) for x in ...]"
        elif frames and frames[-1].function_name is None:
            refused = unsupported_feature(text)
        if refused is not None:
            return MontyFailure(
                ErrorObject(code=Code.UNSUPPORTED_FEATURE, message=refused, hint=hint, span=span)
            )
    if (known := run.call_errors.get((kind, text))) is not None:
        return MontyFailure(known if known.span else known.with_span(span) if span else known)
    if kind == "RecursionError":
        return MontyFailure(stack_error(message, limits, span))
    hint = None
    if kind == "ModuleNotFoundError":
        hint = f"the sandbox has these modules: {MODULES}"
    elif kind == "TypeError" and "can't be awaited" in text:
        hint = AWAIT_HINT
    return MontyFailure(ErrorObject(code=Code.RUNTIME_ERROR, message=message, hint=hint, span=span))


def span_of(frames: list[engine.Frame], program: Program) -> Span | None:
    """Return the innermost position of a traceback that is in this run's code."""
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
    """Return a message about the unsupported feature that *text*, an error of the engine's parser, names."""
    found = re.match(_NOT_YET, text)
    return None if found is None else f"the sandbox's Python does not support {found[1]}"
