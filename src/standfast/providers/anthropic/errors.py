"""Parsing of Anthropic's errors, from a response or from the middle of a stream.

The message is the vendor's own, with its error type and request id. The error type decides whether to retry;
if it is unknown, the HTTP status does.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.providers.http.dialect import ErrorReport

_TRANSIENT: Final = ("overloaded_error", "rate_limit_error", "api_error", "timeout_error")
_PERMANENT: Final = (
    "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error",
    "request_too_large",
)  # fmt: skip
_OVERFLOW: Final = ("prompt is too long", "exceed context limit", "exceeds the context window")
_SPENT: Final = ("credit balance is too low", "spend limit", "usage limits")
_MAX_CHARS: Final = 500


class _Details(msgspec.Struct):
    error_code: str | None = None


class AnthropicError(msgspec.Struct):
    """The vendor's error object. `type` is the broad kind; `details` may name the cause."""

    type: str = ""
    message: str = ""
    details: _Details | None = None


class _ErrorResponse(msgspec.Struct):
    error: AnthropicError
    request_id: str | None = None


_decode: Final = msgspec.json.Decoder(_ErrorResponse).decode


def read_error(status: int, body: bytes) -> ErrorReport:
    """Read the body of an error response."""
    try:
        response = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace").strip()[:_MAX_CHARS]
        return ErrorReport(text or f"the server responded with status {status} and an empty body")
    return _report(response.error, response.request_id)


def stream_error(error: AnthropicError, request_id: str | None) -> ModelError:
    """Convert an error event. The request had been accepted, so an unknown error is retryable."""
    report = _report(error, request_id)
    return ModelError(report.message, code=report.code, retryable=report.retryable is not False)


def _report(error: AnthropicError, request_id: str | None) -> ErrorReport:
    words = error.message.casefold()
    retryable = True if error.type in _TRANSIENT else False if error.type in _PERMANENT else None
    code: str = Code.RATE_LIMITED if error.type == "rate_limit_error" else TurnCode.PROVIDER_ERROR
    cause = error.details.error_code if error.details is not None else None
    if any(sign in words for sign in _OVERFLOW):
        code, retryable = TurnCode.CONTEXT_OVERFLOW, False
    elif cause == "enforced_spend_limit_reached" or any(sign in words for sign in _SPENT):
        code, retryable = TurnCode.PROVIDER_ERROR, False
    kind = f"{error.type}: " if error.type else ""
    request = f" (request {request_id})" if request_id else ""
    return ErrorReport(f"{kind}{error.message or 'no message'}{request}", code, retryable)
