"""JSON-RPC 2.0 over lines: frames, errors, batches, requests in both directions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from standfast.errors import InvalidArgument, OutsideError
from standfast.rpc.json_rpc import MAX_REQUESTS, RpcPeer

pytestmark = pytest.mark.anyio


class Wire:
    """The other end of a peer: the bytes that it sends, and the responses that it gets."""

    def __init__(self, *sent: bytes) -> None:
        self.sent = asyncio.Queue[bytes]()
        self.got = asyncio.Queue[Any]()
        for one in sent:
            self.sent.put_nowait(one)

    async def write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        self.got.put_nowait(json.loads(data))

    def received(self) -> list[Any]:
        return [self.got.get_nowait() for _ in range(self.got.qsize())]


async def handle(method: str, params: Any) -> Any:
    if method == "fail":
        raise InvalidArgument("this is wrong", hint="do it right")
    if method == "break":
        raise RuntimeError("a defect")
    return {"method": method, "params": params}


async def answers(pieces: Iterable[bytes], **options: int) -> list[Any]:
    wire = Wire(*pieces, b"")
    await RpcPeer(wire.sent.get, wire.write, handle, **options).serve()
    return wire.received()


def call(number: object, method: str, params: object = None) -> bytes:
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(request).encode() + b"\n"


async def test_a_request_gets_its_result_under_its_id() -> None:
    """Seed: the daemon speaks JSON-RPC 2.0."""
    found = await answers([call("a", "hello", [1])])
    assert found == [{"jsonrpc": "2.0", "id": "a", "result": {"method": "hello", "params": [1]}}]


async def test_lines_may_arrive_in_any_pieces() -> None:
    """Ours: a read may end in the middle of a line."""
    data = call(1, "a") + b"\r\n\n" + call(2, "b") + call(3, "c").rstrip(b"\n")
    found = await answers([data[place : place + 1] for place in range(len(data))])
    assert [one["id"] for one in found] == [1, 2, 3]


async def test_a_notification_gets_no_response_even_if_it_fails() -> None:
    """Ours: the JSON-RPC specification requires it."""
    assert await answers([b'{"jsonrpc":"2.0","method":"fail"}\n']) == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"1", -32600),
        (b'{"method": "a", "id": 1}', -32600),
        (b'{"jsonrpc": "1.0", "method": "a", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "method": 7, "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "method": "a", "id": {}}', -32600),
        (call(1, "fail").strip(), -32602),
        (call(1, "break").strip(), -32603),
    ],
)
async def test_malformed_input_gets_an_error_and_the_connection_stays_open(line: bytes, code: int) -> None:
    """Seed: malformed input is answered with an error, and does not end the connection."""
    wrong, right = await answers([line + b"\n", call(9, "after")])
    assert wrong["error"]["code"] == code
    assert right["id"] == 9


async def test_an_error_has_our_code_and_hint() -> None:
    """Ours: the data of an error is our error object."""
    [found] = await answers([call(1, "fail")])
    assert found["error"]["message"] == "this is wrong"
    assert found["error"]["data"]["code"] == "INVALID_ARGUMENT"
    assert found["error"]["data"]["hint"] == "do it right"


async def test_a_batch_is_answered_with_one_array() -> None:
    """Ours: the JSON-RPC specification requires it; notifications in a batch have no response."""
    batch = b"[" + call(1, "a").strip() + b',{"jsonrpc":"2.0","method":"b"},7]\n'
    [found] = await answers([batch])
    assert [one.get("id") for one in found] == [1, None]
    assert found[1]["error"]["code"] == -32600


async def test_a_line_that_is_too_long_is_refused_and_skipped() -> None:
    """Seed: frames have a size limit, and the rest of a longer one is discarded."""
    pieces = [b"x" * 400] * 5 + [b"\n" + call(2, "after")]
    refused, right = await answers(pieces, max_line_bytes=1000)
    assert refused["error"]["data"]["code"] == "REQUEST_TOO_LARGE"
    assert right["id"] == 2


async def test_requests_run_concurrently_and_too_many_are_refused() -> None:
    """Seed: the number of concurrent requests is limited."""
    release, wire = asyncio.Event(), Wire()

    async def wait(method: str, params: Any) -> str:
        if method == "wait":
            await release.wait()
        return "done"

    peer = RpcPeer(wire.sent.get, wire.write, wait)
    serving = asyncio.ensure_future(peer.serve())
    wire.sent.put_nowait(call(0, "wait") + call(1, "quick"))
    assert (await wire.got.get())["id"] == 1
    wire.sent.put_nowait(b"".join(call(number, "wait") for number in range(2, MAX_REQUESTS + 2)))
    refused = await wire.got.get()
    assert refused["error"]["data"]["code"] == "RATE_LIMITED"
    release.set()
    wire.sent.put_nowait(b"")
    await serving
    assert len(wire.received()) == MAX_REQUESTS


async def test_our_own_request_gets_the_response_with_its_id() -> None:
    """Ours: ACP asks the editor for permission over the same connection."""
    wire = Wire()
    peer = RpcPeer(wire.sent.get, wire.write, handle)
    serving = asyncio.ensure_future(peer.serve())
    asking = [asyncio.ensure_future(peer.request("ask", {"n": n})) for n in range(3)]
    numbers = [(await wire.got.get())["id"] for _ in asking]
    wire.sent.put_nowait(json.dumps({"jsonrpc": "2.0", "id": numbers[1], "result": "yes"}).encode() + b"\n")
    refusal = {"jsonrpc": "2.0", "id": numbers[0], "error": {"code": 1, "message": "no"}}
    wire.sent.put_nowait(json.dumps(refusal).encode() + b"\n" + b'{"id": "unknown", "result": 1}\n')
    assert await asking[1] == "yes"
    with pytest.raises(OutsideError, match="no"):
        await asking[0]
    wire.sent.put_nowait(b"")
    with pytest.raises(OutsideError, match="ended"):
        await asking[2]
    await serving
