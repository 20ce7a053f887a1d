"""Error responses of servers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from standfast.errors import Code, TurnCode
from standfast.providers.openai_compatible.errors import read_error


def complained(status: int, body: Any) -> tuple[str, str, bool | None]:
    found = read_error(status, body if isinstance(body, bytes) else msgspec.json.encode(body))
    return found.message, found.code, found.retryable


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}, "bad"),
        ({"error": "model 'x' not found"}, "model 'x' not found"),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "bad"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body"], "msg": "missing"}]}, '[{"loc":["body"],"msg":"missing"}]'),
        ([{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}], "bad"),
        ({"error": {"message": "Provider error", "metadata": {"raw": "too hot"}}}, "Provider error: too hot"),
        (b"<html>\n Bad   Gateway</html>", "<html> Bad Gateway</html>"),
        (b"", "status 400"),
    ],
)
def test_the_message_is_found_in_any_format(body: Any, words: str) -> None:
    """Ours: the error has the vendor's message."""
    assert complained(400, body)[0] == words


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (
            400,
            "This model's maximum context length is 8192 tokens. However, you requested 9000.",
            "context_length_exceeded",
        ),
        (
            400,
            "the request exceeds the available context size, try increasing it",
            "exceed_context_size_error",
        ),
        (400, "Please reduce the length of the messages or completion.", None),
        (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", None),
        (413, "The prompt is too long: 9000, model maximum context length: 8191", None),
    ],
)
def test_a_context_overflow_is_recognized(status: int, message: str, code: str | None) -> None:
    """Ours: each server words it differently."""
    assert complained(status, {"error": {"message": message, "code": code}})[1:] == (
        TurnCode.CONTEXT_OVERFLOW,
        False,
    )


@pytest.mark.parametrize(
    ("status", "error", "code", "retryable"),
    [
        (429, {"message": "slow", "code": "rate_limit_exceeded"}, Code.RATE_LIMITED, True),
        (429, {"message": "slow"}, Code.RATE_LIMITED, None),
        (429, {"message": "x", "type": "insufficient_quota"}, TurnCode.PROVIDER_ERROR, False),
        (429, {"message": "You exceeded your current quota, please check"}, TurnCode.PROVIDER_ERROR, False),
        (402, {"message": "Insufficient Balance"}, TurnCode.PROVIDER_ERROR, False),
        (401, {"message": "no", "code": "invalid_api_key"}, TurnCode.PROVIDER_ERROR, False),
        (400, {"message": "bad", "type": "invalid_request_error"}, TurnCode.PROVIDER_ERROR, False),
        (400, {"message": "failed", "code": "tool_use_failed"}, TurnCode.PROVIDER_ERROR, True),
        (503, {"message": "busy", "type": "overloaded_error"}, TurnCode.PROVIDER_ERROR, True),
        (500, {"message": "oops"}, TurnCode.PROVIDER_ERROR, None),
    ],
)
def test_the_error_decides_whether_to_retry(
    status: int, error: Any, code: str, retryable: bool | None
) -> None:
    """Ours: the vendor's error code takes precedence over the status."""
    assert complained(status, {"error": error})[1:] == (code, retryable)
