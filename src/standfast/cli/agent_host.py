"""A runtime with the agent of a command line or of a session's record; each session records its agent."""

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
from standfast.errors import NotConfigured, RepliesLeftOver
from standfast.ports.model_provider import ModelProvider
from standfast.providers.resolve import resolve_model
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.data_dir import DataDir
from standfast.runtime.result import TurnResult
from standfast.tools.decorator import AnyTool


class AgentHost:
    """A runtime for one agent and its sessions: `async with AgentHost(...) as host`, then `host.runtime`."""

    agent: Agent[Any, Any]

    def __init__(self, data_dir: Path | str, settings: AgentSettings, *, trace: str | None = None) -> None:
        self.settings = settings
        self._model: ModelProvider | None = None
        runtime = None
        if settings.app:
            self.agent, runtime = named_agent(settings, DataDir(data_dir).database)
        else:
            self._model = resolve_model(settings.model)
            tools: list[AnyTool[Any]] = [tool for file in settings.tools for tool in load_tools(file)]
            if settings.is_demo and not tools and not settings.mcp:
                tools = [demo_tools.order, demo_tools.refund]
            self.agent = Agent(
                self._model,
                name=AGENT_NAME,
                instructions=settings.instructions or "",
                tools=tools,
                protocol=settings.acting(),
            )
        if settings.mcp:
            from standfast.mcp.config import add_mcp_servers  # only agents with MCP servers need it

            add_mcp_servers([self.agent], settings.mcp, data_dir=DataDir(data_dir).directory)
        sink = trace_sink(data_dir, trace)
        self.runtime = runtime or Runtime(DataDir(data_dir).database, host=settings.record(), trace=sink)

    async def session(self, session_id: str) -> Session[str]:
        """Open or create a session, and record this agent with it."""
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
            if self._model is not None:
                with suppress(RepliesLeftOver):  # a chat may end before its script does
                    await self._model.close()

        await _to_the_end(close())


def named_agent(settings: AgentSettings, store: str | Path | None) -> tuple[Agent[Any, Any], Runtime | None]:
    """Return the agent of APP that the settings name, and APP's runtime, if APP creates one.

    APP gets *store* if it takes one.
    """
    from standfast.runtime.app import load_app

    loaded = load_app(settings.app)
    runtime = None if loaded.make is None else loaded.runtime(store if loaded.takes_store else None)
    agents = loaded.agents if runtime is None else tuple(runtime.agents.values())
    known = {str(agent.name): agent for agent in agents}
    chosen = known.get(settings.agent) if settings.agent or len(known) != 1 else next(iter(known.values()))
    if not isinstance(chosen, Agent):
        problem = f"has no agent {settings.agent!r}" if settings.agent else "has several agents"
        hint = f"choose one with --agent: {', '.join(known)}"
        raise NotConfigured(f"{settings.app} {problem}", hint=hint)
    return chosen, runtime


async def _to_the_end(closing: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


@asynccontextmanager
async def open_sessions(data_dir: Path | str) -> AsyncIterator[Runtime]:
    """Open a runtime over a data directory without an agent, to read sessions and decide approvals."""
    async with Runtime(DataDir(data_dir).database) as runtime:
        try:
            yield runtime
        finally:
            await _to_the_end(runtime.close())


def recorded_settings(record: Mapping[str, Any]) -> AgentSettings:
    """Return the agent settings in a session's record; raise `NotConfigured` if it has none."""
    settings = AgentSettings.from_record(record)
    if not settings.model and not settings.app:
        raise NotConfigured(
            "the session's record does not describe its agent",
            hint="resume it in the program that created the session",
        )
    return settings


def check_given(given: AgentSettings) -> None:
    """Raise `UsageError` if the given model, a tools file or the engine cannot be used."""
    with wrong_grants_are_wrong_usage():
        given.acting()
        if given.app:
            named_agent(given, None)
        if given.model:
            resolve_model(given.model)
        for file in given.tools:
            load_tools(file)
