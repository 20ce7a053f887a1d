"""The test server follows its script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from plain_vendor import PlainServer

from standfast.errors import InvalidArgument
from standfast.providers.script import Reply, ScriptedFailure
from standfast.testing.servers.http_server import Fault, SeenRequest, Served, ServedReply

STREAM = b'data: {"text":"a"}\n\ndata: {"text":"b"}\n\ndata: {"done":true}\n\n'
A, B, END = b'data: {"text":"a"}\n\n', b'data: {"text":"b"}\n\n', b'data: {"done":true}\n\n'


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


async def asked(server: PlainServer, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(f"{server.base_url}/say", json=body)


async def request_body(reply: Served, *, stream: bool = True) -> bytes:
    async with PlainServer([reply]) as server:
        return (await asked(server, {"stream": stream})).content


def faulty(**fault: Any) -> ServedReply:
    return ServedReply(chunks=("a", "b"), fault=Fault(**fault))


@pytest.mark.parametrize("reply", ["ab", {"text": "ab"}, Reply(text="ab"), ServedReply(text="ab")])
def test_replies_of_a_script_may_be_written_in_several_forms(reply: Served) -> None:
    """Ours: the forms are the same as for the scripted model."""
    assert asyncio.run(request_body(reply)) == b'data: {"text":"ab"}\n\n' + END


def test_a_request_without_streaming_gets_the_whole_reply() -> None:
    """Ours: the vendors' libraries also make calls without streaming."""
    assert asyncio.run(request_body("ab", stream=False)) == b'{"text":"ab","done":true}'


@pytest.mark.parametrize(
    ("order", "blocks"),
    [
        ("duplicate:0", [A, A, B, END]),
        ("swap:1", [A, END, B]),
        ("drop:1", [A, END]),
        ("garbage:1", [A, b'data: {"garbage": \n\n', END]),
    ],
)
def test_events_are_disordered_as_the_script_asks(order: str, blocks: list[bytes]) -> None:
    """Seed: events may be malformed, duplicated or out of order."""
    assert asyncio.run(request_body(faulty(order=order))) == b"".join(blocks)


def test_a_body_can_be_sent_a_few_bytes_at_a_time() -> None:
    """Seed: a stream may be split anywhere."""
    assert asyncio.run(request_body(faulty(split=3))) == STREAM


def test_an_error_has_the_vendors_form() -> None:
    """Seed: the test server answers errors as the vendor does, including scripted faults."""

    async def test() -> None:
        async with PlainServer([faulty(status=503, message="busy", headers={"retry-after": "1"})]) as server:
            response = await asked(server, {"stream": True})
        assert (response.status_code, response.json()) == (503, {"error": "busy"})
        assert response.headers["retry-after"] == "1"

    run(test)


def test_an_unexpected_request_is_reported() -> None:
    """Ours: an unplanned retry must neither hang nor pass."""

    async def test() -> None:
        async with PlainServer(["one"]) as server:
            await asked(server, {"stream": True})
            response = await asked(server, {"stream": True})
        assert response.status_code == 500
        assert response.json() == {"error": "request 2 was not expected: the script has 1"}

    run(test)


def test_a_request_that_the_vendor_would_refuse_is_refused() -> None:
    """Ours: no test passes with a request that the real vendor would refuse."""

    class StrictServer(PlainServer):
        def checked(self, request: SeenRequest) -> str | None:
            return None if "model" in request.body else "model is required"

    async def test() -> None:
        async with StrictServer(["one"]) as server:
            response = await asked(server, {"stream": True})
        assert (response.status_code, response.json()) == (400, {"error": "model is required"})

    run(test)


def test_an_exception_in_the_server_fails_the_test() -> None:
    """Ours: a mistake in a test server must not look like a vendor's error."""

    class BrokenServer(PlainServer):
        def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
            raise KeyError("oops")

    async def test() -> None:
        with pytest.raises(KeyError, match="oops"):
            async with BrokenServer(["one"]) as server:
                assert (await asked(server, {"stream": True})).status_code == 500

    run(test)


def test_a_reply_that_the_server_cannot_send_is_refused() -> None:
    """Ours: otherwise a failure in the script would be ignored."""
    with pytest.raises(InvalidArgument, match="use a fault"):
        PlainServer([Reply(failure=ScriptedFailure())])
    with pytest.raises(InvalidArgument, match="not been started"):
        assert PlainServer().base_url


def test_requests_are_recorded() -> None:
    """Ours: tests inspect the requests that were sent."""

    async def test() -> None:
        async with PlainServer(["one"]) as server, httpx2.AsyncClient() as client:
            await client.post(f"{server.base_url}/say?x=1", content=b"no JSON", headers={"X-Name": "Value"})
        (request,) = server.requests
        assert (request.method, request.path, request.body) == ("POST", "/say?x=1", None)
        assert request.headers["x-name"] == "Value"

    run(test)
