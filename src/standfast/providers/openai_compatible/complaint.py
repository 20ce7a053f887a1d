"""What a server says is wrong, in whichever of the many shapes it says it.

Rules
-----
1. The words are the server's own.
2. A code in the error counts for more than its words, and its words for more than the status.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.model.canonical import Json
from standfast.providers.http.dialect import Complaint

_LONGEST: Final = 2000
_OVERFLOW: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (length|window|size)"
    r"|prompt is too long|reduce the length of the (messages|prompt|input)"
    r"|inputs?` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE,
)
_LASTING: Final = re.compile(
    r"insufficient_(quota|balance|credits)|billing|invalid_api_key|authentication|permission|unauthorized"
    r"|invalid_request|bad_?request|not_found|unsupported",
    re.IGNORECASE,
)
_PASSING: Final = re.compile(
    r"rate_?limit|too_?many_?requests|overloaded|server_error|internal|unavailable|timeout|capacity|tool_use_failed",
    re.IGNORECASE,
)
_RATE: Final = re.compile(r"rate_?limit|too_?many_?requests", re.IGNORECASE)
_TRANSIENT: Final = frozenset((408, 409, 425, 429))
_SPENT: Final = re.compile(r"insufficient_(quota|balance|credits)|exceeded your current quota", re.IGNORECASE)


class Said(NamedTuple):
    """An error as it was sent. `kind` is its code and its type, `status` what it says the status is."""

    message: str
    kind: str = ""
    status: int = 0


def complaint_of(status: int, body: bytes) -> Complaint:
    """What the body of a refusal says."""
    return _judged(_said_in(body), status)


def error_in_stream(data: bytes) -> ModelError:
    """The failure that an event tells of. The request had been taken, so another try makes sense."""
    said = _said_in(data)
    complaint = _judged(said, said.status)
    retryable = complaint.retryable
    if retryable is None:
        retryable = not 400 <= said.status < 500 or said.status in _TRANSIENT
    return ModelError(f"the server said: {complaint.message}", code=complaint.code, retryable=retryable)


def _judged(said: Said, status: int) -> Complaint:
    words = said.message[:_LONGEST] or f"status {status}"
    code = _code_of(said, status)
    if code == TurnCode.CONTEXT_OVERFLOW:
        return Complaint(words, code, retryable=False)
    return Complaint(words, code, retryable=_worth_another_try(said, status))


def _code_of(said: Said, status: int) -> str:
    if status != 429 and _OVERFLOW.search(f"{said.kind} {said.message}"):
        return TurnCode.CONTEXT_OVERFLOW
    spent = _SPENT.search(f"{said.kind} {said.message}") is not None
    limited = status == 429 or _RATE.search(said.kind) is not None
    return Code.RATE_LIMITED if limited and not spent else TurnCode.PROVIDER_ERROR


def _worth_another_try(said: Said, status: int) -> bool | None:
    """Whether asking again may help; None where only the status tells."""
    if status in (401, 402, 403) or _SPENT.search(f"{said.kind} {said.message}"):
        return False
    if _PASSING.search(said.kind):
        return True
    return False if _LASTING.search(said.kind) and status not in _TRANSIENT else None


def _said_in(body: bytes) -> Said:
    try:
        return _said(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Said(" ".join(body.decode(errors="replace").split()))


def _said(value: Json) -> Said:
    """Find the error in `{"error": {...}}`, a list of such, `{"detail": ...}`, or plain words."""
    if isinstance(value, list) and value:
        return _said(value[0])
    if not isinstance(value, dict):
        return Said(value if isinstance(value, str) else _json(value))
    inner = value.get("error")
    if isinstance(inner, (dict, str)) and inner:
        return _said(inner)
    kinds = [kind for kind in (value.get("code"), value.get("type")) if isinstance(kind, str)]
    status = value.get("code")
    return Said(_words_of(value), " ".join(kinds), status if isinstance(status, int) else _number(status))


def _words_of(error: dict[str, Json]) -> str:
    for name in ("message", "detail", "msg"):
        if said := error.get(name):
            return (said if isinstance(said, str) else _json(said)) + _from_upstream(error)
    return _json(error)


def _from_upstream(error: dict[str, Json]) -> str:
    """What a router heard from who served the model."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f": {raw if isinstance(raw, str) else _json(raw)}" if raw else ""


def _number(code: Json) -> int:
    return int(code) if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3 else 0


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
