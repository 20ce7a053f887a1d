"""An event loop on a thread of its own, for async tools where there is no other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class LoopThread:
    """Started when first needed; a daemon, so that a tool that blocks it cannot keep the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import asyncio

                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="standfast-tools", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(timeout=0.5)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        while True:
            try:
                loop.run_forever()
                return
            except (
                SystemExit,
                KeyboardInterrupt,
            ):  # raised by a task: its awaiter is told, if the loop goes on
                continue
    finally:
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """End what is under way, then the loop. A task that will not be cancelled keeps its daemon thread."""
    import asyncio

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()

    async def end() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()

    loop.create_task(end())
