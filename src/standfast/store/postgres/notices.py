"""Announcements of other processes, by `LISTEN` and `NOTIFY`.

Rules
-----
1. An announcement only says that something may have changed. Announcements made while the connection is lost
   are lost too: after every reconnect, listeners receive an empty text, and they also poll.
2. An announcement is made after its commit, in a separate transaction. Within a commit, `NOTIFY` takes a lock
   for which all announcing commits of the database wait until the disk has been written.
3. A pooler that assigns a connection per transaction delivers no announcements, so there is no listener on
   one.
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


class NoticeThread:
    """A thread that receives announcements on its own connection. The first call of `listen` starts it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._hearers: dict[object, Hear] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, hear: Hear) -> Callable[[], None]:
        """Call *hear* with every announcement, on the thread; return a function that stops this."""
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
                    self.tell("")
                    while not self._stop.is_set():
                        for notice in raw.notifies(timeout=_LOOK_S, stop_after=1):
                            self.tell(notice.payload)
            except psycopg.Error:  # the listeners poll meanwhile
                self._stop.wait(_PAUSE_S)

    def tell(self, text: str) -> None:
        """Pass *text* to the listeners of this process."""
        for hear in list(self._hearers.values()):
            hear(text)


class Announcer:
    """A thread that announces texts on its own connection, in order, many in one transaction."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def announce(self, texts: Iterable[str]) -> None:
        """Announce *texts* soon. They are dropped while the server cannot be reached; listeners also poll."""
        with self._lock:
            if self._is_closed or self._texts.qsize() > _MAX_WAITING:
                return
            for text in dict.fromkeys(texts):
                self._texts.put(text)
            if self._thread is None and not self._texts.empty():
                self._thread = threading.Thread(target=self._run, name="standfast-announcer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Announce the remaining texts, and end the thread and its connection."""
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
                    pass  # retrying each of them would delay `close`
                if raw is not None:
                    raw.close()
                    raw = None
        if raw is not None:
            raw.close()

    def _next(self, *, wait: bool = True) -> list[str]:
        """Return the next texts, waiting for one if necessary; [] if there will be no more."""
        texts: list[str] = []
        with contextlib.suppress(queue.Empty):
            while len(texts) < _MAX_TEXTS:
                text = self._texts.get(wait and not texts)
                if text is None:
                    self._texts.put(None)
                    break
                texts.append(text)
        return texts
