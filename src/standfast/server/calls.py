"""A request on its way to a handler: its route, credential and values, and the state that handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from starlette.responses import Response

from standfast.errors import (
    Code,
    InvalidArgument,
    InvalidSessionId,
    RequestRefused,
    ServiceUnavailable,
    SessionNotFound,
    StandfastError,
)
from standfast.model.session import SessionHead, TurnRecord
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.sandbox import Sandbox
from standfast.runtime.session_views import is_past
from standfast.server.audit import AuditLog
from standfast.server.credentials import Credential, Scope, Tokens
from standfast.server.limits import CredentialLimiter
from standfast.server.problems import malformed
from standfast.server.session_feed import SessionFeed
from standfast.server.streams import OpenStreams
from standfast.server.tenants import owned_id

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
BINARY: Final = "application/octet-stream"
_PAGE: Final = 200
"""The page size for reading sessions."""

H = TypeVar("H", bound="Callable[[Call], Awaitable[Any]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the route table. The handler's docstring is the summary in the OpenAPI document.

    body: the type of the JSON body, or `bytes` for a body that is passed through. query: a struct whose
    fields are the query parameters. answer: the type of the JSON response; `bytes` for binary data, None for
    an empty response. streams: the response may be an event stream, if `Accept` asks for it (`answer` is not
    None) or always. headers: the request headers that the handler reads, with their descriptions. form: how a
    body that is not JSON is sent.
    """

    method: str
    path: str
    scope: Scope
    handler: Callable[[Call], Awaitable[Any]]
    body: Any = None
    query: Any = None
    answer: Any = None
    status: int = 200
    streams: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    form: str = ""
    other_statuses: tuple[int, ...] = ()
    operator_only: bool = False
    """Whether only a credential without a tenant may use it."""
    publishable: bool = False
    """Whether the operator can make it public (`create_app(publish_agent_card=True)`)."""


class Routes:
    """The routes of one module, in the order of their handlers."""

    def __init__(self) -> None:
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def add(self, method: str, path: str, scope: Scope, **options: Any) -> Callable[[H], H]:
        """Return a decorator that routes requests to a handler; *options* are the other fields of `Route`."""

        def added(handler: H) -> H:
            self._routes.append(Route(method=method, path=path, scope=scope, handler=handler, **options))
            return handler

        return added


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserPages:
    """Routes for browsers, beside the API. Their handlers return whole responses, and they are not in the
    OpenAPI document, so they name no `answer`.

    problem: returns the page that shows an error with this status. Other sites may link to the pages.
    """

    routes: tuple[Route, ...] = ()
    problem: Callable[[StandfastError, int], Response]


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The state that an application's handlers share."""

    runtime: Runtime
    agents: Mapping[str, AgentDefinition[Any, Any]]
    sandbox: Sandbox | None
    tokens: Tokens
    audit: AuditLog
    limiter: CredentialLimiter
    streams: OpenStreams
    feed: SessionFeed
    webhook_secrets: Mapping[str, str]
    trace_file: str | None
    document: bytes = b""
    """The OpenAPI document."""
    draining: bool = False
    turns: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks that wait for the turns and runs started here."""
    mcp: Any = None
    """The MCP server at `/mcp`, created on first use."""
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    """The number of responses by route and status."""

    def require_sandbox(self) -> Sandbox:
        if self.sandbox is None:
            raise ServiceUnavailable("code", "this server runs no code: create_app(sandbox=Sandbox(...))")
        return self.sandbox

    def require_serving(self) -> None:
        """Raise 503 if the server is shutting down."""
        if self.draining:
            raise RequestRefused(
                503,
                Code.RUNTIME_CLOSED,
                "this server is shutting down",
                hint="send the request again",
                headers={"retry-after": "1"},
            )


@dataclass(slots=True, kw_only=True)
class Call:
    """A request whose credential, path, query and body have been validated."""

    server: ServerState
    route: Route
    scope: Mapping[str, Any]
    headers: Mapping[str, str]
    credential: Credential
    path: Mapping[str, str]
    query: Any = None
    body: Any = None

    @property
    def runtime(self) -> Runtime:
        return self.server.runtime

    @property
    def tenant(self) -> str:
        return self.credential.tenant

    @property
    def wants_stream(self) -> bool:
        """Whether the client prefers an event stream to JSON."""
        return EVENT_STREAM in self.headers.get("accept", "")

    def audit(self, kind: str, subject: str = "", detail: str = "") -> None:
        """Write a record about the credential's action to the audit log."""
        who = self.credential
        self.server.audit.record(kind, credential=who.id, tenant=who.tenant, subject=subject, detail=detail)

    async def head(self, given: str | None = None) -> SessionHead:
        """Return the head of a session that the credential may see, by default the one in the path."""
        session_id = self.path["session_id"] if given is None else given
        store, tenant = self.runtime.store, self.tenant
        head = await store.head(owned_id(tenant, session_id))
        if head is None and tenant:
            head = await store.head(session_id)  # a session that the runtime created for the tenant
        if head is None or not self._may_see(head, self.runtime.now_ms()):
            raise SessionNotFound(session_id)
        return head

    async def turn(self, turn_id: str) -> tuple[TurnRecord, SessionHead] | None:
        """Return a turn and its session's head; None if the credential's tenant has no such turn."""
        record = await self.runtime.store.turn(turn_id)
        head = None if record is None else await self.runtime.store.head(record.session_id)
        if record is None or head is None or head.tenant != self.tenant:
            return None
        return record, head

    async def session(self) -> Session[Any]:
        """Return the session in the path, without its agent."""
        return self.runtime.session_handle((await self.head()).session_id)

    async def working_session(self) -> Session[Any]:
        """Return the session in the path with its agent, ready to run turns."""
        head = self.runtime.last_head(owned_id(self.tenant, self.path["session_id"]))
        if head is None or not self._may_see(head, self.runtime.now_ms()):
            head = await self.head()
        if head.code is not None:
            raise InvalidArgument(
                f"session {head.session_id!r} runs code and has no model", hint="run code with POST /v1/runs"
            )
        live = self.runtime.live(head.session_id)
        if live.prepared is not None and live.prepared.agent.name == head.agent:
            return self.runtime.session_handle(head.session_id)
        return await self.runtime.session(head.session_id, agent=self.server.agents.get(head.agent))

    async def visible_heads(self) -> list[SessionHead]:
        """Return the sessions that the credential may see, most recently used first."""
        now = self.runtime.now_ms()
        return [head for head in await self.runtime.sessions() if self._may_see(head, now)]

    async def page_heads(
        self, agent: str | None, after: tuple[int, str] | None, *, active: bool = False
    ) -> AsyncIterator[SessionHead]:
        """Yield the sessions after position *after* that the credential may see, reading page by page.

        With *active*, yield only those with an unfinished turn or a queued input.
        """
        now = self.runtime.now_ms()
        while True:
            heads = await self.runtime.store.heads(agent=agent, after=after, limit=_PAGE, active=active)
            for head in heads:
                if self._may_see(head, now):
                    yield head
            if len(heads) < _PAGE:
                return
            after = heads[-1].updated_at, heads[-1].session_id

    def _may_see(self, head: SessionHead, now_ms: int) -> bool:
        return head.tenant == self.tenant and not is_past(head, now_ms)


def convert_query(kind: Any, pairs: list[tuple[str, str]]) -> Any:
    """Convert query parameters into the struct *kind*; raise 400 if they do not match."""
    if kind is None:
        if pairs:
            raise malformed(f"there is no query parameter {pairs[0][0][:80]!r} here")
        return None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise malformed("a query parameter is given twice")
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise malformed(f"there is no query parameter {unknown[:80]!r}, only {', '.join(sorted(known))}")
    try:
        converted = msgspec.convert(given, kind, strict=False)
    except (msgspec.ValidationError, InvalidSessionId) as error:
        raise malformed(f"query: {error}") from None
    null = next((name for name in given if getattr(converted, name) is None), None)
    if null is not None:
        raise malformed(f"query parameter {null!r} is {given[null][:80]!r}; leave it out instead")
    return converted


def whole_numbers(value: Any) -> Any:
    """Return JSON with integral floats as integers, because some clients write every number as a float."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(part) for part in value]
    if isinstance(value, dict):
        return {key: whole_numbers(part) for key, part in value.items()}
    return value
