"""Event streams of real servers: cancellation, redirects, limits, lost connections, event loops, proxies."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import threading
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from plain_vendor import (
    ASKED,
    KEY,
    PlainDialect,
    PlainServer,
    everything_about,
    failure_of,
    heard,
    plain_model,
    text_of,
)

from standfast.errors import InvalidArgument, ModelError
from standfast.ports.model_provider import ModelDelta, ModelRequest, TextArrived
from standfast.providers.http.clients import _loops
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import HttpCall
from standfast.providers.http.endpoint import Endpoint, Secret
from standfast.providers.http.event_stream import StreamClient
from standfast.providers.http.failures import response_error
from standfast.providers.http.model import HttpModel
from standfast.testing.servers.http_server import Fault, ServedReply

pytestmark = pytest.mark.slow

LONG = 30.0
SAID = b'data: {"text":"hi"}\n\ndata: {"done":true}\n\n'


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await test()

    asyncio.run(bounded())


def raw(body: bytes, **fault: object) -> ServedReply:
    return ServedReply(text="", fault=Fault(body=body, **fault))  # type: ignore[arg-type]


def opened(model: HttpModel) -> AsyncGenerator[ModelDelta]:
    stream = model.stream(ASKED)
    assert isinstance(stream, AsyncGenerator)
    return stream


# Disconnecting


def test_cancelling_a_call_closes_its_connection_at_once() -> None:
    """Seed: cancelling closes the connection at once."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("a", "b"), fault=Fault(stall_at=25))]) as server:
            task = asyncio.create_task(heard(plain_model(server.base_url)))
            await server.stalled.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.hung_up.wait()

    run(test)


def test_closing_the_iterator_in_the_middle_closes_the_connection_at_once() -> None:
    """Seed: closing the iterator ends the call at once."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("a", "b"), fault=Fault(stall_at=25))]) as server:
            stream = opened(plain_model(server.base_url))
            assert await anext(stream) == TextArrived("a")
            await stream.aclose()
            await server.hung_up.wait()

    run(test)


def test_the_connection_of_a_completed_reply_is_reused() -> None:
    """Ours: a handshake costs more than the rest of a short call."""

    async def test() -> None:
        async with PlainServer(["one", "two", "three"]) as server:
            model = plain_model(server.base_url)
            assert await text_of(model) == "one"
            stream = opened(model)
            assert [await anext(stream), await anext(stream)]
            await stream.aclose()
            assert await text_of(model) == "three"
            assert server.connections == 1
            await model.close()

    run(test)


def test_a_body_left_open_after_the_last_event_is_not_waited_for() -> None:
    """Ours: the vendor's last event ends a reply, not the end of the body."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="hi", fault=Fault(stall_at=len(SAID))), "two"]) as server:
            model = plain_model(server.base_url)
            assert await text_of(model) == "hi"
            await server.hung_up.wait()
            assert await text_of(model) == "two"

    run(test)


def test_a_consumer_that_does_not_read_slows_the_server_down() -> None:
    """Seed: back-pressure; nothing is read ahead."""

    async def test() -> None:
        held_back = asyncio.Event()
        chunk = b"10000\r\n" + b'data: {"text":"%s"}\n\n' % (b"x" * (0x10000 - 20)) + b"\r\n"
        sent = 0

        class Flood(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self._transport = transport
                self._paused = False

            def data_received(self, data: bytes) -> None:
                kind = b"content-type: text/event-stream\r\ntransfer-encoding: chunked"
                self._transport.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % kind)
                self._flood()

            def _flood(self) -> None:
                nonlocal sent
                if not self._paused and not self._transport.is_closing():
                    self._transport.write(chunk)
                    sent += len(chunk)
                    asyncio.get_running_loop().call_soon(self._flood)

            def pause_writing(self) -> None:
                self._paused = True
                if sent > len(chunk):
                    held_back.set()

            def resume_writing(self) -> None:
                self._paused = False
                self._flood()

        server = await asyncio.get_running_loop().create_server(Flood, "127.0.0.1", 0)
        stream = opened(plain_model(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        await anext(stream)
        await held_back.wait()
        await stream.aclose()
        server.close()
        await server.wait_closed()

    run(test)


# Where the key is sent


def test_a_redirect_to_another_host_is_refused_and_no_key_is_sent_there() -> None:
    """Seed: a redirect to another host is refused, and no key is sent there."""

    async def test() -> None:
        async with PlainServer(["stolen"]) as other:
            elsewhere = other.base_url.replace("127.0.0.1", "localhost") + f"/?{KEY}"
            redirect = ServedReply(text="", fault=Fault(redirect=elsewhere))
            async with PlainServer([redirect]) as server:
                error = await failure_of(plain_model(server.base_url))
            assert "redirects to localhost (HTTP 307), which is not followed" in error.message
            assert not error.retryable
            assert KEY not in everything_about(error)
            assert (other.requests, other.connections) == ([], 0)

    run(test)


@pytest.mark.parametrize("location", ["/elsewhere", "http://[", "", "ftp://x"])
def test_no_redirect_is_followed(location: str) -> None:
    """Ours: a call is one request to one address."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="", fault=Fault(redirect=location)), "no"]) as server:
            await failure_of(plain_model(server.base_url))
            assert len(server.requests) == 1

    run(test)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "model.test",
        "ftp://model.test",
        "http://",
        "http://u:p@model.test",
        "http://m?k=1",
        "http://m#f",
        "http://[",
    ],
)
def test_a_base_url_that_is_invalid_or_contains_a_secret_is_refused(url: str) -> None:
    """Ours: base URLs are part of model names and records."""
    with pytest.raises(InvalidArgument):
        plain_model(url)


def test_a_request_names_the_client_and_carries_no_cookies_or_passwords(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours: nothing is read from .netrc or kept between calls."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))

    async def test() -> None:
        cookie = raw(SAID, headers={"set-cookie": "track=me; Path=/"})
        async with PlainServer([cookie, "two"]) as server:
            model = plain_model(server.base_url + "/v1/")
            await heard(model)
            await heard(model)
        first, second = server.requests
        assert (first.method, first.path) == ("POST", "/v1/say")
        assert first.headers["user-agent"].startswith("standfast/")
        assert first.headers["accept"] == "text/event-stream"
        assert first.headers["content-type"] == "application/json"
        assert first.headers["x-api-key"] == KEY
        assert "authorization" not in first.headers
        assert "cookie" not in second.headers

    run(test)


def test_without_a_key_no_key_is_sent() -> None:
    """Ours: local servers need no key."""

    async def test() -> None:
        async with PlainServer(["hi"]) as server:
            await heard(plain_model(server.base_url, key=None))
        assert "x-api-key" not in server.requests[0].headers

    run(test)


def test_proxy_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: users behind a proxy expect this of every program."""

    async def test() -> None:
        async with PlainServer(["through"]) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.base_url)
            assert await text_of(plain_model("http://model.invalid/v1")) == "through"
            assert proxy.requests[0].path == "http://model.invalid/v1/say"
            async with PlainServer(["around"]) as server:
                monkeypatch.setenv("NO_PROXY", "127.0.0.1")
                assert await text_of(plain_model(server.base_url)) == "around"
            assert len(proxy.requests) == 1

    run(test)


# Responses


@pytest.mark.parametrize(
    ("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
def test_an_encoded_reply_is_decoded(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    """Ours: gateways compress responses."""

    async def test() -> None:
        reply = raw(encode(SAID), headers={"content-encoding": encoding}, split=3)
        async with PlainServer([reply]) as server:
            assert await text_of(plain_model(server.base_url)) == "hi"

    run(test)


def test_a_reply_with_an_invalid_encoding_is_a_failure() -> None:
    """Ours: a body that httpx2 cannot decode is a provider error."""

    async def test() -> None:
        async with PlainServer([raw(SAID, headers={"content-encoding": "gzip"})]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert "closed the connection during the call" in error.message
        assert error.__context__ is None

    run(test)


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "Text/Event-Stream"])
def test_a_content_type_may_have_parameters_and_capital_letters(kind: str) -> None:
    """Ours: vendors write the content type in different ways."""

    async def test() -> None:
        async with PlainServer([raw(SAID, headers={"content-type": kind})]) as server:
            assert await text_of(plain_model(server.base_url)) == "hi"

    run(test)


def test_a_page_instead_of_a_stream_is_refused() -> None:
    """Seed: a proxy may answer 200 with HTML."""

    async def test() -> None:
        page = raw(b"<html>Please log in</html>", headers={"content-type": "text/html"})
        async with PlainServer([page]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert "text/html" in error.message
        assert "Please log in" in error.message

    run(test)


@pytest.mark.parametrize("length", [0, 5, 30, 10_000])
def test_a_wrong_content_length_is_a_retryable_failure(length: int) -> None:
    """Seed: proxies may send a wrong content length."""

    async def test() -> None:
        lie = ServedReply(text="hi there", fault=Fault(content_length=length))
        async with PlainServer([lie, "honest"]) as server:
            model = plain_model(server.base_url)
            if length < 10_000:  # the last event may arrive before the mismatch is noticed
                assert (await failure_of(model)).retryable
            else:
                await heard(model)
            assert await text_of(model) == "honest"

    run(test)


def test_bytes_after_a_truncated_body_are_not_read_as_another_response() -> None:
    """Ours: on a reused connection, the rest of such a response must not answer another call."""
    lengths = [25, len(SAID), len(SAID)]

    talks: list[asyncio.Task[object] | None] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                kind = b"content-type: text/event-stream\r\ncontent-length: %d" % lengths.pop(0)
                writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (kind, SAID))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def test() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        model = plain_model(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await failure_of(model)).retryable
        assert [await text_of(model), await text_of(model)] == ["hi", "hi"]
        assert len(talks) == 2
        await model.close()
        await asyncio.gather(*(talk for talk in talks if talk is not None))
        server.close()
        await server.wait_closed()

    run(test)


def test_a_path_that_cannot_be_written_as_a_url_is_refused() -> None:
    """Ours: a model's name may contain any characters."""

    async def test() -> None:
        wire = StreamClient(Endpoint("http://localhost", Secret(KEY), PlainDialect().authorize))
        with pytest.raises(InvalidArgument, match="cannot be written") as caught:
            async with wire.post(HttpCall("/m\x00", {}), _explain):
                pytest.fail("this is not reached")
        assert caught.value.__context__ is None

    run(test)


def test_a_stream_cut_at_any_byte_fails_or_is_complete() -> None:
    """Seed: streams are cut at every byte."""
    replies = [ServedReply(text="hi", fault=Fault(cut_at=at)) for at in range(len(SAID) + 1)]

    async def test() -> None:
        async with PlainServer(replies) as server:
            model = plain_model(server.base_url)
            for _ in range(len(SAID)):
                assert (await failure_of(model)).retryable
            assert await text_of(model) == "hi"

    run(test)


def test_a_connection_reset_is_a_retryable_failure() -> None:
    """Seed: a connection may be reset."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="hi", fault=Fault(cut_at=15, reset=True))]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert "closed the connection during the call" in error.message
        assert error.retryable

    run(test)


def test_a_refused_connection_is_a_retryable_failure() -> None:
    """Ours: a local server may not be running yet."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        error = asyncio.run(failure_of(plain_model(url)))

    assert error.message.startswith(f"{url} could not be reached")
    assert error.retryable


def test_a_stream_that_ends_early_is_retried_after_the_delay_it_named() -> None:
    """Seed: the SSE field `retry` sets the delay."""

    async def test() -> None:
        async with PlainServer([raw(b"retry: 1500\n\n" + SAID[:21])]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert error.message == "the reply of plain:m was cut off"
        assert (error.retryable, error.retry_after_ms) == (True, 1500)

    run(test)


def test_an_error_body_is_read_only_up_to_its_limit() -> None:
    """Ours: an error body may be endless."""

    async def test() -> None:
        async with PlainServer([raw(b"x" * 10_000_000, status=500, split=50_000)]) as server:
            seen: list[int] = []
            wire = StreamClient(Endpoint(server.base_url, Secret(None), PlainDialect().authorize))

            def explain(status: int, headers: object, body: bytes) -> ModelError:
                seen.append(len(body))
                return ModelError("seen")

            with pytest.raises(ModelError, match="seen"):
                async with wire.post(HttpCall("/say", {}), explain):
                    pass
        assert seen == [64 * 1024]

    run(test)


def test_an_error_whose_body_stalls_is_reported_with_the_part_received() -> None:
    """Ours: a 429 must be reported even without the rest of its message."""

    async def test() -> None:
        slow = ServedReply(text="", fault=Fault(status=429, message="slow down", stall_at=5))
        async with PlainServer([slow]) as server:
            model = plain_model(server.base_url, deadlines=Deadlines(between_chunks_s=0.05))
            error = await failure_of(model)
            await server.hung_up.wait()
        assert error.message == 'plain: {"err (HTTP 429)'
        assert error.retryable

    run(test)


def test_a_reply_that_is_too_large_is_refused() -> None:
    """Ours: the decompressed size of a reply is limited."""

    async def test() -> None:
        bomb = raw(gzip.compress(b": \n" * 5_000_000), headers={"content-encoding": "gzip"})
        async with PlainServer([bomb]) as server:
            address = Endpoint(server.base_url, Secret(None), PlainDialect().authorize)
            wire = StreamClient(address, max_reply_bytes=1_000_000)
            async with wire.post(HttpCall("/say", {"stream": True}), _explain) as answer:
                with pytest.raises(ModelError, match="more than 1,000,000 bytes") as caught:
                    await answer.more()
        assert caught.value.code == "RESPONSE_TOO_LARGE"

    run(test)


def _explain(status: int, headers: object, body: bytes) -> ModelError:
    return response_error(PlainDialect(), status, {}, body)


# Event loops


@contextmanager
def served_elsewhere(replies: list[str]) -> Iterator[PlainServer]:
    """Start a server on its own thread and event loop, which outlives the loops of its clients."""
    ready, over = threading.Event(), threading.Event()
    servers: list[PlainServer] = []

    async def serve() -> None:
        async with PlainServer(replies) as server:
            servers.append(server)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(LONG)
        yield servers[0]
    finally:
        over.set()
        thread.join()


def test_a_model_serves_several_event_loops_one_after_the_other() -> None:
    """Ours: `run_sync` makes a new loop each time, and nothing may be left open."""
    with served_elsewhere(["one", "two", "three"]) as server:
        model = plain_model(server.base_url)
        assert [asyncio.run(text_of(model)) for _ in range(3)] == ["one", "two", "three"]
        assert server.connections == 3
        assert len(model._client._clients._clients) == 1
        del model
        gc.collect()


def test_connections_of_discarded_models_are_closed_when_another_model_is_used() -> None:
    """Ours: a server that creates a model per request must not run out of sockets."""

    async def test() -> None:
        async with PlainServer(["hi"] * 5) as server:
            for count in range(4):
                assert await text_of(plain_model(server.base_url)) == "hi"
                gc.collect()
                waiting = _loops[asyncio.get_running_loop()]
                assert (len(waiting.closers), len(waiting.orphans)) == (1, 1), count

    run(test)


def test_a_model_serves_several_event_loops_at_once() -> None:
    """Ours: one agent may be used from several threads."""
    with served_elsewhere(["same"] * 8) as server:
        model = plain_model(server.base_url)
        said: list[str] = []
        threads = [
            threading.Thread(target=lambda: said.append(asyncio.run(text_of(model)))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert said == ["same"] * 8


def test_a_closed_model_can_be_called_again() -> None:
    """Ours: closing only closes the connections."""

    async def test() -> None:
        async with PlainServer(["one", "two"]) as server:
            model = plain_model(server.base_url)
            await model.close()
            assert await text_of(model) == "one"
            await model.close()
            await model.close()
            assert await text_of(model) == "two"
            assert server.connections == 2

    run(test)


def test_concurrent_calls_do_not_wait_for_each_other() -> None:
    """Ours: concurrency is limited by rate limits, not by the connection pool."""

    async def test() -> None:
        stalled = ServedReply(text="never", fault=Fault(stall_at=0))
        async with PlainServer([stalled, *["hi"] * 30]) as server:
            model = plain_model(server.base_url)
            first = asyncio.create_task(heard(model, ModelRequest(messages=[])))
            await server.stalled.wait()
            assert await asyncio.gather(*(text_of(model) for _ in range(30))) == ["hi"] * 30
            first.cancel()
            await server.hung_up.wait()

    run(test)
