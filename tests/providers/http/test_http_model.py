"""Behaviour that all models over HTTP share."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable

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
    variables_of,
)

from standfast.errors import InvalidArgument
from standfast.model.message import AttachmentPart, TextPart, UserMessage
from standfast.ports.model_provider import ModelRequest, ReplyEnded, TextArrived
from standfast.providers.http.model import HttpModel, merge_json
from standfast.testing.servers.http_server import Fault, ServedReply

LONG = 30.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await test()

    asyncio.run(bounded())


def raw(body: bytes) -> ServedReply:
    return ServedReply(text="", fault=Fault(body=body))


def test_a_reply_is_streamed_and_ends_with_the_whole_reply() -> None:
    """Seed: deltas arrive as they are sent, and one `ReplyEnded` ends them."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("a", "b"))]) as server:
            model = plain_model(server.base_url)
            assert await heard(model) == [TextArrived("a"), TextArrived("b"), ReplyEnded(text="ab")]
            assert model.model_id == "plain:m"

    run(test)


def test_nothing_is_read_after_the_vendors_last_event() -> None:
    """Seed: after `ReplyEnded` nothing more is read."""

    async def test() -> None:
        said = raw(
            b'data: {"text":"a"}\n\ndata: {"done":true}\n\ndata: {"error":"no"}\n\ndata: {"done":true}\n\n'
        )
        async with PlainServer([said]) as server:
            assert await heard(plain_model(server.base_url)) == [TextArrived("a"), ReplyEnded(text="a")]

    run(test)


def test_a_stream_without_the_vendors_last_event_is_a_failure() -> None:
    """Seed: a stream that ends without the terminal event is a failure."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("a", "b"), fault=Fault(order="drop:2"))]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert "was cut off" in error.message
        assert error.retryable

    run(test)


def test_a_malformed_event_is_a_retryable_failure() -> None:
    """Seed: events may be malformed."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("a", "b"), fault=Fault(order="garbage:1"))]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert "plain:m sent an invalid event" in error.message
        assert error.retryable

    run(test)


def test_vendor_specific_settings_are_sent_unchanged() -> None:
    """Seed: `extra_body` and `extra_headers` are sent unchanged."""

    async def test() -> None:
        settings = {"extra_body": {"stream": True, "mood": "good"}, "extra_headers": {"x-team": "blue"}}
        async with PlainServer(["hi"]) as server:
            await heard(plain_model(server.base_url), ModelRequest(messages=[], settings=settings))
        (request,) = server.requests
        assert request.body == {"model": "m", "stream": True, "media": [], "mood": "good"}
        assert request.headers["x-team"] == "blue"
        assert request.headers["x-api-key"] == KEY

    run(test)


def test_extra_body_is_merged_without_removing_our_fields() -> None:
    """Bug: a setting for `generationConfig` replaced our values."""
    body = {"model": "m", "config": {"temperature": 1, "stop": ["a"]}, "tools": [{"name": "ours"}]}
    extra = {"config": {"seed": 7, "stop": ["b"]}, "tools": [{"type": "search"}], "model": "n"}
    assert merge_json(body, extra) == {
        "model": "n",
        "config": {"temperature": 1, "stop": ["a", "b"], "seed": 7},
        "tools": [{"name": "ours"}, {"type": "search"}],
    }
    assert body["tools"] == [{"name": "ours"}]


def test_an_unknown_setting_is_refused_before_anything_is_sent() -> None:
    """Ours: a misspelt setting must not be ignored."""

    async def test() -> None:
        async with PlainServer(["hi"]) as server:
            with pytest.raises(InvalidArgument, match="temprature"):
                await heard(
                    plain_model(server.base_url), ModelRequest(messages=[], settings={"temprature": 1})
                )
        assert server.requests == []

    run(test)


def test_every_attachment_is_read_once() -> None:
    """Seed: media is stored once, by digest."""
    asked: list[str] = []

    async def read(digest: str) -> bytes | None:
        asked.append(digest)
        return b"png"

    def picture(digest: str) -> AttachmentPart:
        return AttachmentPart(digest=digest, media_type="image/png", size=3)

    messages = [
        UserMessage(content=(TextPart(text="look"), picture("d1"), picture("d2"))),
        UserMessage(content=(picture("d1"),)),
        UserMessage(content="well?"),
    ]

    async def test() -> None:
        async with PlainServer(["nice"]) as server:
            await heard(plain_model(server.base_url), ModelRequest(messages=[*messages], read_blob=read))
        assert server.requests[0].body["media"] == ["d1", "d2"]

    run(test)
    assert asked == ["d1", "d2"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_missing_attachment_is_an_error_that_names_it(stored: bool) -> None:
    """Ours: a request is never sent without its attachment."""

    async def read(digest: str) -> bytes | None:
        return None

    part = AttachmentPart(digest="d1", media_type="image/png", size=3, name="cat.png")
    request = ModelRequest(messages=[UserMessage(content=(part,))], read_blob=read if stored else None)
    with pytest.raises(InvalidArgument, match=r"'cat\.png' is not stored"):
        asyncio.run(heard(plain_model("http://127.0.0.1:9"), request))


def test_an_empty_model_name_is_refused() -> None:
    """Ours: `openai:` names no model."""
    with pytest.raises(InvalidArgument, match="model name is empty"):
        HttpModel(PlainDialect(), "", base_url="http://localhost", api_key=None)


def test_a_model_name_can_include_its_server() -> None:
    """Seed: `openai-compatible:MODEL@BASE_URL` names the server."""
    model = HttpModel(
        PlainDialect(),
        "m",
        base_url="http://localhost/v1/",
        api_key=None,
        model_id="plain:m@http://localhost/v1",
    )

    assert repr(model) == "HttpModel('plain:m@http://localhost/v1', base_url='http://localhost/v1')"


# Secrets


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=401, message=f"no such key: {KEY}"),
        Fault(status=500, body=f"<html>{KEY}".encode()),
        Fault(status=500, body=(b"x" * 190 + KEY.encode())),
        Fault(body=f"<html>{KEY}".encode(), headers={"content-type": "text/html"}),
        Fault(body=(b"x" * 190 + KEY.encode()), headers={"content-type": "text/html"}),
        Fault(body=f'data: {{"error":"bad key {KEY}"}}\n\n'.encode()),
        Fault(body=f'data: {{"text":"a"}}\n\ndata: {{"{KEY}": \n\n'.encode()),
        Fault(redirect=f"http://evil.test/{KEY}"),
    ],
)
def test_a_key_repeated_by_the_vendor_is_redacted(fault: Fault) -> None:
    """Seed: the error has the vendor's message without the key."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="hello", fault=fault)]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert KEY[:12] not in everything_about(error)

    run(test)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=401, message="no such key"),
        Fault(redirect="http://evil.test/"),
        Fault(cut_at=5),
        Fault(cut_at=5, reset=True),
        Fault(content_length=10_000, cut_at=5),
        Fault(headers={"content-encoding": "gzip"}),
        Fault(order="garbage:0"),
    ],
)
def test_no_failure_logs_or_exposes_the_key(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """Seed: secrets never appear in an exception, its chain, or a variable of its frames."""
    caplog.set_level(logging.DEBUG)

    async def test() -> None:
        async with PlainServer([ServedReply(text="hello", fault=fault)]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert KEY not in everything_about(error) + variables_of(error)
        assert "httpx2" not in repr([error.__context__, error.__cause__])

    run(test)
    assert KEY not in caplog.text


def test_a_request_that_cannot_be_sent_is_reported_without_the_key() -> None:
    """Ours: the HTTP library prints headers that it refuses."""
    settings = {"extra_headers": {"x-note": f"two\nlines {KEY}"}}

    async def test() -> None:
        async with PlainServer() as server:
            error = await failure_of(
                plain_model(server.base_url), ModelRequest(messages=[], settings=settings)
            )
        assert not error.retryable
        assert KEY not in everything_about(error)

    run(test)


def test_a_rejected_key_is_reported_with_its_source() -> None:
    """Ours: the hint names the variable."""

    async def test() -> None:
        refusal = ServedReply(text="", fault=Fault(status=401, message="invalid key"))
        async with PlainServer([refusal]) as server:
            error = await failure_of(plain_model(server.base_url))
        assert str(error) == "plain: invalid key (HTTP 401) (set PLAIN_API_KEY)"

    run(test)


def test_a_long_reply_in_small_chunks_arrives_completely() -> None:
    """Seed: replies may have very many chunks."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("x",) * 3_000)]) as server:
            assert await text_of(plain_model(server.base_url), ASKED) == "x" * 3_000

    run(test)


def test_the_http_library_is_not_imported_before_a_model_is_called() -> None:
    """Seed: `import standfast` does not import httpx2."""
    script = (
        "import sys; from standfast import Agent, Runtime; import standfast.providers.http.model;"
        "assert 'httpx2' not in sys.modules and 'anyio' not in sys.modules, 'imported'"
    )

    subprocess.run([sys.executable, "-c", script], check=True)
