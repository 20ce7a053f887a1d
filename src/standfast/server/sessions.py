"""Sessions over HTTP: create, list, read, fork, rewind, export, delete; and the events of one or all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from standfast.errors import Code, RequestRefused, SessionExists
from standfast.model.canonical import Json
from standfast.model.code import Variable
from standfast.model.session import SessionHead
from standfast.runtime.agent_session import Session
from standfast.runtime.http_values import (
    AgentView,
    Cancelled,
    EventQuery,
    Fork,
    OpenSession,
    Rewind,
    SessionPage,
    SessionQuery,
)
from standfast.runtime.session_views import (
    SessionExport,
    SessionLine,
    SessionView,
    export_session,
    lines_of,
    view_session,
)
from standfast.runtime.sessions.observation import Cursor, Observed
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.session_feed import FeedCursor
from standfast.server.streams import EventStream, sse
from standfast.server.tenants import METADATA_KEY, new_session_id, owned_id

_LAST_EVENT = {"Last-Event-ID": "The cursor of the last event that the client has."}
ROUTES: Final = Routes()


@ROUTES.add("GET", "/v1/agents", Scope.READ, answer=list[AgentView])
async def list_agents(call: Call) -> list[AgentView]:
    """List the agents of this server."""
    return [
        AgentView(
            name=agent.name,
            model=agent.model_id,
            protocol=agent.protocol.id,
            tools=tuple(agent.registry.capabilities()),
        )
        for agent in call.server.agents.values()
    ]


@ROUTES.add("POST", "/v1/sessions", Scope.RUN, body=OpenSession, answer=SessionHead, status=201)
async def create_session(call: Call) -> SessionHead:
    """Create a session with an agent, or open it if the tenant has it."""
    asked: OpenSession = call.body
    session_id = new_session_id(call.tenant, asked.session_id)
    session = await open_session(call, session_id, asked.agent, asked.metadata)
    return await session.head()


async def open_session(
    call: Call, session_id: str, agent_name: str, metadata: Mapping[str, Json] | None = None
) -> Session[Any]:
    """Open a session of the tenant with an agent, creating it if needed. *session_id* is the stored id."""
    agent = call.server.agents.get(agent_name)
    if agent is None:
        hint = "GET /v1/agents lists them"
        raise RequestRefused(404, Code.NOT_CONFIGURED, f"there is no agent {agent_name[:80]!r}", hint=hint)
    call.server.require_serving()
    head = await call.runtime.store.head(session_id)
    if head is not None and (head.tenant != call.tenant or head.code is not None):
        raise SessionExists(session_id)
    kept = dict(metadata or (head.metadata if head is not None else {}))
    kept.pop(METADATA_KEY, None)
    if call.tenant:
        kept[METADATA_KEY] = call.tenant
    return await call.runtime.session(session_id, agent=agent, metadata=kept)


@ROUTES.add("GET", "/v1/sessions", Scope.READ, query=SessionQuery, answer=SessionPage)
async def list_sessions(call: Call) -> SessionPage:
    """List sessions, most recently used first."""
    asked: SessionQuery = call.query
    runtime = call.runtime
    left = {record.turn_id for record in await runtime.store.unfinished(runtime.now_ms())}
    found: list[SessionLine] = []
    after = None
    if asked.after is not None:
        at, _, session_id = asked.after.partition(".")
        after = int(at), session_id
    active = asked.state not in (None, "idle")
    prefix = asked.prefix or ""
    prefixes = (prefix, owned_id(call.tenant, prefix))
    async for head in call.page_heads(asked.agent, after, active=active):
        if not head.session_id.startswith(prefixes):
            continue
        (line,) = await lines_of(runtime, [head], left)
        if asked.state in (None, line.state):
            found.append(line)
        if len(found) > asked.limit:
            break
    page = found[: asked.limit]
    more = len(found) > len(page)
    last = f"{page[-1].last_used_at}.{page[-1].session_id}" if more else None
    return SessionPage(sessions=tuple(page), next=last)


@ROUTES.add("GET", "/v1/sessions/{session_id}", Scope.READ, answer=SessionView)
async def read_session(call: Call) -> SessionView:
    """Read a session with its history, turns, waits and running turn."""
    return await view_session(call.runtime, (await call.head()).session_id)


@ROUTES.add("GET", "/v1/sessions/{session_id}/export", Scope.READ, answer=SessionExport)
async def export(call: Call) -> SessionExport:
    """Export a session as one document."""
    return await export_session(call.runtime, (await call.head()).session_id)


@ROUTES.add("GET", "/v1/sessions/{session_id}/variables", Scope.READ, answer=tuple[Variable, ...])
async def read_variables(call: Call) -> tuple[Variable, ...]:
    """Read the variables of a session's code: names, types and short texts."""
    return await (await call.session()).variables()


@ROUTES.add("POST", "/v1/sessions/{session_id}/fork", Scope.RUN, body=Fork, answer=SessionHead, status=201)
async def fork_session(call: Call) -> SessionHead:
    """Fork a session: create a new one over the same history."""
    asked: Fork = call.body
    head = await call.head()
    new_id = new_session_id(call.tenant, asked.session_id)
    made = await call.runtime.fork(head.session_id, new_id, at=asked.at, input=asked.input, edit=asked.edit)
    return await made.head()


@ROUTES.add("POST", "/v1/sessions/{session_id}/rewind", Scope.RUN, body=Rewind, answer=SessionHead)
async def rewind_session(call: Call) -> SessionHead:
    """Rewind a session to a node, or by a number of turns."""
    asked: Rewind = call.body
    head = await call.head()
    return await call.runtime.rewind(head.session_id, asked.to, turns=asked.turns)


@ROUTES.add("DELETE", "/v1/sessions/{session_id}", Scope.RUN, status=204)
async def delete_session(call: Call) -> None:
    """Delete a session."""
    head = await call.head()
    if head.code is not None and call.server.sandbox is not None:
        await call.server.sandbox.destroy(head.session_id)
    else:
        await call.runtime.delete(head.session_id)
    call.audit("session_deleted", head.session_id)


@ROUTES.add("POST", "/v1/sessions/{session_id}/cancel", Scope.RUN, answer=Cancelled)
async def cancel_session(call: Call) -> Cancelled:
    """Cancel the unfinished turn or run of a session."""
    head = await call.head()
    if head.code is not None and call.server.sandbox is not None:
        return Cancelled(cancelled=await call.server.sandbox.cancel(head.session_id))
    return Cancelled(cancelled=await call.runtime.session_handle(head.session_id).cancel())


@ROUTES.add(
    "GET", "/v1/sessions/{session_id}/events", Scope.READ, query=EventQuery, streams=True, headers=_LAST_EVENT
)
async def session_events(call: Call) -> EventStream:
    """Stream a session's events: first committed ones, then live ones.

    Each event's id is a cursor; `Last-Event-ID` resumes after it.
    """
    session = await call.session()
    cursor = last_event_id(call)
    after = Cursor() if cursor is None else Cursor.parse(cursor)

    async def chunks() -> AsyncIterator[bytes]:
        async for observed in session.observe(after):
            yield sse_of(observed)

    return stream(call, chunks())


@ROUTES.add("GET", "/v1/events", Scope.READ, query=EventQuery, streams=True, headers=_LAST_EVENT)
async def all_events(call: Call) -> EventStream:
    """Stream the events of all sessions, from now on or after `Last-Event-ID`."""
    cursor = last_event_id(call)
    after = None if cursor is None else FeedCursor.parse(cursor)

    async def chunks() -> AsyncIterator[bytes]:
        async for position, event in call.server.feed.follow(call.tenant, after):
            yield sse(event, position)

    return stream(call, chunks())


def sse_of(observed: Observed) -> bytes:
    return sse(observed.event, observed.cursor)


def last_event_id(call: Call) -> str | None:
    """Return the cursor to resume after, None if the client sent none."""
    given = call.headers.get("last-event-id")
    if given is None and isinstance(call.query, EventQuery):
        given = call.query.after
    return given or None


def stream(
    call: Call,
    chunks: AsyncIterator[bytes],
    headers: list[tuple[bytes, bytes]] | None = None,
    may_end: Callable[[], Awaitable[bool]] | None = None,
) -> EventStream:
    """Return a response that streams *chunks* and counts towards the credential's stream limit.

    While the stream is quiet, *may_end* is polled for whether to end it.
    """
    server, credential = call.server, call.credential
    counted = server.limiter.use_stream(credential.id)

    async def still_valid() -> bool:
        if credential.expires_at is not None and call.runtime.now_ms() >= credential.expires_at:
            return False
        return not credential.id.startswith("tok") or await server.tokens.is_valid(credential)

    return EventStream(
        chunks,
        server.streams,
        still_valid=still_valid,
        may_end=may_end,
        on_close=counted.close,
        headers=headers,
    )
