"""Announcements of other processes, by `LISTEN` and `NOTIFY`.

Rules
-----
1. An announcement only says that something may have changed. Those that come while the connection is lost are
   lost as well: listeners hear an empty text after every connection, and poll.
2. Announcements are made after the commit they follow from, by transactions of their own. Inside a commit,
   `NOTIFY` takes a lock that all announcing commits of the database wait for, until the disk has answered.
3. A pooler that gives every transaction another connection delivers no announcements, so none are listened
   for through one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Final

import psycopg

from standfast.store.postgres.connection import Address, connect, is_pooled
from standfast.store.sql.connection import Row

_LOOK_S: Final = 0.5
_PAUSE_S: Final = 1.0

_MAX_TEXTS: Final = 500
_MAX_WAITING: Final = 20_000
_ANNOUNCE: Final = (
    b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, text) "
    b"FROM unnest($2::text[]) AS text"
)

Hear = Callable[[str], None]


class Listener:
    """A thread that hears announcements on a connection of its own, started by the first listener."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._hearers: dict[object, Hear] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, hear: Hear) -> Callable[[], None]:
        """Call *hear*, on the thread, with every announcement; return the function that ends it."""
        token = object()

        def end() -> None:
            self._hearers.pop(token, None)

        with self._lock:
            self._hearers[token] = hear
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="standfast-listener", daemon=True)
                self._thread.start()
        return end

    def close(self) -> None:
        """End the thread and its connection."""
        self._hearers.clear()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._address) as raw:
                    if is_pooled(raw):
                        return
                    raw.execute(f"LISTEN {self._address.channel}".encode())
                    self._hear_all(raw)
            except psycopg.Error:  # the listeners poll meanwhile
                self._stop.wait(_PAUSE_S)

    def _hear_all(self, raw: psycopg.Connection[Row]) -> None:
        self.tell("")
        while not self._stop.is_set():
            for notice in raw.notifies(timeout=_LOOK_S, stop_after=1):
                self.tell(notice.payload)

    def tell(self, text: str) -> None:
        """Let the listeners of this process hear *text*."""
        for hear in list(self._hearers.values()):
            hear(text)


class Announcer:
    """A thread that announces texts on a connection of its own, in their order, many in one transaction."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def announce(self, texts: Iterable[str]) -> None:
        """Announce *texts* soon. While the server cannot be reached they are dropped: listeners poll."""
        with self._lock:
            if self._is_closed or self._texts.qsize() > _MAX_WAITING:
                return
            for text in dict.fromkeys(texts):
                self._texts.put(text)
            if self._thread is None and not self._texts.empty():
                self._thread = threading.Thread(target=self._run, name="standfast-announcer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Announce what is left, and end the thread and its connection."""
        with self._lock:
            self._is_closed = True
        self._texts.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        raw: psycopg.Connection[Row] | None = None
        while texts := self._next():
            try:
                raw = raw or connect(self._address)
                raw.execute(_ANNOUNCE, (self._address.channel, texts))
            except psycopg.Error:
                while self._next(wait=False):
                    pass  # another attempt for each would keep `close` waiting
                if raw is not None:
                    raw.close()
                    raw = None
        if raw is not None:
            raw.close()

    def _next(self, *, wait: bool = True) -> list[str]:
        """Return texts, and wait for some if need be; none if there are no more."""
        texts: list[str] = []
        with contextlib.suppress(queue.Empty):
            while len(texts) < _MAX_TEXTS:
                text = self._texts.get(wait and not texts)
                if text is None:
                    self._texts.put(None)
                    break
                texts.append(text)
        return texts
