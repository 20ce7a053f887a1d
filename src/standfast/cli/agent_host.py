"""A runtime with the agent that a command line or a session's record describes.

Rule: what another process needs to make the same agent again is recorded with every session that is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from standfast.cli import demo_tools
from standfast.cli.agent_options import AGENT_NAME, AgentSettings
from standfast.cli.host import load_tools, wrong_grants_are_wrong_usage
from standfast.cli.trace import trace_sink
from standfast.errors import NotConfigured, SessionNotFound
from standfast.model.current_turn import CurrentTurn
from standfast.model.head import SessionHead
from standfast.model.node import Node
from standfast.providers.resolve import resolve_model
from standfast.providers.scripted import RepliesLeftOver
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.data_dir import DataDir
from standfast.tools.decorator import AnyTool


class AgentHost:
    """`async with AgentHost(...) as host`: `host.runtime`, and sessions of its one agent."""

    def __init__(self, data_dir: Path, settings: AgentSettings, *, trace: str | None = None) -> None:
        self.settings = settings
        self._model = resolve_model(settings.model)
        self.agent: Agent[Any, str] = Agent(
            self._model,
            name=AGENT_NAME,
            instructions=settings.instructions or "",
            tools=_tools_of(settings),
            protocol=settings.acting(),
        )
        sink = trace_sink(data_dir, trace)
        self.runtime = Runtime(DataDir(data_dir).database, host=settings.record(), trace=sink)

    async def session(self, session_id: str) -> Session[str]:
        """Open a session, or make it; its record is this agent's from now on."""
        return await self.runtime.session(session_id, agent=self.agent)

    async def __aenter__(self) -> AgentHost:
        await self.runtime.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.runtime.__aexit__(*exc)
        with suppress(RepliesLeftOver):  # a chat may end before its script does
            await self._model.close()


def open_sessions(data_dir: Path) -> Runtime:
    """The sessions of a data directory, without an agent: to look at them and to decide."""
    return Runtime(DataDir(data_dir).database)


def recorded_settings(record: Mapping[str, Any]) -> AgentSettings:
    """The agent of a session's record. Raises `NotConfigured` if the record does not tell."""
    settings = AgentSettings.from_record(record)
    if not settings.model:
        raise NotConfigured(
            "the session's record does not say how to make its agent",
            hint="go on with it in the program that began it",
        )
    return settings


async def known_session(runtime: Runtime, session_id: str) -> Session[Any]:
    """Return a session that exists and has not expired, to look at; `SessionNotFound` otherwise."""
    head = await runtime.store.head(session_id)
    if head is None or is_past(head, runtime.now_ms()):
        raise SessionNotFound(session_id)
    return runtime.session_handle(session_id)


def is_past(head: SessionHead, now_ms: int) -> bool:
    """Tell whether a session that runs code has reached the end of its lifetime."""
    expires_at = None if head.code is None else head.code.expires_at
    return expires_at is not None and expires_at <= now_ms


async def said_so_far(session: Session[Any]) -> tuple[list[Node], CurrentTurn | None]:
    """The conversation of a session: its nodes, and the turn that has not ended, if there is one."""
    current = await session.current_turn()
    nodes = await session.nodes()
    if current is not None and any(node.caused_by == current.turn_id for node in nodes):
        current = None  # it has ended since, and is in the nodes now
    return nodes, current


def check_given(given: AgentSettings) -> None:
    """A model, a tools file or an engine on the command line that cannot be used is wrong usage."""
    with wrong_grants_are_wrong_usage():
        given.acting()
        if given.model:
            resolve_model(given.model)
        for file in given.tools:
            load_tools(file)


def _tools_of(settings: AgentSettings) -> Sequence[AnyTool[Any]]:
    """The tools of the files; the demo without any has its own."""
    if settings.is_demo and not settings.tools:
        return [demo_tools.order, demo_tools.refund]
    return [tool for file in settings.tools for tool in load_tools(file)]
