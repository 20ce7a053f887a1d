"""Agents: their tools must match their deps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from standfast import (
    Agent,
    BlockingSandbox,
    DepsContext,
    RegisteredTool,
    RunContext,
    Runtime,
    Sandbox,
    tool,
)


@dataclass
class Shop:
    currency: str


class Department(Shop):
    pass


class Library:
    pass


@tool
def now() -> str:
    """Needs no deps."""
    return "now"


@tool(side_effect="read")
async def order(order_id: str) -> str:
    return order_id


@tool
def pay(ctx: RunContext[Shop], cents: int) -> str:
    return f"{cents} {ctx.deps.currency}"


@tool(approval="manual")
async def refund(ctx: RunContext[Shop], cents: int) -> str:
    return f"{cents} {ctx.deps.currency}"


@tool
def lend(ctx: RunContext[Library], title: str) -> str:
    return title


@tool(side_effect="read")
async def search(ctx: RunContext[Library], title: str) -> str:
    return title


@tool
def anywhere(ctx: RunContext[Any], title: str) -> str:
    return title


def undecorated(title: str) -> str:
    return title


def make_shop(ctx: DepsContext) -> Shop:
    return Shop(ctx.session_id)


async def make_library(ctx: DepsContext) -> Library:
    return Library()


def instruct(ctx: RunContext[Shop]) -> str:
    return f"Prices are in {ctx.deps.currency}."


async def instruct_librarian(ctx: RunContext[Library]) -> str:
    return "Be quiet."


class Desk:
    @tool
    def look(self, title: str) -> str:
        return title

    @tool(side_effect="read")
    def pay(self, ctx: RunContext[Shop], cents: int) -> str:
        return ctx.deps.currency

    @tool
    def lend(self, ctx: RunContext[Library], title: str) -> str:
        return title

    def undecorated(self, title: str) -> str:
        return title


MODEL = "scripted:replies.json"
desk = Desk()
registered: RegisteredTool = now.registered

bare = Agent(MODEL, tools=[now, order, anywhere, undecorated, desk.look, desk.undecorated, registered])
clerk = Agent(MODEL, deps_type=Shop, tools=[now, order, pay, refund, anywhere, undecorated, desk.pay])
head = Agent(MODEL, deps_type=Department, tools=[pay, refund])
librarian = Agent(MODEL, deps_type=Library, output_type=int, tools=[lend, search, desk.lend, now])
some = [now, order]
more = [now, order, pay]
few = Agent(MODEL, tools=some)
many = Agent(MODEL, deps_type=Shop, tools=more)

made = Agent(MODEL, deps_type=Shop, deps=make_shop, instructions=instruct, tools=[pay])
quiet = Agent(MODEL, deps_type=Library, deps=make_library, instructions=instruct_librarian)

Agent(MODEL, deps_type=Shop, instructions=instruct_librarian)  # error
Agent(MODEL, instructions=instruct)  # error
Agent(MODEL, tools=[5])  # error
Agent(MODEL, tools=["order"])  # error
Agent(MODEL, tools=order)  # error
Agent(MODEL, tools=[pay])  # error
Agent(MODEL, deps_type=Shop, tools=[5])  # error
Agent(MODEL, deps_type=Shop, tools=[lend])  # error
Agent(MODEL, deps_type=Shop, tools=[pay, search])  # error
Agent(MODEL, deps_type=Shop, tools=[desk.lend])  # error
Agent(MODEL, deps_type=Shop, output_type=int, tools=[lend])  # error
Agent(MODEL, tool=[now])  # error

Sandbox(tools=[now, order, undecorated, desk.look, anywhere])
Sandbox(tools=[5])  # error
BlockingSandbox(tools=[pay])  # error


async def run() -> None:
    clerk.run_sync("hi", deps=Shop("CHF"))
    clerk.run_sync("hi", deps=Department("CHF"))
    clerk.run_sync("hi")
    clerk.run_sync("hi", deps=42)  # error
    bare.run_sync("hi", deps=42)  # error
    await clerk.run("hi", deps=Library())  # error
    clerk.run_stream("hi", deps="CHF")  # error
    async with Runtime() as runtime:
        session = await runtime.session("s", agent=clerk, deps=Shop("CHF"))
        await session.turn("hi", deps=Shop("EUR"))
        await session.turn("hi")
        await session.turn("hi", deps=42)  # error
        await runtime.session("s", agent=clerk, deps=42)  # error
        forked = await session.fork("t")
        await forked.turn("hi", deps=42)  # error


def call_a_tool_as_a_function() -> None:
    text: str = pay(RunContext(Shop("CHF")), 5)
    print(text)
    pay(RunContext(Shop("CHF")), "5")  # error
    now(5)  # error
    order.capability.name.upper()
