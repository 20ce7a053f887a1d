"""A server with the workbench in this process, a model that obeys the message, and a browser."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from server_stage import ServerStage, refund

from standfast import Agent, CapabilityLimits, Plugin, RunResult, Sandbox, ToolError, hook, tool
from standfast.model.limits import Usage
from standfast.model.message import ToolMessage, UserMessage, text_of
from standfast.plugins.shipped import Plan, Subagents
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall, TextArrived
from standfast.workbench import PAGES

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c626001000000ff"
    "ff03000006000557bfabd40000000049454e44ae426082"
)
"""A PNG of one pixel."""


def picture(width: int, height: int) -> bytes:
    """Return a PNG with a gradient."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(
        b"\0" + bytes(part for x in range(width) for part in (40 + y, 120 + x // 2, 150))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@tool(side_effect="read")
def order(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    if order_id == "none":
        raise ToolError("ORDER_NOT_FOUND", f"there is no order {order_id}")
    return {"id": order_id, "cents": 1999, "days_late": 6}


@tool(side_effect="none")
def archive(order_ids: list[str], reason: str = "") -> int:
    """Move every order that was delivered, paid and not complained about for a year into the archive."""
    return len(order_ids)


_TRIED: set[str] = set()


@tool(side_effect="external_system", limits=CapabilityLimits(timeout_ms=300), on_timeout="retry")
async def slow_once(key: str) -> str:
    """Answer too late the first time."""
    if key not in _TRIED:
        _TRIED.add(key)
        await asyncio.sleep(60)
    return "at last"


class WorkbenchModel:
    """Does what the user's message says: `say TEXT`, `call NAME JSON`, `calls JSON`, `stream N`, `hold`.

    After a tool call it repeats the result. `hold` waits until `held` is set, in the middle of a stream.
    """

    model_id = "test:workbench"

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.pause_s = 0.0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        said = next(text_of(m.content) for m in reversed(request.messages) if isinstance(m, UserMessage))
        word, _, rest = said.partition(" ")
        known = 800 if len(request.messages) > 1 else 0
        usage = Usage(input=1200 - known, cache_read=known, output=80, calls=1)
        if isinstance(last, ToolMessage):
            shown = last.value if last.error is None else last.error.message
            yield ReplyEnded(text=f"The tool said: {shown}", usage=usage)
        elif word == "call":
            name, _, arguments = rest.partition(" ")
            call = RequestedCall(name=name, arguments=arguments or "{}")
            yield ReplyEnded(text="I use a tool.", calls=(call,), usage=usage)
        elif word == "calls":  # JSON: a list of the tool's name and its arguments
            calls = tuple(
                RequestedCall(name=one[0], arguments=json.dumps(one[1])) for one in json.loads(rest)
            )
            yield ReplyEnded(text="I use some tools.", calls=calls, usage=usage)
        elif word == "stream":
            count = int(rest)
            for number in range(count):
                yield TextArrived(f"{number} ")
                await asyncio.sleep(self.pause_s)
            yield ReplyEnded(text="".join(f"{number} " for number in range(count)), usage=usage)
        elif word == "hold":
            yield TextArrived("I am ")
            await self.held.wait()
            yield TextArrived("done")
            yield ReplyEnded(text="I am done", usage=usage)
        else:
            text = rest if word == "say" else f"You said: {said}"
            yield TextArrived(text)
            yield ReplyEnded(text=text, usage=usage)

    async def close(self) -> None:
        pass


class CodingModel(WorkbenchModel):
    """A model that answers with the code that the user wrote, then says that it has run."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        if isinstance(last, UserMessage) and not text_of(last.content).startswith("[cell "):
            code = text_of(last.content)
            yield ReplyEnded(text=f"```python\n{code}\n```")
        else:
            yield ReplyEnded(text="The code has run.")


class ManagerModel(WorkbenchModel):
    """A model that delegates the user's message to a clerk, waits for the clerk, and says so."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        if isinstance(last, UserMessage):
            task = json.dumps({"agent": "clerk", "task": text_of(last.content)})
            yield ReplyEnded(text="", calls=(RequestedCall(name="spawn_agent", arguments=task),))
        elif isinstance(last, ToolMessage) and last.name == "spawn_agent":
            yield ReplyEnded(text="", calls=(RequestedCall(name="wait"),))
        else:
            yield ReplyEnded(text="The clerk has answered.")


class Early(Plugin):
    """A plugin that adds a text to every prompt, before others."""

    id = "early"
    summary = "Greets."

    @hook("prompt_contributor", priority=5)
    async def greet(self, ctx: Any) -> str:
        return "Greet the customer."


class Late(Plugin):
    """A plugin that adds the number of the call to every prompt."""

    id = "late"
    summary = "Limits the words of an answer."

    def __init__(self, words: int = 20) -> None:
        self.words = words
        self._calls = 0

    @hook("prompt_contributor")
    async def limit(self, ctx: Any) -> str:
        self._calls += 1
        return f"This is call {self._calls}. Answer in at most {self.words} words."


class Workbench(ServerStage):
    """The server, and what tests do with it besides using the browser."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.model = WorkbenchModel()
        agents = options.pop("agents", None) or [
            Agent(
                self.model,
                name="clerk",
                instructions="You are a clerk of a shop.\n\nLook an order up before you refund it.",
                tools=[order, refund, slow_once],
            ),
            Agent(CodingModel(), name="coder", tools=[order, refund], protocol="code"),
            Agent(ManagerModel(), name="manager", plugins=[Subagents(agents=["clerk"])]),
            Agent(self.model, name="planner", tools=[order, archive], plugins=[Early(), Late(), Plan()]),
        ]
        options.setdefault("sandbox", Sandbox(data_dir=home, tools=[order, refund], keep_journals=604_800))
        super().__init__(home, agents=agents, pages=PAGES, **options)

    def __enter__(self) -> Workbench:
        super().__enter__()
        return self

    def say(self, session_id: str, text: Any, agent: str = "clerk") -> Any:
        """Run a turn until it ends or waits."""

        async def work() -> Any:
            session = await self.runtime.session(session_id, agent=self.runtime.agents[agent])
            return await session.turn(text)

        return self.run(work())

    def run_code(self, session_id: str, code: str) -> RunResult:
        """Run code in a session without a model, until it ends or waits."""
        sandbox = self.app.state.sandbox
        assert sandbox is not None
        return self.run(sandbox.run(code, session=session_id))

    def link(self, *scopes: str, name: str = "Ada", tenant: str = "") -> str:
        tokens = self.app.state.tokens
        code = self.run(tokens.make_code(name=name, tenant=tenant, scopes=scopes or ("admin",)))
        return f"{self.url}/signin?code={code}"

    @contextmanager
    def person(
        self, browser: Browser, *scopes: str, name: str = "Ada", tenant: str = "", **options: Any
    ) -> Iterator[Page]:
        """Open a browser context for a person who has signed in."""
        context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 860}, **options)
        try:
            page = context.new_page()
            page.goto(self.link(*scopes, name=name, tenant=tenant))
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(f"{self.url}/")
            yield page
        finally:
            context.close()
