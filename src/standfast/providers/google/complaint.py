"""What the Gemini API says when it refuses, as an answer or in the middle of a stream.

Rules
-----
1. The words are Google's. What to do about them comes from the status, the details, and only then the words.
2. A quota of the day, or one of nought, is not worth another attempt, although Google names a delay for it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.model.canonical import Json
from standfast.providers.http.dialect import Complaint

_PASSING: Final = frozenset({"UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED"})
_LASTING: Final = frozenset(
    {
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "NOT_FOUND",
        "UNIMPLEMENTED",
    }
)
_OVERFLOW: Final = re.compile(r"token count.*exceeds|exceeds the maximum number of tokens", re.I | re.S)
_SPENT: Final = re.compile(r"per ?day|daily|limit: 0\b|credits are depleted", re.I)
_DELAY: Final = re.compile(r"(\d+(?:\.\d+)?)s")
_DELAY_IN_WORDS: Final = re.compile(r"retry in (\d+(?:\.\d+)?)s", re.I)
_MAX_CHARS: Final = 2_000


def complaint_of(status: int, body: bytes) -> Complaint:
    """What the answer says; streaming endpoints put the error into a list."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Complaint(_shortened(body.decode(errors="replace")) or f"status {status}")
    said = said[0] if isinstance(said, list) and said else said
    return complaint_about(said.get("error", said) if isinstance(said, dict) else said, status)


def complaint_about(error: Json, status: int = 0) -> Complaint:
    """What an error object says."""
    error = error if isinstance(error, dict) else {"message": str(error)}
    name = str(error.get("status") or "")
    message = _shortened(str(error.get("message") or name or f"status {status}"))
    details = [entry for entry in error.get("details") or () if isinstance(entry, dict)]
    if _OVERFLOW.search(message) and name in ("", "INVALID_ARGUMENT"):
        return Complaint(message, TurnCode.CONTEXT_OVERFLOW, retryable=False)
    if name == "RESOURCE_EXHAUSTED" or status == 429:
        return _exhausted(message, details)
    retryable = True if name in _PASSING else False if name in _LASTING else None
    return Complaint(message, retryable=retryable, retry_after_ms=_delay(message, details))


def error_in_stream(error: Json) -> ModelError:
    """The failure that an event of a stream tells of, where no status came with it."""
    number = error.get("code") if isinstance(error, dict) else None
    status = number if isinstance(number, int) else 500
    told = complaint_about(error, status)
    retryable = status >= 500 if told.retryable is None else told.retryable
    return ModelError(told.message, code=told.code, retryable=retryable, retry_after_ms=told.retry_after_ms)


def _exhausted(message: str, details: list[dict[str, Any]]) -> Complaint:
    """Too many requests or tokens: in a minute, which passes, or in a day."""
    quotas = " ".join(_quotas(details))
    if _SPENT.search(quotas) or _SPENT.search(message):
        return Complaint(message, Code.RATE_LIMITED, retryable=False)
    return Complaint(message, Code.RATE_LIMITED, retryable=True, retry_after_ms=_delay(message, details))


def _quotas(details: list[dict[str, Any]]) -> list[str]:
    """The names of the quotas that were exceeded, such as `GenerateRequestsPerDayPerProjectPerModel`."""
    violations = [entry for detail in details for entry in detail.get("violations") or ()]
    return [str(entry.get("quotaId", "")) for entry in violations if isinstance(entry, dict)]


def _delay(message: str, details: list[dict[str, Any]]) -> int | None:
    """How long Google asks to wait, in milliseconds."""
    for detail in details:
        if found := _DELAY.fullmatch(str(detail.get("retryDelay", ""))):
            return round(float(found[1]) * 1000)
    words = _DELAY_IN_WORDS.search(message)
    return None if words is None else round(float(words[1]) * 1000)


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " ..."
