"""The driver's own guarantees: what it writes and when, and how a cancellation or a message interrupts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from driver_bench import Bench, finished, on, replied, settled

from standfast.durable.driver import Committed, Parked
from standfast.durable.effects import EffectReady, EffectSettled, EffectWaits, Prepared
from standfast.errors import ErrorObject, LeaseLost, StoreUnavailable
from standfast.machine.commands import RunTool
from standfast.machine.inputs import ModelFailed, WaitEnded
from standfast.model.limits import UsageLimits
from standfast.model.outcome import Elapsed, Stopped, StopReason, Wait
from standfast.model.session import TurnState
from standfast.ports.session_store import Lease, Save, Saved


def test_a_plain_turn_writes_nothing_between_its_beginning_and_its_end(bench: Callable[[], Bench]) -> None:
    """Seed: the last reply and the commit are one transaction; a plain turn costs two."""

    async def test(one: Bench) -> None:
        driver, _, commands = await one.begin(replied("answer"))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.log.lines == ["model.1", "commit"]

    on(bench, test)


def test_a_reply_and_the_intents_of_its_calls_are_saved_together_before_the_calls_start(
    bench: Callable[[], Bench],
) -> None:
    """Seed: an input is durable before any command that follows from it touches the world."""

    async def test(one: Bench) -> None:
        driver, _, commands = await one.begin(replied("", "a", "b"), replied("answer"))
        await driver.drive(commands)
        assert one.log.lines == [
            "model.1",
            "save model.1 tool.1.1 tool.2.1",
            "run tool.1.1",
            "run tool.2.1",
            "save tool.1 tool.2 checkpoint.1",
            "model.2",
            "commit",
        ]

    on(bench, test)


def test_an_idempotent_call_needs_no_intent(bench: Callable[[], Bench]) -> None:
    """Seed: an effect that is not idempotent writes its intent first; others need not."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a"), replied("answer"))
        original = host.prepare

        async def prepare(command: RunTool, *, begun: bool) -> Prepared:
            await original(command, begun=begun)
            return EffectReady(command, idempotent=True, call=None)

        host.prepare = prepare  # type: ignore[method-assign]
        await driver.drive(commands)
        assert one.log.lines[:3] == ["model.1", "save model.1", "run tool.1.1"]

    on(bench, test)


def test_a_late_or_duplicate_result_of_a_call_is_dropped(bench: Callable[[], Bench]) -> None:
    """Seed: a late or duplicate result of a settled call changes nothing."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a", "b"), replied("answer"))
        host.finish_at_once = False
        driving = asyncio.ensure_future(driver.drive(commands))
        await host.both_run.wait()
        assert host.deliver is not None
        host.deliver(settled(1, "first"))
        host.deliver(settled(1, "again"))
        host.deliver(settled(2))
        await driving
        values = [one.value for one in driver.machine.messages if hasattr(one, "value")]
        assert values == ["first", "ok"]

    on(bench, test)


def test_a_call_whose_result_is_already_known_is_not_executed(bench: Callable[[], Bench]) -> None:
    """Ours: a call that is refused before its execution settles like any other."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a"), replied("answer"))
        host.prepared[1] = EffectSettled(settled(1, "known"))
        await driver.drive(commands)
        assert host.running == []
        assert one.log.lines == ["model.1", "save model.1 tool.1", "save checkpoint.1", "model.2", "commit"]

    on(bench, test)


def test_a_message_injected_before_the_commit_refuses_it_and_the_model_is_called_again(
    bench: Callable[[], Bench],
) -> None:
    """Seed: of a commit and an injected message, exactly one wins."""

    async def test(one: Bench) -> None:
        driver, _, commands = await one.begin(replied("first"), replied("second"))
        one.log.before_commit = lambda: one.inject("wait")
        assert finished(await driver.drive(commands)) == "second"
        assert one.log.lines == [
            "model.1",
            "refused injected",
            "save model.1 checkpoint.1",
            "model.2",
            "commit",
        ]

    on(bench, test)


def test_an_injected_message_that_is_withdrawn_in_time_changes_nothing(bench: Callable[[], Bench]) -> None:
    """Ours: a refused commit is retried when the reason for the refusal is gone."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("first"))
        original = one.log.save

        async def save(lease: Lease, save: Save) -> Saved:
            await one.log.withdraw_input("wait")
            return await original(lease, save)

        one.log.before_commit = lambda: one.inject("wait")
        one.log.save = save  # type: ignore[method-assign]
        assert finished(await driver.drive(commands)) == "first"
        assert host.replies == []

    on(bench, test)


def test_a_cancellation_before_the_commit_ends_the_turn_as_cancelled(
    bench: Callable[[], Bench],
) -> None:
    """Seed: a cancellation is durable, and wins over a later commit."""

    async def test(one: Bench) -> None:
        driver, _, commands = await one.begin(replied("answer"))
        one.log.before_commit = lambda: one.log.cancel("t_1")
        driven = await driver.drive(commands)
        assert isinstance(driven, Committed)
        assert isinstance(driven.summary.outcome, Stopped)
        assert driven.summary.outcome.reason is StopReason.CANCELLED
        assert one.log.lines == ["model.1", "refused cancelled", "commit"]

    on(bench, test)


def test_a_cancellation_from_another_process_is_seen_at_the_next_write(bench: Callable[[], Bench]) -> None:
    """Seed: a cancellation is durable; no call starts after the driver has seen it."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a"))
        await one.log.cancel("t_1")
        driven = await driver.drive(commands)
        assert isinstance(driven.summary.outcome, Stopped)
        assert host.running == []

    on(bench, test)


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancel_request_interrupts_a_model_call(bench: Callable[[], Bench], times: int) -> None:
    """Bug: a second request cancelled the task a second time."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin()
        host.answer.clear()
        driving = asyncio.ensure_future(driver.drive(commands))
        await host.asked.wait()
        for _ in range(times):
            driver.request_cancel()
        driven = await driving
        assert isinstance(driven.summary.outcome, Stopped)
        assert driving.cancelling() == 0
        assert host.stopped >= 1

    on(bench, test)


def test_a_driver_that_lost_the_lease_stops_and_writes_nothing(bench: Callable[[], Bench]) -> None:
    """Seed: a worker that lost its lease can commit nothing."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin()
        host.answer.clear()
        driving = asyncio.ensure_future(driver.drive(commands))
        await host.asked.wait()
        driver.lose()
        with pytest.raises(LeaseLost):
            await driving
        assert one.log.lines == ["model.1"]
        record = await one.log.turn("t_1")
        assert record is not None
        assert record.state is TurnState.RUNNING

    on(bench, test)


def test_the_store_itself_refuses_writes_of_a_former_owner(bench: Callable[[], Bench]) -> None:
    """Seed: a lease has a fencing number that every write carries."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("old answer"))
        host.answer.clear()
        driving = asyncio.ensure_future(driver.drive(commands))
        await host.asked.wait()
        one.clock.advance(31)
        other, _, outstanding = await one.take_over(replied("new answer"))
        assert finished(await other.drive(outstanding)) == "new answer"
        host.answer.set()
        with pytest.raises(LeaseLost):
            await driving
        assert (await one.log.head("s")).depth == 2

    on(bench, test)


def test_another_process_resumes_where_the_journal_ends(bench: Callable[[], Bench]) -> None:
    """Seed: a recovered turn feeds the journal to a fresh machine and continues from there."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a", "b"))
        host.finish_at_once = False
        driving = asyncio.ensure_future(driver.drive(commands))
        await host.both_run.wait()
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        one.clock.advance(31)
        driver, host, commands = await one.take_over(replied("answer"))
        assert [command.key for command in commands] == ["tool.1.1", "tool.2.1"]
        assert finished(await driver.drive(commands)) == "answer"
        assert host.begun == [True, True]  # their intents were found; the host decides what that means

    on(bench, test)


def test_a_turn_parks_for_a_wait_and_resumes_when_the_wait_ends(bench: Callable[[], Bench]) -> None:
    """Seed: a waiting turn occupies no worker, and resumes when its wait ends."""

    async def test(one: Bench) -> None:
        due = one.clock.now_ms() + 1000
        wait = Wait(wait_id="tmr_t_1.1", kind="timer", call_id=1, due_at=due, value="slept")
        driver, host, commands = await one.begin(replied("", "a"))
        host.prepared[1] = EffectWaits(wait)
        driven = await driver.drive(commands)
        assert isinstance(driven, Parked)
        assert one.log.lines[-1].startswith("park")
        one.clock.advance(1)
        driver, host, _ = await one.take_over(replied("answer"))
        ((wait_id, outcome),) = await one.log.ended_waits("t_1", one.clock.now_ms())
        assert (wait_id, outcome) == (wait.wait_id, Elapsed())
        commands = driver.feed(WaitEnded(at_ms=1, wait_id=wait_id, outcome=outcome))
        assert driver.feed(WaitEnded(at_ms=1, wait_id=wait_id, outcome=outcome)) == []
        host.prepared[1] = EffectSettled(settled(1, "slept"))
        assert finished(await driver.drive(commands)) == "answer"

    on(bench, test)


def test_the_driver_pauses_between_attempts_for_as_long_as_the_machine_says(
    bench: Callable[[], Bench],
) -> None:
    """Ours: the driver sleeps between attempts, so that tests can replace the sleep."""

    async def test(one: Bench) -> None:
        error = ErrorObject(code="PROVIDER_ERROR", message="busy")
        failed = ModelFailed(at_ms=one.clock.now_ms(), error=error, retryable=True)
        driver, _, commands = await one.begin(failed, failed, replied("answer"))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.slept == [0.5, 1.0]
        assert one.log.lines == [
            "model.1", "save model.1", "model.2", "save model.2", "model.3", "commit",
        ]  # fmt: skip

    on(bench, test)


@pytest.mark.parametrize(("away_s", "slept"), [(31, [9.0]), (41, []), (3_600, [])])
def test_a_takeover_waits_only_for_the_rest_of_a_retry_pause(
    bench: Callable[[], Bench], away_s: int, slept: list[float]
) -> None:
    """Ours: the pause counts from the failure, which is on disk before the pause begins."""

    async def test(one: Bench) -> None:
        error = ErrorObject(code="RATE_LIMITED", message="busy")
        now = one.clock.now_ms()
        failed = ModelFailed(at_ms=now, error=error, retryable=True, retry_after_ms=40_000)
        driver, _, commands = await one.begin(failed)
        pausing = asyncio.Event()

        async def pause(seconds: float) -> None:
            pausing.set()
            await asyncio.Event().wait()

        driver._sleep = pause
        driving = asyncio.ensure_future(driver.drive(commands))
        await pausing.wait()
        driving.cancel()  # as if the process ended
        await asyncio.gather(driving, return_exceptions=True)
        one.clock.advance(away_s)
        driver, _, commands = await one.take_over(replied("answer"))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.slept == slept

    on(bench, test)


def test_a_clock_that_was_set_back_does_not_lengthen_a_retry_pause(bench: Callable[[], Bench]) -> None:
    """Ours: the time of a failure was recorded by another clock and may lie in the future."""

    async def test(one: Bench) -> None:
        error = ErrorObject(code="PROVIDER_ERROR", message="busy")
        failed = ModelFailed(at_ms=one.clock.now_ms() + 10**9, error=error, retryable=True)
        driver, _, commands = await one.begin(failed, replied("answer"))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.slept == [0.5]

    on(bench, test)


def test_an_invalid_answer_is_saved_before_the_model_is_called_again(
    bench: Callable[[], Bench],
) -> None:
    """Seed: an input is durable before any command that follows from it."""

    async def test(one: Bench) -> None:
        driver, _, commands = await one.begin(replied("bad"), replied("good"))
        assert finished(await driver.drive(commands)) == "good"
        assert one.log.lines == ["model.1", "save model.1 checkpoint.1", "model.2", "commit"]

    on(bench, test)


def test_exceeding_the_wall_time_ends_the_turn(bench: Callable[[], Bench]) -> None:
    """Seed: the timeout reaches the machine as an input."""

    async def test(one: Bench) -> None:
        one.limits = UsageLimits(max_wall_ms=10)
        driver, host, commands = await one.begin()
        host.answer.clear()
        driven = await driver.drive(commands)
        assert isinstance(driven.summary.outcome, Stopped)
        assert driven.summary.outcome.reason is StopReason.TURN_BUDGET

    on(bench, test)


def test_a_store_error_stops_the_driver_and_leaves_the_turn_unfinished(bench: Callable[[], Bench]) -> None:
    """Ours: a turn that fails with a store error can be resumed."""

    async def test(one: Bench) -> None:
        async def fail() -> None:
            one.clock.advance(31)
            raise StoreUnavailable("disk full")

        driver, host, commands = await one.begin(replied("answer"))
        one.log.before_commit = fail
        with pytest.raises(StoreUnavailable):
            await driver.drive(commands)
        assert host.stopped == 1
        driver, _, commands = await one.take_over(replied("again"))
        assert finished(await driver.drive(commands)) == "again"

    on(bench, test)
