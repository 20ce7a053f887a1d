"""Jailed processes, each with one session in it; `sandbox.workers` says which session has one.

Rules
-----
1. A process serves one session and is then ended. One more than needed is kept ready, because starting one
   takes a thousand times longer than using one.
2. A process without a run is stopped (SIGSTOP), so that no thread of a guest computes between two runs.
3. A process that has sent more than belongs to its last run is ended: no run reads a message of another.
4. Freeing a process waits a moment until it is gone. One that takes longer keeps its slot, and a background
   thread waits for it.
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
"""A process is replaced after this many runs, because interpreters leak."""
_PATIENCE_S: Final = 0.3
_CLOSE_S: Final = 10.0


class CPythonWorker:
    """A session in a jailed process. `version` is the state that it holds, None if that is unknown.

    `nonce` is that of the current run, which each frame from the process must carry.
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
        """Return whether a run from this state can begin here: not if the process has unread messages."""
        fits = self.version == state and self.runs < MAX_RUNS
        return fits and self.process.is_alive() and not self.process.has_unread()

    def begin(self) -> str:
        """Start a run with a new nonce, which is returned as text. The state is unknown from here on."""
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.version = None
        self.runs += 1
        return self.nonce.hex()

    def kill(self) -> None:
        self.meter.peak.bytes()  # remembered, for when the process is gone
        self.process.kill()

    def halt(self) -> None:
        """Stop the process until `wake`."""
        with contextlib.suppress(OSError):
            os.kill(self.process.guest_pid, signal.SIGSTOP)
        self._halted = True

    def wake(self) -> None:
        if self._halted:
            with contextlib.suppress(OSError):
                os.kill(self.process.guest_pid, signal.SIGCONT)
            self._halted = False

    def end(self) -> bool:
        """Kill the process; return whether it was gone within a moment."""
        return self.process.end(_PATIENCE_S)

    def close(self) -> None:
        self.process.close()
        self.meter.close()


class CPythonWorkers(WorkerSlots[CPythonWorker]):
    """The jailed processes of one engine."""

    def __init__(self, jail: Jail, capacity: int) -> None:
        super().__init__(capacity)
        self.jail = jail
        self._spare: CPythonWorker | None = None
        self._making: threading.Thread | None = None
        self._starting: JailProcess | None = None
        self._ending: set[threading.Thread] = set()
        self._closed = False
        self._changing = threading.Lock()

    def fresh(self, started: Callable[[JailProcess], None]) -> CPythonWorker:
        """Return a process with an empty session: the spare one, or a new one. Blocking.

        *started* is called with a new process before the wait for it, so that killing it can end the wait.
        """
        with self._changing:
            worker, self._spare = self._spare, None
        if worker is not None and not worker.process.is_alive():
            worker.close()
            worker = None
        if worker is None:
            worker = self._made(started)
        self.prepare()
        return worker

    def keep(self, key: str, worker: CPythonWorker) -> None:
        worker.halt()
        super().keep(key, worker)

    def give_back(self, worker: CPythonWorker | None) -> None:
        """Free a slot as soon as the process in it is gone."""
        if worker is None or worker.end():
            super().give_back(worker)
        else:
            self._later(lambda: super(CPythonWorkers, self).give_back(worker))

    def drop(self, worker: CPythonWorker) -> None:
        """End the process of a run that keeps its slot."""
        if worker.end():
            worker.close()
        else:
            self._later(worker.close)

    def ending(self) -> int:
        """Return how many processes a background thread waits for."""
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

    def close(self) -> None:
        """End every process without a run, and start no more. Blocking."""
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

    def prepare(self) -> None:
        """Start a spare process in the background, unless there is one."""
        with self._changing:
            if self._closed or self._spare is not None or self._making is not None:
                return
            self._making = threading.Thread(target=self._make_spare, name="standfast-jail", daemon=True)
            self._making.start()

    def _make_spare(self) -> None:
        def started(process: JailProcess) -> None:
            with self._changing:
                self._starting = process
                if self._closed:
                    process.kill()

        worker: CPythonWorker | None = None
        with contextlib.suppress(EngineFailed):  # the next run that needs one reports it
            worker = self._made(started)
        with self._changing:
            self._making = self._starting = None
            if not self._closed:
                self._spare, worker = worker, None
        if worker is not None:
            worker.close()

    def _made(self, started: Callable[[JailProcess], None]) -> CPythonWorker:
        if self._closed:
            raise EngineFailed("the sandbox is closed")
        process = self.jail.start()
        started(process)
        process.wait_until_ready()
        try:
            return CPythonWorker(process)
        except WorkerDied:  # killed as soon as it was ready
            process.close()
            raise EngineFailed("a jail ended before it was used") from None
        except EngineFailed:
            process.close()
            raise
