"""Error responses."""

from __future__ import annotations

import json

import pytest

from standfast.errors import Code, TurnCode
from standfast.providers.anthropic.model import AnthropicDialect


@pytest.mark.parametrize(
    ("status", "kind", "message", "code", "retryable"),
    [
        (529, "overloaded_error", "Overloaded", TurnCode.PROVIDER_ERROR, True),
        (429, "rate_limit_error", "Too many tokens", Code.RATE_LIMITED, True),
        (500, "api_error", "Oh", TurnCode.PROVIDER_ERROR, True),
        (504, "timeout_error", "Slow", TurnCode.PROVIDER_ERROR, True),
        (401, "authentication_error", "invalid x-api-key", TurnCode.PROVIDER_ERROR, False),
        (403, "permission_error", "No", TurnCode.PROVIDER_ERROR, False),
        (404, "not_found_error", "model: x", TurnCode.PROVIDER_ERROR, False),
        (413, "request_too_large", "Large", TurnCode.PROVIDER_ERROR, False),
        (402, "billing_error", "Pay", TurnCode.PROVIDER_ERROR, False),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
            TurnCode.CONTEXT_OVERFLOW,
            False,
        ),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 1 + 2 > 2",
            TurnCode.CONTEXT_OVERFLOW,
            False,
        ),
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API.",
            TurnCode.PROVIDER_ERROR,
            False,
        ),
        (429, "rate_limit_error", "You have reached your spend limit", TurnCode.PROVIDER_ERROR, False),
        (418, "new_error", "Tea", TurnCode.PROVIDER_ERROR, None),
    ],
)
def test_the_error_type_decides_whether_a_call_is_retried(
    status: int, kind: str, message: str, code: str, retryable: bool | None
) -> None:
    """Ours: the vendor decides which errors may be retried."""
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    found = AnthropicDialect().read_error(status, json.dumps(body).encode())
    assert found == (f"{kind}: {message} (request req_1)", code, retryable, None)


def test_a_spending_limit_is_recognized_by_its_error_code() -> None:
    """Ours: a quota that time does not reset is not a rate limit."""
    error = {
        "type": "rate_limit_error",
        "message": "Wait for next month.",
        "details": {"error_code": "enforced_spend_limit_reached"},
    }
    found = AnthropicDialect().read_error(429, json.dumps({"type": "error", "error": error}).encode())
    assert found.retryable is False


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>Bad gateway</html>", "<html>Bad gateway</html>"), (b"", "status 502"), (b'{"error": 1}', "1")],
)
def test_an_error_body_in_an_unknown_format_is_quoted(body: bytes, words: str) -> None:
    """Ours: a proxy has its own format; the status then decides whether to retry."""
    found = AnthropicDialect().read_error(502, body)
    assert words in found.message
    assert found.retryable is None
