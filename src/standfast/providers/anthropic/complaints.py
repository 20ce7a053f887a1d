"""What the vendor says went wrong, in an answer or in the middle of a stream.

Rules
-----
1. The words are the vendor's own, with its name for the kind of error and for the request.
2. A type of error tells whether another try makes sense; of one that is not known here, the status tells.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.providers.http.dialect import Complaint

_RETRYABLE: Final = {
    "overloaded_error": True,
    "rate_limit_error": True,
    "api_error": True,
    "timeout_error": True,
    "invalid_request_error": False,
    "authentication_error": False,
    "billing_error": False,
    "permission_error": False,
    "not_found_error": False,
    "request_too_large": False,
}
_OVERFLOWS: Final = ("prompt is too long", "exceed context limit", "exceeds the context window")
_SPENT: Final = ("credit balance is too low", "spend limit", "usage limits")
_SHOWN: Final = 500


class _Details(msgspec.Struct):
    error_code: str | None = None


class ErrorBody(msgspec.Struct):
    """The vendor's error. `type` is the broad kind; `details` may name the cause."""

    type: str = ""
    message: str = ""
    details: _Details | None = None


class _Answer(msgspec.Struct):
    error: ErrorBody
    request_id: str | None = None


_answers: Final = msgspec.json.Decoder(_Answer)


def answered(status: int, body: bytes) -> Complaint:
    """What an answer with an error status says."""
    try:
        answer = _answers.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace").strip()[:_SHOWN]
        return Complaint(text or f"the server answered with status {status} and no words")
    return _complaint(answer.error, answer.request_id)


def broke_off(error: ErrorBody, request_id: str | None) -> ModelError:
    """An error event of a stream. The request was accepted, so what is not known may be tried again."""
    told = _complaint(error, request_id)
    return ModelError(told.message, code=told.code, retryable=told.retryable is not False)


def _complaint(error: ErrorBody, request_id: str | None) -> Complaint:
    words = error.message.casefold()
    retryable = _RETRYABLE.get(error.type)
    code: str = Code.RATE_LIMITED if error.type == "rate_limit_error" else TurnCode.PROVIDER_ERROR
    if any(sign in words for sign in _OVERFLOWS):
        code, retryable = TurnCode.CONTEXT_OVERFLOW, False
    elif _is_spent(error, words):
        code, retryable = TurnCode.PROVIDER_ERROR, False
    return Complaint(_said(error, request_id), code, retryable)


def _is_spent(error: ErrorBody, words: str) -> bool:
    cause = error.details.error_code if error.details is not None else None
    return cause == "enforced_spend_limit_reached" or any(sign in words for sign in _SPENT)


def _said(error: ErrorBody, request_id: str | None) -> str:
    kind = f"{error.type}: " if error.type else ""
    request = f" (request {request_id})" if request_id else ""
    return f"{kind}{error.message or 'no words'}{request}"
