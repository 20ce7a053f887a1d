"""Parsing of OpenAI's errors, from a response, an `error` event or a failed response.

Rule: the message is the vendor's own; its code only decides how to handle it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.providers.http.content import json_text
from standfast.providers.http.dialect import ErrorReport

_TRANSIENT: Final = frozenset((
    "server_error", "internal_error", "internal_server_error", "service_unavailable",
    "server_is_overloaded", "overloaded", "overloaded_error", "slow_down", "timeout",
    "vector_store_timeout",
))  # fmt: skip
_RATE_LIMITS: Final = frozenset(("rate_limit_exceeded", "rate_limit_error", "too_many_requests"))
_ACCOUNT: Final = frozenset((
    "insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "account_deactivated",
    "invalid_api_key",
))  # fmt: skip
_OVERFLOW: Final = re.compile(r"context window|maximum context length", re.IGNORECASE)
_TOO_LARGE: Final = re.compile(r"^request too large", re.IGNORECASE)
_DELAY: Final = re.compile(r"try again in (?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)(ms|s))?")


def read_error(status: int, body: bytes) -> ErrorReport:
    """Parse the body of an error response; the message is empty if the body is."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = body.decode("utf-8", errors="replace").strip()
    return _report(decoded)[0]


def stream_error(decoded: object) -> ModelError:
    """Convert the error in an event. The request was accepted, so an error without a code is retryable."""
    report, codes = _report(decoded)
    return ModelError(
        f"openai: {report.message or 'the response failed for an unknown reason'}",
        code=report.code,
        retryable=not codes if report.retryable is None else report.retryable,
        retry_after_ms=report.retry_after_ms,
    )


def _report(decoded: object) -> tuple[ErrorReport, set[str]]:
    """Return the report and the vendor's codes."""
    error = decoded
    if isinstance(decoded, Mapping) and decoded.get("error"):
        error = decoded["error"]
    message, codes = error if isinstance(error, str) else "", set()
    if isinstance(error, Mapping):
        words = error.get("message") or error.get("detail") or ""
        message = words if isinstance(words, str) else json_text(words)
        codes = {str(error[name]) for name in ("code", "type") if error.get(name) not in (None, "", "error")}
    if "context_length_exceeded" in codes or _OVERFLOW.search(message):
        return ErrorReport(message, TurnCode.CONTEXT_OVERFLOW, False), codes
    if codes & _ACCOUNT:
        return ErrorReport(message, retryable=False), codes
    if codes & _RATE_LIMITS:
        fits, delay_ms = _TOO_LARGE.match(message) is None, None
        found = _DELAY.search(message)  # such as "Please try again in 1m6.57s."
        if fits and found is not None and (found[1] or found[2]):
            last = float(found[2] or 0) * (1 if found[3] == "ms" else 1_000)
            delay_ms = int(found[1] or 0) * 60_000 + int(last)
        return ErrorReport(message, Code.RATE_LIMITED, fits, delay_ms), codes
    return ErrorReport(message, retryable=True if codes & _TRANSIENT else None), codes
