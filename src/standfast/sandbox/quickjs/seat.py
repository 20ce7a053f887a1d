"""A cell's place among the workers, and the worker in it.

Rules
-----
1. One thread at a time uses a seat. `stop` may come from any: it kills the worker's process, no more; whoever
   asks the worker finds out.
2. A cell has one outcome. A stop that comes after `end` does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from standfast.errors import EngineFailed, ErrorObject
from standfast.sandbox.quickjs.frames import Dump, Given, Image, Open, Question, Reply, Wanted
from standfast.sandbox.quickjs.inputs import loaded
from standfast.sandbox.quickjs.workers import Worker, Workers
from standfast.sandbox.worker_process import WorkerDied


class Stopped(Exception):
    """The cell was stopped from outside."""


class Seat:
    """Where a cell computes. `taken` tells whether it has a slot, `stopped` what it was stopped with."""

    def __init__(self, workers: Workers, key: str, load: Callable[[str], Any] | None) -> None:
        self._workers = workers
        self._key = key
        self._load = load
        self._stopping = threading.Lock()
        self._ended = False
        self.stopped: ErrorObject | None = None
        self.worker: Worker | None = None
        self.taken = False

    def stop(self, error: ErrorObject) -> None:
        with self._stopping:
            if self._ended or self.stopped is not None:
                return
            self.stopped = error
            if self.worker is not None:
                self.worker.kill()

    def end(self) -> ErrorObject | None:
        """From here on a stop comes too late; what it was stopped with before."""
        with self._stopping:
            self._ended = True
            return self.stopped

    def take(self) -> Worker | None:
        """The worker in the slot, which is taken if there is none."""
        if not self.taken:
            worker = self._workers.take(self._key)
            self.taken = True
            with self._stopping:
                self.worker = worker
        return self.worker

    def holds(self, state: bytes) -> bool:
        """Whether the worker has been left with this state. One that died meanwhile is dropped."""
        worker = self.take()
        if worker is not None and not worker.is_alive():
            self.drop()
            return False
        return worker is not None and worker.version == state

    def open(self, question: Open) -> None:
        """Have the worker make a guest ready for a run."""
        worker = self._here()
        worker.runs += 1
        try:
            worker.tell(question)
        except WorkerDied:
            self.drop()
            raise

    def ask(self, question: Question) -> Reply:
        """Ask the worker, and give it the values that it wants before it answers."""
        worker = self._here()
        worker.version = None
        try:
            got = worker.ask(question)
            while isinstance(got, Wanted):
                got = worker.ask(Given(self._loaded(got.name)))
        except WorkerDied:
            self.drop()
            raise
        if self.stopped is not None:
            raise Stopped
        return got

    def hear_more(self) -> Reply:
        """What the worker tells after it has told that there is more."""
        assert self.worker is not None
        try:
            got = self.worker.hear()
        except WorkerDied:
            self.drop()
            raise
        if self.stopped is not None or not isinstance(got, Reply):
            raise Stopped
        return got

    def _here(self) -> Worker:
        return self._attached() if self.worker is None or self.stopped is not None else self.worker

    def _attached(self) -> Worker:
        worker = self.take() or self._workers.attach()
        with self._stopping:
            self.worker = worker
            if self.stopped is not None:
                raise Stopped
        return worker

    def _loaded(self, name: str) -> str:
        """A value that the code reads; if there is none to be had, the worker stands in the middle of it."""
        assert self._load is not None
        try:
            return loaded(self._load, name)
        except BaseException:
            self.drop()
            raise

    def dump(self) -> Image:
        """The guest in the worker, which forgets it."""
        assert self.worker is not None
        try:
            reply = self.worker.ask(Dump())
        except WorkerDied:
            raise EngineFailed("the cell cannot be suspended: its worker died") from None
        if not isinstance(reply, Reply) or reply.image is None:
            raise EngineFailed("the cell cannot be suspended: its worker does not hold it")
        return reply.image

    def drop(self) -> None:
        """End the worker; the slot stays."""
        worker = self._without_worker()
        if worker is not None:
            worker.kill()
            worker.close()

    def release(self) -> None:
        """Free the slot, and the worker in it."""
        if self.taken:
            worker = self._without_worker()
            self.taken = False
            self._workers.give_back(worker)

    def leave(self) -> None:
        """Free the slot. A worker that holds the session's state is kept warm for it."""
        worker = self.worker
        if not self.taken or worker is None or worker.version is None or self.stopped is not None:
            self.release()
            return
        self._without_worker()
        self.taken = False
        self._workers.keep(self._key, worker)

    def _without_worker(self) -> Worker | None:
        with self._stopping:
            worker, self.worker = self.worker, None
        return worker
