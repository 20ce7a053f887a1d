"""A server on a loopback port in this process, with agents whose model does what the prompt says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1] / "running"))

import interpreters

from standfast import Agent, AskPerson, CompleteLater, JsonlTrace, RunContext, Runtime, Sandbox, tool
from standfast.model.message import ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall, TextArrived
from standfast.server import Limits, Listen, ServerApp, create_app, make_server

T = TypeVar("T")

APP = Path(__file__).with_name("slow_app.py")
WEBHOOK_SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="
GENEROUS = Limits(
    requests_per_s=1e6,
    burst=10**6,
    failures_per_min=10**6,
    streams=5_000,
    turns=1_000,
    attachment_bytes=1 << 20,
)


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {order_id} {cents}"


@tool
async def outside(ctx: RunContext[None]) -> CompleteLater:
    """Wait for an outside system."""
    return CompleteLater(ctx.completion_token())


WHERE = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}},
    "required": ["city"],
}
WHEN = {
    "type": "object",
    "properties": {**WHERE["properties"], "days": {"type": "integer"}},  # type: ignore[dict-item]
    "required": ["city", "days"],
}


@tool
def travel(ctx: RunContext[None], days: bool) -> str | AskPerson:
    """Ask where a person wants to go, and for how many days."""
    if ctx.answer is None:
        return AskPerson("Where to?", WHEN if days else WHERE)
    return f"{dict(sorted(ctx.answer.value.items()))} by {ctx.answer.by}"


_CALLS = {
    "refund": ("refund", '{"order_id": "A1", "cents": 500}'),
    "outside": ("outside", "{}"),
    "where": ("travel", '{"days": false}'),
    "when": ("travel", '{"days": true}'),
}


class ObedientModel:
    """A model that does what the prompt says.

    `refund`, `outside`, `where` and `when` call tools of the agent, `call A B` those of the client. `stream
    N` streams N chunks, `flood N` N larger ones without a pause, and `hold` waits until the test releases it.
    """

    model_id = "test:obedient"

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.held = asyncio.Event()
        self.choices: list[object] = []
        """The tool choices of requests that were answered with a call, or that carried its result."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        said = next(text_of(m.content) for m in reversed(request.messages) if isinstance(m, UserMessage))
        if isinstance(last, ToolMessage):
            self.choices.append(request.settings.get("tool_choice"))
            yield ReplyEnded(text=f"the tool said {last.value if last.error is None else last.error.message}")
        elif said in _CALLS:
            name, arguments = _CALLS[said]
            yield ReplyEnded(text="", calls=(RequestedCall(name=name, arguments=arguments),))
        elif found := re.fullmatch(r"call (.+)", said):
            self.choices.append(request.settings.get("tool_choice"))
            offered = {one.name for one in request.tools}
            calls = [RequestedCall(name=name, arguments='{"city": "Rome"}') for name in found[1].split()]
            yield ReplyEnded(text="", calls=tuple(one for one in calls if one.name in offered))
        elif found := re.fullmatch(r"stream (\d+)", said):
            count = int(found[1])
            for number in range(count):
                yield TextArrived(f"{number} ")
                await asyncio.sleep(self.pause_s)
            yield ReplyEnded(text="".join(f"{number} " for number in range(count)))
        elif found := re.fullmatch(r"flood (\d+)", said):
            for _ in range(int(found[1])):
                yield TextArrived("x" * 4000)
                await asyncio.sleep(0)
            yield ReplyEnded(text="x" * 4000 * int(found[1]))
        else:
            if said == "hold":
                await self.held.wait()
            yield TextArrived(f"you said {said}")
            yield ReplyEnded(text=f"you said {said}")

    async def close(self) -> None:
        pass


def make_agent(model: Any = None, name: str = "clerk") -> Agent[Any, str]:
    return Agent(model or ObedientModel(), name=name, tools=[refund, outside, travel])


class ServerStage:
    """A running server, whose methods may be called from any thread."""

    def __init__(
        self, home: Path, *, limits: Limits = GENEROUS, agents: Iterable[Agent[Any, Any]] = (), **options: Any
    ):
        self.home = home
        trace, listen = home / "trace.jsonl", options.pop("listen", None) or Listen(port=0, grace_s=1.0)
        self.agent_model = ObedientModel()
        known = list(agents) or [make_agent(self.agent_model)]
        store = options.pop("store", None) or home / "standfast.db"
        self.runtime = Runtime(store, agents=known, trace=JsonlTrace(trace))
        self.app: ServerApp = create_app(
            self.runtime,
            sandbox=options.pop("sandbox", None) or Sandbox(data_dir=home),
            limits=limits,
            webhook_secrets={"shop": WEBHOOK_SECRET},
            audit_file=home / "audit.jsonl",
            trace_file=str(trace),
            **options,
        )
        self.server = make_server(self.app, listen)
        self.loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self.port = 0
        self.tester: str | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        async def run() -> None:
            self.loop = asyncio.get_running_loop()
            self.server.on_started = self._started
            await self.server.serve()

        asyncio.run(run())

    def _started(self, bound: list[tuple[str, int]]) -> None:
        self.port = bound[0][1]
        self._ready.set()

    def __enter__(self) -> ServerStage:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def token(self, *scopes: str, tenant: str = "", name: str = "") -> str:
        chosen = scopes or ("admin",)
        return self.run(self.app.state.tokens.create(scopes=chosen, tenant=tenant, name=name))[0]

    @contextmanager
    def client(self, *scopes: str, tenant: str = "", name: str = "") -> Iterator[httpx2.Client]:
        token = self.token(*scopes, tenant=tenant, name=name)
        with httpx2.Client(
            base_url=self.url, headers={"authorization": f"Bearer {token}"}, timeout=30
        ) as client:
            yield client


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class ServerProcess:
    """`standfast serve` in a separate process, which can be killed and restarted on the same port."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.port = free_port()
        self._options = options
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [
            "serve",
            f"{APP}:agent",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.home),
            "--grace",
            "20",
            *self._options,
        ]
        self.process = interpreters.Interpreter(
            [sys.executable, "-m", "standfast", *words],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        assert self.process.stdout is not None
        assert "serves clerk at" in self.process.stdout.readline()

    def token(self) -> str:
        words = ["tokens", "create", "--scope", "admin", "--data-dir", str(self.home)]
        made = interpreters.run(
            [sys.executable, "-m", "standfast", *words], capture_output=True, text=True, check=True
        )
        return made.stdout.strip()

    def stop(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def events_of(text: str) -> list[tuple[str | None, str, dict[str, Any]]]:
    """Return the id, the name and the data of each event in a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found
