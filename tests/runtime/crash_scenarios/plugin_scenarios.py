"""Turns with a plugin that has every hook of a turn, killed and run again until they end.

Each hook writes to a ledger the key that its outcome will have in the journal, and counts itself in the
plugin's state. Each process first writes the content of the journal to the same ledger.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from scenarios import (
    KEY,
    NEXT_KEY,
    Stage,
    ToldModel,
    Tools,
    _open,
    _settle_queue,
    approve_everything,
    calls,
    ordinary,
)

from standfast import Agent, Plugin, RunContext, Runtime, Session, action, hook, tool
from standfast.model.directive import (
    CreateSession,
    EmitRuntimeEvents,
    EnqueueMessages,
    ReplaceToolArgs,
    RuntimeEvent,
    SessionRequest,
    ask_person,
)
from standfast.model.message import AssistantMessage, Message, UserMessage, text_of
from standfast.plugins import contexts
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.ports.session_store import Lease, Save, Saved, SessionStore
from standfast.runtime.agent_runtime import open_store
from standfast.store.sqlite.connection import open_checked
from standfast.testing.crash_points import CrashPoints

MakePlugin = Callable[[Stage], Plugin]


def say(text: str) -> EnqueueMessages:
    return EnqueueMessages(messages=(UserMessage(content=text),))


def create(first: str | None = None) -> CreateSession:
    return CreateSession(
        request=SessionRequest(first_input=None if first is None else UserMessage(content=first))
    )


def replies(messages: Sequence[Message]) -> int:
    return sum(1 for one in messages if isinstance(one, AssistantMessage))


def heard(messages: Sequence[Message], text: str) -> bool:
    return any(isinstance(one, UserMessage) and text_of(one.content) == text for one in messages)


def watcher(stage: Stage) -> Plugin:
    """Return the plugin for one process."""

    class Watcher(Plugin):
        """Returns a directive from every hook, and counts the calls."""

        def did(self, ctx: contexts.HookContext, key: str) -> bool:
            """Log that a hook runs; return whether it runs in the session under test."""
            stage.points.point(f"before hook {key}")
            stage.note("hooks", session=ctx.session_id, turn=ctx.turn_id, key=key)
            self.count(f"{ctx.turn_id} {key}")
            stage.points.point(f"after hook {key}")
            return ctx.session_id == "s"

        def count(self, name: str) -> None:
            counted = dict(self.state or {})
            self.state = {**counted, name: counted.get(name, 0) + 1}

        @hook
        async def before_turn(self, ctx: contexts.TurnHookContext) -> list[Any] | None:
            if self.did(ctx, "hooks.before_turn.1") and text_of(ctx.input.content) == "go":
                return [say("mind the gap"), create("child task")]
            return None

        @hook
        async def prompt_contributor(self, ctx: contexts.PromptHookContext) -> str:
            self.did(ctx, f"prepare.{ctx.iteration}")
            return "you are watched"

        @hook
        async def context_transform(
            self, ctx: contexts.TurnTransformContext, messages: list[Message]
        ) -> list[Message]:
            return messages

        @hook
        async def before_tool_call(self, ctx: contexts.ToolCallHookContext) -> Any:
            self.did(ctx, f"ruled.{ctx.call_id}")
            match ctx.tool_name:
                case "refund":
                    return ask_person("it is a lot")
                case "put":
                    return EmitRuntimeEvents(events=(RuntimeEvent(kind="putting", body=ctx.call_id),))
                case "bump" if "by" not in ctx.arguments:
                    return ReplaceToolArgs(arguments={"by": 7})
                case _:
                    return None

        @hook
        async def after_tool_call(self, ctx: contexts.ToolResultHookContext) -> Any:
            self.did(ctx, f"tool.{ctx.call_id}")
            return say("charged it") if ctx.tool_name == "charge" else None

        @hook
        async def checkpoint(self, ctx: contexts.CheckpointHookContext) -> Any:
            here = self.did(ctx, f"hooks.{ctx.checkpoint}.{replies(ctx.messages)}")
            asked = not heard(ctx.messages, "go") or heard(ctx.messages, "are you sure")
            return (
                say("are you sure") if here and ctx.checkpoint == "before_completion" and not asked else None
            )

        @hook
        async def after_turn(self, ctx: contexts.TurnResultHookContext) -> Any:
            here = self.did(ctx, f"hooks.after_turn.{replies(ctx.messages)}")
            return [say("and then"), create()] if here and heard(ctx.messages, "go") else None

        @tool
        async def bump(self, ctx: RunContext[None], by: int = 1) -> str:
            """Count a call."""
            self.count("bumps")
            assert by == 7
            return stage.effect("bump", ctx)

        @action
        async def look(self, ctx: Any) -> dict[str, int]:
            """Return the counts."""
            return dict(self.state or {})

    return Watcher()


@dataclass(frozen=True, slots=True)
class PluginScenario:
    rules: list[dict[str, Any]]
    tools: Callable[[Stage], Tools] = ordinary
    plugin: MakePlugin = watcher


LAST = [
    {"when": "child task", "text": "child done"},
    {"when": "sure", "text": "done"},
    {"when": "and then", "text": "then done"},
]

SCENARIOS = {
    "every_hook": PluginScenario(
        [
            {"when": "gap", "tool_calls": calls("put")},
            {"when_tool": "put", "tool_calls": calls("charge")},
            {"when": "charged it", "tool_calls": calls("bump")},
            {"when_tool": "bump", "tool_calls": calls("refund")},
            {"when_tool": "refund", "text": "I think so"},
            *LAST,
        ]
    ),
    "at_once": PluginScenario(
        [
            {"when": "gap", "tool_calls": calls("put", "charge", "refund")},
            {"when": "charged it", "text": "I think so"},
            *LAST,
        ]
    ),
}


class WatchedModel(ToldModel):
    """A model that records the messages of the session under test."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        if request.session_id != "s":
            return self._script.stream(request)
        self._stage.note("prompts", prompt=request.instructions)
        return super().stream(request)


async def play(job: dict[str, Any], points: CrashPoints) -> dict[str, Any]:
    """Run one process: log the content of the journal, resume, finish, run one more turn, report."""
    stage = Stage(Path(job["home"]), points)
    stage.note("hooks", **_journaled(stage.home / "standfast.db"))
    scenario = SCENARIOS[job["scenario"]]
    model = points.model(WatchedModel(scenario.rules, stage))
    agent: Agent[Any, Any] = Agent(
        model, name="clerk", tools=scenario.tools(stage), plugins=[scenario.plugin(stage)]
    )
    store = points.store(open_store(stage.home / "standfast.db"))
    if job.get("forgetful"):
        store = cast(SessionStore, Forgetful(store))
    async with Runtime(store, agents=[agent]) as runtime:
        stage.runtime = runtime
        session = stage.session = await _open(runtime, agent, job.get("how", "request"))
        await _finish(stage, session)
        await _settle_queue(session)
        await session.turn("again", idempotency_key=NEXT_KEY).settled()
        return await _report(runtime, session, agent)


class Forgetful:
    """A store with a defect: it does not write plugin state before the end of a turn."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, lease: Lease, save: Save) -> Saved:
        kept = tuple(entry for entry in save.entries if entry.kind != "state")
        return await self._store.save(lease, msgspec.structs.replace(save, entries=kept))


def _journaled(database: Path) -> dict[str, Any]:
    """Return the turns that have ended, and the outcomes in the journals of the others."""
    if not database.exists():
        return {"ended": [], "journaled": []}
    with contextlib.closing(open_checked(str(database))) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'journal'").get
        if not tables:
            return {"ended": [], "journaled": []}
        ended = [
            turn_id for (turn_id,) in connection.execute("SELECT turn_id FROM turns WHERE state = 'ended'")
        ]
        kept = [
            list(row) for row in connection.execute("SELECT turn_id, name FROM journal WHERE kind = 'input'")
        ]
        return {"ended": ended, "journaled": kept}


async def _finish(stage: Stage, session: Session[Any]) -> None:
    result = await session.turn("go", idempotency_key=KEY).settled()
    while result.status == "waiting":
        await approve_everything(stage, result)
        going_on = await session.resume()
        if going_on is None:
            return
        result = await going_on.settled()


async def _report(runtime: Runtime, session: Session[Any], agent: Agent[Any, Any]) -> dict[str, Any]:
    others = [head.session_id for head in await runtime.sessions() if head.session_id != "s"]
    return {
        "status": "done",
        "messages": msgspec.to_builtins(await session.messages()),
        "nodes": msgspec.to_builtins(await session.nodes()),
        "turns": msgspec.to_builtins(await session.turns()),
        "approvals": msgspec.to_builtins(await session.approvals()),
        "inputs": msgspec.to_builtins(await session.inputs()),
        "head": msgspec.to_builtins(await session.head()),
        "counted": await session.plugins.invoke("watcher.look"),
        "children": [await _child(runtime, name, agent) for name in others],
    }


async def _child(runtime: Runtime, name: str, agent: Agent[Any, Any]) -> list[Any]:
    """Return the messages of a session that the plugin created, once it is idle."""
    child = await runtime.session(name, agent=agent)
    while (left := await child.resume()) is not None:
        await left.settled()
    await _settle_queue(child)
    return [getattr(one, "content", None) or getattr(one, "text", "") for one in await child.messages()]
