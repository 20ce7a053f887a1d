"""Tracebacks of tools, for the log, the trace and the record of a call.

A traceback is at most `MAX_CHARS` long, with secrets of the usual forms removed. Every exception can be
formatted, even one that raises while it is formatted.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from standfast.errors import StandfastError, ValueTooLarge
from standfast.model.canonical import check_bounds

if TYPE_CHECKING:
    from standfast.tools.registered_tool import Admitted
    from standfast.tools.secret_finder import SecretFinder

log: Final = logging.getLogger("standfast.tools")

MAX_CHARS: Final = 8_192
_MAX_MESSAGE_CHARS: Final = 4_096
PASSED_ON: Final = {
    cls.__name__: cls
    for cls in (
        ArithmeticError, AssertionError, AttributeError, FileExistsError, FileNotFoundError, IndexError,
        IsADirectoryError, KeyError, LookupError, NotADirectoryError, NotImplementedError, OSError,
        OverflowError, PermissionError, RuntimeError, TimeoutError, TypeError, ValueError, ZeroDivisionError,
    )
}  # fmt: skip
"""The exceptions that keep their type on the way to guest code; the others become RuntimeError."""
_MOST_CHARS: Final = MAX_CHARS * 4
"""The length that is searched for secrets; longer texts and lines are cut before they are copied."""
_HEAD_CHARS: Final = 2_000
_MAX_FRAMES: Final = 64
_TITLE: Final = "Traceback (most recent call last):"
_KEPT: Final = "__standfast_traceback__"
_TYPE: Final = r"([A-Za-z_][\w.]*)(?::|\Z)"
_OWN_MODULES: Final = __name__.rpartition(".")[0] + "."
_FRAME: Final = r'\s+File "[^"\n]*", line \d+, in \S+\Z'


def log_raised(call: Admitted, error: BaseException) -> str:
    """Log a tool's exception, as a warning unless it is a `StandfastError`, and return its traceback."""
    text = traceback_of(error)
    name, session_id, call_id = call.tool.name, call.session_id, call.call_id
    log.log(
        logging.INFO if isinstance(error, StandfastError) else logging.WARNING,
        "tool %s() raised in session %s, call %s\n%s",
        name,
        session_id,
        call_id,
        text,
        extra={"tool": name, "session_id": session_id, "call_id": call_id},
    )
    return text


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, from the tool's own code on."""
    kept = getattr(error, _KEPT, None)
    try:
        text = kept if isinstance(kept, str) else _formatted(error)
    except BaseException:  # a tool's exception may raise anything while it is formatted
        text = f"{type(error).__name__} (its traceback cannot be shown)"
    text = _bounded(text, _MOST_CHARS).encode("utf-8", "replace").decode()
    return _bounded(_finder().clean_text(text), MAX_CHARS)


def message_of(error: BaseException, unencodable: str = "backslashreplace") -> str:
    """Return the message of an exception, shortened and made fit for JSON; *unencodable* as for `encode`."""
    try:
        check_bounds(error.args)
        text = str(error.args[0]) if isinstance(error, KeyError) and len(error.args) == 1 else str(error)
    except BaseException:
        return "(its message cannot be shown)"
    return text.encode("utf-8", unencodable).decode()[:_MAX_MESSAGE_CHARS]


def with_traceback(error: BaseException, text: str | None) -> BaseException:
    """Return *error* with the traceback that it had in another process."""
    setattr(error, _KEPT, text)
    return error


def frames_of(text: str) -> str:
    """Return the code locations of a traceback, without the exceptions' messages."""
    return "\n".join(line for line in text.splitlines() if re.match(_FRAME, line))


def exception_type_of(text: str) -> str:
    """Return the class name of the exception at the end of a traceback."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if re.match(_FRAME, line)), default=-1)
    named = (re.match(_TYPE, line) for line in lines[last + 1 :])
    return next((found[1] for found in named if found is not None), "")


def _formatted(error: BaseException) -> str:
    where = error.__traceback__
    while where is not None and str(where.tb_frame.f_globals.get("__name__")).startswith(_OWN_MODULES):
        where = where.tb_next  # frames of this package that called the tool
    where = where or error.__traceback__
    try:
        for one in _with_its_causes(error):  # a value with shared parts may be endless as text
            check_bounds([one.args, getattr(one, "__notes__", None)])
    except ValueTooLarge:
        frames = "".join(traceback.format_tb(where, limit=-_MAX_FRAMES))
        return f"{_TITLE}\n{frames}{type(error).__name__}: (its message cannot be shown)"
    shown = traceback.TracebackException(type(error), error, where, limit=-_MAX_FRAMES)
    return "".join(_bounded(line, _MOST_CHARS) for line in shown.format()).rstrip()


def _with_its_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and all exceptions that its traceback shows."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions


def _bounded(text: str, most: int) -> str:
    """Return the beginning and the end of a text: the outermost call, and the line that raised."""
    if len(text) <= most:
        return text
    cut = f"\n[{len(text) - most:,} characters left out]\n"
    return text[:_HEAD_CHARS] + cut + text[len(text) - (most - _HEAD_CHARS - len(cut)) :]


@cache
def _finder() -> SecretFinder:
    from standfast.tools.secret_finder import DEFAULT_PATTERNS, SecretFinder  # most calls raise nothing

    return SecretFinder(DEFAULT_PATTERNS, (), "[redacted]")


def described(error: BaseException) -> str:
    """Describe an exception, even if its `__str__` raises."""
    try:
        text = str(error)
    except BaseException:
        text = "(its message cannot be shown)"
    text = text.encode("utf-8", "replace").decode()[:2000]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
