"""What every run has: a jailed process in a place, a time to end, what it printed, a way to be stopped.

Rules
-----
1. One thread at a time talks to the guest. `stop` kills its process, no more; whoever listens finds out.
2. A run has one outcome; a stop that comes after the end does nothing.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final, Protocol

from standfast.errors import EngineFailed, ErrorObject
from standfast.ports.code_engine import CellRequest
from standfast.sandbox.cpython import failures, passing
from standfast.sandbox.cpython.failures import Failure
from standfast.sandbox.cpython.jail import JailProcess
from standfast.sandbox.cpython.messages import Ended, Loaded, Message, Unreadable, read_message, with_bytes
from standfast.sandbox.cpython.workers import Worker, Workers
from standfast.sandbox.output import Output
from standfast.sandbox.run_errors import cpu_error, memory_error, stdout_error, wall_error
from standfast.sandbox.watchdog import Watchdog
from standfast.sandbox.worker_process import WorkerDied

_LOOK_S: Final = 0.02
_LOADING_MS: Final = 2_000
"""What loading the session may compute in addition to `cpu_ms`. It is none of the code's computing."""


class RunStopped(Exception):
    """The run was stopped from outside; what it is stopped with is known."""


class RunFailed(Exception):
    """The run cannot go on."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.failure = Failure(error, hard=True)


class GuestDied(RunFailed):
    """Its process ended by itself."""


class Earlier(Protocol):
    """What a run that goes on has printed and used before."""

    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def wall_used_ms(self) -> int: ...
    @property
    def memory_peak_bytes(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class CellHost:
    """What cells share. `live` are those that have begun and not ended."""

    workers: Workers
    watchdog: Watchdog
    packages: tuple[str, ...] = ()
    live: set[GuestRun] = field(default_factory=set)


class GuestRun(ABC):
    """A run as far as it concerns its process. `stop` it from anywhere."""

    def __init__(self, request: CellRequest, host: CellHost, earlier: Earlier | None) -> None:
        self._request = request
        self._host = host
        self._limits = request.limits
        printed = (earlier.stdout, earlier.stderr) if earlier else ("", "")
        self.output = Output(self._limits.max_stdout_bytes, self._flooded, *printed)
        self.output.truncated = bool(earlier and earlier.truncated)
        self.memory_peak = earlier.memory_peak_bytes if earlier else None
        self._wall_before_ms = earlier.wall_used_ms if earlier else 0
        self._started = time.monotonic()
        self._stopping = threading.Lock()
        self._stopped: ErrorObject | None = None
        self._ended = False
        self._loading = False
        self._packing = False
        self._worker: Worker | None = None
        self._trial: Worker | None = None
        self._starting: JailProcess | None = None
        self._has_slot = False
        self._looking = object()

    def duration_ms(self) -> int:
        """Wall time so far, not counting time suspended."""
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))

    def stop(self, error: ErrorObject) -> None:
        """End the run with *error*, wherever it stands. Harmless once it has ended."""
        with self._stopping:
            if self._ended or self._stopped is not None:
                return
            self._stopped = error
            for process in (self._worker, self._trial, self._starting):
                if process is not None:
                    process.kill()

    @abstractmethod
    def hand_back(self) -> None:
        """Free the slot of a cell that stands, and end its process. Harmless if it computes."""

    # ── limits ───────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        """Have the run stopped when its time is over."""
        wall_s = max(1, self._limits.wall_ms - self._wall_before_ms) / 1000
        self._host.watchdog.watch(self, wall_s, lambda: self.stop(wall_error(self._limits)))

    def _look(self) -> None:
        """Stop the run if it uses more than it may; look again in a moment if not."""
        worker = self._worker
        if worker is None or self._ended:
            return
        try:
            used_up = self._used_up(worker)
        except Exception:  # it is ending; whoever listens will know, and the watchdog must live
            used_up = None
        if used_up is not None:
            self.stop(used_up)
        else:
            self._host.watchdog.watch(self._looking, _LOOK_S, self._look)

    def _used_up(self, worker: Worker) -> ErrorObject | None:
        if worker.meter.computed_ms() > self._limits.cpu_ms + (_LOADING_MS if self._loading else 0):
            return cpu_error(self._limits)
        if not (self._loading or self._packing) and worker.meter.needs_more_than(self._limits):
            return memory_error(self._limits)
        if worker.meter.has_too_many_threads():
            return failures.threads_error()
        return failures.files_error() if worker.meter.files_too_large() else None

    def _flooded(self) -> None:
        self.stop(stdout_error(self._limits))

    def _measure(self) -> None:
        worker = self._worker
        if worker is not None and (peak := worker.meter.peak.bytes()) is not None:
            self.memory_peak = max(peak, self.memory_peak or 0)

    # ── the guest ────────────────────────────────────────────────────────────────────────────────

    def _send(self, data: bytes) -> None:
        worker = self._attached()
        try:
            worker.process.send(data)
        except WorkerDied:
            raise self._death(worker) from None

    def _receive(self) -> tuple[Message, bytes]:
        worker = self._attached()
        try:
            frame = worker.process.receive()
        except WorkerDied:
            raise self._death(worker) from None
        return read_message(frame, worker.nonce)

    def _attached(self) -> Worker:
        worker = self._worker
        if worker is None or self._stopped is not None:
            raise RunStopped
        return worker

    def _death(self, worker: Worker) -> Exception:
        """What the end of the process means: a stop, or that it died of what it did."""
        self._measure()
        if self._stopped is not None:
            return RunStopped()
        worker.end()
        return GuestDied(failures.died_error(worker.process.status))

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _take_slot(self) -> None:
        """Get a place among the workers, with the session's own worker if there is one."""
        if self._has_slot:
            return
        worker = self._host.workers.take(self._request.key)
        self._has_slot = True
        with self._stopping:
            self._worker = worker

    def _attach(self, state: bytes) -> Worker:
        """A worker that holds *state*, or nothing yet. The run's process from here on."""
        if self._stopped is not None:
            raise RunStopped
        worker = self._worker
        if worker is None or not worker.holds(state) or not self._begun(worker):
            self._drop_worker()
            worker = self._fresh()
            if not self._begun(worker):
                raise self._death(worker)
        self._loading = worker.version != state
        self._packing = False
        self._host.watchdog.watch(self._looking, _LOOK_S, self._look)
        return worker

    def _fresh(self) -> Worker:
        """A worker with an empty session. A stop ends the waiting for it."""
        try:
            return self._host.workers.fresh(self._started_jail)
        except EngineFailed:
            if self._stopped is not None:
                raise RunStopped from None
            raise
        finally:
            self._starting = None

    def _started_jail(self, process: JailProcess) -> None:
        with self._stopping:
            self._starting = process
            if self._stopped is not None:
                process.kill()

    def _begun(self, worker: Worker) -> bool:
        """Make the worker the run's own; false if it died while it was idle."""
        worker.go_on()
        with self._stopping:
            self._worker = worker
            if self._stopped is not None:
                raise RunStopped
        try:
            worker.meter.begin(self._limits)
        except WorkerDied:
            return False
        return True

    def _on_loaded(self) -> None:
        """Let the code run in the loaded session. What the code uses is measured from here on."""
        worker = self._attached()
        if not self._loading:
            raise Unreadable
        try:
            worker.meter.begin(self._limits)
        except WorkerDied:
            raise self._death(worker) from None
        if worker.meter.needs_more_than(self._limits):
            raise RunFailed(failures.not_loaded_error(self._limits))
        self._loading = False
        self._send(b"{}")

    def _try_loading(self, payload: bytes) -> None:
        """Load *payload* in a process of its own; raise `RunFailed` if a later run could not. Blocking.

        A little memory and time must be left, so that what loads here loads everywhere, and code can run.
        """
        worker = self._fresh()
        try:
            with self._stopping:
                self._trial = worker
                if self._stopped is not None:
                    raise RunStopped
            worker.meter.begin(self._limits)
            worker.process.send(with_bytes(passing.encode({"nonce": worker.begin()}), payload))
            message, _ = read_message(worker.process.receive(), worker.nonce)
            computed_ms = worker.meter.computed_ms()
            worker.meter.begin(self._limits)  # what remains in memory now, all copies are freed
            used = worker.meter.used_bytes()
        except WorkerDied:
            if self._stopped is not None:
                raise RunStopped from None
            raise RunFailed(failures.not_loadable_error("the process that loaded it died")) from None
        finally:
            with self._stopping:
                self._trial = None
            self._host.workers.drop(worker)
        if isinstance(message, Ended) and message.lost is not None:
            raise RunFailed(failures.not_loadable_error(message.lost.message))
        if computed_ms > self._limits.cpu_ms + _LOADING_MS // 2:
            raise RunFailed(failures.not_loadable_error(f"loading it takes {computed_ms:.0f} ms"))
        if not isinstance(message, Loaded) or used > (self._limits.memory_mb << 20) * 15 // 16:
            raise RunFailed(failures.not_kept_error(self._limits))

    def _drop_worker(self) -> None:
        """End the process and keep the place."""
        with self._stopping:
            worker, self._worker = self._worker, None
        if worker is not None:
            self._host.workers.drop(worker)

    def _release(self) -> None:
        """Free the place and end the process in it."""
        if not self._has_slot:
            return
        with self._stopping:
            worker, self._worker = self._worker, None
        self._has_slot = False
        self._host.workers.give_back(worker)

    def _free_worker(self) -> None:
        """Leave the worker warm if it holds the session, else end it."""
        worker = self._worker
        if not self._has_slot or worker is None or worker.version is None:
            self._release()
            return
        with self._stopping:
            self._worker = None
        self._has_slot = False
        worker.halt()
        self._host.workers.keep(self._request.key, worker)

    def _forget(self) -> None:
        """The run is over, for everybody."""
        with self._stopping:
            self._ended = True
        self._host.watchdog.forget(self)
        self._host.watchdog.forget(self._looking)
        self._host.live.discard(self)
