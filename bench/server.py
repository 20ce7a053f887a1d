"""What HTTP adds to a durable turn, beside a bare starlette request and LangGraph's server.

`python bench/server.py [--quick] [--no-peer]` prints one JSON object a line: workload, metric, value. Every
server runs in a process of its own. A client in this process, of a few lines over a socket, drives them over
kept connections, and turns in this process alternate with them: the same turns, on a store of the same kind,
as many at once. The client takes CPU from the servers where there are two cores; its share is printed, and so
is the CPU time of the server for each turn. Compare ratios: machines are noisy.

This process and the servers run on uvloop. `standfast serve` lets Python look for garbage less often than a
program does by default, so turns in this process are measured with both settings; `in_process_tuned` has the
server's.

The peer is `langgraph dev` (in memory, with a job for each client), installed into a virtual environment in
`build/` first; its graph answers as our model does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from standfast import Agent, Runtime
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived

PROMPT, REPLY = "u" * 200, "r" * 400
TOKEN_FILE = "token"


class BenchModel:
    """Replies at once; a prompt that is a number is the number of chunks to stream."""

    model_id = "bench:model"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        said = request.messages[-1].content  # type: ignore[union-attr]
        if isinstance(said, str) and said.isdigit():
            for number in range(int(said)):
                yield TextArrived("chunk of text ")
                await asyncio.sleep(0.01 if number % 100 == 99 else 0)  # the reader must keep up
        yield ReplyEnded(text=REPLY)

    async def close(self) -> None:
        pass


def make_agent() -> Agent[None, str]:
    return Agent(BenchModel(), name="bench")


def report(workload: str, metric: str, value: float) -> None:
    print(json.dumps({"workload": workload, "metric": metric, "value": round(value, 4)}), flush=True)


# The servers, each in a process of its own


def serve(kind: str, home: Path) -> None:
    """Serve on a free port and print it."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from standfast.server import Limits, create_app
    from standfast.server.serving import LimitedProtocol, Listen, make_server

    def started(bound: list[tuple[str, int]]) -> None:
        print(bound[0][1], flush=True)

    if kind == "bare":

        async def echo(request: Request) -> Response:
            return Response(await request.body(), media_type="application/json")

        app = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
        config = uvicorn.Config(app, port=0, http=LimitedProtocol, log_config=None, access_log=False)
        server = uvicorn.Server(config)

        async def run() -> None:
            task = asyncio.ensure_future(server.serve())
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            started([server.servers[0].sockets[0].getsockname()])
            await task

        asyncio.run(run())
        return
    limits = Limits(requests_per_s=1e6, burst=10**6, turns=1000, streams=1000)
    application = create_app(Runtime(home / "standfast.db", agents=[make_agent()]), limits=limits)
    ours = make_server(application, Listen(port=0))

    def announce(bound: list[tuple[str, int]]) -> None:
        async def token() -> None:
            made, _ = await application.state.tokens.create(scopes=("admin",))
            (home / TOKEN_FILE).write_text(made)
            started(bound)

        ours.announcing = asyncio.ensure_future(token())

    ours.on_started = announce
    ours.run()


class Served:
    """A server process."""

    def __init__(self, kind: str, home: Path) -> None:
        words = [sys.executable, __file__, "--serve", kind, "--home", str(home)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Http:
    """A kept connection that sends one request at a time."""

    def __init__(self, port: int, token: str = "") -> None:
        self._port = port
        self._token = token

    async def open(self) -> Http:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def send(self, method: str, path: str, body: Any = None, accept: str = "*/*") -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\n"
            f"authorization: Bearer {self._token}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 2" in head[:12], head
        if b"chunked" not in head:
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            return await self._reader.readexactly(length)
        parts = []
        while size := int(await self._reader.readline(), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readline()
        return b"".join(parts)

    def close(self) -> None:
        self._writer.close()


async def timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e6


async def plain_turns(runtime: Runtime, bare: Http, ours: Http, rounds: int) -> None:
    """Time a turn in process, a bare request and a turn over HTTP, in turns."""
    session = await runtime.session("plain", agent=make_agent())
    await ours.send("POST", "/v1/sessions", {"session_id": "plain", "agent": "bench"})
    here: list[float] = []
    request: list[float] = []
    over: list[float] = []
    for number in range(rounds + 50):
        times = (
            await timed(session.turn(PROMPT)),
            await timed(bare.send("POST", "/echo", {"input": PROMPT})),
            await timed(ours.send("POST", "/v1/sessions/plain/turns", {"input": PROMPT})),
        )
        if number >= 50:
            for kept, value in zip((here, request, over), times, strict=True):
                kept.append(value)
    middle = statistics.median
    report("plain turn", "in_process_us", middle(here))
    report("plain turn", "bare_request_us", middle(request))
    report("plain turn", "over_http_us", middle(over))
    report("plain turn", "ratio_to_sum", middle(over) / (middle(here) + middle(request)))


async def chunks(runtime: Runtime, served: Served, ours: Http, count: int) -> None:
    """Compare the CPU of a streamed chunk in process and over HTTP."""
    session = await runtime.session("chunks", agent=make_agent())
    await ours.send("POST", "/v1/sessions", {"session_id": "chunks", "agent": "bench"})
    best: dict[str, float] = {}
    for _ in range(3):
        began = time.process_time()
        async for _event in session.turn(str(count)):
            pass
        here = (time.process_time() - began) * 1e6 / count
        began = served.cpu_s()
        sent = await ours.send(
            "POST", "/v1/sessions/chunks/turns", {"input": str(count)}, "text/event-stream"
        )
        assert sent.count(b"event: text_streamed") == count
        over = (served.cpu_s() - began) * 1e6 / count
        for name, value in (("in_process", here), ("over_http", over)):
            best[name] = min(value, best.get(name, value))
    for name, value in best.items():
        report("streamed chunk", f"{name}_cpu_us", value)
    report("streamed chunk", "added_cpu_us", best["over_http"] - best["in_process"])


async def many(
    runtime: Runtime, served: Served, token: str, clients: int, turns: int, rounds: int = 3
) -> None:
    """Compare the rates of many sessions at once, and the CPU time that a turn takes."""
    agent = make_agent()
    sessions = [await runtime.session(f"m{number}", agent=agent) for number in range(clients)]
    connections = [await Http(served.port, token).open() for _ in range(clients)]
    for number, one in enumerate(connections):
        await one.send("POST", "/v1/sessions", {"session_id": f"m{number}", "agent": "bench"})

    async def here(number: int) -> None:
        for _ in range(turns):
            await sessions[number].turn(PROMPT)

    async def over(number: int) -> None:
        for _ in range(turns):
            await connections[number].send("POST", f"/v1/sessions/m{number}/turns", {"input": PROMPT})

    usual = gc.get_threshold()
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, work, threshold in (
            ("in_process", here, usual),
            ("in_process_tuned", here, (10_000, 10, 10)),
            ("over_http", over, usual),
        ):
            gc.set_threshold(*threshold)
            own, theirs = time.process_time(), served.cpu_s()
            took = await timed(asyncio.gather(*(work(number) for number in range(clients))))
            own, theirs = time.process_time() - own, served.cpu_s() - theirs
            each = 1e6 / (clients * turns)
            found = {f"{name}_us": took / (clients * turns), f"{name}_cpu_us": own * each}
            if name == "over_http":
                found = {f"{name}_us": took / (clients * turns), "server_cpu_us": theirs * each}
                found["client_cpu_us"] = own * each
            for metric, value in found.items():
                best[metric] = min(value, best.get(metric, value))
    gc.set_threshold(*usual)
    workload = f"{clients} clients"
    for metric, value in best.items():
        report(workload, metric, value)
    for name in ("in_process", "in_process_tuned"):
        report(workload, f"share_of_{name}", best[f"{name}_us"] / best["over_http_us"])
        report(workload, f"cpu_share_of_{name}", best[f"{name}_cpu_us"] / best["server_cpu_us"])
    for one in connections:
        one.close()


# The peer


PEER = Path(__file__).parent / "peers" / "langgraph_server"
PEER_HOME = Path(__file__).parent.parent / "build" / "server-peer"


class LangGraphServed(Served):
    """`langgraph dev` in a process of its own."""

    def __init__(self, directory: Path, jobs: int) -> None:
        binaries = PEER_HOME / "bin"
        if not (PEER_HOME / "installed").exists():
            venv.create(PEER_HOME, with_pip=True)
            packages = ["-r", str(PEER / "requirements.txt")]
            subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
            (PEER_HOME / "installed").touch()
        shutil.copytree(PEER, directory)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        words = ["dev", "--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(self.port)]
        quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LOG_LEVEL": "warning"}
        self.process = subprocess.Popen(
            [binaries / "langgraph", *words, "--n-jobs-per-worker", str(jobs)],
            cwd=directory,
            env={**os.environ, **quiet},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ok", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("langgraph dev did not start")


async def peer(directory: Path, clients: int, turns: int) -> None:
    """Run the same turns on LangGraph's server: one client alone, then many at once."""
    served = await asyncio.to_thread(LangGraphServed, directory / "langgraph", clients)
    body = {"assistant_id": "bench", "input": {"messages": [{"role": "user", "content": PROMPT}]}}
    try:
        first = await Http(served.port).open()
        threads = [json.loads(await first.send("POST", "/threads", {}))["thread_id"] for _ in range(clients)]
        first.close()

        async def over(number: int, count: int) -> None:
            one = await Http(served.port).open()  # an idle connection is closed after 5 s
            for _ in range(count):
                await one.send("POST", f"/threads/{threads[number]}/runs/wait", body)
            one.close()

        await over(0, 2)
        alone = await timed(over(0, turns)) / turns
        before = served.cpu_s()
        took = await timed(asyncio.gather(*(over(number, turns) for number in range(clients))))
        report("langgraph dev", "plain_turn_us", alone)
        report("langgraph dev", f"{clients}_clients_us", took / (clients * turns))
        report("langgraph dev", "server_cpu_us", (served.cpu_s() - before) * 1e6 / (clients * turns))
    finally:
        served.close()


async def main(quick: bool, with_peer: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home, here = Path(directory) / "server", Path(directory) / "here"
        home.mkdir()
        here.mkdir()
        bare, served = Served("bare", home), Served("standfast", home)
        token = (home / TOKEN_FILE).read_text()
        try:
            async with Runtime(here / "standfast.db") as runtime:
                plain, ours = await Http(bare.port).open(), await Http(served.port, token).open()
                await plain_turns(runtime, plain, ours, 100 if quick else 500)
                await chunks(runtime, served, ours, 5_000 if quick else 20_000)
                await many(runtime, served, token, 100, 3 if quick else 10)
                plain.close()
                ours.close()
        finally:
            bare.close()
            served.close()
        if with_peer:
            await peer(Path(directory), 100, 2 if quick else 5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--serve")
    parser.add_argument("--home", type=Path)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.home)
    else:
        uvloop.run(main(given.quick, not given.no_peer))
