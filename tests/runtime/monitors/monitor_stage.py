"""Helpers for tests of monitors: a small host around `Monitors`, and ways to wait for real processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from standfast.durable.journal import new_owner, retire
from standfast.model.message import UserMessage
from standfast.model.monitor import MonitorSpec, MonitorState, MonitorStatus, MonitorUpdate
from standfast.model.session import SessionHead
from standfast.model.task import TaskRecord
from standfast.ports.clock import Clock, SystemClock
from standfast.ports.session_store import QueuedInput, SessionStore
from standfast.runtime.agent_runtime import open_store
from standfast.runtime.monitors import Monitors
from standfast.runtime.monitors.process import marked
from standfast.runtime.monitors.running_monitor import MonitorRecord

SESSION = "s"
LONG_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds, for example because another process has done something."""
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def until_async(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def until_now(condition: Callable[[], object]) -> None:
    """Wait as `until` does, without an event loop."""
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def is_running(pid: int) -> bool:
    """Return whether a process runs, sleeps or is stopped; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids_in(*files: Path) -> list[int]:
    """Return the process ids that commands have written with `echo $$ > file`."""
    return [int(file.read_text()) for file in files]


class Stage:
    """A miniature runtime: a store, the monitors of one owner, and the inputs that they queue."""

    def __init__(
        self, store: SessionStore | Path | None = None, clock: Clock | None = None, **how: Any
    ) -> None:
        self.store = open_store(store)
        self.owns_store = store is None or isinstance(store, Path)
        self.clock = clock or SystemClock()
        self.owner = new_owner("stage")
        self.heard: list[MonitorUpdate] = []
        self.wakes: list[tuple[str, str, str]] = []
        self.monitors = Monitors(
            store=self.store,
            clock=self.clock,
            owner=self.owner,
            queue_turn=self.queue_turn,
            notify=lambda _, update: self.heard.append(update),
            **how,
        )

    async def __aenter__(self) -> Stage:
        await self.make(SESSION)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.monitors.close()
        retire(self.owner)
        if self.owns_store:
            await self.store.close()

    async def make(self, session_id: str) -> None:
        now = self.clock.now_ms()
        await self.store.open_session(
            SessionHead(session_id=session_id, created_at=now, updated_at=now, agent="a", model="m", host={})
        )

    async def queue_turn(self, session_id: str, input_id: str, text: str) -> None:
        message, now = UserMessage(content=text), self.clock.now_ms()
        await self.store.put_input(
            QueuedInput(
                input_id=input_id, session_id=session_id, kind="queue", message=message, created_at=now
            )
        )
        self.wakes.append((session_id, input_id, text))

    async def start(self, command: str | tuple[str, ...], id: str = "m", **spec: Any) -> MonitorStatus:
        await self.monitors.start(SESSION, MonitorSpec(id=id, command=command, **spec))
        return await self.status(id)

    async def status(self, id: str = "m", session_id: str = SESSION) -> MonitorStatus:
        found = (await self.monitors.snapshot(session_id)).monitors
        return next(one for one in found if one.spec.id == id)

    async def over(self, id: str = "m") -> MonitorStatus:
        """Wait until a monitor has ended and return its stored status."""

        async def is_over() -> bool:
            return (await self.task(id)).state.is_terminal

        await until_async(is_over)
        return await self.status(id)

    async def task(self, id: str = "m", session_id: str = SESSION) -> TaskRecord:
        found = await self.store.task(session_id, id)
        assert found is not None
        return found

    async def token(self, id: str = "m") -> str:
        """Return the token that every process of a running monitor carries."""
        record = msgspec.convert((await self.task(id)).body, MonitorRecord)
        assert record.process is not None
        return record.process.token

    async def waiting(self, session_id: str = SESSION) -> list[str]:
        """Return the ids of the queued inputs."""
        return [item.input_id for item in await self.store.inputs(session_id)]

    async def texts(self, session_id: str = SESSION) -> list[str]:
        batch = await self.monitors.take_updates(session_id)
        return [update.text for update in batch.updates]

    def said(self, kind: str = "update") -> list[str]:
        return [update.text for update in self.heard if update.kind == kind]


def gone(token: str) -> bool:
    """Return whether no process with this token is left."""
    return not [pid for pid in marked(token) if pid != os.getpid()]


RUNNING = MonitorState.RUNNING
