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


class Complaining(PlainDialect):
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
def test_a_server_says_in_several_ways_how_long_to_wait(headers: dict[str, str], wait_ms: int | None) -> None:
    """Seed: Retry-After is honoured in each of its forms."""
    assert retry_after_ms(headers) == wait_ms


def test_a_date_without_the_servers_own_clock_is_compared_with_ours() -> None:
    """Seed: Retry-After may be an HTTP date."""
    soon = datetime.now(UTC) + timedelta(seconds=100)

    assert 95_000 < (retry_after_ms({"retry-after": format_datetime(soon, usegmt=True)}) or 0) <= 101_000


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_worth_another_attempt(status: int) -> None:
    """Seed: temporary errors are retried."""
    assert response_error(PlainDialect(), status, {}, b'{"error": "busy"}').retryable


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_stays_wrong_is_not(status: int) -> None:
    """Seed: permanent errors are not retried."""
    assert not response_error(PlainDialect(), status, {}, b'{"error": "no"}').retryable


def test_the_vendors_word_on_retries_wins_over_the_status() -> None:
    """Ours: a quota that is used up is also a 429."""
    spent = Complaining(ErrorReport("quota exceeded", retryable=False, retry_after_ms=7))
    error = response_error(spent, 429, {"retry-after": "3", "x-should-retry": "true"}, b"")

    assert not error.retryable
    assert error.retry_after_ms == 3000
    assert not response_error(PlainDialect(), 500, {"x-should-retry": "false"}, b'{"error": "no"}').retryable
    assert response_error(PlainDialect(), 400, {"x-should-retry": "true"}, b'{"error": "no"}').retryable


def test_the_error_says_what_the_vendor_said() -> None:
    """Seed: the error has the vendor's message."""
    error = response_error(PlainDialect(), 429, {}, b'{"error": "slow down"}')

    assert error.message == "plain: slow down (HTTP 429)"
    assert error.code == "RATE_LIMITED"


def test_the_vendors_code_is_kept() -> None:
    """Seed: a context overflow has its own code, so that compaction can help."""
    complaint = ErrorReport("too long", code=TurnCode.CONTEXT_OVERFLOW)

    assert response_error(Complaining(complaint), 400, {}, b"").code == "CONTEXT_OVERFLOW"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_reported_with_where_it_comes_from(status: int) -> None:
    """Ours: the error says what to do."""
    error = response_error(PlainDialect(), status, {}, b'{"error": "bad key"}', key_hint="set PLAIN_API_KEY")

    assert error.hint == "set PLAIN_API_KEY"
    assert (
        response_error(PlainDialect(), 404, {}, b'{"error": "no"}', key_hint="set PLAIN_API_KEY").hint is None
    )


def test_a_body_that_the_dialect_cannot_read_is_quoted() -> None:
    """Ours: a gateway in front of the vendor answers in HTML."""
    error = response_error(PlainDialect(), 502, {}, b"<html>\n  <h1>Bad\tGateway</h1>\xff")

    assert error.message == "plain: <html> <h1>Bad Gateway</h1>� (HTTP 502)"


@pytest.mark.parametrize(
    ("status", "said"), [(503, "Service Unavailable"), (599, "the server gives no reason")]
)
def test_an_empty_complaint_is_the_status_in_words(status: int, said: str) -> None:
    """Ours: an error without a message does not help its reader."""
    assert (
        response_error(Complaining(ErrorReport(" ")), status, {}, b"").message
        == f"plain: {said} (HTTP {status})"
    )


def test_what_is_quoted_is_bounded() -> None:
    """Ours: the length of a quotation is limited."""
    assert len(excerpt(b"x" * 100_000)) == 201
    assert len(response_error(Complaining(ErrorReport("x" * 100_000)), 500, {}, b"").message) < 2_100


def test_a_success_that_is_not_a_stream_says_what_it_is() -> None:
    """Seed: a proxy may answer 200 with HTML."""
    error = response_error(PlainDialect(), 200, {"content-type": "text/html"}, b"<html>Log in</html>")

    assert "sent text/html instead of an event stream: '<html>Log in</html>'" in error.message
    assert not error.retryable


def test_an_error_inside_a_success_is_recognized() -> None:
    """Ours: some gateways answer 200 with a JSON error."""
    busy = Complaining(ErrorReport("busy", retryable=True))
    error = response_error(busy, 200, {"content-type": "application/json"}, b'{"error": "busy"}')

    assert error.retryable
    assert '{"error": "busy"}' in error.message
