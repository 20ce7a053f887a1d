"""Wakes: when a monitor queues a turn, what the wake reports, and that at most one is pending."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from monitor_stage import SESSION, Stage, until, until_async

from standfast.errors import StoreUnavailable
from standfast.model.monitor import MonitorSpec, MonitorState, MonitorUpdate
from standfast.runtime.monitors.monitor_store import wake_text

pytestmark = pytest.mark.slow

Play = Callable[[Stage], Coroutine[Any, Any, None]]
FOLLOW = "exec tail -n +1 -f log"


@pytest.fixture(params=["memory", "sqlite"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Play], None]:
    """Return a function that runs a scene in which a monitor follows the file `log`."""
    (tmp_path / "log").touch()

    def played(scene: Play) -> None:
        async def whole() -> None:
            async with Stage(None if request.param == "memory" else tmp_path / "standfast.db") as stage:
                await stage.start(FOLLOW, cwd=str(tmp_path), wake="queue_turn", description="the log")
                await scene(stage)

        asyncio.run(whole())

    return played


@pytest.fixture
def say(tmp_path: Path) -> Callable[[str], None]:
    def said(text: str) -> None:
        with (tmp_path / "log").open("a") as log:
            log.write(text + "\n")

    return said


async def _heard(stage: Stage, text: str) -> None:
    await until(lambda: text in stage.said())


async def _begin_turn(stage: Stage) -> str:
    """Consume the queued input, as the beginning of a turn does, and return its text."""
    item = (await stage.store.inputs(SESSION))[0]
    assert await stage.store.withdraw_input(item.input_id)
    assert isinstance(item.message.content, str)
    return item.message.content


def test_an_update_queues_a_turn_that_names_the_monitor_and_reports_the_update(
    play: Callable[[Play], None], say: Callable[[str], None]
) -> None:
    """Seed: the wake policy `queue_turn` queues a turn for an update."""

    async def scene(stage: Stage) -> None:
        say("one\ntwo")
        await until(lambda: stage.wakes)
        assert stage.wakes[0][0] == SESSION
        assert stage.wakes[0][2] == "Monitor 'm' (the log):\n> one\n> two"
        assert (await stage.status()).wakes is True

    play(scene)


def test_three_updates_to_an_idle_session_cause_three_turns(
    play: Callable[[Play], None], say: Callable[[str], None]
) -> None:
    """Ours: each wake reports the updates since the previous one."""

    async def scene(stage: Stage) -> None:
        told = []
        for number, line in enumerate(["one", "two", "three"], 1):
            say(line)
            await until(lambda number=number: len(stage.wakes) == number)  # type: ignore[misc]
            told.append((await _begin_turn(stage)).splitlines()[1:])
        assert told == [["> one"], ["> two"], ["> three"]]
        assert await stage.texts() == ["one", "two", "three"]

    play(scene)


def test_one_wake_is_pending_until_its_turn_begins_and_the_next_reports_the_rest(
    play: Callable[[Play], None], say: Callable[[str], None]
) -> None:
    """Ours: SPEC §9, one pending wake; a busy session is not flooded, and every update is reported."""

    async def scene(stage: Stage) -> None:
        say("one")
        await until(lambda: stage.wakes)
        for line in ("two", "three"):
            say(line)
            await _heard(stage, line)
            await stage.monitors.recover()
        assert len(stage.wakes) == len(await stage.waiting()) == 1
        assert await _begin_turn(stage) == "Monitor 'm' (the log):\n> one"
        await stage.monitors.recover()
        await until(lambda: len(stage.wakes) == 2)
        assert await _begin_turn(stage) == "Monitor 'm' (the log):\n> two\n> three"
        await stage.monitors.recover()
        assert await stage.waiting() == []
        assert (await stage.status()).wakes is False

    play(scene)


def test_taking_the_updates_acknowledges_the_wake(
    play: Callable[[Play], None], say: Callable[[str], None]
) -> None:
    """Seed: a wake is pending until acknowledged; a wake for updates already taken would be empty."""

    async def scene(stage: Stage) -> None:
        say("one")
        await until(lambda: stage.wakes)
        assert await stage.texts() == ["one"]
        assert await stage.waiting() == []
        assert (await stage.status()).wakes is False
        say("two")
        await until(lambda: len(stage.wakes) == 2)
        assert len(set(await stage.waiting())) == 1
        assert stage.wakes[1][2].endswith("> two")
        assert "one" not in stage.wakes[1][2]

    play(scene)


def test_updates_taken_by_the_woken_turn_cause_no_further_wake(
    play: Callable[[Play], None], say: Callable[[str], None]
) -> None:
    """Ours: a turn that takes the updates that arrived while it ran needs no wake for them."""

    async def scene(stage: Stage) -> None:
        say("one")
        await until(lambda: stage.wakes)
        await _begin_turn(stage)
        say("two")
        await until(lambda: len(stage.wakes) == 2)
        assert await stage.texts() == ["one", "two"]
        await stage.monitors.recover()
        assert await stage.waiting() == []

    play(scene)


def test_the_pending_wake_reports_the_end(play: Callable[[Play], None], tmp_path: Path) -> None:
    """Ours: a pending wake is replaced by one that reports everything, so that the session wakes once."""

    os.mkfifo(tmp_path / "gate")

    async def scene(stage: Stage) -> None:
        command = "echo a; read line < gate; echo b; exit 2"
        await stage.start(command, "gated", cwd=str(tmp_path), wake="queue_turn")
        await until(lambda: stage.wakes)
        (tmp_path / "gate").write_text("\n")
        assert (await stage.over("gated")).state is MonitorState.EXITED
        assert len(await stage.waiting()) == 1
        told = await _begin_turn(stage)
        assert told == "Monitor 'gated':\n> a\n> b\nIt has ended: exited with code 2."

    play(scene)


@pytest.mark.parametrize(
    ("command", "timeout_ms", "told"),
    [
        ("true", 10_000, "It has ended: exited with code 0."),
        ("kill -9 $$", 10_000, "It has ended: killed by SIGKILL."),
        ("sleep 1000", 30, "It has ended: timed out after 30 ms."),
    ],
)
def test_an_end_that_was_not_requested_wakes_the_session(command: str, timeout_ms: int, told: str) -> None:
    """Ours: an agent that waits for a build learns that it has ended."""

    async def whole() -> None:
        async with Stage() as stage:
            await stage.start(command, timeout_ms=timeout_ms, wake="queue_turn")
            await stage.over()
            assert [text for _, _, text in stage.wakes] == [f"Monitor 'm':\n{told}"]

    asyncio.run(whole())


def test_notices_stops_and_closes_cause_no_wake() -> None:
    """Ours: notices come with the next wake; a caller that stops a monitor needs no wake."""

    async def whole() -> None:
        async with Stage() as stage:
            for name in ("stopped", "closed"):
                await stage.start("echo warning >&2; sleep 1000", name, wake="queue_turn")
            await until(lambda: len(stage.said("notice")) == 2)
            await stage.monitors.recover()
            await stage.monitors.stop(SESSION, "stopped")
            await stage.monitors.close()
            assert stage.wakes == []

    asyncio.run(whole())


def test_a_wake_that_could_not_be_queued_is_queued_later() -> None:
    """Ours: a temporary failure of the store loses no wake."""

    async def whole() -> None:
        async with Stage() as stage:
            put, failed = stage.store.put_input, asyncio.Event()

            async def refuse(*_: object) -> None:
                failed.set()
                raise StoreUnavailable("the disk is full")

            stage.store.put_input = refuse  # type: ignore[method-assign, assignment]
            await stage.start("echo one; sleep 1000", wake="queue_turn")
            await failed.wait()
            stage.store.put_input = put  # type: ignore[method-assign]
            await stage.monitors.recover()
            await until(lambda: stage.wakes)

    asyncio.run(whole())


def test_a_wake_that_was_queued_but_not_recorded_is_not_queued_twice() -> None:
    """Ours: a process that dies between the two leaves one wake, which the next process finds."""

    async def whole() -> None:
        async with Stage() as stage:
            change = stage.store.change_task

            async def refuse(*_: object) -> Any:
                raise StoreUnavailable("the disk is full")

            stage.store.change_task = refuse  # type: ignore[method-assign, assignment]
            await stage.start("echo one; sleep 1000", wake="queue_turn")
            await until(lambda: stage.wakes)
            watch = next(iter(stage.monitors._watches.values()))
            async with watch.lock:  # as a new process would see it, without this one's memory
                watch.wake, watch.wakes, watch.told = None, 0, 0
            stage.store.change_task = change  # type: ignore[method-assign]
            await stage.monitors.recover()

            async def written() -> bool:
                return bool((await stage.task()).body.get("wakes") == 1)

            await until_async(written)
            assert len(await stage.waiting()) == 1

    asyncio.run(whole())


def test_a_long_report_is_shortened() -> None:
    """Ours: a log must not fill a turn; a model that wants all of it takes the updates."""
    updates = [
        MonitorUpdate(monitor_id="m", seq=n, at_ms=0, kind="update", text=f"{n} " + "x" * 600)
        for n in range(1, 31)
    ]
    text = wake_text(MonitorSpec(id="m", command="true"), updates, 70)
    assert text.splitlines()[1] == "(80 earlier lines are not shown)"
    assert len(text.splitlines()) == 22
    assert max(map(len, text.splitlines())) == 503
