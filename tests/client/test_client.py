"""The client against a real server: its methods, its streams, and a server that is killed or shut down."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from server_stage import ObedientModel, ServerProcess, ServerStage, make_agent

from standfast import Attachment, TurnStopped, UsageLimits
from standfast.client import BlockingClient, Client, connection
from standfast.errors import RequestRefused, ServerUnreachable
from standfast.model.events import NodeCommitted, TextStreamed, TurnCommitted


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("client"), agents=[make_agent(ObedientModel(0.001))]) as running:
        yield running


def test_the_client_has_the_methods_of_a_runtime_and_a_session(stage: ServerStage) -> None:
    """Seed: `Client` has the methods of `Runtime` and `Session`."""

    async def main() -> None:
        async with Client(stage.url, token=stage.token("admin", name="carol")) as client:
            assert [one.name for one in await client.agents()] == ["clerk"]
            session = await client.session("one", agent="clerk", metadata={"team": "a"})
            assert (await session.turn("hello")).output == "you said hello"
            turn = session.turn("stream 5")
            text = "".join([event.text async for event in turn if isinstance(event, TextStreamed)])
            assert text == (await turn).text == "0 1 2 3 4 "
            waiting = await session.turn("refund")
            assert waiting.status == "waiting"
            (asked,) = await session.approvals(pending=True)
            done = await session.approve(asked.approval_id, arguments={"order_id": "B2", "cents": 7})
            assert done.output == "the tool said refunded B2 7"
            assert (await client.approval(asked.approval_id)).decided_by.startswith("carol (tok")
            picture = Attachment(b"bytes", "image/png", "a.png")
            await session.turn(["look", picture])
            (part,) = (await session.export()).attachments
            assert await session.attachment(part.digest) == b"bytes"
            fork = await session.fork("two")
            await fork.rewind(turns=1)
            assert len(await session.messages()) == len(await fork.messages()) + 2
            assert {"one", "two"} <= {line.session_id for line in await client.sessions()}
            assert (await client.usage()).total.calls > 0
            await client.delete("two")
            with pytest.raises(RequestRefused, match="no session") as raised:
                await fork.view()
            assert (raised.value.status, raised.value.code) == (404, "SESSION_NOT_FOUND")
            with pytest.raises(TurnStopped):
                await session.turn("stream 5", limits=UsageLimits(max_tokens=1, max_wall_ms=1))

    asyncio.run(main())


def test_the_blocking_client_works_without_an_event_loop(stage: ServerStage) -> None:
    """Seed: the client has a blocking form."""
    with BlockingClient(stage.url, token=stage.token("admin")) as client:
        session = client.session("blocking", agent="clerk")
        assert session.turn("hello").output == "you said hello"
        texts = [event.text for event in session.stream("stream 3") if isinstance(event, TextStreamed)]
        assert texts == ["0 ", "1 ", "2 "]
        assert session.turn("refund").status == "waiting"
        (asked,) = client.approvals(session="blocking", pending=True)
        assert session.deny(asked.approval_id, reason="no").output.startswith("the tool said")
        seen = next(one for one in session.observe() if isinstance(one.event, NodeCommitted))
        assert seen.cursor.depth == 1
        assert client.run("1 + 1").result == 2
        assert session.view().state == "idle"


def test_an_unreachable_server_is_an_error_that_names_it() -> None:
    """Ours: the error names the address and says what to check."""
    client = BlockingClient("http://127.0.0.1:9", token="x", retry_s=0.0)
    with client, pytest.raises(ServerUnreachable) as no:
        client.agents()
    assert "127.0.0.1:9" in no.value.message


class Coverage:
    """The nodes of a session that an observer has seen committed, and how often."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def take(self, event: Any) -> None:
        if isinstance(event, NodeCommitted):
            self.seen[event.depth] = self.seen.get(event.depth, 0) + 1
        elif isinstance(event, TurnCommitted):
            for depth in range(event.depth - event.nodes + 1, event.depth + 1):
                self.seen[depth] = self.seen.get(depth, 0) + 1

    def is_once(self, depth: int) -> bool:
        return self.seen == dict.fromkeys(range(1, depth + 1), 1)


class CuttingProxy:
    """A TCP proxy that cuts a random connection whenever `EVERY` chunks have passed, up to *cuts* times.

    This ensures progress between two cuts, even on a busy machine.
    """

    EVERY = 4

    def __init__(self, port: int, cuts: int) -> None:
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._chance = random.Random(7)
        self._passed = 0
        self.left = cuts

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, outer}
        await asyncio.gather(self._pump(reader, outer), self._pump(inner, writer))
        self._writers -= {writer, outer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
                self._passed += 1
                if self._passed % self.EVERY == 0 and self.left:
                    self._cut()
        except OSError:
            pass
        finally:
            writer.close()

    def _cut(self) -> None:
        self._chance.choice(sorted(self._writers, key=id)).transport.abort()
        self.left -= 1


async def stream_turns(url: str, token: str, name: str, turns: int, count: int) -> Coverage:
    """Run turns one after another while observing their session; return the observed nodes."""
    coverage = Coverage()
    async with Client(url, token=token, retry_s=120) as client:
        session = await client.session(name, agent="clerk")

        async def watch() -> None:
            async for observed in session.observe():
                coverage.take(observed.event)

        watching = asyncio.ensure_future(watch())
        for number in range(turns):
            result = await session.turn(f"stream {count + number}")
            assert result.status == "finished"
        depth = 2 * turns
        until = time.monotonic() + 60
        while max(coverage.seen, default=0) < depth and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        watching.cancel()
        assert coverage.is_once(depth), (coverage.seen, depth)
        assert (await session.head()).depth == depth
    return coverage


@pytest.mark.slow
def test_lost_connections_neither_lose_nor_repeat_events(
    stage: ServerStage, monkeypatch: pytest.MonkeyPatch, load: Callable[[int, int], int]
) -> None:
    """Seed: 500 connections are cut in 200 streaming turns; every client sees every commit exactly once."""
    monkeypatch.setattr(connection, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(connection, "LONGEST_PAUSE_S", 0.2)

    async def main() -> int:
        async with CuttingProxy(stage.port, cuts=load(500, 200)) as proxy:
            url, token = f"http://127.0.0.1:{proxy.port}", stage.token("admin")
            work = [stream_turns(url, token, f"cut{n}", load(10, 4), 20) for n in range(20)]
            await asyncio.wait_for(asyncio.gather(*work), 240)
            return proxy.left

    assert asyncio.run(main()) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path)
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.stop(signal.SIGKILL)


@asynccontextmanager
async def streaming(
    server: ServerProcess, count: int, chunks: int
) -> AsyncIterator[list[asyncio.Task[Coverage]]]:
    """Run a turn in each of many sessions, and wait until all of them stream."""
    token = server.token()
    tasks = [
        asyncio.ensure_future(stream_turns(server.url, token, f"k{number}", 1, chunks))
        for number in range(count)
    ]
    async with Client(server.url, token=token) as client:
        until = time.monotonic() + 60
        while len(await client.sessions(state="running")) < count and time.monotonic() < until:
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
    yield tasks


@pytest.mark.slow
def test_streams_finish_after_the_server_was_killed(
    server: ServerProcess, load: Callable[[int, int], int]
) -> None:
    """Seed: the server is killed with SIGKILL under 50 streams, and all of them finish after the restart."""

    async def main() -> None:
        async with streaming(server, load(50, 15), 400) as tasks:
            server.stop(signal.SIGKILL)
            assert not any(task.done() for task in tasks)
            server.start()
            await asyncio.wait_for(asyncio.gather(*tasks), 120)

    asyncio.run(main())


@pytest.mark.slow
def test_a_turn_continues_when_its_client_disconnects(server: ServerProcess) -> None:
    """Seed: a turn does not depend on its client."""

    async def main() -> None:
        token = server.token()
        async with Client(server.url, token=token) as client:
            session = await client.session("left", agent="clerk")
            turn = session.turn("stream 100")
            async for _ in turn:
                break
        async with Client(server.url, token=token) as other:
            result = await other.session_handle("left").follow(turn.turn_id)
            assert result.text.endswith("99 ")

    asyncio.run(main())


@pytest.mark.slow
def test_a_server_that_shuts_down_lets_turns_finish_and_another_takes_over(server: ServerProcess) -> None:
    """Seed: on SIGTERM the server drains; clients reconnect to the next one and miss nothing."""

    async def main() -> None:
        async with streaming(server, 10, 300) as tasks:
            status = await asyncio.to_thread(server.stop, signal.SIGTERM)
            assert status in (0, -signal.SIGTERM)
            server.start()
            await asyncio.wait_for(asyncio.gather(*tasks), 120)

    asyncio.run(main())
