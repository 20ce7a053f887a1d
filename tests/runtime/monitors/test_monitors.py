"""Monitors over a store: their life cycle, their ids, their updates, and what other processes see."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from monitor_stage import RUNNING, SESSION, Stage, gone, until, until_async

from standfast.errors import InvalidArgument, MonitorNotFound, SessionNotFound, StoreUnavailable, TaskExists
from standfast.model.monitor import RING, MonitorSpec, MonitorState
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.testing.clock import FakeClock

pytestmark = pytest.mark.slow

Play = Callable[[Stage], Coroutine[Any, Any, None]]
ENDLESS = "echo up; sleep 1000"


@pytest.fixture(params=["memory", "sqlite"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Play], None]:
    """Return a function that runs a scene on a store in memory, and on one in a file."""

    def played(scene: Play) -> None:
        async def whole() -> None:
            async with Stage(None if request.param == "memory" else tmp_path / "standfast.db") as stage:
                await scene(stage)

        asyncio.run(whole())

    return played


# Life cycle


def test_a_monitor_runs_writes_output_and_exits(play: Callable[[Play], None]) -> None:
    """Seed: the host has start_monitor, monitor_snapshot and take_monitor_updates."""

    async def scene(stage: Stage) -> None:
        begun = await stage.start("echo one; echo two >&2; exit 3", description="the build")
        assert begun.state in (RUNNING, MonitorState.EXITED)
        ended = await stage.over()
        assert (ended.state, ended.exit_code, ended.pending) == (MonitorState.EXITED, 3, 3)
        task = await stage.task()
        assert (task.kind, task.state, task.label) == (TaskKind.MONITOR, TaskState.COMPLETED, "the build")
        assert task.result == {"exit_code": 3}
        batch = await stage.monitors.take_updates(SESSION)
        assert {(it.kind, it.text) for it in batch.updates[:2]} == {("update", "one"), ("notice", "two")}
        assert (batch.updates[2].kind, batch.updates[2].text) == ("end", "exited with code 3")
        assert [it.seq for it in batch.updates] == [1, 2, 3]
        assert (await stage.monitors.take_updates(SESSION)).updates == ()
        assert (await stage.status()).pending == 0

    play(scene)


def test_updates_are_taken_once_while_the_monitor_runs_and_observed_as_they_arrive(
    play: Callable[[Play], None],
) -> None:
    """Seed: a batch has the updates since the last one; observers get each update as well."""

    async def scene(stage: Stage) -> None:
        await stage.start("echo one; sleep 1000")
        await until(stage.said)
        assert await stage.texts() == ["one"]
        assert await stage.texts() == []
        assert stage.said() == ["one"]
        assert stage.wakes == []

    play(scene)


def test_the_ring_keeps_the_last_updates_and_counts_the_lost_ones(play: Callable[[Play], None]) -> None:
    """Seed: SPEC §9, a ring keeps the last 128 updates."""

    async def scene(stage: Stage) -> None:
        await stage.start("seq 1000; sleep 1000")
        await until(lambda: stage.said()[-1:] == ["1000"])
        assert (await stage.status()).pending == RING
        batch = await stage.monitors.take_updates(SESSION)
        assert [it.text for it in batch.updates] == [str(n) for n in range(1_001 - RING, 1_001)]
        assert (batch.lost, batch.updates[-1].seq) == (1_000 - RING, 1_000)

    play(scene)


def test_stopping_ends_a_monitor_and_is_idempotent(play: Callable[[Play], None]) -> None:
    """Seed: stop_monitor is idempotent; an ended monitor is not changed."""

    async def scene(stage: Stage) -> None:
        await stage.start(ENDLESS)
        await until(stage.said)
        token = await stage.token()
        await stage.monitors.stop(SESSION, "m")
        assert gone(token)
        for _ in range(2):
            assert (await stage.status()).state is MonitorState.STOPPED
            assert (await stage.task()).state is TaskState.CANCELLED
            await stage.monitors.stop(SESSION, "m")
        with pytest.raises(MonitorNotFound):
            await stage.monitors.stop(SESSION, "other")

    play(scene)


def test_the_run_time_of_a_monitor_is_limited(play: Callable[[Play], None]) -> None:
    """Seed: SPEC §9, `timeout_ms` limits how long a monitor runs."""

    async def scene(stage: Stage) -> None:
        await stage.start(ENDLESS, timeout_ms=30)
        ended = await stage.over()
        assert ended.state is MonitorState.TIMED_OUT
        assert ended.error is not None
        assert ended.error.code == "TIMEOUT_WALL"
        assert (await stage.task()).state is TaskState.FAILED
        assert (await stage.texts())[-1] == "timed out after 30 ms"

    play(scene)


def test_a_monitor_whose_command_cannot_be_started_has_failed(play: Callable[[Play], None]) -> None:
    """Ours: the caller sees the failure at once, and no wake is queued."""

    async def scene(stage: Stage) -> None:
        failed = await stage.start(("no-such-program",), wake="queue_turn")
        assert failed.state is MonitorState.FAILED
        assert failed.error is not None
        assert failed.error.code == "IO_ERROR"
        assert "No such file" in failed.error.message
        assert (await stage.task()).state is TaskState.FAILED
        assert stage.wakes == []

    play(scene)


def test_a_monitor_whose_supervisor_cannot_be_started_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: if the process table is full, the record says so."""
    monkeypatch.setattr("sys.executable", "/no/such/python")

    async def whole() -> None:
        async with Stage() as stage:
            assert (await stage.start(ENDLESS)).state is MonitorState.FAILED

    asyncio.run(whole())


@pytest.mark.parametrize(
    "spec",
    [
        {"command": ""},
        {"command": ()},
        {"command": ("",)},
        {"timeout_ms": 3_600_001},
        {"timeout_ms": 0},
        {"id": "a b"},
        {"wake": "shout"},
        {"env": {"A": 1}},
    ],
)
def test_an_invalid_spec_is_refused(spec: dict[str, Any]) -> None:
    """Ours: the limit is 3,600,000 ms; an invalid spec is refused, whether decoded or constructed."""

    async def whole() -> None:
        async with Stage() as stage:
            given = MonitorSpec(**{"id": "m", "command": ENDLESS, **spec})
            with pytest.raises(InvalidArgument):
                await stage.monitors.start(SESSION, given)
            assert await stage.store.tasks() == []

    asyncio.run(whole())


# Ids


def test_a_monitor_id_is_unique_among_live_monitors_and_reusable_after_the_end(
    play: Callable[[Play], None],
) -> None:
    """Ours: SPEC §9, live ids are unique; those of ended tasks may be used again."""

    async def scene(stage: Stage) -> None:
        await stage.start("echo first")
        await stage.over()
        await stage.start(ENDLESS)
        with pytest.raises(TaskExists):
            await stage.start("echo third")
        await until(lambda: "up" in stage.said())
        assert await stage.texts() == ["first", "exited with code 0", "up"]
        assert (await stage.status()).state is RUNNING

    play(scene)


def test_only_one_of_many_concurrent_starts_of_an_id_wins(play: Callable[[Play], None]) -> None:
    """Ours: the processes of the other callers are ended."""

    async def scene(stage: Stage) -> None:
        started = [stage.monitors.start(SESSION, MonitorSpec(id="m", command=ENDLESS)) for _ in range(5)]
        ends = await asyncio.gather(*started, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["MonitorSnapshot", *["TaskExists"] * 4]
        assert len(stage.monitors._watches) == 1

    play(scene)


def test_a_missing_session_has_no_monitors(play: Callable[[Play], None]) -> None:
    """Ours: no process is started for an unknown session."""

    async def scene(stage: Stage) -> None:
        with pytest.raises(SessionNotFound):
            await stage.monitors.start("unknown", MonitorSpec(id="m", command=ENDLESS))
        assert (await stage.monitors.snapshot("unknown")).monitors == ()
        assert stage.monitors._watches == {}

    play(scene)


def test_monitors_are_listed_in_the_order_of_their_first_start(
    play: Callable[[Play], None],
) -> None:
    """Seed: the snapshot's order does not change when a monitor is started again."""

    async def scene(stage: Stage) -> None:
        stage.clock = clock = FakeClock()
        stage.monitors._clock = stage.monitors._records._clock = clock
        for name in ("a", "b"):
            await stage.start("true", name)
            await stage.over(name)
            clock.advance(1)
        await stage.start("true", "a")
        await stage.over("a")
        assert [it.spec.id for it in (await stage.monitors.snapshot(SESSION)).monitors] == ["a", "b"]

    play(scene)


# Armed at session start


def test_an_armed_monitor_is_started_once_when_the_session_is_opened(play: Callable[[Play], None]) -> None:
    """Seed: SPEC §9, a monitor is armed manually or at session start."""

    async def scene(stage: Stage) -> None:
        specs = [
            MonitorSpec(id="m", command="true", arm="session_start"),
            MonitorSpec(id="other", command="true"),
        ]
        await stage.monitors.session_opened(SESSION, specs)
        assert [it.spec.id for it in (await stage.monitors.snapshot(SESSION)).monitors] == ["m"]
        await stage.over()
        await stage.monitors.session_opened(SESSION, specs)
        assert (await stage.task()).state is TaskState.COMPLETED

    play(scene)


def test_the_next_runtime_restarts_an_armed_monitor_unless_it_was_stopped(tmp_path: Path) -> None:
    """Ours: whether a monitor is armed is stored."""

    async def whole() -> None:
        async with Stage(tmp_path / "standfast.db") as stage:
            await stage.start(ENDLESS, "kept", arm="session_start")
            await stage.start(ENDLESS, "stopped", arm="session_start")
            await stage.monitors.stop(SESSION, "stopped")
        async with Stage(tmp_path / "standfast.db") as stage:
            await stage.monitors.session_opened(SESSION)
            assert (await stage.status("kept")).state is RUNNING
            assert (await stage.status("stopped")).state is MonitorState.STOPPED

    asyncio.run(whole())


# Closing and forgetting


def test_closing_ends_every_process_and_records_it(tmp_path: Path) -> None:
    """Ours: no process is left, and none is listed as running."""

    async def whole() -> None:
        async with Stage(tmp_path / "standfast.db") as stage:
            await stage.start("trap '' TERM; echo up; while :; do sleep 1000; done", "stubborn")
            await stage.start(ENDLESS, "plain")
            await until(lambda: len(stage.said()) == 2)
            tokens = [await stage.token("stubborn"), await stage.token("plain")]
        assert all(map(gone, tokens))
        async with Stage(tmp_path / "standfast.db") as stage:
            for name in ("stubborn", "plain"):
                status = await stage.status(name)
                assert status.state is MonitorState.FAILED
                assert status.error is not None
                assert status.error.code == "INTERRUPTED"
            assert await stage.texts() == ["up", "up", *["interrupted, because the runtime was closed"] * 2]
            with pytest.raises(InvalidArgument, match="not open"):
                await _closed(stage).monitors.start(SESSION, MonitorSpec(id="m", command="true"))

    asyncio.run(whole())


def _closed(stage: Stage) -> Stage:
    stage.monitors._is_closed = True
    return stage


def test_a_start_in_progress_when_the_runtime_closes_leaves_nothing(tmp_path: Path) -> None:
    """Ours: this includes a start whose caller no longer waits."""

    async def whole() -> None:
        async with Stage(tmp_path / "standfast.db") as stage:
            starting = asyncio.create_task(stage.start(ENDLESS))
            await until(lambda: stage.monitors._watches)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            token = next(iter(stage.monitors._watches.values())).process.mark.token
        assert gone(token)
        async with Stage(tmp_path / "standfast.db") as stage:
            assert [task for task in await stage.store.tasks(live=True) if task.owner] == []

    asyncio.run(whole())


def test_deleting_a_session_ends_its_monitor_processes(play: Callable[[Play], None]) -> None:
    """Ours: deleting a session, in this process or another, ends its monitors."""

    async def scene(stage: Stage) -> None:
        await stage.make("gone")
        await stage.start(ENDLESS)
        await stage.monitors.start("gone", MonitorSpec(id="m", command=ENDLESS))
        await until(lambda: len(stage.said()) == 2)
        tokens = [watch.process.mark.token for watch in stage.monitors._watches.values() if watch.process]
        await stage.monitors.forget(SESSION)
        await stage.store.delete_session("gone")
        await stage.monitors.recover()
        await until(lambda: all(map(gone, tokens)))
        await until(lambda: not stage.monitors._watches)
        assert (await stage.status()).state is MonitorState.STOPPED

    play(scene)


# Other processes


def test_a_monitor_is_stopped_at_another_processs_request(play: Callable[[Play], None]) -> None:
    """Ours: another process can only request the stop; the one that runs the monitor ends it."""

    async def scene(stage: Stage) -> None:
        other = Stage(stage.store)
        await stage.start(ENDLESS)
        token = await stage.token()
        await other.monitors.stop(SESSION, "m")
        assert (await stage.task()).state is TaskState.CANCEL_REQUESTED
        assert (await other.status()).state is RUNNING
        await stage.monitors.recover()
        assert (await stage.over()).state is MonitorState.STOPPED
        assert gone(token)

    play(scene)


def test_closing_a_record_from_outside_ends_the_process(play: Callable[[Play], None]) -> None:
    """Ours: the record decides; a process that lost it ends its command."""

    async def scene(stage: Stage) -> None:
        await stage.start(ENDLESS)
        token = await stage.token()
        await stage.store.change_task(
            SESSION, "m", lambda task: msgspec.structs.replace(task, state=TaskState.CANCELLED)
        )
        await stage.monitors.recover()
        await until(lambda: gone(token))
        assert (await stage.status()).state is MonitorState.STOPPED

    play(scene)


def test_updates_taken_by_another_process_are_not_taken_again(play: Callable[[Play], None]) -> None:
    """Ours: the turn that a monitor wakes may run in another process; the updates are stored."""

    async def scene(stage: Stage) -> None:
        other = Stage(stage.store)
        await stage.start("echo one; sleep 1000", wake="queue_turn")
        await until(lambda: stage.wakes)

        async def written() -> bool:
            return (await other.status()).pending == 1

        await until_async(written)
        assert await other.texts() == ["one"]
        assert await stage.waiting() == []
        await stage.monitors.recover()
        assert await stage.texts() == []
        assert (await stage.status()).pending == 0

    play(scene)


def test_a_monitor_can_be_transferred_to_another_session(play: Callable[[Play], None]) -> None:
    """Seed: transfer_async_handles; the process keeps running, and its updates go to the other session."""

    async def scene(stage: Stage) -> None:
        await stage.make("heir")
        await stage.start("echo one; sleep 1000")
        await until(stage.said)
        await stage.store.move_tasks(SESSION, "heir", ("m",), stage.clock.now_ms())
        assert await stage.texts("heir") == ["one"]
        await stage.monitors.recover()
        assert (await stage.monitors.stop("heir", "m")).monitors[0].state is MonitorState.STOPPED
        assert (await stage.monitors.snapshot(SESSION)).monitors == ()

    play(scene)


def test_a_task_that_only_claims_to_be_a_monitor_is_not_treated_as_one(play: Callable[[Play], None]) -> None:
    """Ours: it is not listed, and fails when its owner is gone, like any task."""

    async def scene(stage: Stage) -> None:
        now = stage.clock.now_ms()
        await stage.store.add_task(
            TaskRecord(
                session_id=SESSION,
                id="odd",
                kind=TaskKind.MONITOR,
                state=TaskState.RUNNING,
                created_at=now,
                updated_at=now,
                body={"a": 1},
            )
        )
        assert (await stage.monitors.snapshot(SESSION)).monitors == ()
        await stage.monitors.stop(SESSION, "odd")
        await stage.monitors.recover()
        assert (await stage.task("odd")).state is TaskState.FAILED

    play(scene)


# Many monitors


def test_many_monitors_leak_neither_processes_nor_descriptors() -> None:
    """Ours: starting and stopping monitors all day must not leak resources."""

    async def whole() -> None:
        async with Stage() as stage:
            before = len(os.listdir("/proc/self/fd"))
            names = [f"m{number}" for number in range(20)]
            await asyncio.gather(*(stage.start(ENDLESS, name) for name in names))
            await until(lambda: len(stage.said()) == len(names))
            await asyncio.gather(*(stage.monitors.stop(SESSION, name) for name in names))
            assert len(os.listdir("/proc/self/fd")) <= before
            assert (stage.monitors._watches, stage.monitors._tasks) == ({}, set())

    asyncio.run(whole())


# Failures of the store


def test_the_end_is_written_once_the_store_works_again() -> None:
    """Ours: a full disk must not leave a monitor that is listed as running."""

    async def whole() -> None:
        async with Stage() as stage:
            await stage.start(ENDLESS)
            broken = stage.store.change_task

            async def refuse(*_: object) -> TaskRecord:
                raise StoreUnavailable("the disk is full")

            stage.store.change_task = refuse  # type: ignore[method-assign, assignment]
            with pytest.raises(StoreUnavailable):
                await stage.monitors.stop(SESSION, "m")
            assert (await stage.task()).state is TaskState.RUNNING
            stage.store.change_task = broken  # type: ignore[method-assign]
            await stage.monitors.recover()
            assert (await stage.over()).state is MonitorState.STOPPED

    asyncio.run(whole())
