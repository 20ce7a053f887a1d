"""The retry policy: which failures are retried, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import ErrorObject
from standfast.machine.inputs import ModelFailed
from standfast.machine.retry import GiveUp, Retry, decide
from standfast.model.limits import UsageLimits

BUSY = ErrorObject(code="RATE_LIMITED", message="busy")


def _failed(retry_after_ms: int | None = None, *, retryable: bool = True) -> ModelFailed:
    return ModelFailed(at_ms=0, error=BUSY, retryable=retryable, retry_after_ms=retry_after_ms)


def _decided(
    retry_after_ms: int | None = None,
    *,
    attempt: int = 1,
    waited_ms: int = 0,
    seed: str = "",
    retryable: bool = True,
    **limits: int,
) -> Retry | GiveUp:
    return decide(
        _failed(retry_after_ms, retryable=retryable),
        attempt=attempt,
        waited_ms=waited_ms,
        limits=UsageLimits(**{"max_attempts": 100, **limits}),
        seed=seed,
    )


def test_a_permanent_failure_is_given_up_without_an_added_hint() -> None:
    """Ours: a failure that is not retryable fails the call at once, with its own error."""
    assert _decided(0, retryable=False) == GiveUp()


def test_with_one_attempt_a_failure_is_given_up_without_an_added_hint() -> None:
    """Ours: with a single attempt, the error does not mention retries."""
    assert _decided(max_attempts=1) == GiveUp()


def test_the_hint_says_that_all_attempts_are_used_up() -> None:
    """Ours: the hint names the limit that can be raised."""
    assert _decided(attempt=3, max_attempts=3) == GiveUp(
        "it failed 3 times in a row; UsageLimits(max_attempts=...) allows more"
    )


def test_a_provider_that_asks_for_no_delay_gets_none() -> None:
    """Ours: a fallback moves to its next model this way, and no retry budget applies."""
    assert _decided(0, attempt=9, waited_ms=120_000, seed="s") == Retry(0)


def test_back_off_doubles_up_to_a_minute() -> None:
    """Ours: SPEC §10, the delay between retries is bounded."""
    most = 10**9
    delays = [_decided(attempt=number, max_retry_wait_ms=most) for number in (1, 2, 3, 7, 8, 9, 99)]
    assert delays == [Retry(ms) for ms in (500, 1_000, 2_000, 32_000, 60_000, 60_000, 60_000)]


def test_jitter_differs_between_seeds_and_attempts_but_not_between_replays() -> None:
    """Ours: jitter spreads the retries of sessions that failed together, and is the same after recovery."""
    seeds = [f"{number}" for number in range(200)]
    delays = {seed: _decided(8_000, seed=seed) for seed in seeds}
    assert delays == {seed: _decided(8_000, seed=seed) for seed in seeds}
    found = sorted(one.delay_ms for one in delays.values() if isinstance(one, Retry))
    assert len(found) == 200
    assert len(set(found)) > 150
    assert found[0] < 8_100
    assert found[-1] > 9_900
    assert _decided(8_000, seed="1", attempt=2) != delays["1"]


def test_a_requested_delay_that_just_fits_is_observed() -> None:
    """Ours: jitter never makes a delay exceed the retry budget."""
    assert _decided(120_000, seed="s") == Retry(120_000)
    assert isinstance(_decided(120_001, seed="s"), GiveUp)
    assert _decided(20_000, waited_ms=100_000, seed="s") == Retry(20_000)


def test_an_error_for_lack_of_time_says_whether_the_provider_requested_the_delay() -> None:
    """Ours: from the error, a person can decide to retry in an hour."""
    assert _decided(5_400_000) == GiveUp(
        "the provider asks to wait 5,400 s; UsageLimits(max_retry_wait_ms=...) allows more"
    )
    assert _decided(attempt=5, waited_ms=7_500, max_retry_wait_ms=10_000) == GiveUp(
        "the next attempt has to wait 8 s, after 7.5 s already; "
        "UsageLimits(max_retry_wait_ms=...) allows more"
    )


def test_a_retry_time_in_the_past_is_ignored() -> None:
    """Ours: a provider whose clock is ahead does not shorten the back-off."""
    assert _decided(-5_000) == Retry(500)


@given(
    asked=st.none() | st.integers(0, 300_000),
    attempt=st.integers(1, 12),
    waited=st.integers(0, 200_000),
    budget=st.integers(0, 200_000),
    seed=st.text(max_size=4),
)
def test_no_delay_is_shorter_than_requested_or_longer_than_the_remaining_time(
    asked: int | None, attempt: int, waited: int, budget: int, seed: str
) -> None:
    """Ours: retries stay within the budget and honour Retry-After."""
    decision = _decided(asked, attempt=attempt, waited_ms=waited, seed=seed, max_retry_wait_ms=budget)
    if isinstance(decision, Retry):
        assert decision.delay_ms >= (asked or 0)
        assert decision.delay_ms <= max(0, budget - waited)
    else:
        assert max(asked or 0, 500) > budget - waited or asked is None or attempt > 1
