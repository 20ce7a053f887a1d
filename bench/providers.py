"""What a chunk of a reply costs from the socket to the event. `python bench/providers.py [--quick]`

Prints one JSON object a line: framework, workload, metric, value. All are measured in one run, rounds
alternating after a warm-up, because machines are noisy; compare what is on top of `bare`, not absolutes.

- `bare` is httpx2 alone, reading the same bytes from the same server and looking at none of them.
- `wire` is the layer that all providers share, up to the events of the stream.
- `model` is a whole model, up to the deltas that a turn takes in: an `HttpModel` with a cheap dialect, or the
  vendor's own where the workload is named after one.
- `us_per_chunk` is the time of this process (the server is another), `us_on_top` what it is more than `bare`,
  `x_target` that over the target (5 us).

The server has the bytes ready and sends them as fast as they are taken. Every event is an HTTP chunk of its
own, as vendors send them. `small` is a bare piece of text, `named` what the larger vendors send around one:
the event's name, an index, ids. `burst` has 20 events a chunk, and counts events. The others are a reply of
as many words as the vendor's test server writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import httpx2
import msgspec

from standfast.errors import ModelError
from standfast.model.message import UserMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.providers.anthropic import AnthropicModel
from standfast.providers.google import GoogleModel
from standfast.providers.http.dialect import ErrorReport, HttpCall, PreparedRequest, ServerEvent
from standfast.providers.http.endpoint import Endpoint, Secret
from standfast.providers.http.event_stream import StreamClient
from standfast.providers.http.model import HttpModel
from standfast.providers.openai import OpenAIModel
from standfast.providers.openai_compatible import OpenAICompatibleModel
from standfast.providers.script import Reply
from standfast.testing.servers.anthropic_server import AnthropicServer
from standfast.testing.servers.chat_server import ChatServer
from standfast.testing.servers.google_server import GoogleServer
from standfast.testing.servers.http_server import ModelServer, SeenRequest
from standfast.testing.servers.openai_server import OpenAIServer

TARGET_US = 5.0
BURST = 20


def report(framework: str, workload: str, metric: str, value: float) -> None:
    line = {"framework": framework, "workload": workload, "metric": metric, "value": round(value, 4)}
    print(json.dumps(line), flush=True)


# What the server sends


def small(number: int) -> bytes:
    return b'data: {"delta":" word%d"}\n\n' % number


def named(number: int) -> bytes:
    return (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","item_id":"msg_0123456789abcdef0123456789abcdef",'
        b'"output_index":0,"content_index":0,"sequence_number":%d,"delta":" word","logprobs":[],'
        b'"obfuscation":"0123456789"}\n\n' % number
    )


WORKLOADS: dict[str, Callable[[int], bytes]] = {"small": small, "named": named, "burst": named}
LAST = b'event: done\ndata: {"delta":"","done":true}\n\n'
VENDORS: dict[str, type[ModelServer]] = {
    "openai": OpenAIServer,
    "openai-compatible": ChatServer,
    "anthropic": AnthropicServer,
    "google": GoogleServer,
}


def blocks(workload: str, count: int) -> list[bytes]:
    if workload in VENDORS:
        body = {"model": "m", "stream": True, "messages": [], "input": [], "contents": []}
        request = SeenRequest("POST", "/v1beta/models/m:streamGenerateContent?alt=sse", {}, body)
        return VENDORS[workload]().events(request, Reply(chunks=(" word",) * count))
    events = [WORKLOADS[workload](number) for number in range(count)] + [LAST]
    size = BURST if workload == "burst" else 1
    return [b"".join(events[start : start + size]) for start in range(0, len(events), size)]


def answer(workload: str, count: int) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    body = [b"%x\r\n%s\r\n" % (len(block), block) for block in blocks(workload, count)]
    return b"".join((head, *body, b"0\r\n\r\n"))


async def serve(count: int) -> None:
    """Answer what is asked of `/WORKLOAD/...`."""
    answers = {workload.encode(): answer(workload, count) for workload in (*WORKLOADS, *VENDORS)}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next(line for line in lines if line.startswith(b"content-length"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(answers[head.split(b"/", 2)[1].split(b" ")[0]])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def server(count: int) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(count)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


# What reads it


class Piece(msgspec.Struct, gc=False):
    delta: str
    done: bool = False


class Reader:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._decode = msgspec.json.Decoder(Piece).decode

    def feed(self, event: ServerEvent) -> Sequence[ModelDelta]:
        piece = self._decode(event.data)
        if piece.done:
            return (ReplyEnded(text="".join(self._texts)),)
        self._texts.append(piece.delta)
        return (TextArrived(piece.delta),)


class Cheap:
    """A dialect that says which workload it wants."""

    provider = "bench"

    def call(self, asked: PreparedRequest) -> HttpCall:
        return HttpCall("/", {})

    def reader(self, asked: PreparedRequest) -> Reader:
        return Reader()

    def authorize(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"}

    def read_error(self, status: int, body: bytes) -> ErrorReport:
        return ErrorReport(body.decode(errors="replace"))


def model_of(workload: str, base_url: str) -> HttpModel:
    match workload:
        case "openai":
            return OpenAIModel("gpt-5", base_url=base_url, api_key="bench-key")
        case "openai-compatible":
            return OpenAICompatibleModel("m", base_url, api_key="bench-key")
        case "anthropic":
            return AnthropicModel("claude-sonnet-4-5", base_url=base_url, api_key="bench-key")
        case "google":
            return GoogleModel("gemini-2.5-flash", base_url=base_url, api_key="bench-key")
        case _:
            return HttpModel(Cheap(), workload, base_url=base_url, api_key=None)


Read = Callable[[], Awaitable[int]]


@asynccontextmanager
async def readers(base_url: str, workload: str) -> AsyncIterator[dict[str, Read]]:
    """The ways to read a workload; each gives how much it has seen."""
    url = f"{base_url}/{workload}"
    wire = StreamClient(Endpoint(url, Secret(None), Cheap().authorize))
    model = model_of(workload, url)
    async with httpx2.AsyncClient(timeout=None) as client:

        async def bare() -> int:
            seen = 0
            async with client.stream("POST", url, content=b"{}") as response:
                async for chunk in response.aiter_raw():
                    seen += len(chunk)
            return seen

        async def events() -> int:
            seen = 0
            async with wire.post(HttpCall("/", {}), refused) as reply:
                while (found := await reply.more()) is not None:
                    seen += len(found)
            return seen

        async def deltas() -> int:
            seen = 0
            async for _ in model.stream(ModelRequest(messages=[UserMessage(content="go on")])):
                seen += 1
            return seen

        yield {"bare": bare, "wire": events, "model": deltas}
    await wire.close()
    await model.close()


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    return ModelError(f"HTTP {status}")


async def timed(read: Read, least: int) -> float:
    gc.collect()
    before = time.process_time()
    seen = await read()
    took = time.process_time() - before
    if seen < least:
        raise SystemExit(f"only {seen} of {least} came")
    return took


async def measure(base_url: str, workload: str, count: int, rounds: int) -> None:
    async with readers(base_url, workload) as ways:
        took: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 2):
            for name, read in ways.items():
                seconds = await timed(read, count)
                if number >= 2:
                    took[name].append(seconds)
    each = {name: statistics.median(times) / count * 1e6 for name, times in took.items()}
    for name, value in each.items():
        report(name, workload, "us_per_chunk", value)
    for name in ("wire", "model"):
        on_top = statistics.median(a - b for a, b in zip(took[name], took["bare"], strict=True)) / count * 1e6
        report(name, workload, "us_on_top", on_top)
        report(name, workload, "x_target", on_top / TARGET_US)


async def main(count: int, rounds: int) -> None:
    with server(count) as base_url:
        for workload in (*WORKLOADS, *VENDORS):
            await measure(base_url, workload, count, rounds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    else:
        asyncio.run(main(10_000, 5 if options.quick else 25))
