"""What OpenAI says when it fails, and what that means.

The same words come as the body of a refusal, in an `error` event and in a failed response, flat or inside
`error`. Rule: the vendor's own sentence is what is told; its code only decides what is done about it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.providers.http.dialect import Complaint

_PASSING: Final = frozenset(
    [
        "server_error",
        "internal_error",
        "internal_server_error",
        "service_unavailable",
        "server_is_overloaded",
        "overloaded",
        "overloaded_error",
        "slow_down",
        "timeout",
        "vector_store_timeout",
    ]
)
_RATES: Final = frozenset(("rate_limit_exceeded", "rate_limit_error", "too_many_requests"))
_QUOTA: Final = frozenset(
    [
        "insufficient_quota",
        "billing_not_active",
        "billing_hard_limit_reached",
        "account_deactivated",
        "invalid_api_key",
    ]
)
_OVERFLOW: Final = re.compile(r"context window|maximum context length", re.IGNORECASE)
_TOO_LARGE: Final = re.compile(r"^request too large", re.IGNORECASE)
_AGAIN_IN: Final = re.compile(r"try again in (?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)(ms|s))?")


def refusal(body: bytes) -> Complaint:
    """What the body of an answer says; its message is empty if that is nothing."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = body.decode("utf-8", errors="replace").strip()
    return _complaint(said)


def failure(said: object) -> ModelError:
    """The error that a stream told of. The request was taken, so what is not explained may pass."""
    found = _complaint(said)
    retryable = not _codes(_inner(said)) if found.retryable is None else found.retryable
    return ModelError(
        f"openai: {found.message or 'the response failed, and nothing says why'}",
        code=found.code,
        retryable=retryable,
        retry_after_ms=found.retry_after_ms,
    )


def _complaint(said: object) -> Complaint:
    inner = _inner(said)
    message = _message(inner)
    codes = _codes(inner)
    if "context_length_exceeded" in codes or _OVERFLOW.search(message):
        return Complaint(message, TurnCode.CONTEXT_OVERFLOW, False)
    if codes & _QUOTA:
        return Complaint(message, retryable=False)
    if codes & _RATES:
        fits = _TOO_LARGE.match(message) is None
        return Complaint(message, Code.RATE_LIMITED, fits, _wait_ms(message) if fits else None)
    return Complaint(message, retryable=True if codes & _PASSING else None)


def _inner(said: object) -> object:
    """The error itself, of what may be around it."""
    if isinstance(said, Mapping) and said.get("error"):
        return said["error"]
    return said


def _codes(error: object) -> set[str]:
    if not isinstance(error, Mapping):
        return set()
    return {str(error[name]) for name in ("code", "type") if error.get(name) not in (None, "", "error")}


def _message(error: object) -> str:
    if not isinstance(error, Mapping):
        return error if isinstance(error, str) else ""
    words: Any = error.get("message") or error.get("detail") or ""
    return words if isinstance(words, str) else msgspec.json.encode(words).decode()


def _wait_ms(message: str) -> int | None:
    """How long the sentence asks to wait, as in "Please try again in 1m6.57s."."""
    found = _AGAIN_IN.search(message)
    if found is None or not (found[1] or found[2]):
        return None
    last = float(found[2] or 0) * (1 if found[3] == "ms" else 1_000)
    return int(found[1] or 0) * 60_000 + int(last)
