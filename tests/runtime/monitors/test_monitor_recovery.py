"""Monitors whose runtime was killed: no process is left, and none is listed as running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from monitor_stage import RUNNING, SESSION, Stage, gone, is_running, pids_in, until, until_now

from standfast.durable.journal import SILENT_MS
from standfast.model.monitor import MonitorState
from standfast.model.task import TaskRecord, TaskState
from standfast.runtime.monitors.process import ProcessMark, is_alive
from standfast.runtime.monitors.running_monitor import monitor_of
from standfast.testing.clock import FakeClock

pytestmark = pytest.mark.slow

Start = Callable[..., Any]

HOST = f"""
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from monitor_stage import Stage, until

async def main(database, specs):
    async with Stage(Path(database)) as stage:
        for spec in specs:
            await stage.start(**spec)
        await until(lambda: len(stage.said()) >= len(specs))
        woken = [spec for spec in specs if spec.get("wake")]
        async def written():
            return [(await stage.task(spec["id"])).body.get("wakes") for spec in woken] == [1] * len(woken)
        while not await written():
            await asyncio.sleep(0.002)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""

DAEMON = (
    "(setsid sh -c 'trap : TERM HUP; echo $$ > daemon; sleep 1000' >/dev/null 2>&1 &) ; "
    "sh -c 'echo $$ > child; sleep 1000' & while ! [ -s daemon -a -s child ]; do :; done; echo $$ > main; "
    "echo up; wait"
)


class Victim:
    """A process that runs monitors on a store file until it is killed."""

    def __init__(self, child: Start, home: Path) -> None:
        self._child, self.home = child, home
        self.database = home / "standfast.db"

    def start(self, *specs: dict[str, Any]) -> None:
        self.process = self._child(HOST, str(self.database), json.dumps(specs))
        assert self.process.line() == "ready"

    def marks(self) -> dict[str, ProcessMark]:
        async def read() -> dict[str, ProcessMark]:
            async with Stage(self.database) as stage:
                found = {task.id: monitor_of(task) for task in await stage.store.tasks()}
                return {name: one.process for name, one in found.items() if one and one.process}

        return asyncio.run(read())

    def kill(self) -> None:
        """SIGKILL the runtime, and no other process."""
        os.kill(self.process.process.pid, signal.SIGKILL)
        self.process.process.wait()


@pytest.fixture
def victim(child: Start, tmp_path: Path) -> Victim:
    return Victim(child, tmp_path)


def test_killing_a_runtime_ends_its_commands_at_once(victim: Victim) -> None:
    """Ours: kill -9 of the runtime also ends daemons in their own sessions, before any recovery."""
    victim.start({"id": "m", "command": DAEMON, "cwd": str(victim.home)})
    mark = victim.marks()["m"]
    pids = pids_in(*(victim.home / name for name in ("daemon", "child", "main")))
    assert all(map(is_running, pids))
    victim.kill()
    until_now(lambda: not any(map(is_running, pids)))
    until_now(lambda: gone(mark.token))


def test_after_a_restart_one_monitor_is_restarted_and_the_other_has_failed(victim: Victim) -> None:
    """Ours: SPEC §9, restarted on restore if requested, else failed as interrupted, never left running."""
    victim.start(
        {"id": "again", "command": "echo up; sleep 1000", "restart": True},
        {"id": "once", "command": "echo up; sleep 1000", "wake": "queue_turn"},
    )
    marks = victim.marks()
    victim.kill()

    async def restart() -> None:
        async with Stage(victim.database) as stage:
            assert (await stage.task("once")).state is TaskState.RUNNING
            await stage.monitors.recover()
            assert all(gone(mark.token) for mark in marks.values())
            again, once = await stage.status("again"), await stage.status("once")
            assert (again.state, once.state) == (RUNNING, MonitorState.FAILED)
            assert once.error is not None
            assert once.error.code == "INTERRUPTED"
            assert (await stage.task("again")).owner == stage.owner
            assert await stage.token("again") != marks["again"].token
            await until(lambda: stage.said() == ["up"])
            # The updates that woke the session can be taken, with the end that no process saw.
            texts = await stage.texts()
            assert texts[0] == "up"
            assert "the process that ran the monitor is gone" in texts

    asyncio.run(restart())
    assert not [mark for mark in victim.marks().values() if is_alive(mark)]


def test_a_pending_wake_remains_the_only_one(victim: Victim) -> None:
    """Ours: at most one wake is pending, whichever process dies and when."""
    victim.start({"id": "m", "command": "echo up; sleep 1000", "wake": "queue_turn", "restart": True})
    victim.kill()

    async def restart() -> None:
        async with Stage(victim.database) as stage:
            waited = await stage.waiting()
            assert len(waited) == 1
            await stage.monitors.recover()
            await until(lambda: stage.said() == ["up"])
            await stage.monitors.recover()
            assert await stage.waiting() == waited
            assert await stage.store.withdraw_input(waited[0])  # its turn begins
            await stage.monitors.recover()
            await until(lambda: stage.wakes)
            assert await stage.waiting() == [stage.wakes[0][1]]
            assert stage.wakes[0][1] != waited[0]
            batch = await stage.monitors.take_updates(SESSION)
            assert [(it.seq, it.text) for it in batch.updates] == [(1, "up"), (2, "up")]

    asyncio.run(restart())


def test_the_next_runtime_ends_processes_that_the_supervisor_could_not_end(victim: Victim) -> None:
    """Ours: a supervisor that is stopped while its runtime is killed leaves orphans until then."""
    victim.start({"id": "m", "command": DAEMON, "cwd": str(victim.home)})
    mark = victim.marks()["m"]
    os.kill(mark.pid, signal.SIGSTOP)
    victim.kill()
    pids = pids_in(*(victim.home / name for name in ("daemon", "child", "main")))
    assert all(map(is_running, pids))

    async def restart() -> None:
        async with Stage(victim.database) as stage:
            await stage.monitors.recover()
            assert (await stage.status()).state is MonitorState.FAILED

    asyncio.run(restart())
    assert gone(mark.token)
    assert not any(map(is_running, pids))


def test_only_one_of_several_runtimes_takes_over_a_monitor(victim: Victim) -> None:
    """Ours: a monitor never runs twice at the same time."""
    victim.start({"id": "m", "command": "echo up; sleep 1000", "restart": True})
    victim.kill()

    async def restart() -> None:
        async with Stage(victim.database) as first, Stage(victim.database) as second:
            await asyncio.gather(first.monitors.recover(), second.monitors.recover())
            counts = sorted(len(stage.monitors._watches) for stage in (first, second))
            assert counts == [0, 1]
            assert (await second.status()).state is RUNNING

    asyncio.run(restart())


def test_an_id_whose_runtime_was_killed_can_be_started_without_recovery(victim: Victim) -> None:
    """Ours: a dead process does not block the id."""
    victim.start({"id": "m", "command": "echo up; sleep 1000"})
    victim.kill()

    async def restart() -> None:
        async with Stage(victim.database) as stage:
            assert (await stage.start("echo again; sleep 1000")).state is RUNNING
            await until(lambda: "again" in stage.said())

    asyncio.run(restart())


def test_a_monitor_armed_at_session_start_restarts_if_the_session_is_opened_at_once(victim: Victim) -> None:
    """Bug: its record still said that it ran, so it was not started; then it was closed, and stayed off."""
    victim.start(
        {"id": "armed", "command": "echo up; sleep 1000", "arm": "session_start"},
        {"id": "manual", "command": "echo up; sleep 1000"},
    )
    victim.kill()

    async def scenario() -> None:
        async with Stage(victim.database) as stage:
            await stage.monitors.session_opened(SESSION)
            assert (await stage.status("armed")).state is MonitorState.RUNNING
            await stage.monitors.recover()
            assert (await stage.status("armed")).state is MonitorState.RUNNING
            assert (await stage.status("manual")).state is MonitorState.FAILED

    asyncio.run(scenario())


def test_stopping_a_monitor_whose_runtime_was_killed_closes_it(victim: Victim) -> None:
    """Ours: a stopped monitor is not restarted."""
    victim.start({"id": "m", "command": "echo up; sleep 1000", "restart": True})
    victim.kill()

    async def restart() -> None:
        async with Stage(victim.database) as stage:
            await stage.monitors.stop(SESSION, "m")
            await stage.monitors.recover()
            assert (await stage.status()).state is MonitorState.STOPPED
            assert stage.monitors._watches == {}

    asyncio.run(restart())


BUSY = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from monitor_stage import SESSION, Stage

async def restless(stage, name, restart):
    command = "(setsid sleep 1000 &); echo up; sleep 1000"
    while True:
        await stage.start(command, name, wake="queue_turn", restart=restart)
        await stage.monitors.take_updates(SESSION)
        await stage.monitors.stop(SESSION, name)

async def main(database):
    async with Stage(Path(database)) as stage:
        print("ready", flush=True)
        await asyncio.gather(*(restless(stage, f"m{{n}}", n % 2 == 0) for n in range(4)))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("after_s", [0.02, 0.05, 0.1, 0.2, 0.3])
def test_nothing_is_left_whenever_the_runtime_is_killed(child: Start, tmp_path: Path, after_s: float) -> None:
    """Ours: a kill while starting, waking, taking or stopping leaves neither a process nor a record."""
    victim = child(BUSY, str(tmp_path / "standfast.db"))
    assert victim.line() == "ready"
    with pytest.raises(subprocess.TimeoutExpired):
        victim.process.wait(after_s)
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.process.wait()

    async def restart() -> list[str]:
        async with Stage(tmp_path / "standfast.db") as stage:
            found = [monitor_of(task) for task in await stage.store.tasks(live=True)]
            tokens = [one.process.token for one in found if one is not None and one.process is not None]
            await stage.monitors.recover()
            for task in await stage.store.tasks(live=True):
                record = monitor_of(task)
                assert record is not None
                assert (task.owner, record.status.spec.restart) == (stage.owner, True)
            runs = [input_id.rpartition(".")[0] for input_id in await stage.waiting()]
            assert len(runs) == len(set(runs)) <= 4
            return tokens

    tokens = asyncio.run(restart())
    assert all(map(gone, tokens))


# Without a crash


def test_a_closed_runtime_leaves_restartable_monitors_armed(tmp_path: Path) -> None:
    """Ours: `restart` also applies after a runtime was closed; meanwhile the monitor is not running."""
    database = tmp_path / "standfast.db"

    async def whole() -> None:
        async with Stage(database) as stage:
            await stage.start("echo up; sleep 1000", restart=True)
            await until(stage.said)
        async with Stage(database, takes_up=lambda _: False) as stage:
            await stage.monitors.recover()
            assert (await stage.status()).state is MonitorState.ARMED
            assert (await stage.task()).state is TaskState.PENDING
        async with Stage(database) as stage:
            await stage.monitors.recover()
            assert (await stage.status()).state is RUNNING

    asyncio.run(whole())


def test_a_runtime_that_does_not_know_the_session_arms_monitors_of_a_dead_one(victim: Victim) -> None:
    """Ours: the monitor is not listed as running, and a process that knows the session starts it."""
    victim.start({"id": "m", "command": "echo up; sleep 1000", "restart": True})
    victim.kill()

    async def restart() -> None:
        async with Stage(victim.database, takes_up=lambda _: False) as stage:
            for _ in range(2):
                await stage.monitors.recover()
                assert (await stage.status()).state is MonitorState.ARMED
                assert (await stage.task()).owner == ""

    asyncio.run(restart())


def test_monitors_of_a_machine_that_is_silent_for_long_have_failed(tmp_path: Path) -> None:
    """Ours: after a reboot no process can prove that the old one is dead, but it no longer writes."""

    async def whole() -> None:
        clock = FakeClock()
        async with Stage(tmp_path / "standfast.db", clock) as stage:
            await stage.start("sleep 1000")
            await stage.store.change_task(SESSION, "m", _moved_elsewhere)
            other = Stage(stage.store, clock)
            await other.monitors.recover()
            assert (await other.status()).state is RUNNING
            clock.advance(SILENT_MS / 1000 + 1)
            await other.monitors.recover()
            assert (await other.status()).state is MonitorState.FAILED

    asyncio.run(whole())


def test_the_record_of_a_silent_monitor_is_refreshed_now_and_then(tmp_path: Path) -> None:
    """Ours: other processes see from its record that its owner is alive."""

    async def whole() -> None:
        clock = FakeClock()
        async with Stage(tmp_path / "standfast.db", clock) as stage:
            await stage.start("sleep 1000")
            clock.advance(60)
            await stage.monitors.recover()
            assert (await stage.task()).updated_at == clock.now_ms()
            assert (await stage.status()).state is RUNNING

    asyncio.run(whole())


def _moved_elsewhere(task: TaskRecord) -> TaskRecord:
    return msgspec.structs.replace(task, owner="elsewhere/boot:1:1/runtime.1")
