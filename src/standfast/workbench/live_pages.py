"""The streams that keep pages up to date: fragments of HTML that htmx swaps in.

Theory of operation
-------------------
A stream follows events and sends fragments that replace parts of the page. Events that come while a fragment
is made are taken together. The page of a session gets its unfinished turn whole whenever more than streamed
text has changed, and each committed turn once. Lists get the event `changed`, and load themselves again.

Rule: a stream that begins again sends everything that may have changed since. So a restart of the server, a
lost connection or a missed event leaves no page wrong.
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
from standfast.server.calls import Call, Route
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


class Batches(Generic[T]):
    """Reads an endless iterator in a task of its own, so that its items can be taken together."""

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
        """Return the items that have come, waiting for the first one up to *timeout_s*."""
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
    """Return fragments as an event without a name, which htmx swaps in."""
    lines = str(h.fragment[content]).split("\n")
    data = "".join(f"data: {line}\n" for line in lines)
    return f"id: {position}\n{data}\n".encode()


_CHANGED: Final = b"id: 1\nevent: changed\ndata: 1\n\n"


class LiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to tell of: with `session`, only what changes in it; with `catalog`, agents and their tools."""

    session: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None
    catalog: bool = False


async def live(call: Call) -> EventStream:
    """Tell parts of pages that they have changed, and send how many requests wait for a decision."""
    asked: LiveQuery = call.query

    async def chunks() -> AsyncIterator[bytes]:
        events: Batches[tuple[str, SessionEvent]] = Batches(call.server.feed.follow(call.tenant, None))
        inbox_of(call.runtime).forget()
        known = [one.approval_id for one in await pending(call)]
        catalog = catalog_of(call) if asked.catalog else None
        try:  # first, what has changed since the page was made or the last connection was lost
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
    """The depth of the history that the page shows."""

    depth: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


async def session_stream(call: Call) -> EventStream:
    """Send what happens in a session as fragments of its page."""
    given = call.headers.get("last-event-id", "")
    depth = int(given) if given.isascii() and given.isdigit() and len(given) < 12 else call.query.depth
    view = SessionFollower(call, (await call.head()).session_id, depth)
    return stream(call, view.chunks())


class SessionFollower:
    """Follows one session for one page. `depth` is how much of the history the page shows."""

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
            first = await events.take(0.05)  # what is kept of the running turn
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
        """Take events; return whether more than text has come, and whether some were missed."""
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
        """Return every part of the page that may have changed; nothing if *only_news* and nothing has."""
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
    """What a page must be told of, even if no event says so: another process may have done it."""
    current = (
        None if now.current is None else (now.current.turn_id, now.current.state, len(now.current.messages))
    )
    decided = [(one.approval_id, one.state) for one in now.approvals]
    return now.state, now.head.depth, now.head.leaf, current, decided, [one.input_id for one in now.inputs]


ROUTES: Final = (
    Route(method="GET", path="/live", scope=Scope.READ, handler=live, query=LiveQuery, streams=True),
    Route(
        method="GET",
        path="/sessions/{session_id}/stream",
        scope=Scope.READ,
        handler=session_stream,
        query=StreamQuery,
        streams=True,
    ),
)
