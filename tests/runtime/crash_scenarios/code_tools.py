"""One process of a turn that acts in code, and the tools that its cells call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from scenarios import Stage, Tools

from standfast import CapabilityLimits, CompleteAfter, CompleteLater, RunContext, tool
from standfast.testing.crash_points import CrashPoints


class CodeStage(Stage):
    """One process of a scenario."""

    def __init__(self, home: Path, points: CrashPoints) -> None:
        super().__init__(home, points)
        self.begun: set[str] = set()
        self.done: dict[str, asyncio.Event] = {}

    def act(self, kind: str, turn: str, key: str, **more: Any) -> None:
        self.note("acts", act=kind, turn=turn, key=key, **more)

    def call(self, name: str, ctx: RunContext[None], *given: Any) -> str:
        """Perform a tool's effect; while the file `<name>.hang` exists, do not return."""
        self.points.point(f"before {name}")
        self.act("call", ctx.turn_id, f"tool.{ctx.call_id}", name=name, given=given, attempt=ctx.attempt)
        self.note("ledger", name=name, key=ctx.idempotency_key, given=given)
        while (self.home / f"{name}.hang").exists():
            time.sleep(0.01)
        self.points.point(f"after {name}")
        return f"{name} {ctx.idempotency_key}"

    async def after(self, name: str, others: Collection[str]) -> None:
        """Wait for the *others* that have started in this process too, so that later calls return first."""
        self.begun.add(name)
        await asyncio.sleep(0)
        for other in others:
            if other in self.begun:
                await self.done.setdefault(other, asyncio.Event()).wait()

    def over(self, name: str) -> None:
        self.done.setdefault(name, asyncio.Event()).set()


# Tools


def ordinary(stage: CodeStage) -> Tools:
    """Return idempotent and other tools, on the loop and in threads, and one that needs approval."""

    @tool(side_effect="write", idempotent=True)
    def price(ctx: RunContext[None], name: str) -> str:
        """May be repeated."""
        return stage.call("price", ctx, name)

    @tool(side_effect="read")
    async def stock(ctx: RunContext[None], name: str) -> str:
        """May be repeated."""
        return stage.call("stock", ctx, name)

    @tool
    def charge(ctx: RunContext[None], name: str, cents: int) -> str:
        """May not be repeated."""
        return stage.call("charge", ctx, name, cents)

    @tool
    async def book(ctx: RunContext[None], name: str) -> str:
        """May not be repeated."""
        return stage.call("book", ctx, name)

    @tool(approval="manual")
    def refund(ctx: RunContext[None], name: str, cents: int) -> str:
        """May not be repeated, and needs a person."""
        return stage.call("refund", ctx, name, cents)

    return [price, stock, charge, book, refund]


def asking(stage: CodeStage) -> Tools:
    @tool(on_interrupted="ask")
    def charge(ctx: RunContext[None], name: str, cents: int) -> str:
        """A person decides whether to run it again."""
        return stage.call("charge", ctx, name, cents)

    return [*ordinary(stage)[:2], charge]


def retrying(stage: CodeStage) -> Tools:
    @tool(on_interrupted="retry")
    async def charge(ctx: RunContext[None], name: str, cents: int) -> str:
        """Its author declares that it may be run again."""
        return stage.call("charge", ctx, name, cents)

    return [*ordinary(stage)[:2], charge]


def hanging(stage: CodeStage) -> Tools:
    """Return a tool that does its work but does not return, the first time that a process runs it."""
    hangs = [True]

    @tool(on_timeout="ask", on_interrupted="ask", limits=CapabilityLimits(timeout_ms=10))
    async def charge(ctx: RunContext[None], name: str, cents: int) -> str:
        """A person decides whether to run it again."""
        done = stage.call("charge", ctx, name, cents)
        if hangs:
            hangs.clear()
            await asyncio.Event().wait()
        return done

    return [*ordinary(stage)[:2], charge]


def gated(stage: CodeStage) -> Tools:
    """Return tools of which, called concurrently, the last one returns first."""

    @tool(side_effect="read", loop="runtime")  # the calls wait for each other
    async def stock(ctx: RunContext[None], name: str) -> str:
        """May be repeated."""
        await stage.after(name, [other for other in "xyz" if other > name])
        done = stage.call("stock", ctx, name)
        stage.over(name)
        return done

    price, _, charge, *_ = ordinary(stage)
    return [price, stock, charge]


def waiting(stage: CodeStage) -> Tools:
    """Return tools whose results come later: from a timer, from outside, after a decision."""

    @tool
    async def later(ctx: RunContext[None], name: str) -> CompleteAfter:
        """Return after a while."""
        return CompleteAfter(0.0, stage.call("later", ctx, name))

    @tool
    async def outside(ctx: RunContext[None], name: str) -> CompleteLater:
        """Leave the result to an outside system."""
        token = ctx.completion_token()
        stage.call("outside", ctx, name)
        return CompleteLater(token)

    return [later, outside, *ordinary(stage)]
