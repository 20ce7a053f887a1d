"""Resuming a cell in another process: it gets the results in the journal, and no call is made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from cell_turns import MOMENT_S, begin, driving, results, saves, settle_down
from driver_bench import (
    Bench,
    SteppedLoop,
    finished,
    on,
    paused,
    replied,
    settled,
    stepped,
)

from standfast.durable.driver import Driven
from standfast.durable.effects import EffectSettled
from standfast.machine.commands import ContinueCell

Benches = Callable[[], Bench]


async def dies(one: Bench, task: asyncio.Task[Driven]) -> None:
    """Stop the driver as if its process had died, and let its lease expire."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    one.clock.advance(31)


def asked(commands: list[Any]) -> list[str]:
    return [
        f"cell.{command.call.call_id} with {command.count}"
        if isinstance(command, ContinueCell)
        else command.key
        for command in commands
    ]


def test_a_cell_that_made_no_call_is_started_again(bench: Benches) -> None:
    """Ours: the code has called nothing yet, and no intent records that the cell started."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, host, commands = await begin(one)
        task = driving(driver, commands)
        await one.log.until("run tool.1.1")
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save model.1")
        await dies(one, task)
        driver, host, commands = await one.take_over(replied("answer"))
        assert asked(commands) == ["tool.1.1"]
        host.cells[1] = ((settled(1, "again"),),)
        assert finished(await driver.drive(commands)) == "answer"
        assert (host.begun, results(driver)) == ([False], [(1, "again")])

    stepped(bench, test)


def test_calls_of_a_cell_that_were_under_way_are_executed_before_the_cell_resumes(bench: Benches) -> None:
    """Seed: after a crash in the middle of a cell, it resumes at the call."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a", "b"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.3.1")
        await dies(one, task)
        driver, host, commands = await one.take_over(replied("answer"))
        assert asked(commands) == ["tool.2.1", "tool.3.1"]
        host.cells[1] = ((), (paused(1, 2),), (settled(1),))
        assert finished(await driver.drive(commands)) == "answer"
        assert host.begun == [True, True]
        assert [command.count for command in host.continued] == [1, 2]

    on(bench, test)


def test_a_cell_that_had_received_results_resumes_with_all_of_them(bench: Benches) -> None:
    """Seed: finished calls are replayed from the journal, not executed again."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a", "b", "c"),), (paused(1, 2),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.4.1")
        assert host.deliver is not None
        host.deliver(settled(3, "B"))
        host.deliver(settled(2, "A"))
        await one.log.until("cell.1 hears 3 2")
        await settle_down()
        loop.advance(MOMENT_S * 1.1)
        await settle_down()
        await dies(one, task)
        driver, host, commands = await one.take_over(replied("answer"))
        assert asked(commands) == ["cell.1 with 2", "tool.4.1"]
        host.cells[1] = ((), (), (paused(1, 3),), (settled(1, "all"),))
        assert finished(await driver.drive(commands)) == "answer"
        assert [command.key for command in host.running] == ["tool.4.1"]
        first, last = host.continued
        assert [call.name for call in first.made] == ["a", "b", "c"]
        assert [answer.value for answer in first.answers] == ["B", "A", "ok"]
        assert (first.count, last.count) == (2, 3)
        assert results(driver) == [(1, "all")]

    stepped(bench, test)


def test_taking_over_a_cell_costs_no_extra_write(bench: Benches) -> None:
    """Ours: rerunning code has no outside effect, so it needs no write."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, _host, commands = await begin(one, (paused(1, 1, "a"),))
        task = driving(driver, commands)
        await one.log.until("cell.1 hears 2")
        await settle_down()
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save tool.2")
        await dies(one, task)
        driver, host, commands = await one.take_over(replied("answer"))
        host.cells[1] = ((), (settled(1),))
        assert finished(await driver.drive(commands)) == "answer"
        assert saves(one)[2:] == [f"save resumed.{driver.journal.lease.fence} tool.1 checkpoint.1"]

    stepped(bench, test)


def test_the_call_of_a_result_that_was_not_saved_is_dispatched_again(bench: Benches) -> None:
    """Ours: the cell never depended on a result that the journal lacks, and an intent records the call."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        driver, _host, commands = await begin(one, (paused(1, 1, "a"),))
        task = driving(driver, commands)
        await one.log.until("cell.1 hears 2")
        await dies(one, task)
        driver, host, commands = await one.take_over(replied("answer"))
        assert asked(commands) == ["tool.2.1"]
        host.prepared[2] = EffectSettled(settled(2, "interrupted"))
        host.cells[1] = ((), (settled(1),))
        assert finished(await driver.drive(commands)) == "answer"
        assert host.begun == [True]
        assert [answer.value for answer in host.continued[0].answers] == ["interrupted"]

    stepped(bench, test)


def test_a_pause_reported_again_by_a_rerun_cell_changes_nothing(bench: Benches) -> None:
    """Ours: a journaled pause counts once, however often a process reports it."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.2.1")
        await dies(one, task)
        driver, host, commands = await one.take_over(replied("answer"))
        assert driver.feed(paused(1, 1, "a")) == []
        host.cells[1] = ((), (settled(1),))
        assert finished(await driver.drive(commands)) == "answer"
        assert [command.key for command in host.running] == ["tool.2.1"]

    on(bench, test)
