"""Parsing of a server's errors, in the many shapes that servers use.

Rule: the message is the server's own; a code in the error outweighs its wording, and the wording the status.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.model.canonical import Json
from standfast.providers.http.content import json_text
from standfast.providers.http.dialect import ErrorReport
from standfast.providers.http.failures import TRANSIENT_STATUSES

_MAX_CHARS: Final = 2000
_OVERFLOW: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (length|window|size)"
    r"|prompt is too long|reduce the length of the (messages|prompt|input)"
    r"|inputs?` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE,
)
_PERMANENT: Final = re.compile(
    r"insufficient_(quota|balance|credits)|billing|invalid_api_key|authentication|permission|unauthorized"
    r"|invalid_request|bad_?request|not_found|unsupported",
    re.IGNORECASE,
)
_TRANSIENT: Final = re.compile(
    r"rate_?limit|too_?many_?requests|overloaded|server_error|internal|unavailable|timeout|capacity|tool_use_failed",
    re.IGNORECASE,
)
_RATE_LIMIT: Final = re.compile(r"rate_?limit|too_?many_?requests", re.IGNORECASE)
_SPENT: Final = re.compile(r"insufficient_(quota|balance|credits)|exceeded your current quota", re.IGNORECASE)


class _ServerError(NamedTuple):
    """An error as the server sent it. `kind` is its code and type, `status` the status in its body."""

    message: str
    kind: str = ""
    status: int = 0


def read_error(status: int, body: bytes) -> ErrorReport:
    """Parse the body of an error response."""
    return _report(_decode(body), status)


def stream_error(data: bytes) -> ModelError:
    """Convert an error event. The request had been accepted, so an unknown error is retryable."""
    error = _decode(data)
    report, status = _report(error, error.status), error.status
    retryable = report.retryable
    if retryable is None:
        retryable = not 400 <= status < 500 or status in TRANSIENT_STATUSES
    return ModelError(f"the server said: {report.message}", code=report.code, retryable=retryable)


def _report(error: _ServerError, status: int) -> ErrorReport:
    message, everything = error.message[:_MAX_CHARS] or f"status {status}", f"{error.kind} {error.message}"
    if status != 429 and _OVERFLOW.search(everything):
        return ErrorReport(message, TurnCode.CONTEXT_OVERFLOW, retryable=False)
    spent = _SPENT.search(everything) is not None
    limited = status == 429 or _RATE_LIMIT.search(error.kind) is not None
    retryable = None
    if spent or status in (401, 402, 403):
        retryable = False
    elif _TRANSIENT.search(error.kind):
        retryable = True
    elif _PERMANENT.search(error.kind) and status not in TRANSIENT_STATUSES:
        retryable = False
    code = Code.RATE_LIMITED if limited and not spent else TurnCode.PROVIDER_ERROR
    return ErrorReport(message, code, retryable)


def _decode(body: bytes) -> _ServerError:
    try:
        return _find_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _ServerError(" ".join(body.decode(errors="replace").split()))


def _find_error(value: Json) -> _ServerError:
    """Find the error in `{"error": {...}}`, a list of such, `{"detail": ...}`, or plain text."""
    if isinstance(value, list) and value:
        return _find_error(value[0])
    if not isinstance(value, dict):
        return _ServerError(_as_text(value))
    inner = value.get("error")
    if isinstance(inner, (dict, str)) and inner:
        return _find_error(inner)
    code = value.get("code")
    kinds = [kind for kind in (code, value.get("type")) if isinstance(kind, str)]
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    message = next((_as_text(value[name]) for name in ("message", "detail", "msg") if value.get(name)), None)
    if message is None:
        message = json_text(value)
    else:
        metadata = value.get("metadata")  # where a router puts the upstream server's error
        raw = metadata.get("raw") if isinstance(metadata, dict) else None
        message += f": {_as_text(raw)}" if raw else ""
    return _ServerError(message, " ".join(kinds), code if isinstance(code, int) else 0)


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json_text(value)
