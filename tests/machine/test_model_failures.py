"""Failed model calls: which are retried, when, and how the turn ends if no attempt succeeds."""

from __future__ import annotations

import msgspec
import pytest
from machine_turns import Turn, answered, at, calls, failed, passed, resumed, settled, started

from standfast.machine import CallModel
from standfast.model.outcome import StopReason


def _delays(turn: Turn) -> list[int]:
    return [command.delay_ms for command in turn.commands if isinstance(command, CallModel)]


def test_a_retryable_failure_is_retried_after_a_growing_delay() -> None:
    """Ours: SPEC §10, the number of retries is limited, and each is a journaled decision."""
    turn = Turn(started(max_attempts=10, max_retry_wait_ms=10**6), *[failed(retryable=True)] * 9)
    assert _delays(turn) == [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


@pytest.mark.parametrize(
    ("after", "delay"),
    [(None, 500), (0, 0), (499, 500), (7_000, 7_000), (60_000, 60_000), (120_000, 120_000)],
)
def test_the_provider_may_ask_for_a_longer_delay_or_for_none(after: int | None, delay: int) -> None:
    """Ours: SPEC §10, the Retry-After of the provider replaces the back-off."""
    turn = Turn(started())
    assert turn.feed(failed(retryable=True, after=after)) == [CallModel(2, 2, delay)]


def test_a_delay_beyond_the_longest_wait_ends_the_turn_and_the_error_names_it() -> None:
    """Ours: a turn neither waits through an hour of Retry-After nor retries before it is over."""
    turn = Turn(started())
    assert turn.tell(failed("RATE_LIMITED", retryable=True, after=3_600_000)) == ["commit provider_error"]
    assert (turn.stopped().error.code, turn.stopped().error.message) == ("RATE_LIMITED", "no luck")
    assert turn.stopped().error.hint == (
        "the provider asks to wait 3,600 s; UsageLimits(max_retry_wait_ms=...) allows more"
    )


def test_the_total_delay_between_the_attempts_of_one_call_is_limited() -> None:
    """Ours: UsageLimits.max_retry_wait_ms applies to each model call anew."""
    again = failed(retryable=True, after=40_000)
    turn = Turn(started(max_attempts=9, max_retry_wait_ms=100_000), again, again)
    assert _delays(turn) == [0, 40_000, 40_000]
    turn.feed(calls("a"), settled(1), passed("after_work"), again)
    assert _delays(turn)[3:] == [0, 40_000]
    turn.feed(again)
    assert turn.tell(again) == ["commit provider_error"]
    assert "to wait 40 s, after 80 s already" in (turn.stopped().error.hint or "")


def test_a_turn_with_a_nonce_adds_jitter_and_a_replay_adds_the_same() -> None:
    """Ours: jitter spreads the retries, and a recovered turn keeps its delay."""

    def turn_of(nonce: str) -> Turn:
        begin = msgspec.structs.replace(started(max_attempts=4), nonce=nonce)
        return Turn(begin, *[failed(retryable=True, after=8_000)] * 3)

    seen = [_delays(turn_of(nonce)) for nonce in ("a", "b", "a")]
    assert seen[0] == seen[2] != seen[1]
    assert all(8_000 <= delay <= 10_000 for delays in seen for delay in delays[1:])
    assert len(set(seen[0])) == 4


def test_the_delay_counts_from_the_failure() -> None:
    """Ours: a process that takes over waits only for the rest of the delay."""
    turn = Turn(at(0, started()), at(70, failed(retryable=True)), at(900, resumed()))
    assert (turn.machine.failed_at_ms, turn.recovered()) == (70, ["model.2"])


def test_each_attempt_has_its_own_number() -> None:
    """Ours: an observer can distinguish text that a failed attempt streamed from that of the next."""
    turn = Turn(started())
    assert turn.machine.outstanding() == [CallModel(1, 1, 0)]
    turn.feed(failed(retryable=True))
    assert turn.machine.outstanding() == [CallModel(2, 2, 500)]
    assert [command.key for command in turn.commands if isinstance(command, CallModel)] == [
        "model.1",
        "model.2",
    ]


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_the_number_of_attempts_is_limited(attempts: int) -> None:
    """Ours: UsageLimits.max_attempts limits the attempts of one model call."""
    turn = Turn(started(max_attempts=attempts), *[failed(retryable=True)] * (attempts - 1))
    assert turn.machine.outcome is None
    assert turn.tell(failed(retryable=True)) == ["commit provider_error"]
    assert turn.machine.account.model_calls == attempts


def test_a_permanent_failure_ends_the_turn_at_once() -> None:
    """Ours: a call with a wrong API key is not retried."""
    turn = Turn(started(max_attempts=5))
    assert turn.tell(failed("UNAUTHORIZED", after=5)) == ["commit provider_error"]
    assert turn.stopped().error.code == "UNAUTHORIZED"


def test_a_context_overflow_ends_the_turn_with_its_own_stop_reason() -> None:
    """Ours: the host can compact the history and continue."""
    turn = Turn(started(), failed("CONTEXT_OVERFLOW"))
    assert turn.stopped().reason is StopReason.CONTEXT_OVERFLOW
    assert turn.stopped().error.code == "CONTEXT_OVERFLOW"


def test_a_success_resets_the_count_of_attempts() -> None:
    """Ours: the limit is for one model call, not for the turn."""
    again = failed(retryable=True)
    turn = Turn(started(max_attempts=2), again, calls("a"), settled(1), passed("after_work"))
    assert turn.machine.outstanding() == [CallModel(3, 1, 0)]
    assert turn.feed(again) == [CallModel(4, 2, 500)]
    assert turn.tell(answered()) == ["before_completion.2"]


def test_a_failed_attempt_adds_nothing_to_the_history() -> None:
    """Ours: text streamed by a failed attempt is retracted."""
    turn = Turn(started(), failed(retryable=True))
    assert turn.talk() == ["user: hello"]


def test_attempts_do_not_count_as_iterations() -> None:
    """Ours: an unreliable provider does not use up the turn's iterations."""
    turn = Turn(started(max_iterations=1), failed(retryable=True), failed(retryable=True), answered())
    assert turn.tell(passed("before_completion")) == ["commit finished"]
