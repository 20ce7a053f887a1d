"""Worker processes that hold guests; `sandbox.workers` assigns them to sessions.

A process drops its guest before it is reused for another session. A process that is busy, or has sent
unexpected data, is killed instead. A process ends after `MAX_RUNS` runs. One spare process is kept ready.
`close` ends all processes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Final

import msgspec

from standfast.errors import EngineFailed
from standfast.sandbox.quickjs import frames
from standfast.sandbox.worker_process import WorkerDied, WorkerProcess, pipe_line
from standfast.sandbox.workers import WorkerSlots

COMMAND: Final = (sys.executable, "-m", "standfast.sandbox.quickjs.worker")
MAX_RUNS: Final = 1_000
_MAX_FRAME: Final = 2**32 - 1
_ENVIRONMENT: Final = frozenset({
    "HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV", "XDG_CACHE_HOME",
    "PYTHONDONTWRITEBYTECODE",
})  # fmt: skip


class QuickJsWorker:
    """A process that holds the guest of a session. `version` is the stored state that the guest has."""

    def __init__(self, process: WorkerProcess, home: QuickJsWorkers, runs: int) -> None:
        self._process = process
        self._home = home
        self._busy = self._killed = False
        self.warm = False
        self.runs = runs
        self.version: bytes | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, question: frames.Question) -> frames.NameRequested | frames.GuestReply:
        """Send a request and return the reply; raise `WorkerDied` if there is none."""
        self._busy = True
        self.send(question)
        return self.receive()

    def send(self, question: frames.Question) -> None:
        """Send a request, followed by its image if it has one; raise `WorkerDied` if the process is dead."""
        image = question.image if isinstance(question, frames.Open | frames.Settle | frames.Finish) else None
        if image is None or not image.data:
            self._process.send(frames.encode(question))
            return
        behind = frames.Image(image.boot, size=len(image.data))
        self._process.send(frames.encode(msgspec.structs.replace(question, image=behind)))
        self._process.send_raw(image.data)

    def receive(self) -> frames.NameRequested | frames.GuestReply:
        """Wait for the next reply."""
        data = self._process.receive()
        try:
            answer: frames.NameRequested | frames.GuestReply = frames.decode_answer(data)
        except msgspec.DecodeError:
            self.kill()
            raise WorkerDied from None
        if isinstance(answer, frames.GuestReply) and answer.image is not None:
            image = frames.Image(answer.image.boot, self._process.receive_raw(answer.image.size))
            answer = msgspec.structs.replace(answer, image=image)
        self._busy = isinstance(answer, frames.GuestReply) and answer.more
        self._home.has_answered()
        return answer

    def kill(self) -> None:
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """Drop the guest and return the process for reuse; end the process if that is not possible."""
        self.version = None
        spoiled = self._busy or self._killed or self.runs >= MAX_RUNS
        if spoiled or not self.is_alive() or self._process.has_unread():
            self._home.end(self._process)
            return
        with contextlib.suppress(WorkerDied):
            self._process.send(frames.encode(frames.Drop()))
        self._home.put_by(self._process, self.runs)


class QuickJsWorkers(WorkerSlots[QuickJsWorker]):
    """The worker processes of one engine."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._ready: list[tuple[WorkerProcess, int]] = []
        self._all: set[WorkerProcess] = set()
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        self._closed = False
        self._works = False

    def attach(self) -> QuickJsWorker:
        """Return a worker without a guest."""
        while True:
            with self._lock:
                process, runs = self._ready.pop() if self._ready else (self._started(), 0)
                self._start_another()
            if process.is_alive():
                return QuickJsWorker(process, self, runs)
            self.end(process)

    def drop(self, worker: QuickJsWorker) -> None:
        """End the process of a run that keeps its slot: the process may be in the middle of a request."""
        worker.kill()
        worker.close()

    def prepare(self) -> None:
        """Start a worker and wait for its first reply, once."""
        with self._preparing:
            if not self._works:
                worker = self.attach()
                with contextlib.suppress(WorkerDied):  # the next run reports the reason
                    worker.ask(frames.Dump())
                worker.close()

    def has_answered(self) -> None:
        """Keep a spare worker ready from now on, because the first worker has filled the cache."""
        if not self._works:
            with self._lock:
                self._works = True
                self._start_another()

    def put_by(self, process: WorkerProcess, runs: int) -> None:
        """Keep a process without a guest for reuse, unless there are enough."""
        with self._lock:
            keep = not self._closed and len(self._all) <= self.capacity + 1
            if keep:
                self._ready.append((process, runs))
        if not keep:
            self.end(process)

    def end(self, process: WorkerProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.close()

    def close(self) -> None:
        """End every process."""
        super().close()
        with self._lock:
            self._closed = True
            processes, self._all, self._ready = list(self._all), set(), []
        for process in processes:
            process.close()

    def _start_another(self) -> None:
        if self._works and not self._ready and not self._closed and len(self._all) <= self.capacity:
            self._ready.append((self._started(), 0))

    def _started(self) -> WorkerProcess:
        if self._closed:
            raise EngineFailed("the sandbox is closed")
        env = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}
        process = WorkerProcess(COMMAND, pipe_line(_MAX_FRAME), env=env)
        self._all.add(process)
        return process
