"""Servers that refuse requests once, repeatedly, or for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fault_stage import Played, faulty, play, turn
from fault_table import cell
from fault_vendors import ANTHROPIC, CHAT, DONE, LINES, REPLY, TEXT, Vendor

from standfast.errors import Code, TurnCode
from standfast.model.events import ModelCallFailed
from standfast.model.outcome import Stopped, StopReason
from standfast.testing.servers.http_server import ServedReply

pytestmark = pytest.mark.slow

WAIT_S = 7
STATUSES = (429, 500, 502, 503, 504, 529)
JITTER = 1.25


def refusal(status: int, **headers: str) -> ServedReply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return faulty(status=status, message="Not now, please.", headers=names)


def waits_of(vendor: Vendor) -> dict[str, ServedReply]:
    """Return refusals that ask for a wait of seven seconds, in every form that the vendor uses."""
    found = {
        "seconds": refusal(429, retry_after=str(WAIT_S)),
        "fraction": refusal(503, retry_after=f"{WAIT_S - 1}.5"),
        "milliseconds": refusal(429, retry_after_ms=str(WAIT_S * 1000)),
        "date": refusal(
            429, retry_after="Wed, 21 Oct 2026 07:28:07 GMT", date="Wed, 21 Oct 2026 07:28:00 GMT"
        ),
    }
    if vendor.wait_body is not None:
        body = json.dumps(vendor.wait_body(WAIT_S)).encode()
        found["body"] = faulty(status=429, body=body, headers={"content-type": "application/json"})
    return found


def failures(played: Played) -> list[ModelCallFailed]:
    return [event for event in played.events if isinstance(event, ModelCallFailed)]


def stopped(played: Played) -> Stopped:
    assert isinstance(played.result.outcome, Stopped)
    assert played.result.outcome.reason is StopReason.PROVIDER_ERROR
    return played.result.outcome


@pytest.mark.parametrize("status", STATUSES)
@cell("storm")
def test_a_turn_recovers_from_temporary_refusals(vendor: Vendor, status: int) -> None:
    """Seed: 429 and 5xx responses are retried with growing delays, and each failure is reported."""

    async def scene() -> None:
        played = await turn(vendor, [refusal(status), refusal(status), REPLY, refusal(status), DONE])
        assert (played.status, len(played.requests)) == ("finished", 5)
        assert sorted(played.desk.written) == sorted(LINES)
        assert played.said() == [TEXT, DONE]
        told = failures(played)
        assert [one.attempt for one in told] == [1, 2, 1]
        assert all("Not now, please." in one.error.message for one in told)
        assert [one.retry_in_ms for one in told] == played.slept_ms
        for waited, least in zip(played.slept_ms, (500, 1000, 500), strict=True):
            assert least <= waited <= least * JITTER

    play(scene())


@cell("storm-waits")
def test_the_delay_that_the_vendor_asks_for_is_observed(vendor: Vendor) -> None:
    """Seed: retries honour Retry-After in each of its forms."""

    async def scene() -> None:
        for form, reply in waits_of(vendor).items():
            played = await turn(vendor, [reply, reply, REPLY, DONE])
            assert (form, played.status, len(played.requests)) == (form, "finished", 4)
            least = (WAIT_S - 0.5 if form == "fraction" else WAIT_S) * 1000
            assert all(least <= waited <= least * JITTER for waited in played.slept_ms)
            assert len(played.slept_ms) == 2

    play(scene())


def test_only_vendors_that_put_the_delay_in_the_body_have_a_wait_body() -> None:
    """Ours: Anthropic and compatible servers send it only in a header."""
    assert ANTHROPIC.wait_body is None
    assert CHAT.wait_body is None


@pytest.mark.parametrize("status", STATUSES)
@cell("storm-for-ever")
def test_endless_refusals_stop_the_turn_after_the_allowed_attempts(vendor: Vendor, status: int) -> None:
    """Seed: the number of retries is limited; the turn reports the vendor's last message."""

    async def scene() -> None:
        for attempts in (1, 3):
            replies = [refusal(status, retry_after="2")] * 9
            played = await turn(vendor, replies, max_attempts=attempts)
            outcome = stopped(played)
            assert outcome.error.code == (Code.RATE_LIMITED if status == 429 else TurnCode.PROVIDER_ERROR)
            assert "Not now, please." in outcome.error.message
            assert str(status) in outcome.error.message
            assert (len(played.requests), len(played.slept_ms)) == (attempts, attempts - 1)
            assert all(waited >= 2000 for waited in played.slept_ms)
            assert played.desk.written == []

    play(scene())


@cell("storm-budget")
def test_a_delay_that_exceeds_the_budget_ends_the_turn_at_once(vendor: Vendor) -> None:
    """Seed: retries stay within the budget; a delay is never shortened to fit it."""

    async def scene() -> None:
        long = await turn(vendor, [refusal(429, retry_after="3600"), REPLY])
        assert "3,600 s" in (stopped(long).error.hint or "")
        assert (len(long.requests), long.slept_ms) == (1, [])
        often = await turn(vendor, [refusal(503, retry_after="50")] * 9, max_attempts=9)
        stopped(often)
        assert 100_000 <= sum(often.slept_ms) <= 120_000
        assert len(often.requests) == 3
        hurried = await turn(vendor, [refusal(429, retry_after="0")] * 9)
        stopped(hurried)
        assert len(hurried.requests) == 3
        assert all(waited >= 500 for waited in hurried.slept_ms)

    play(scene())


@cell("storm-mixed")
def test_every_kind_of_failure_counts_as_an_attempt(vendor: Vendor) -> None:
    """Seed: refusals and broken streams share one budget of attempts."""

    async def scene() -> None:
        middle = sum(map(len, vendor.blocks())) // 2
        mixed = [refusal(500), faulty(cut_at=middle), faulty(order="garbage:1"), refusal(429)]
        through = await turn(vendor, [*mixed, REPLY, DONE], max_attempts=5)
        assert (through.status, len(through.requests)) == ("finished", 6)
        assert sorted(through.desk.written) == sorted(LINES)
        assert through.shown() == TEXT + DONE
        short = await turn(vendor, [*mixed, REPLY, DONE], max_attempts=4)
        stopped(short)
        assert (len(short.requests), short.desk.written, short.shown()) == (4, [], "")

    play(scene())


@cell("error-event")
def test_an_error_in_the_stream_is_reported_and_streamed_text_is_retracted(vendor: Vendor) -> None:
    """Seed: the error has the vendor's message without the key."""
    words = f"We are overloaded, {vendor.key}."

    async def scene() -> None:
        blocks = vendor.blocks()
        failing: list[Any] = [
            faulty(body=b"".join([*blocks[:at], vendor.error_event(words)]))
            for at in range(len(blocks) - vendor.last + 1)
        ]
        played = await turn(vendor, [*failing, REPLY, DONE], max_attempts=99, max_retry_wait_ms=10**8)
        assert (played.status, len(failures(played))) == ("finished", len(failing))
        assert all("We are overloaded" in one.error.message for one in failures(played))
        assert vendor.key not in repr(played.events)
        assert sorted(played.desk.written) == sorted(LINES)
        assert played.shown() == TEXT + DONE
        assert played.retracted()

    play(scene())
