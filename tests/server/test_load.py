"""The server under load and with misbehaving clients: it stays small and serves the others."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ServerProcess

pytestmark = pytest.mark.slow

MB = 1 << 20
JSON = "content-type: application/json"


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path, "--limit", "streams=2000", "--limit", "burst=5000")
    made.start()
    yield made
    made.stop(9)


def memory_mb(server: ServerProcess) -> float:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


async def connect(server: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


def head(method: str, path: str, token: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {token}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_thousand_observers_see_every_commit(
    server: ServerProcess, load: Callable[[int, int], int]
) -> None:
    """Seed: the server handles 1,000 concurrent observers."""

    async def observe(token: str, path: str, ready: asyncio.Semaphore) -> bool:
        reader, writer = await connect(server)
        writer.write(head("GET", path, token))
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        ready.release()
        try:
            await reader.readuntil(b"event: turn_committed")
            return True
        finally:
            writer.close()

    async def main() -> None:
        token, ready = server.token(), asyncio.Semaphore(0)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            client.headers["authorization"] = f"Bearer {token}"
            for number in range(10):
                body = {"session_id": f"s{number}", "agent": "clerk"}
                (await client.post("/v1/sessions", json=body)).raise_for_status()
            paths = [f"/v1/sessions/s{number % 10}/events" for number in range(load(1000, 300))]
            watching = [asyncio.ensure_future(observe(token, path, ready)) for path in paths]
            for _ in watching:
                await ready.acquire()
            before = memory_mb(server)
            turns = [client.post(f"/v1/sessions/s{n}/turns", json={"input": "stream 20"}) for n in range(10)]
            assert all(done.is_success for done in await asyncio.gather(*turns))
            assert all(await asyncio.wait_for(asyncio.gather(*watching), 120))
            assert memory_mb(server) - before < 150

    asyncio.run(main())


def test_misbehaving_clients_use_few_resources_and_others_are_served(
    server: ServerProcess, load: Callable[[int, int], int]
) -> None:
    """Seed: slow readers and senders, bombs and 2,000 idle connections leave the server small and serving."""

    async def main() -> None:
        token = server.token()
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            client.headers["authorization"] = f"Bearer {token}"
            body = {"session_id": "loud", "agent": "clerk"}
            (await client.post("/v1/sessions", json=body)).raise_for_status()
            before = memory_mb(server)
            held = [await connect(server) for _ in range(load(2000, 500))]
            slow_readers = [await connect(server) for _ in range(50)]
            for _, writer in slow_readers:  # they request everything and read nothing
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(head("GET", "/v1/sessions/loud/events", token))
            slow_senders = [await connect(server) for _ in range(50)]
            for _, writer in slow_senders:
                writer.write(head("POST", "/v1/sessions", token, JSON, "content-length: 900") + b"{")
            for _ in range(5):
                turn = await client.post("/v1/sessions/loud/turns", json={"input": "flood 300"})
                assert turn.is_success
            await header_bomb(server)
            await body_bomb(server, token)
            started = time.monotonic()
            assert (await client.get("/v1/sessions/loud")).is_success
            assert time.monotonic() - started < 20
            assert memory_mb(server) - before < 250  # less than the slow readers have left unread
            for _, writer in (*held, *slow_readers, *slow_senders):
                writer.transport.abort()
            assert (await client.get("/readyz")).is_success

    asyncio.run(main())


async def header_bomb(server: ServerProcess) -> None:
    """Send an endless request head; the server must close the connection."""
    reader, writer = await connect(server)
    writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    sent = 0
    try:
        while sent < 64 * MB and not reader.at_eof():
            writer.write(b"x-bomb: " + b"a" * 8192 + b"\r\n")
            await writer.drain()
            sent += 8192
            await asyncio.sleep(0)
    except OSError:
        pass
    assert sent < 16 * MB
    writer.close()


async def body_bomb(server: ServerProcess, token: str) -> None:
    """Send an endless body; the server must refuse it at its limit."""
    reader, writer = await connect(server)
    writer.write(head("POST", "/v1/sessions", token, JSON, "transfer-encoding: chunked"))
    sent = 0
    try:
        while sent < 64 and not reader.at_eof():
            writer.write(b"100000\r\n" + b" " * MB + b"\r\n")
            await asyncio.wait_for(writer.drain(), 10)
            sent += 1
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
    except (OSError, TimeoutError):
        pass  # the connection was closed while the body was sent
    assert sent < 64
    writer.close()
