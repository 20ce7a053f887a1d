"""A test bench for the host services: a session with a host, plugins with state, models that wait."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from plugin_stand_ins import Album, Counter
from stand_ins import EchoModel, Place

from standfast import Agent, Plugin, Runtime, Session, tool
from standfast.model.host_requests import SessionCreateRequest, TurnInput
from standfast.model.message import UserMessage
from standfast.ports.host import RuntimeSessionHost


@tool(side_effect="read")
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


@tool(side_effect="write")
async def put(what: str) -> str:
    """Put something down."""
    return f"put {what}"


class Stage:
    """An open runtime with one session, `root`."""

    def __init__(self, runtime: Runtime, session: Session[Any], agent: Agent[Any, Any]) -> None:
        self.runtime = runtime
        self.session = session
        self.agent = agent
        self.host = runtime.host(session.session_id)

    async def make(self, session_id: str | None = None, **wanted: Any) -> str:
        """Create a session for `root` and return its id."""
        request = SessionCreateRequest(session_id=session_id, **wanted)
        return (await self.host.create_session(request)).session_id

    def host_of(self, session_id: str) -> RuntimeSessionHost:
        return self.runtime.host(session_id)

    async def open(self, session_id: str) -> Session[Any]:
        return await self.runtime.session(session_id)

    async def offered(self, session_id: str) -> list[str]:
        """Return the names of the tools that a session's model is offered."""
        return [one["name"] for one in await self.host.tool_catalog(session_id)]


@contextlib.asynccontextmanager
async def staged(
    place: Place, *plugins: Plugin, model: Any = None, agents: bool = False, **options: Any
) -> AsyncIterator[Stage]:
    """Open a runtime over *place* with the session `root`; with *agents*, its agent is known by name."""
    agent = Agent(
        model or EchoModel(), name="worker", tools=[look, put], plugins=[Counter(), Album(), *plugins]
    )
    async with place.runtime(agents=[agent] if agents else [], **options) as runtime:
        yield Stage(runtime, await runtime.session("root", agent=agent), agent)


def said(text: str, **options: Any) -> TurnInput:
    return TurnInput(message=UserMessage(content=text), **options)
