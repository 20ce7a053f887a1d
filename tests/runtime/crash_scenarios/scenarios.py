"""Programs that are killed and run again until they end.

Every process of a scenario does the same: it resumes the unfinished turn, makes its request under an
idempotency key, decides pending approvals, runs one more turn, and reports the stored history. Tools write
each effect to one ledger, and the model writes its messages to another; both are outside of Standfast.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
from broken_disk import BrokenDisk

from standfast import (
    Agent,
    CapabilityLimits,
    CompleteAfter,
    CompleteLater,
    ContinueAs,
    RunContext,
    Runtime,
    Session,
    TurnResult,
    tool,
)
from standfast.errors import ApprovalAlreadyDecided, StoreUnavailable, TokenAlreadyUsed, TokenNotFound
from standfast.model.limits import UsageLimits
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.ports.session_store import Lease, Save, Saved, SessionStore
from standfast.providers.scripted import Rule, ScriptedModel
from standfast.runtime.agent_runtime import open_store
from standfast.testing.crash_points import CrashPoints
from standfast.tools.registered_tool import OnTimeout

KEY = "request-1"
NEXT_KEY = "request-2"


class Stage:
    """One process of a scenario: its crash points, its ledgers, and the session once it is open."""

    def __init__(self, home: Path, points: CrashPoints) -> None:
        self.home = home
        self.points = points
        self.runtime: Runtime | None = None
        self.session: Session[Any] | None = None
        self.disk: BrokenDisk | None = None

    def mended(self) -> bool:
        """Return whether the disk was broken and works again."""
        return self.disk is not None and self.disk.heal()

    def note(self, file: str, **line: Any) -> None:
        """Add a line to a ledger; the line survives even if the process dies at once."""
        handle = os.open(self.home / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.close(handle)

    def effect(self, name: str, ctx: RunContext[None]) -> str:
        """Perform a tool's effect and return a description of it."""
        self.points.point(f"before {name}")
        self.note("ledger", name=name, key=ctx.idempotency_key)
        self.points.point(f"after {name}")
        return f"{name} {ctx.idempotency_key}"

    def open_session(self) -> Session[Any]:
        assert self.session is not None
        return self.session

    def open_runtime(self) -> Runtime:
        assert self.runtime is not None
        return self.runtime


Tools = list[Any]
Answer = Callable[[Stage, TurnResult[Any]], Awaitable[None]]


async def approve_everything(stage: Stage, waiting: TurnResult[Any] | None = None) -> None:
    for approval in await stage.open_runtime().approvals(session="s", pending=True):
        try:
            decided = await stage.open_runtime().approve(approval.approval_id)
        except ApprovalAlreadyDecided:
            continue
        stage.note("decisions", id=decided.approval_id)


async def deliver(stage: Stage, waiting: TurnResult[Any]) -> None:
    for wait in waiting.waits:
        try:
            await stage.open_runtime().complete(wait.wait_id, f"delivered {wait.call_id}")
        except (TokenAlreadyUsed, TokenNotFound):
            continue


async def wait_for_time(stage: Stage, waiting: TurnResult[Any]) -> None:
    """Wait for a timer that is due at once."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The model's replies, the tools, and the function that answers while the turn waits."""

    rules: list[dict[str, Any]]
    tools: Callable[[Stage], Tools]
    answer: Answer = approve_everything
    limits: UsageLimits = field(default_factory=UsageLimits)


def calls(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


WRONG = [{"name": "put", "arguments": {"nonsense": 1}}]


# Tools


def ordinary(stage: Stage) -> Tools:
    """Return an idempotent tool, one that is not, and one that needs approval."""

    @tool(side_effect="write", idempotent=True)
    def put(ctx: RunContext[None]) -> str:
        """May be repeated."""
        return stage.effect("put", ctx)

    @tool
    async def charge(ctx: RunContext[None]) -> str:
        """May not be repeated."""
        return stage.effect("charge", ctx)

    @tool(approval="manual")
    def refund(ctx: RunContext[None]) -> str:
        """May not be repeated, and needs a person."""
        return stage.effect("refund", ctx)

    @tool(approval="manual", side_effect="write", idempotent=True)
    async def publish(ctx: RunContext[None]) -> str:
        """May be repeated, and needs a person."""
        return stage.effect("publish", ctx)

    return [put, charge, refund, publish]


def granting(stage: Stage) -> Tools:
    """Return a tool that needs approval, and an earlier one during which a person gives a grant."""
    refund = ordinary(stage)[2]

    @tool(side_effect="write", idempotent=True, loop="runtime")
    async def put(ctx: RunContext[None]) -> str:
        """May be repeated; meanwhile, a person grants refunds."""
        runtime = stage.open_runtime()
        if not await runtime.grants():
            end = runtime.now_ms() + 3_600_000
            await runtime.grant("refund", given_by="ada", expires_at=end, session="s")
        return stage.effect("put", ctx)

    return [put, refund]


def asking(stage: Stage) -> Tools:
    @tool(on_interrupted="ask")
    def charge(ctx: RunContext[None]) -> str:
        """A person decides whether to run it again."""
        return stage.effect("charge", ctx)

    return [charge]


def retrying(stage: Stage) -> Tools:
    @tool(on_interrupted="retry")
    def charge(ctx: RunContext[None]) -> str:
        """Its author declares that it may be run again."""
        return stage.effect("charge", ctx)

    return [charge]


def hanging(on_timeout: OnTimeout) -> Callable[[Stage], Tools]:
    """Return a tool that does its work but does not return, the first time that a process runs it."""

    def tools(stage: Stage) -> Tools:
        hangs = [True]

        @tool(on_timeout=on_timeout, limits=CapabilityLimits(timeout_ms=60))
        async def charge(ctx: RunContext[None]) -> str:
            """Take effect, and possibly time out."""
            done = stage.effect("charge", ctx)
            if hangs:
                hangs.clear()
                await asyncio.Event().wait()
            return done

        return [charge]

    return tools


def timed(stage: Stage) -> Tools:
    @tool
    async def later(ctx: RunContext[None]) -> CompleteAfter:
        """Return after a while."""
        return CompleteAfter(0.0, stage.effect("later", ctx))

    return [later]


def completed(stage: Stage) -> Tools:
    @tool
    async def later(ctx: RunContext[None]) -> CompleteLater:
        """Leave the result to an outside system, which delivers it once the turn waits."""
        token = ctx.completion_token()
        stage.effect("later", ctx)
        return CompleteLater(token)

    return [later]


def completed_early(stage: Stage) -> Tools:
    @tool(loop="runtime")
    async def later(ctx: RunContext[None]) -> CompleteLater:
        """Leave the result to an outside system, which delivers it before the wait for it is stored."""
        token = ctx.completion_token()
        stage.effect("later", ctx)
        await stage.open_runtime().complete(token, f"delivered {ctx.call_id}")
        return CompleteLater(token)

    return [later]


def cancelling(stage: Stage) -> Tools:
    @tool(loop="runtime")
    async def charge(ctx: RunContext[None]) -> str:
        """Charge; meanwhile, the user cancels the turn."""
        done = stage.effect("charge", ctx)
        if await stage.open_runtime().cancel(ctx.turn_id):
            stage.note("cancellations", turn_id=ctx.turn_id)
        return done

    return [charge]


def injecting(stage: Stage) -> Tools:
    @tool(loop="runtime")
    async def charge(ctx: RunContext[None]) -> str:
        """Charge; meanwhile, the user sends another message."""
        done = stage.effect("charge", ctx)
        session: Session[Any] = await stage.open_runtime().session(ctx.session_id)
        await session.inject("one more thing", id="more")
        stage.note("injected", id="more")
        return done

    return [charge]


def continuing(stage: Stage) -> Tools:
    @tool
    def hand_over(ctx: RunContext[None]) -> ContinueAs:
        """Continue in a new frame."""
        stage.effect("hand_over", ctx)
        return ContinueAs("the task")

    return [hand_over]


LAST = [{"when": "again", "text": "hello again"}, {"when": "more thing", "text": "that too"}]

SCENARIOS = {
    "sequence": Scenario(
        [
            {"when": "go", "tool_calls": calls("put")},
            {"when_tool": "put", "tool_calls": calls("charge")},
            {"when_tool": "charge", "tool_calls": calls("refund")},
            {"when_tool": "refund", "text": "done"},
        ],
        ordinary,
    ),
    "parallel": Scenario(
        [
            {"when": "go", "tool_calls": calls("put", "charge", "refund", "publish")},
            {"when_tool": "publish", "text": "done"},
        ],
        ordinary,
    ),
    "grant": Scenario(
        [
            {"when": "go", "tool_calls": calls("put")},
            {"when_tool": "put", "tool_calls": calls("refund")},
            {"when_tool": "refund", "text": "done"},
        ],
        granting,
    ),
    "ask": Scenario(
        [{"when": "go", "tool_calls": calls("charge")}, {"when_tool": "charge", "text": "done"}], asking
    ),
    "retry": Scenario(
        [{"when": "go", "tool_calls": calls("charge")}, {"when_tool": "charge", "text": "done"}], retrying
    ),
    "ask_late": Scenario(
        [{"when": "go", "tool_calls": calls("charge")}, {"when_tool": "charge", "text": "done"}],
        hanging("ask"),
    ),
    "retry_late": Scenario(
        [{"when": "go", "tool_calls": calls("charge")}, {"when_tool": "charge", "text": "done"}],
        hanging("retry"),
    ),
    "timer": Scenario(
        [{"when": "go", "tool_calls": calls("later")}, {"when_tool": "later", "text": "done"}],
        timed,
        wait_for_time,
    ),
    "completion": Scenario(
        [{"when": "go", "tool_calls": calls("later")}, {"when_tool": "later", "text": "done"}],
        completed,
        deliver,
    ),
    "early_completion": Scenario(
        [{"when": "go", "tool_calls": calls("later")}, {"when_tool": "later", "text": "done"}],
        completed_early,
        wait_for_time,
    ),
    "cancel": Scenario(
        [{"when": "go", "tool_calls": calls("charge")}, {"when_tool": "charge", "text": "done"}], cancelling
    ),
    "inject": Scenario(
        [{"when": "go", "tool_calls": calls("charge")}, {"when_tool": "charge", "text": "done"}], injecting
    ),
    "budget": Scenario(
        [{"when": "go", "tool_calls": calls("put")}, {"when_tool": "put", "tool_calls": calls("charge")}],
        ordinary,
        limits=UsageLimits(max_iterations=2),
    ),
    "no_progress": Scenario(
        [{"when": "go", "tool_calls": WRONG}, {"when_tool": "put", "tool_calls": WRONG}],
        ordinary,
        limits=UsageLimits(max_no_progress=2),
    ),
    "frame": Scenario(
        [{"when": "go", "tool_calls": calls("hand_over")}, {"when": "task", "text": "task done"}], continuing
    ),
}


# The model


class ToldModel:
    """A scripted model that records its messages before it answers."""

    def __init__(self, rules: list[dict[str, Any]], stage: Stage) -> None:
        self._stage = stage
        self._script = ScriptedModel([], strict=False)
        self._script._rules = tuple(msgspec.convert([*rules, *LAST], list[Rule]))
        self.model_id = "scripted:crash"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        told = msgspec.to_builtins(request.messages)
        self._stage.note("told", number=request.call_number, turn_id=request.turn_id, messages=told)
        async for delta in self._script.stream(request):
            yield delta

    async def close(self) -> None:
        await self._script.close()


# Playing


def location(home: Path) -> Path | str:
    """Return the URL that the file `store` holds, or else the path of a SQLite file."""
    named = home / "store"
    return named.read_text() if named.exists() else home / "standfast.db"


async def play(job: dict[str, Any], points: CrashPoints) -> dict[str, Any]:
    """Run one process: resume, finish, run one more turn, report; retry if its disk failed."""
    stage = Stage(Path(job["home"]), points)
    if job.get("fails_at") is not None:
        stage.disk = BrokenDisk(job["fails_at"], full=job["full"])
    while True:
        try:
            report = await _play(stage, job)
        except StoreUnavailable:
            if job.get("gives_up") or not stage.mended():
                raise
        else:
            return {**report, "failures": 0 if stage.disk is None else stage.disk.failures}


async def _play(stage: Stage, job: dict[str, Any]) -> dict[str, Any]:
    scenario = SCENARIOS[job["scenario"]]
    model = stage.points.model(ToldModel(scenario.rules, stage))
    agent: Agent[Any, Any] = Agent(model, name="clerk", tools=scenario.tools(stage), limits=scenario.limits)
    store = stage.points.store(open_store(location(stage.home)))
    if job.get("how") == "decide":
        return await _decide(stage, store)
    if job.get("forgetful"):
        store = cast(SessionStore, Forgetful(store))
    async with Runtime(store, agents=[agent], lease_s=job.get("lease_s", 30.0)) as runtime:
        stage.runtime = runtime
        if stage.disk is not None:
            stage.disk.arm()
        try:
            return await _persist(stage, scenario, agent, job)
        finally:
            stage.mended()


async def _persist(
    stage: Stage, scenario: Scenario, agent: Agent[Any, Any], job: dict[str, Any]
) -> dict[str, Any]:
    """Resume in the same runtime once there is disk space again."""
    while True:
        try:
            stage.session = await _open(stage.open_runtime(), agent, job.get("how", "request"))
            return await _perform(stage, scenario, job)
        except StoreUnavailable:
            if job.get("gives_up") or not stage.mended():
                raise


async def _perform(stage: Stage, scenario: Scenario, job: dict[str, Any]) -> dict[str, Any]:
    session = stage.open_session()
    if job.get("how") == "ask":
        return {"status": (await session.turn("go", idempotency_key=KEY).settled()).status}
    await _finish(stage, scenario)
    await _settle_queue(session)
    await session.turn("again", idempotency_key=NEXT_KEY).settled()
    return await _report(session)


async def _decide(stage: Stage, store: SessionStore) -> dict[str, Any]:
    """Decide in a process that has no agent."""
    async with Runtime(store) as runtime:
        stage.runtime = runtime
        await approve_everything(stage)
    return {"status": "decided"}


class Forgetful:
    """A store with a defect: it does not write the intents of effects."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, lease: Lease, save: Save) -> Saved:
        kept = tuple(entry for entry in save.entries if entry.kind != "intent")
        return await self._store.save(lease, msgspec.structs.replace(save, entries=kept))


async def _open(runtime: Runtime, agent: Agent[Any, Any], how: str) -> Session[Any]:
    """Open the session after its unfinished turn was resumed in one of three ways."""
    if how == "recover":
        for turn in await runtime.recover():
            await turn.settled()
    session = await runtime.session("s", agent=agent)
    if how == "resume" and (left := await session.resume()) is not None:
        await left.settled()
    return session


async def _finish(stage: Stage, scenario: Scenario) -> None:
    session = stage.open_session()
    result = await session.turn("go", idempotency_key=KEY).settled()
    while result.status == "waiting":
        await scenario.answer(stage, result)
        going_on = await session.resume()
        if going_on is None:
            return
        result = await going_on.settled()


async def _settle_queue(session: Session[Any]) -> None:
    """Wait until the turns of queued inputs have ended."""
    draining = session._live.draining
    if draining is not None:
        await draining


async def _report(session: Session[Any]) -> dict[str, Any]:
    return {
        "status": "done",
        "messages": msgspec.to_builtins(await session.messages()),
        "nodes": msgspec.to_builtins(await session.nodes()),
        "turns": msgspec.to_builtins(await session.turns()),
        "approvals": msgspec.to_builtins(await session.approvals()),
        "inputs": msgspec.to_builtins(await session.inputs()),
        "head": msgspec.to_builtins(await session.head()),
    }
