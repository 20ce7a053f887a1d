"""Parsing of the Gemini API's errors, from a response or from the middle of a stream.

The message is Google's; its status, then its details, then its wording decide how to handle it. A daily or
zero quota is not worth a retry, although Google names a delay for it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.model.canonical import Json
from standfast.providers.http.dialect import ErrorReport

_TRANSIENT: Final = frozenset({"UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED"})
_PERMANENT: Final = frozenset((
    "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNAUTHENTICATED", "PERMISSION_DENIED",
    "NOT_FOUND", "UNIMPLEMENTED",
))  # fmt: skip
_OVERFLOW: Final = re.compile(r"token count.*exceeds|exceeds the maximum number of tokens", re.I | re.S)
_SPENT: Final = re.compile(r"per ?day|daily|limit: 0\b|credits are depleted", re.I)
_DELAY: Final = re.compile(r"(\d+(?:\.\d+)?)s")
_DELAY_IN_WORDS: Final = re.compile(r"retry in (\d+(?:\.\d+)?)s", re.I)
_MAX_CHARS: Final = 2_000


def read_error(status: int, body: bytes) -> ErrorReport:
    """Parse the body of an error response; streaming endpoints wrap the error in a list."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ErrorReport(_shortened(body.decode(errors="replace")) or f"status {status}")
    decoded = decoded[0] if isinstance(decoded, list) and decoded else decoded
    return _report(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded, status)


def stream_error(error: Json) -> ModelError:
    """Convert the error in an event, which has no HTTP status."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) else 500
    report = _report(error, status)
    return ModelError(
        report.message,
        code=report.code,
        retryable=status >= 500 if report.retryable is None else report.retryable,
        retry_after_ms=report.retry_after_ms,
    )


def _report(error: Json, status: int) -> ErrorReport:
    error = error if isinstance(error, dict) else {"message": str(error)}
    name = str(error.get("status") or "")
    message = _shortened(str(error.get("message") or name or f"status {status}"))
    details = [entry for entry in error.get("details") or () if isinstance(entry, dict)]
    if _OVERFLOW.search(message) and name in ("", "INVALID_ARGUMENT"):
        return ErrorReport(message, TurnCode.CONTEXT_OVERFLOW, retryable=False)
    if name == "RESOURCE_EXHAUSTED" or status == 429:
        # The names of the exceeded quotas, such as `GenerateRequestsPerDayPerProjectPerModel`.
        violations = [entry for detail in details for entry in detail.get("violations") or ()]
        quotas = [str(entry.get("quotaId", "")) for entry in violations if isinstance(entry, dict)]
        if _SPENT.search(" ".join(quotas)) or _SPENT.search(message):
            return ErrorReport(message, Code.RATE_LIMITED, retryable=False)
        return ErrorReport(message, Code.RATE_LIMITED, True, _delay_ms(message, details))
    retryable = True if name in _TRANSIENT else False if name in _PERMANENT else None
    return ErrorReport(message, retryable=retryable, retry_after_ms=_delay_ms(message, details))


def _delay_ms(message: str, details: list[dict[str, Any]]) -> int | None:
    """Parse the delay that Google requests."""
    for detail in details:
        if found := _DELAY.fullmatch(str(detail.get("retryDelay", ""))):
            return round(float(found[1]) * 1000)
    words = _DELAY_IN_WORDS.search(message)
    return None if words is None else round(float(words[1]) * 1000)


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " ..."
