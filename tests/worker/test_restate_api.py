"""The client for Restate when Restate does not answer as it should."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from standfast import Agent, Runtime, ScriptedModel
from standfast.errors import NotConfigured
from standfast.worker.restate_api import RestateApi, sweep


class Server:
    """Gives every request the same answer, and closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._requests = 0
        self.asked_twice = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RestateApi]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield RestateApi(f"http://{host}:{port}", f"http://{host}:{port}")

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        writer.close()
        self._requests += 1
        if self._requests == 2:
            self.asked_twice.set()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 202 Accepted\r\ncontent-length: 9\r\n\r\n{", b"no\r\n\r\n", b""]
)
def test_an_answer_that_breaks_off_counts_as_unreachable(answer: bytes) -> None:
    """Bug: the death of Restate during an answer ended the sweep for the rest of the worker's life."""

    async def run() -> None:
        async with Server(answer).running() as api:
            with pytest.raises(NotConfigured, match="Restate cannot be reached at"):
                await api.wake("s1", "reason")

    asyncio.run(run())


def test_a_sweep_that_fails_is_logged_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """Bug: with a wrong --ingress, queued inputs were never run, and nothing said so."""

    async def run() -> None:
        server = Server(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
        async with server.running() as api, Runtime(keeper=False) as runtime:
            session = await runtime.session("s1", agent=Agent(ScriptedModel(["hello"]), name="clerk"))
            await session.queue("hi")
            sweeping = asyncio.ensure_future(sweep(runtime, api, 0.001))
            await server.asked_twice.wait()
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)

    asyncio.run(run())
    assert "the sweep for turns without an invocation failed: Restate refused http://127.0.0.1" in caplog.text
