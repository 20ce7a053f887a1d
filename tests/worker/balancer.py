"""A TCP load balancer for Restate workers that run on several hosts and share one address."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from types import TracebackType

_CONNECT_S = 1.0


class Balancer:
    """A balancer on *here* that forwards each connection to one of *targets* that accepts it, at `url`."""

    def __init__(self, here: str, targets: list[tuple[str, int]]) -> None:
        self._here, self._targets = here, targets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Balancer:
        self._thread.start()
        starting = asyncio.start_server(self._pass_on, self._here, 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.url = f"http://{self._here}:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for target in random.sample(self._targets, len(self._targets)):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    there, back = await asyncio.open_connection(*target)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.gather(_copy(reader, back), _copy(there, writer))
                break
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
