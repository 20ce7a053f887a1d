"""Turns with a cell, for the tests of the driver."""

from __future__ import annotations

import asyncio
from typing import Any

from driver_bench import (
    Bench,
    Host,
    replied,
)

from standfast.durable.driver import Driven, TurnDriver
from standfast.machine.inputs import Input
from standfast.model.message import ToolMessage

MOMENT_S = 0.005
"""So long may what is known wait to be written while only code runs."""


async def settle_down() -> None:
    """Run the loop until no callback is left."""
    for _ in range(20):
        await asyncio.sleep(0)


async def begin(
    one: Bench, *cell: tuple[Input, ...], then: str = "answer"
) -> tuple[TurnDriver, Host, list[Any]]:
    """Begin a turn whose first reply is a cell that delivers these inputs."""
    driver, host, commands = await one.begin(replied("", "run_code"), replied(then))
    host.cells[1] = cell
    return driver, host, commands


def driving(driver: TurnDriver, commands: list[Any]) -> asyncio.Task[Driven]:
    return asyncio.create_task(driver.drive(commands))


def results(driver: TurnDriver) -> list[tuple[int, Any]]:
    return [
        (one.call_id, one.error.code if one.error else one.value)
        for one in driver.machine.messages
        if isinstance(one, ToolMessage)
    ]


def saves(one: Bench) -> list[str]:
    return [line for line in one.log.lines if line.startswith("save")]
