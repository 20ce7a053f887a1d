"""Responses that are not event streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from plain_vendor import PlainDialect

from standfast.errors import TurnCode
from standfast.providers.http.dialect import ErrorReport
from standfast.providers.http.failures import excerpt, response_error, retry_after_ms

DATE = "Mon, 16 Nov 2026 12:00:00 GMT"


class FixedErrorDialect(PlainDialect):
    def __init__(self, complaint: ErrorReport) -> None:
        self._complaint = complaint

    def read_error(self, status: int, body: bytes) -> ErrorReport:
        return self._complaint


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3000),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after": " 2 "}, 2000),
        ({"retry-after-ms": "125", "retry-after": "3"}, 125),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3000),
        ({"retry-after": "Mon, 16 Nov 2026 12:00:07 GMT", "date": DATE}, 7000),
        ({"retry-after": "Mon, 16 Nov 2026 11:59:00 GMT", "date": DATE}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "whenever"}, None),
        ({"retry-after": "Mon, 99 Foo 2026 99:00:00 GMT"}, None),
        ({"retry-after": "99999999999"}, 7 * 24 * 3_600_000),
    ],
)
def test_retry_after_is_read_in_each_of_its_forms(headers: dict[str, str], wait_ms: int | None) -> None:
    """Seed: Retry-After is honoured."""
    assert retry_after_ms(headers) == wait_ms


def test_without_a_date_header_an_http_date_is_compared_with_the_local_clock() -> None:
    """Seed: Retry-After may be an HTTP date."""
    soon = datetime.now(UTC) + timedelta(seconds=100)

    assert 95_000 < (retry_after_ms({"retry-after": format_datetime(soon, usegmt=True)}) or 0) <= 101_000


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_temporary_errors_are_retryable(status: int) -> None:
    """Seed: temporary errors are retried."""
    assert response_error(PlainDialect(), status, {}, b'{"error": "busy"}').retryable


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_permanent_errors_are_not_retryable(status: int) -> None:
    """Seed: permanent errors are not retried."""
    assert not response_error(PlainDialect(), status, {}, b'{"error": "no"}').retryable


def test_the_vendors_decision_about_retries_overrides_the_status() -> None:
    """Ours: an exhausted quota is also a 429."""
    spent = FixedErrorDialect(ErrorReport("quota exceeded", retryable=False, retry_after_ms=7))
    error = response_error(spent, 429, {"retry-after": "3", "x-should-retry": "true"}, b"")

    assert not error.retryable
    assert error.retry_after_ms == 3000
    assert not response_error(PlainDialect(), 500, {"x-should-retry": "false"}, b'{"error": "no"}').retryable
    assert response_error(PlainDialect(), 400, {"x-should-retry": "true"}, b'{"error": "no"}').retryable


def test_the_error_has_the_vendors_message() -> None:
    """Seed: the error has the vendor's message and its status."""
    error = response_error(PlainDialect(), 429, {}, b'{"error": "slow down"}')

    assert error.message == "plain: slow down (HTTP 429)"
    assert error.code == "RATE_LIMITED"


def test_the_vendors_code_is_kept() -> None:
    """Seed: a context overflow has its own code, so that compaction can help."""
    complaint = ErrorReport("too long", code=TurnCode.CONTEXT_OVERFLOW)

    assert response_error(FixedErrorDialect(complaint), 400, {}, b"").code == "CONTEXT_OVERFLOW"


@pytest.mark.parametrize("status", [401, 403])
def test_a_rejected_key_is_reported_with_its_source(status: int) -> None:
    """Ours: the hint says what to do."""
    error = response_error(PlainDialect(), status, {}, b'{"error": "bad key"}', key_hint="set PLAIN_API_KEY")

    assert error.hint == "set PLAIN_API_KEY"
    assert (
        response_error(PlainDialect(), 404, {}, b'{"error": "no"}', key_hint="set PLAIN_API_KEY").hint is None
    )


def test_a_body_that_the_dialect_cannot_parse_is_quoted() -> None:
    """Ours: a gateway in front of the vendor answers in HTML."""
    error = response_error(PlainDialect(), 502, {}, b"<html>\n  <h1>Bad\tGateway</h1>\xff")

    assert error.message == "plain: <html> <h1>Bad Gateway</h1>� (HTTP 502)"


@pytest.mark.parametrize(
    ("status", "said"), [(503, "Service Unavailable"), (599, "the server gives no reason")]
)
def test_an_empty_message_is_replaced_by_the_name_of_the_status(status: int, said: str) -> None:
    """Ours: an error without a message does not help the reader."""
    assert (
        response_error(FixedErrorDialect(ErrorReport(" ")), status, {}, b"").message
        == f"plain: {said} (HTTP {status})"
    )


def test_the_length_of_a_quotation_is_limited() -> None:
    """Ours: error bodies may be large."""
    assert len(excerpt(b"x" * 100_000)) == 201
    assert len(response_error(FixedErrorDialect(ErrorReport("x" * 100_000)), 500, {}, b"").message) < 2_100


def test_a_2xx_response_that_is_not_an_event_stream_is_described() -> None:
    """Seed: a proxy may answer 200 with HTML."""
    error = response_error(PlainDialect(), 200, {"content-type": "text/html"}, b"<html>Log in</html>")

    assert "sent text/html instead of an event stream: '<html>Log in</html>'" in error.message
    assert not error.retryable


def test_an_error_in_a_2xx_response_is_recognized() -> None:
    """Ours: some gateways answer 200 with a JSON error."""
    busy = FixedErrorDialect(ErrorReport("busy", retryable=True))
    error = response_error(busy, 200, {"content-type": "application/json"}, b'{"error": "busy"}')

    assert error.retryable
    assert '{"error": "busy"}' in error.message
