"""Flushing of plugin rulings: after at most 5 ms, or with the next write if that comes sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from driver_bench import (
    Bench,
    Host,
    SteppedLoop,
    finished,
    replied,
    saying,
    state,
    stepped,
    stopped,
)

from standfast.durable.driver import Driven, TurnDriver
from standfast.errors import LeaseLost, StoreUnavailable
from standfast.model.outcome import StopReason

MOMENT_S = 0.005

Benches = Callable[[], Bench]


async def settle_down() -> None:
    """Run the loop until no callback is left."""
    for _ in range(20):
        await asyncio.sleep(0)


def begun(driver: TurnDriver, commands: list[object]) -> asyncio.Task[Driven]:
    return asyncio.create_task(driver.drive(commands))  # type: ignore[arg-type]


async def while_the_model_thinks(one: Bench) -> tuple[TurnDriver, Host, asyncio.Task[Driven]]:
    """Start a turn whose plugins return nothing, and drive it until the model is called."""
    one.stages = ("before_turn",)
    driver, host, commands = await one.begin(replied("answer"))
    host.hold("model.1")
    driving = begun(driver, commands)
    await one.log.until("model.1")
    return driver, host, driving


def test_a_ruling_that_nothing_depends_on_is_flushed_within_a_moment(bench: Benches) -> None:
    """Ours: a slow model call does not delay the write of a ruling."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        _, host, driving = await while_the_model_thinks(one)
        loop.advance(MOMENT_S * 0.9)
        await settle_down()
        assert one.log.lines == ["hooks.before_turn.1", "model.1"]
        loop.advance(MOMENT_S * 0.2)
        await one.log.until("save hooks.before_turn.1")
        host.held["model.1"].set()
        assert finished(await driving) == "answer"
        assert one.log.lines[-1] == "commit"

    stepped(bench, test)


def test_a_ruling_is_saved_with_a_model_reply_that_comes_before_the_flush(bench: Benches) -> None:
    """Ours: hooks that return nothing cost no extra write."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        _, host, driving = await while_the_model_thinks(one)
        loop.advance(MOMENT_S * 0.9)
        host.replies[0] = replied("", "a")
        host.replies.append(replied("answer"))
        host.held["model.1"].set()
        await one.log.until("model.2")
        loop.advance(MOMENT_S)
        await driving
        assert [line for line in one.log.lines if line.startswith("save")] == [
            "save hooks.before_turn.1 model.1 tool.1.1",
            "save tool.1 checkpoint.1",
        ]

    stepped(bench, test)


def test_every_ruling_of_a_turn_is_flushed_within_a_moment(bench: Benches) -> None:
    """Bug: after the first ruling had been written, the next one waited for the model."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        one.stages = ("before_turn", "prepare")
        driver, host, commands = await one.begin(replied("answer"))
        slow = host.hold("prepare.1")
        host.hold("model.1")
        driving = begun(driver, commands)
        await one.log.until("prepare.1")
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save hooks.before_turn.1")
        slow.set()
        await one.log.until("model.1")
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save prepare.1")
        host.held["model.1"].set()
        await driving

    stepped(bench, test)


def test_a_ruling_made_during_a_write_is_flushed_a_moment_after_it(bench: Benches) -> None:
    """Ours: even with a slow disk, the next ruling does not have to wait for the model."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        one.stages = ("before_turn", "prepare")
        driver, host, commands = await one.begin(replied("answer"))
        slow, disk, writing = host.hold("prepare.1"), asyncio.Event(), asyncio.Event()
        host.hold("model.1")

        async def write_slowly() -> None:
            writing.set()
            await disk.wait()

        one.log.before_save = write_slowly
        driving = begun(driver, commands)
        await one.log.until("prepare.1")
        loop.advance(MOMENT_S * 1.1)
        await writing.wait()
        slow.set()
        await one.log.until("model.1")  # a write that may come later does not delay the model
        disk.set()
        await one.log.until("save hooks.before_turn.1")
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save prepare.1")
        host.held["model.1"].set()
        await driving

    stepped(bench, test)


def test_the_model_is_not_called_before_plugin_messages_are_written(bench: Benches) -> None:
    """Bug: the model was called while the message for it was not on disk yet."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        one.stages = ("before_turn", "prepare")
        driver, host, commands = await one.begin(replied("answer"))
        host.rulings["hooks.before_turn.1"] = saying("psst")
        slow, disk, writing = host.hold("prepare.1"), asyncio.Event(), asyncio.Event()

        async def write_slowly() -> None:
            writing.set()
            await disk.wait()

        one.log.before_save = write_slowly
        driving = begun(driver, commands)
        await one.log.until("prepare.1")
        loop.advance(MOMENT_S * 1.1)
        await writing.wait()
        slow.set()
        await settle_down()
        assert one.log.lines == ["hooks.before_turn.1", "prepare.1"]
        disk.set()
        assert finished(await driving) == "answer"
        assert one.log.lines.index("save hooks.before_turn.1") < one.log.lines.index("model.1")

    stepped(bench, test)


def test_the_state_of_a_running_hook_is_not_written_before_its_ruling(bench: Benches) -> None:
    """Bug: another process found the state without the ruling, and ran the hook on its own earlier state."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        one.stages = ("before_turn", "prepare")
        driver, host, commands = await one.begin(replied("", "a"), replied("answer"))
        host.meanwhile["hooks.before_turn.1"] = lambda: host.states.append(state("plugin.p", b"1"))
        host.meanwhile["prepare.1"] = lambda: host.states.append(state("plugin.p", b"2"))
        slow = host.hold("prepare.1")
        driving = begun(driver, commands)
        await one.log.until("prepare.1")
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save hooks.before_turn.1 plugin.p")
        slow.set()
        await driving
        written = [[entry for entry in save.entries if entry.kind == "state"] for save in one.log.saves]
        assert written[:2] == [[state("plugin.p", b"1")], [state("plugin.p", b"2")]]
        assert one.log.saves[1].entries[0].key == "prepare.1"

    stepped(bench, test)


def test_a_cancellation_noticed_by_a_flush_interrupts_the_model_call(bench: Benches) -> None:
    """Bug: the cancellation was only noted, and a later request in this process had no effect."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, _, driving = await while_the_model_thinks(one)
        await one.log.cancel("t_1")
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save hooks.before_turn.1")
        driver.request_cancel()
        assert stopped(await driving).reason is StopReason.CANCELLED
        assert one.log.lines[-2:] == ["model.1 broken off", "commit"]

    stepped(bench, test)


def test_a_driver_that_finds_the_lease_lost_while_flushing_stops(bench: Benches) -> None:
    """Seed: a worker that lost its lease can commit nothing, and calls no model either."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        one.stages = ("before_turn", "prepare")
        driver, host, commands = await one.begin(replied("answer"))
        host.rulings["hooks.before_turn.1"] = saying("psst")
        slow = host.hold("prepare.1")
        driving = begun(driver, commands)
        await one.log.until("prepare.1")
        one.clock.advance(31)
        await one.log.take_over("t_1", one.claimant("other"))
        loop.advance(MOMENT_S * 1.1)
        await _until_flushed(driver)
        slow.set()
        with pytest.raises(LeaseLost):
            await driving
        assert one.log.lines == ["hooks.before_turn.1", "prepare.1"]

    stepped(bench, test)


def test_a_driver_that_knows_the_lease_is_lost_flushes_nothing(bench: Benches) -> None:
    """Ours: driver rule 4, a driver without the lease writes nothing."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, _, driving = await while_the_model_thinks(one)
        driver.lose()
        loop.advance(MOMENT_S * 1.1)
        with pytest.raises(LeaseLost):
            await driving
        await settle_down()
        assert one.log.saves == []

    stepped(bench, test)


def test_a_store_error_during_a_flush_fails_the_turn(bench: Benches) -> None:
    """Ours: no effect may follow from an input that is not on disk."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, host, driving = await while_the_model_thinks(one)

        async def fail() -> None:
            one.clock.advance(31)  # the lease expires
            raise StoreUnavailable("disk full")

        one.log.before_save = fail
        loop.advance(MOMENT_S * 1.1)
        await _until_flushed(driver)
        host.held["model.1"].set()
        with pytest.raises(StoreUnavailable, match="disk full"):
            await driving
        assert "commit" not in one.log.lines
        assert host.stopped == 1

    stepped(bench, test)


def test_a_store_error_during_a_flush_does_not_hide_the_cancellation_of_the_task(bench: Benches) -> None:
    """Ours: a caller that cancels the task of a turn gets its CancelledError."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, _, driving = await while_the_model_thinks(one)

        async def fail() -> None:
            one.clock.advance(31)  # the lease expires
            raise StoreUnavailable("disk full")

        one.log.before_save = fail
        loop.advance(MOMENT_S * 1.1)
        await _until_flushed(driver)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving

    stepped(bench, test)


def test_an_abandoned_turn_writes_nothing_later(bench: Benches) -> None:
    """Ours: no timer of a driver outlives its turn."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        _, _, driving = await while_the_model_thinks(one)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        loop.advance(MOMENT_S * 2)
        await settle_down()
        assert one.log.saves == []

    stepped(bench, test)


def test_another_process_does_not_run_a_hook_whose_ruling_was_flushed(bench: Benches) -> None:
    """Seed: recovery never runs a hook twice whose outcome is journaled."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        _, _, driving = await while_the_model_thinks(one)
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save hooks.before_turn.1")
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        one.clock.advance(31)
        _, _, commands = await one.take_over(replied("answer"))
        assert [command.key for command in commands] == ["model.1"]

    stepped(bench, test)


async def _until_flushed(driver: TurnDriver) -> None:
    """Wait until the pending write has succeeded or failed."""
    await settle_down()
    flushing = driver.journal.flush
    if isinstance(flushing, asyncio.Task):
        await asyncio.wait([flushing])
