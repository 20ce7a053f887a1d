"""A runtime with the agent of a command line or of a session's record, which every session records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from standfast.cli import demo_tools
from standfast.cli.agent_options import AGENT_NAME, AgentSettings
from standfast.cli.host import load_tools, wrong_grants_are_wrong_usage
from standfast.cli.trace import trace_sink
from standfast.errors import NotConfigured, RepliesLeftOver, SessionNotFound
from standfast.model.session import CurrentTurn, Node, SessionHead
from standfast.providers.resolve import resolve_model
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.data_dir import DataDir
from standfast.runtime.result import TurnResult
from standfast.tools.decorator import AnyTool


class AgentHost:
    """`async with AgentHost(...) as host`: `host.runtime`, and sessions of its one agent."""

    def __init__(self, data_dir: Path, settings: AgentSettings, *, trace: str | None = None) -> None:
        self.settings = settings
        self._model = resolve_model(settings.model)
        tools: list[AnyTool[Any]] = [tool for file in settings.tools for tool in load_tools(file)]
        if settings.is_demo and not tools:
            tools = [demo_tools.order, demo_tools.refund]
        self.agent: Agent[Any, str] = Agent(
            self._model,
            name=AGENT_NAME,
            instructions=settings.instructions or "",
            tools=tools,
            protocol=settings.acting(),
        )
        sink = trace_sink(data_dir, trace)
        self.runtime = Runtime(DataDir(data_dir).database, host=settings.record(), trace=sink)

    async def session(self, session_id: str) -> Session[str]:
        """Open or make a session, and record this agent with it."""
        return await self.runtime.session(session_id, agent=self.agent)

    async def settle(self, session_id: str, turn_id: str) -> TurnResult[Any]:
        """Drive a turn of a session to its end or its next wait."""
        await self.session(session_id)
        return await self.runtime.live(session_id).turn_of(turn_id).settled()

    async def __aenter__(self) -> AgentHost:
        await self.runtime.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        """Close the runtime and the model, even if the calling task is cancelled meanwhile."""

        async def close() -> None:
            await self.runtime.__aexit__(*exc)
            with suppress(RepliesLeftOver):  # a chat may end before its script does
                await self._model.close()

        await _to_the_end(close())


async def _to_the_end(closing: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


@asynccontextmanager
async def open_sessions(data_dir: Path) -> AsyncIterator[Runtime]:
    """Open a runtime over a data directory, without an agent: to read sessions and to decide approvals."""
    async with Runtime(DataDir(data_dir).database) as runtime:
        try:
            yield runtime
        finally:
            await _to_the_end(runtime.close())


def recorded_settings(record: Mapping[str, Any]) -> AgentSettings:
    """Return the agent on a session's record; raise `NotConfigured` if the record has none."""
    settings = AgentSettings.from_record(record)
    if not settings.model:
        raise NotConfigured(
            "the session's record does not say how to make its agent",
            hint="resume it in the program that made the session",
        )
    return settings


async def known_session(runtime: Runtime, session_id: str) -> Session[Any]:
    """Return a handle of a session; raise `SessionNotFound` if it does not exist or has expired."""
    head = await runtime.store.head(session_id)
    if head is None or is_past(head, runtime.now_ms()):
        raise SessionNotFound(session_id)
    return runtime.session_handle(session_id)


def is_past(head: SessionHead, now_ms: int) -> bool:
    """Tell whether a session that runs code has expired."""
    expires_at = None if head.code is None else head.code.expires_at
    return expires_at is not None and expires_at <= now_ms


async def said_so_far(session: Session[Any]) -> tuple[list[Node], CurrentTurn | None]:
    """Return the nodes of a session, and its unfinished turn, if there is one."""
    current = await session.current_turn()
    nodes = await session.nodes()
    if current is not None and any(node.caused_by == current.turn_id for node in nodes):
        current = None  # it has ended meanwhile and is in the nodes
    return nodes, current


def check_given(given: AgentSettings) -> None:
    """Raise `UsageError` if the given model, a tools file or the engine cannot be used."""
    with wrong_grants_are_wrong_usage():
        given.acting()
        if given.model:
            resolve_model(given.model)
        for file in given.tools:
            load_tools(file)
