"""Jailed processes, each with one session in it; see `slots` for who has one.

Rules
-----
1. A process serves one session and is then ended. One more than is needed is kept ready, because making one
   takes a thousand times longer than using one.
2. A process that nobody runs code in is stopped, so that no thread of a guest goes on in the background.
3. A process that has said more than belongs to its last run is ended: nothing of one run is read in another.
4. Whoever gives a process up waits a moment at most until it is gone. One that takes longer keeps its place,
   and is waited for in the background.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from standfast.errors import EngineFailed
from standfast.sandbox.cpython.jail import Jail, JailProcess
from standfast.sandbox.cpython.messages import NO_RUN, NONCE_BYTES
from standfast.sandbox.cpython.meter import Meter
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import WorkerSlots

MAX_RUNS: Final = 500
"""A process that ran so much is replaced: interpreters gather dust."""
_PATIENCE_S: Final = 0.3
_CLOSE_S: Final = 10.0


class Worker:
    """A session in a jailed process. `version` names the state that it holds, None if it cannot go on.

    `nonce` is that of the run in it, which each frame from the process must carry.
    """

    def __init__(self, process: JailProcess) -> None:
        self.process = process
        self.meter = Meter(process.guest_pid, process.home)
        self.version: bytes | None = b""
        self.nonce = NO_RUN
        self.warm = False
        self.runs = 0
        self._halted = False

    def holds(self, state: bytes) -> bool:
        """Whether a run from this state can begin here: not if the process has spoken since its last run."""
        fits = self.version == state and self.runs < MAX_RUNS
        return fits and self.process.is_alive() and not self.process.has_unread()

    def begin(self) -> str:
        """Start a run with a new nonce, which is returned as text. What the process holds is unknown then."""
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.version = None
        self.runs += 1
        return self.nonce.hex()

    def kill(self) -> None:
        self.meter.peak.bytes()
        self.process.kill()

    def halt(self) -> None:
        """Let it do nothing until `go_on`."""
        self._signal(signal.SIGSTOP)
        self._halted = True

    def go_on(self) -> None:
        if self._halted:
            self._signal(signal.SIGCONT)
            self._halted = False

    def end(self) -> bool:
        """Kill the process; whether it was gone within a moment."""
        return self.process.end(_PATIENCE_S)

    def close(self) -> None:
        self.process.close()
        self.meter.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.process.guest_pid, number)


class Workers(WorkerSlots[Worker]):
    """The jailed processes of one engine."""

    def __init__(self, jail: Jail, capacity: int) -> None:
        super().__init__(capacity)
        self.jail = jail
        self._spare: Worker | None = None
        self._making: threading.Thread | None = None
        self._starting: JailProcess | None = None
        self._ending: set[threading.Thread] = set()
        self._closed = False
        self._changing = threading.Lock()

    def fresh(self, started: Callable[[JailProcess], None]) -> Worker:
        """A process with an empty session: the one that was kept ready, or a new one. Blocking.

        *started* is told of a new one before it is waited for: to kill it ends the waiting.
        """
        with self._changing:
            worker, self._spare = self._spare, None
        if worker is not None and not worker.process.is_alive():
            worker.close()
            worker = None
        if worker is None:
            worker = self._made(started)
        self._replenish()
        return worker

    def keep(self, key: str, worker: Worker) -> None:
        worker.halt()
        super().keep(key, worker)

    def give_back(self, worker: Worker | None) -> None:
        """Free a slot as soon as the process in it is gone."""
        if worker is None or worker.end():
            super().give_back(worker)
        else:
            self._later(lambda: super(Workers, self).give_back(worker))

    def drop(self, worker: Worker) -> None:
        """End the process of a run that keeps its slot."""
        if worker.end():
            worker.close()
        else:
            self._later(worker.close)

    def ending(self) -> int:
        """How many processes are waited for in the background."""
        return len(self._ending)

    def _later(self, work: Callable[[], None]) -> None:
        def do() -> None:
            try:
                work()
            finally:
                self._ending.discard(thread)

        thread = threading.Thread(target=do, name="standfast-jail-end", daemon=True)
        self._ending.add(thread)
        thread.start()

    def prepare(self) -> None:
        """Have a process ready before it is needed."""
        self._replenish()

    def close(self) -> None:
        """End every process that nobody uses, and make no more. Blocking."""
        self._closed = True
        self.close_idle()
        with self._changing:
            making, starting = self._making, self._starting
        if starting is not None:
            starting.kill()
        if making is not None:
            making.join()
        until = time.monotonic() + _CLOSE_S
        for thread in list(self._ending):
            thread.join(max(0.0, until - time.monotonic()))
        with self._changing:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def _made(self, started: Callable[[JailProcess], None]) -> Worker:
        if self._closed:
            raise EngineFailed("the sandbox is closed")
        process = self.jail.start()
        started(process)
        process.wait_until_ready()
        try:
            return Worker(process)
        except WorkerDied:  # killed as soon as it was ready
            process.close()
            raise EngineFailed("a jail ended before it was used") from None
        except EngineFailed:
            process.close()
            raise

    def _replenish(self) -> None:
        with self._changing:
            if self._closed or self._spare is not None or self._making is not None:
                return
            self._making = threading.Thread(target=self._make_spare, name="standfast-jail", daemon=True)
            self._making.start()

    def _spare_started(self, process: JailProcess) -> None:
        with self._changing:
            self._starting = process
            if self._closed:
                process.kill()

    def _make_spare(self) -> None:
        worker: Worker | None = None
        with contextlib.suppress(EngineFailed):  # whoever needs one will be told
            worker = self._made(self._spare_started)
        with self._changing:
            self._making = self._starting = None
            if not self._closed:
                self._spare, worker = worker, None
        if worker is not None:
            worker.close()
