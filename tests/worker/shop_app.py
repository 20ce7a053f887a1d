"""The agents that workers run in tests: each prompt names the tool to call and an order.

Each effect is one line of the ledger (`WORKER_LEDGER`): tool, order, process, time. A tool that hangs waits
for the file `<ledger>.open`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from standfast import Agent, CompleteAfter, CompleteLater, RunContext, ScriptedModel, tool
from standfast.model.message import RequestedCall, ToolMessage, UserMessage, text_of
from standfast.model.monitor import MonitorSpec
from standfast.plugins.shipped import Subagents
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.sandbox import engine_kinds

LEDGER = Path(os.environ.get("WORKER_LEDGER", "ledger"))
WORK_S = float(os.environ.get("WORKER_WORK_S", "0"))


def write(*words: object) -> None:
    with LEDGER.open("a") as file:
        print(*words, os.getpid(), time.monotonic(), file=file)


@tool(side_effect="external_system")
async def charge(order: str) -> str:
    """Charge an order, which must not happen twice."""
    write("charge", order)
    await asyncio.sleep(WORK_S)
    write("charged", order)
    return f"charged {order}"


@tool(side_effect="read")
async def look(order: str) -> str:
    """Look at an order; the call may be repeated."""
    write("look", order)
    return f"{order} is here"


def _hang(name: str, order: str) -> str:
    write(name, order)
    while not LEDGER.with_suffix(".open").exists():
        time.sleep(0.01)
    write(f"{name}.end", order)
    return f"hung for {order}"


@tool(side_effect="read")
def hang(order: str) -> str:
    """Wait for the test; the call may be repeated."""
    return _hang("hang", order)


@tool(side_effect="external_system")
def hang_once(order: str) -> str:
    """Wait for the test; the call must not be repeated."""
    return _hang("hang_once", order)


@tool(side_effect="external_system", approval="manual")
async def refund(order: str) -> str:
    """Refund an order after a person has approved it."""
    write("refund", order)
    return f"refunded {order}"


@tool(side_effect="external_system")
async def later(order: str) -> CompleteAfter:
    """Ship an order, which takes a moment; meanwhile the turn waits for a timer."""
    write("later", order)
    return CompleteAfter(0.5, f"shipped {order}")


@tool(side_effect="external_system")
async def order_part(ctx: RunContext[None], order: str) -> CompleteLater:
    """Order a part, which another system delivers."""
    token = ctx.completion_token()
    write("order_part", token)
    return CompleteLater(token)


@tool(side_effect="external_system")
async def watch(ctx: RunContext[None], order: str) -> str:
    """Start a monitor; if the order begins with R, it is restarted when its worker dies."""
    script = f"echo watch {order} $$ 0 >> {LEDGER}; exec sleep 600"
    spec = MonitorSpec(id=order, command=("sh", "-c", script), restart=order.startswith("R"))
    await ctx.host.start_monitor(ctx.session_id, spec)
    return f"watching {order}"


class Words:
    """A model that calls the tool named in the last prompt and then reports the tool's result.

    `say WORD N` streams a text of N pieces instead, one every 20 ms.
    """

    model_id = "words:one"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            text = f"{last.value if last.error is None else last.error.code}"
            yield TextArrived(text=text)
            yield ReplyEnded(text=text)
            return
        assert isinstance(last, UserMessage)
        name, order, *rest = text_of(last.content).split()
        if name == "say":
            text = ""
            for number in range(int(rest[0])):
                piece = f"{order}{number} "
                text += piece
                yield TextArrived(text=piece)
                await asyncio.sleep(0.02)
            yield ReplyEnded(text=text)
            return
        call = RequestedCall(provider_id="c1", name=name, arguments=json.dumps({"order": order}))
        yield ReplyEnded(text="", calls=(call,))

    async def close(self) -> None:
        pass


class Coder(Words):
    """A model that writes code which calls the tool named in the prompt."""

    model_id = "words:code"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        name, order = text_of(last.content).split()
        yield ReplyEnded(text=f"```python\nfinish({name}({order!r}))\n```")


BUILD = os.environ.get("WORKER_BUILD", "")
if BUILD:  # as if another version of the engine were installed
    engine_kinds.KINDS["monty"] = engine_kinds.EngineKind(
        language=engine_kinds.MONTY.language, version=lambda: BUILD, open=engine_kinds.MONTY.open
    )

TOOLS: list[Any] = [charge, look, hang, hang_once, refund, later, order_part, watch]
shop: Agent[None, str] = Agent(Words(), name="shop", tools=TOOLS)
reports: Agent[None, str] = Agent(Words(), name="reports", tools=TOOLS, queue="reports")
single: Agent[None, str] = Agent(Words(), name="single", tools=TOOLS, max_concurrent=1)
lead: Agent[None, str] = Agent(
    ScriptedModel(
        [
            {"tool_calls": [{"name": "spawn_agent", "arguments": {"task": "charge C1", "agent": "shop"}}]},
            {"tool_calls": [{"name": "wait", "arguments": {}}]},
            "All orders are charged.",
        ],
        strict=False,
    ),
    name="lead",
    plugins=[Subagents(agents=[shop])],
)
coder: Agent[None, str] = Agent(Coder(), name="coder", tools=[refund], protocol="code")
agents = [shop, reports, single, lead, coder]
