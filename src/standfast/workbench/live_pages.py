"""The event streams that keep pages up to date: HTML fragments that htmx swaps in.

Theory of operation
-------------------
A stream follows events and sends fragments that replace parts of the page. Events that arrive while a
fragment is being rendered are batched. A session's page receives its unfinished turn whole whenever more
than streamed text has changed, and each committed turn once. Lists receive the event `changed` and reload.

Rule: a stream that reconnects resends everything that may have changed since. So a server restart, a lost
connection or a missed event never leaves a page stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final, Generic, TypeVar

import htpy as h
import msgspec

from standfast.model.events import (
    Gap,
    NodeCommitted,
    ReasoningStreamed,
    TextStreamed,
    ToolReported,
    TurnCommitted,
)
from standfast.runtime.http_values import SessionEvent
from standfast.runtime.sessions.observation import Cursor, Observed
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.sessions import stream
from standfast.server.streams import EventStream
from standfast.workbench.conversation_html import turn_html
from standfast.workbench.inbox import count_pending, inbox_of, pending
from standfast.workbench.live_turn import LiveTurn
from standfast.workbench.session_page import (
    composer_actions,
    current_html,
    options_for,
    queue_html,
    session_header,
    window_html,
)
from standfast.workbench.session_reader import SessionNow, read_now, read_window
from standfast.workbench.shell import pending_badge
from standfast.workbench.tools_page import catalog_of

_LOOK_S: Final = 2.0
_PAUSE_S: Final = 0.2
_BRIEF: Final = (TextStreamed, ReasoningStreamed, ToolReported)
T = TypeVar("T")
ROUTES: Final = Routes()


class Batches(Generic[T]):
    """Reads an endless iterator in its own task, so that items can be taken in batches."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._found: list[T] = []
        self._some = asyncio.Event()
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            async for item in self._items:
                self._found.append(item)
                self._some.set()
        finally:
            self._some.set()

    async def take(self, timeout_s: float) -> list[T]:
        """Return the items received so far, waiting up to *timeout_s* for the first one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._some.wait()
        except TimeoutError:
            return []
        if self._task.done():
            self._task.result()
        self._some.clear()
        found, self._found = self._found, []
        return found

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


def partial(target: str, content: h.Node, swap: str = "outerMorph") -> h.Element:
    """Return a fragment that htmx swaps into the element *target*."""
    return h.hx_partial(hx_target=target, hx_swap=swap)[content]


def message(content: h.Node, position: object) -> bytes:
    """Encode fragments as an unnamed server-sent event, which htmx swaps in."""
    lines = str(h.fragment[content]).split("\n")
    data = "".join(f"data: {line}\n" for line in lines)
    return f"id: {position}\n{data}\n".encode()


_CHANGED: Final = b"id: 1\nevent: changed\ndata: 1\n\n"


class LiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The stream's filter: `session` limits it to one session, `catalog` adds changes of agents and tools."""

    session: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None
    catalog: bool = False


@ROUTES.add("GET", "/live", Scope.READ, query=LiveQuery)
async def live(call: Call) -> EventStream:
    """Notify a page that its parts have changed, and send the number of pending requests."""
    asked: LiveQuery = call.query

    async def chunks() -> AsyncIterator[bytes]:
        events: Batches[tuple[str, SessionEvent]] = Batches(call.server.feed.follow(call.tenant, None))
        inbox_of(call.runtime).forget()
        known = [one.approval_id for one in await pending(call)]
        catalog = catalog_of(call) if asked.catalog else None
        try:  # changes since the page was rendered or the connection was lost
            yield message(partial("#pending", pending_badge(len(known))), 1) + _CHANGED
            while True:
                told = await events.take(_LOOK_S)
                news = [event for _, event in told if not isinstance(event.event, _BRIEF)]
                if news:
                    inbox_of(call.runtime).forget()
                waiting = [one.approval_id for one in await pending(call)]
                if waiting != known:
                    yield message(partial("#pending", pending_badge(len(waiting))), 1)
                if asked.catalog:
                    catalog, before = catalog_of(call), catalog
                    changed = catalog != before
                else:
                    changed = (asked.session is None and waiting != known) or any(
                        asked.session in (None, event.session_id) or not event.session_id for event in news
                    )
                if changed:
                    yield _CHANGED
                known = waiting
                await asyncio.sleep(_PAUSE_S)
        finally:
            await events.close()

    return stream(call, chunks())


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The depth of the history that the page already shows."""

    depth: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


@ROUTES.add("GET", "/sessions/{session_id}/stream", Scope.READ, query=StreamQuery)
async def session_stream(call: Call) -> EventStream:
    """Stream a session's changes as fragments of its page."""
    given = call.headers.get("last-event-id", "")
    depth = int(given) if given.isascii() and given.isdigit() and len(given) < 12 else call.query.depth
    view = SessionFollower(call, (await call.head()).session_id, depth)
    return stream(call, view.chunks())


class SessionFollower:
    """Follows one session for one page. `depth` is the depth of the history that the page shows."""

    def __init__(self, call: Call, session_id: str, depth: int) -> None:
        self._call = call
        self._session_id = session_id
        self._depth = depth
        self._live = LiveTurn()
        self._known: object = None

    async def chunks(self) -> AsyncIterator[bytes]:
        session = self._call.runtime.session_handle(self._session_id)
        events: Batches[Observed] = Batches(session.observe(Cursor(depth=self._depth)))
        try:
            first = await events.take(0.05)  # the buffered events of the running turn
            whole = self._feed(first)[1]
            yield await self._everything(whole=whole)
            while True:
                told = await events.take(_LOOK_S)
                text_before, thoughts_before = len(self._live.text), len(self._live.thoughts)
                more, gap = self._feed(told)
                if more or not told:
                    fragments = await self._everything(whole=gap, only_news=not told)
                    if fragments:
                        yield fragments
                else:
                    yield self._streamed(text_before, thoughts_before)
        finally:
            await events.close()

    def _feed(self, told: list[Observed]) -> tuple[bool, bool]:
        """Apply events; return whether more than streamed text changed, and whether events were missed."""
        more = gap = False
        for observed in told:
            event = observed.event
            gap = gap or isinstance(event, Gap)
            more = self._live.feed(event) or isinstance(event, (TurnCommitted, NodeCommitted)) or more
        return more, gap

    def _streamed(self, text: int, thoughts: int) -> bytes:
        added: list[h.Node] = []
        if self._live.text[text:]:
            added.append(partial("#stream-text", self._live.text[text:], "beforeend"))
        if self._live.thoughts[thoughts:]:
            shown = h.div("#stream-thoughts.thought")[self._live.thoughts]
            added.append(partial("#stream-thoughts", shown))
        return message(added, self._depth)

    async def _everything(self, *, whole: bool, only_news: bool = False) -> bytes:
        """Render every part of the page that may have changed; with *only_news*, b"" if nothing has."""
        call = self._call
        now = await read_now(call.runtime, self._session_id)
        known = _signature(now)
        if only_news and known == self._known:
            return b""
        self._known = known
        options = options_for(call, now.head)
        parts: list[h.Node] = []
        if whole or now.head.depth < self._depth:
            window = await read_window(call.runtime, self._session_id, now.head.leaf, now.head.depth)
            parts.append(partial("#turns", window_html(window, options), "innerHTML"))
        elif now.head.depth > self._depth:
            window = await read_window(
                call.runtime, self._session_id, now.head.leaf, now.head.depth, after_depth=self._depth
            )
            turns = [turn_html(turn, options) for turn in window.turns]
            parts.append(partial("#turns", turns, "beforeend"))
        self._depth = now.head.depth
        decides = call.credential.allows(Scope.APPROVE)
        parts += [
            partial("#current", current_html(now, self._live, options, decides)),
            partial("#session-head", session_header(now, options.now_ms)),
            partial("#queue", queue_html(now)),
            partial("#composer-actions", composer_actions(now)),
            partial("#pending", pending_badge(await count_pending(call))),
        ]
        return message(parts, self._depth)


def _signature(now: SessionNow) -> object:
    """Return the state that a page must follow even without events: another process may have changed it."""
    current = (
        None if now.current is None else (now.current.turn_id, now.current.state, len(now.current.messages))
    )
    decided = [(one.approval_id, one.state) for one in now.approvals]
    return now.state, now.head.depth, now.head.leaf, current, decided, [one.input_id for one in now.inputs]
