"""Errors as `application/problem+json` (RFC 9457), with our code and hint."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from standfast.errors import CallerError, Code, OperatorError, RequestRefused, StandfastError, StoreError
from standfast.runtime.http_values import OpenAiError, Problem

PROBLEM: Final = "application/problem+json"
NO_CREDENTIAL: Final = "this request has no credential"
INVALID_CREDENTIAL: Final = "the credential is not valid"


def unauthenticated(message: str) -> RequestRefused:
    """Return the 401 error of a request without a valid credential."""
    return RequestRefused(
        401,
        Code.UNAUTHENTICATED,
        message,
        hint="send `Authorization: Bearer TOKEN`; `standfast tokens create` creates a token",
        headers={"www-authenticate": "Bearer"},
    )


def malformed(message: str) -> RequestRefused:
    """Return the 400 error of a request that does not conform to the OpenAPI document."""
    return RequestRefused(
        400, Code.INVALID_ARGUMENT, message, hint="GET /v1/openapi.json describes valid requests"
    )


def forbidden(message: str, hint: str | None = None) -> RequestRefused:
    return RequestRefused(403, Code.PERMISSION_DENIED, message, hint=hint)


_CONFLICTS: Final = frozenset({
    Code.SESSION_EXISTS, Code.SESSION_BUSY, Code.WAITING_FOR_APPROVAL, Code.INTERRUPTED,
    Code.IDEMPOTENCY_CONFLICT, Code.STALE_BRANCH, Code.TOKEN_ALREADY_USED, Code.APPROVAL_ALREADY_DECIDED,
    Code.TASK_EXISTS, Code.GENERATION_MISMATCH, Code.TURN_WAITS_FOR_ITSELF, Code.TOOL_CONFLICT,
    Code.PROVIDER_MISMATCH, Code.RUNTIME_REQUIRED,
})  # fmt: skip
_STATUS: Final[dict[str, int]] = {
    **dict.fromkeys(_CONFLICTS, 409),
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.REQUEST_TOO_LARGE: 413,
    Code.RATE_LIMITED: 429,
    Code.UNKNOWN_TOOL: 404,
    Code.METHOD_NOT_FOUND: 404,
    Code.SERVICE_UNAVAILABLE: 503,
    Code.RUNTIME_CLOSED: 503,
}


_OPENAI_KINDS: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def status_of(error: StandfastError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RequestRefused):
        return error.status
    code = str(error.code)
    if code in _STATUS:
        return _STATUS[code]
    if code.endswith("_NOT_FOUND"):
        return 404
    if isinstance(error, (OperatorError, StoreError)):
        return 503
    return 422 if isinstance(error, CallerError) else 502


def openai_error(error: StandfastError) -> OpenAiError:
    """Return an error in the format of OpenAI's API."""
    status = status_of(error)
    kind = _OPENAI_KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    hint = f" ({error.hint})" if error.hint else ""
    return OpenAiError(message=f"{error.message}{hint}", type=kind, code=str(error.code))


def problem_response(error: StandfastError, path: str = "") -> Response:
    """Return the response for an error of a request to *path*."""
    status = status_of(error)
    problem = Problem(
        type=f"urn:standfast:error:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=error.message,
        code=str(error.code),
        hint=error.hint,
        error=openai_error(error) if "/openai/" in path else msgspec.UNSET,
    )
    headers = error.headers if isinstance(error, RequestRefused) else None
    return Response(msgspec.json.encode(problem), status, headers, PROBLEM)
