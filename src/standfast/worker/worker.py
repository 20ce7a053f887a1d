"""A process that claims the turns of a store and runs them, until the operator stops it.

Theory of operation
------------------- A worker is a runtime whose background loop has a concurrency limit: while it has a free
slot, it claims queued inputs, turns whose waits have ended, due timers and triggers, and turns whose owner is
gone. Nothing else coordinates workers; the store's leases decide which of them gets a turn.

Rules
-----
1. A draining worker claims nothing. Its turns have `grace_s` to end; the others are released with their
   leases, and another worker resumes them immediately.
2. All workers of a store use the same snapshot key. A worker with another key does not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from standfast.durable.process_identity import process_name
from standfast.errors import NotConfigured, StandfastError
from standfast.ports.session_store import SessionStore, TurnCounts
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.sessions.live_session import TurnSlots
from standfast.worker.health import WorkerReport, serve_health

log: Final = logging.getLogger("standfast")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_STUCK_S: Final = 30.0
"""A worker whose loop has not succeeded for this long is unhealthy."""

_COUNT_S: Final = 2.0
"""The time limit for a report to read the store's counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestateSettings:
    """Where a worker listens for Restate, and where it reaches Restate.

    `advertise` is the URL under which Restate reaches the worker. A sweep for lost work runs every `sweep_s`.
    """

    listen: tuple[str, int]
    advertise: str
    admin: str
    ingress: str
    sweep_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker.

    `queues` are those that it claims from, each with its own limit; None for all. `health` is the host and
    port of its health endpoint.
    """

    concurrency: int = 16
    queues: Mapping[str, int | None] | None = None
    grace_s: float = 30.0
    health: tuple[str, int] | None = None
    snapshot_key: bytes | None = None
    restate: RestateSettings | None = None


class Worker:
    """A worker. `await Worker(runtime, settings).run()` returns once it was stopped and has drained."""

    def __init__(self, runtime: Runtime, settings: WorkerSettings) -> None:
        self.runtime = runtime
        self.settings = settings
        self.address: tuple[str, int] | None = None
        """The address of the health endpoint."""
        queues = settings.queues
        if settings.restate is not None and queues is not None:  # Restate sends turns of all queues
            queues = {**{agent.queue: None for agent in runtime.agents.values()}, **queues}
        self._slots = TurnSlots(settings.concurrency, queues)
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()

    def stop(self) -> None:
        """Drain and return; if called again, release the running turns without waiting for them to end."""
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    async def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Run until `stop`, SIGTERM or SIGINT; call *started* once the worker claims turns."""
        settings, runtime, slots = self.settings, self.runtime, self._slots
        # If Restate schedules the turns, the runtime itself starts only those below running ones.
        runtime.slots = slots if settings.restate is None else TurnSlots(0)
        runtime.slots.is_closed = True  # until the worker has started
        async with runtime, self._stopped_by_signals():
            await require_same_key(runtime.store, settings.snapshot_key, runtime.now_ms())
            async with serve_health(settings.health, self.report) as self.address:
                log.info("worker %s claims turns", process_name(os.getpid()))
                runtime.slots.is_closed = False
                runtime.slots.freed()
                if settings.restate is not None:
                    await self._work_for_restate(settings.restate, started)
                    return
                started()
                await self._stopping.wait()
                log.info(
                    "worker drains: %s turns are running, waiting up to %s s", slots.running, settings.grace_s
                )
                await _first_of(slots.drain(settings.grace_s), self._at_once.wait())
        log.info("worker has stopped")

    async def _work_for_restate(self, settings: RestateSettings, started: Callable[[], None]) -> None:
        try:
            from standfast.worker.restate_api import RestateApi, sweep
            from standfast.worker.restate_engine import SessionObject, listen_for_restate, serve_sessions
        except ModuleNotFoundError as error:
            raise NotConfigured(
                f"--engine restate needs a package that is not installed: {error.name}",
                hint="pip install 'standfast[restate]'",
            ) from None
        api = RestateApi(settings.admin, settings.ingress)
        sessions = SessionObject(self.runtime, api, self._slots)
        listening = listen_for_restate(settings.listen)  # Restate connects during registration
        serving = asyncio.ensure_future(
            serve_sessions(sessions, listening, self._stopping.wait, self.settings.grace_s)
        )
        sweeping = asyncio.ensure_future(sweep(self.runtime, api, settings.sweep_s))
        try:
            await api.register(settings.advertise)
            self._listen_to_signals()  # Restate's SDK has replaced the handlers
            started()
            await _first_of(serving, self._at_once.wait())
        finally:
            for task in (sweeping, serving):
                task.cancel()
            await asyncio.gather(sweeping, serving, return_exceptions=True)

    async def report(self) -> WorkerReport:
        """Report whether the worker is healthy and claims turns, with the counts of its store."""
        slots, looked_s = self._slots, self.runtime.looked_s
        silent_s = None if looked_s is None else time.monotonic() - looked_s
        turns: TurnCounts | None = None
        with contextlib.suppress(StandfastError, TimeoutError):
            async with asyncio.timeout(_COUNT_S):
                turns = await self.runtime.turn_counts()
        return WorkerReport(
            healthy=silent_s is not None and silent_s < _STUCK_S,
            ready=not self._stopping.is_set(),
            body={
                "worker": process_name(os.getpid()),
                "state": "draining" if self._stopping.is_set() else "working",
                "running": slots.running,
                "concurrency": slots.total,
                "queues": None if slots.queues is None else sorted(slots.queues),
                "last_look_s": None if silent_s is None else round(silent_s, 3),
                "turns": None if turns is None else msgspec.to_builtins(turns),
            },
        )

    @contextlib.asynccontextmanager
    async def _stopped_by_signals(self) -> AsyncIterator[None]:
        self._listen_to_signals()
        try:
            yield
        finally:
            for number in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)

    def _listen_to_signals(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)


async def _first_of(*waits: Awaitable[Any]) -> None:
    """Wait for the first of *waits*, and cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def require_same_key(store: SessionStore, key: bytes | None, now_ms: int) -> None:
    """Raise `NotConfigured` if *key* is not the snapshot key that the store's other workers use.

    The first worker records its key's digest.
    """
    if key is None:
        return
    ours = hashlib.sha256(b"standfast snapshot key\0" + key).digest()
    await store.put_plugin_record("standfast", "worker", "snapshot_key", ours, now_ms, replace=False)
    if await store.plugin_record("standfast", "worker", "snapshot_key") != ours:
        raise NotConfigured(
            "this worker's snapshot key is not that of the store's other workers",
            hint="set STANDFAST_SNAPSHOT_KEY, or --key-file, to the same key on all machines",
        )
