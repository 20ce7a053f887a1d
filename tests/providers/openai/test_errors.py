"""OpenAI's error responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.errors import Code, ModelError, TurnCode
from standfast.ports.model_provider import ModelRequest
from standfast.providers.http.dialect import ErrorReport, PreparedRequest, ServerEvent
from standfast.providers.openai.model import OpenAIDialect
from standfast.providers.openai.reply_reader import OpenAIReplyReader
from standfast.providers.settings import ModelSettings

TOO_LARGE = "Request too large for gpt-4.1 on tokens per min (TPM): Limit 30000, Requested 35364."
SLOWER = "Rate limit reached for gpt-4o on tokens per min (TPM). Please try again in {}."
OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."


def prepared(model: str, origin: str) -> PreparedRequest:
    return PreparedRequest(model, ModelRequest(messages=[]), ModelSettings(), {}, origin)


def refused(status: int, **error: Any) -> ErrorReport:
    return OpenAIDialect().read_error(status, json.dumps({"error": error}).encode())


def failed(kind: str, **fields: Any) -> ModelError:
    data = json.dumps({"type": kind, **fields}).encode()
    with pytest.raises(ModelError) as caught:
        OpenAIReplyReader(prepared("m", "")).feed(ServerEvent(kind, data))
    return caught.value


def test_a_context_overflow_is_recognized() -> None:
    """Seed: a context overflow is a separate outcome, however the vendor reports it."""
    overflow = ErrorReport(OVERFLOW, TurnCode.CONTEXT_OVERFLOW, False)
    assert refused(400, message=OVERFLOW, code="context_length_exceeded") == overflow
    assert refused(400, message=OVERFLOW) == overflow
    old = "This model's maximum context length is 8192 tokens."
    assert refused(400, message=old).code == TurnCode.CONTEXT_OVERFLOW
    error = failed("response.failed", response={"error": {"code": "context_length_exceeded", "message": "x"}})
    assert (error.code, error.retryable) == (TurnCode.CONTEXT_OVERFLOW, False)


def test_an_exhausted_quota_is_not_a_rate_limit() -> None:
    """Ours: both are a 429, but only a rate limit is temporary."""
    spent = refused(429, message="You exceeded your current quota.", type="insufficient_quota", code="x")
    assert (spent.retryable, spent.code) == (False, TurnCode.PROVIDER_ERROR)


@pytest.mark.parametrize(
    ("asked", "wait_ms"),
    [("6.57s", 6_570), ("120ms", 120), ("1m12.5s", 72_500), ("2m", 120_000), ("a bit", None)],
)
def test_a_rate_limit_names_the_delay(asked: str, wait_ms: int | None) -> None:
    """Ours: inside a stream the delay is only in the message."""
    message = SLOWER.format(asked)
    assert refused(429, message=message, type="tokens", code="rate_limit_exceeded") == ErrorReport(
        message, Code.RATE_LIMITED, True, wait_ms
    )


def test_a_request_larger_than_the_rate_limit_is_not_retried() -> None:
    """Ours: no wait makes the request fit."""
    complaint = refused(429, message=TOO_LARGE, type="tokens", code="rate_limit_exceeded")
    assert (complaint.retryable, complaint.retry_after_ms) == (False, None)


def test_the_status_decides_if_the_code_does_not() -> None:
    """Ours: the layer below interprets the status."""
    assert refused(400, message="Bad.", type="invalid_request_error") == ErrorReport("Bad.")
    assert refused(401, message="Incorrect key.", code="invalid_api_key").retryable is False
    assert refused(503, message="Overloaded.", code="server_is_overloaded").retryable is True


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", ""),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b'{"error": "plain words"}', "plain words"),
        (b'{"detail": [{"msg": "x"}]}', '[{"msg":"x"}]'),
        (b'{"message": "flat"}', "flat"),
        (b"[]", ""),
    ],
)
def test_an_error_body_in_an_unknown_format_is_passed_on(body: bytes, said: str) -> None:
    """Ours: proxies have their own formats; the layer below has a default message."""
    assert OpenAIDialect().read_error(502, body) == ErrorReport(said)


@pytest.mark.parametrize("nested", [False, True])
def test_an_error_event_is_read_in_its_flat_and_its_nested_form(nested: bool) -> None:
    """Bug: the documentation shows the flat form, production sends the nested one."""
    inner = {"code": "rate_limit_exceeded", "message": SLOWER.format("2s"), "param": None}
    error = failed("error", **({"error": {**inner, "type": "tokens"}} if nested else inner))
    assert (error.message, error.code) == ("openai: " + SLOWER.format("2s"), Code.RATE_LIMITED)
    assert (error.retryable, error.retry_after_ms) == (True, 2_000)


@pytest.mark.parametrize(
    ("said", "retryable"),
    [
        ({"code": "server_error", "message": "Oops."}, True),
        ({"type": "server_error", "code": None, "message": "Oops."}, True),
        ({"code": "invalid_prompt", "message": "No."}, False),
        (None, True),
    ],
)
def test_a_failed_response_is_retried_only_if_the_vendor_is_at_fault(said: Any, retryable: bool) -> None:
    """Ours: a refused prompt would be refused again."""
    error = failed("response.failed", response={"id": "r", "status": "failed", "error": said})
    assert error.retryable is retryable
    words = "the response failed for an unknown reason" if said is None else said["message"]
    assert error.message == f"openai: {words}"
