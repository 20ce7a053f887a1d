"""Gemini's refusals: whether to retry, and when."""

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
def test_a_limit_of_the_minute_says_when_to_come_back(listed: bool) -> None:
    """Ours: the delay is honoured, and streaming endpoints put the error into a list."""
    minute = quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")
    told = said(429, "You exceeded your current quota.", "RESOURCE_EXHAUSTED", minute, WAIT, listed=listed)
    assert told == ErrorReport("You exceeded your current quota.", Code.RATE_LIMITED, True, 37_000)


@pytest.mark.parametrize("delay", ["20.5s", "20.500000001s"])
def test_a_delay_may_have_fractions(delay: str) -> None:
    """Ours: Google writes durations with fractions."""
    told = said(429, "Slow down.", "RESOURCE_EXHAUSTED", {**WAIT, "retryDelay": delay})
    assert told.retry_after_ms == 20_500


def test_a_delay_may_be_in_the_words_only() -> None:
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
def test_a_quota_that_is_spent_is_not_worth_another_attempt(
    message: str, details: tuple[dict[str, Any], ...]
) -> None:
    """Ours: such a quota is not retried, although Google names a delay."""
    assert said(429, message, "RESOURCE_EXHAUSTED", *details) == ErrorReport(
        message, Code.RATE_LIMITED, False
    )


def test_too_long_a_prompt_is_an_overflow() -> None:
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
def test_a_status_tells_whether_to_try_again(code: int, status: str, retryable: bool | None) -> None:
    """Ours: bad keys and bad requests are not retried; None leaves the decision to the status."""
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
def test_an_answer_of_a_proxy_is_reported_as_it_is(body: bytes, message: str) -> None:
    """Ours: a response in another format must not raise."""
    assert GoogleDialect().read_error(502, body) == ErrorReport(message)
