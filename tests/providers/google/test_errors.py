"""Gemini's error responses: whether to retry, and when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.errors import Code, TurnCode
from standfast.providers.google.model import GoogleDialect
from standfast.providers.http.dialect import ErrorReport

RPC = "type.googleapis.com/google.rpc."
WAIT = {"@type": f"{RPC}RetryInfo", "retryDelay": "37s"}


def said(code: int, message: str, status: str, *details: dict[str, Any], listed: bool = False) -> ErrorReport:
    error = {"error": {"code": code, "message": message, "status": status, "details": list(details)}}
    return GoogleDialect().read_error(code, json.dumps([error] if listed else error).encode())


def quota(name: str) -> dict[str, Any]:
    return {"@type": f"{RPC}QuotaFailure", "violations": [{"quotaId": name}]}


@pytest.mark.parametrize("listed", [False, True])
def test_a_limit_per_minute_names_the_delay_before_a_retry(listed: bool) -> None:
    """Ours: the delay is honoured; streaming endpoints wrap the error in a list."""
    minute = quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")
    told = said(429, "You exceeded your current quota.", "RESOURCE_EXHAUSTED", minute, WAIT, listed=listed)
    assert told == ErrorReport("You exceeded your current quota.", Code.RATE_LIMITED, True, 37_000)


@pytest.mark.parametrize("delay", ["20.5s", "20.500000001s"])
def test_a_delay_may_have_a_fraction(delay: str) -> None:
    """Ours: Google writes durations with fractions."""
    told = said(429, "Slow down.", "RESOURCE_EXHAUSTED", {**WAIT, "retryDelay": delay})
    assert told.retry_after_ms == 20_500


def test_a_delay_may_be_in_the_message_only() -> None:
    """Bug: some responses have no details."""
    assert said(429, "Please retry in 2.25s.", "RESOURCE_EXHAUSTED").retry_after_ms == 2_250


@pytest.mark.parametrize(
    ("message", "details"),
    [
        ("You exceeded your quota.", (quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier"), WAIT)),
        ("Quota exceeded for metric: x, limit: 0, model: gemini-2.5-pro", (WAIT,)),
        ("You exceeded your daily quota.", ()),
    ],
)
def test_an_exhausted_quota_is_not_retried(message: str, details: tuple[dict[str, Any], ...]) -> None:
    """Ours: an exhausted quota does not recover soon, although Google names a delay."""
    assert said(429, message, "RESOURCE_EXHAUSTED", *details) == ErrorReport(
        message, Code.RATE_LIMITED, False
    )


def test_a_prompt_that_is_too_long_is_a_context_overflow() -> None:
    """Ours: the session can be compacted; repeating the same call cannot help."""
    words = "The input token count (1054016) exceeds the maximum number of tokens allowed (1048576)."
    assert said(400, words, "INVALID_ARGUMENT") == ErrorReport(words, TurnCode.CONTEXT_OVERFLOW, False)


@pytest.mark.parametrize(
    ("code", "status", "retryable"),
    [
        (400, "INVALID_ARGUMENT", False),
        (400, "FAILED_PRECONDITION", False),
        (401, "UNAUTHENTICATED", False),
        (403, "PERMISSION_DENIED", False),
        (404, "NOT_FOUND", False),
        (500, "INTERNAL", True),
        (503, "UNAVAILABLE", True),
        (504, "DEADLINE_EXCEEDED", True),
        (418, "UNKNOWN_STATUS", None),
    ],
)
def test_the_status_decides_whether_to_retry(code: int, status: str, retryable: bool | None) -> None:
    """Ours: invalid keys and requests are not retried; None leaves the decision to the HTTP status."""
    told = said(code, "Words.", status)
    assert (told.message, told.code, told.retryable) == ("Words.", TurnCode.PROVIDER_ERROR, retryable)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (b"", "status 502"),
        (b"[]", "[]"),
        (b'{"error": "upstream"}', "upstream"),
        (b'{"error": {"details": [1, {"violations": [2]}]}}', "status 502"),
        (b"\xff" * 5000, "�" * 2000 + " ..."),
    ],
)
def test_an_error_body_in_an_unknown_format_is_quoted(body: bytes, message: str) -> None:
    """Ours: a proxy's response must not raise a parse error."""
    assert GoogleDialect().read_error(502, body) == ErrorReport(message)
