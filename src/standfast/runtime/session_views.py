"""Views of sessions for lists, details and exports, shared by commands, server and clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from standfast.errors import SessionNotFound
from standfast.model.approval import Approval
from standfast.model.limits import UsageEntry
from standfast.model.message import AttachmentPart, InputPart, Part, ToolMessage, UserMessage
from standfast.model.outcome import Waiting
from standfast.model.session import (
    Blocked,
    CodeSettings,
    CurrentTurn,
    Node,
    SessionHead,
    TurnRecord,
    TurnState,
)
from standfast.ports.session_store import QueuedInput, SessionOutline
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.code_sessions import stored_variables
from standfast.runtime.sessions.observation import blocked_in


class StoredCode(CodeSettings, frozen=True, kw_only=True):
    """The settings of a session that runs code, and the size of its stored variables."""

    state_bytes: int


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. `nodes` is the length of its history. A session that runs code has `code`."""

    session_id: str
    state: str
    turns: int
    nodes: int
    model: str
    created_at: int
    last_used_at: int
    forked_from: str | None = None
    code: StoredCode | None = None
    agent: str = ""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session with its history. `unfinished` is the turn that is running, waiting or interrupted.

    `current` has the messages of that turn, which are not in `nodes` yet. `blocked` is the reason why the
    last attempt to run that turn, or the next queued input, failed. A session that runs code has `code`.
    """

    state: str
    head: SessionHead
    nodes: list[Node]
    turns: list[TurnRecord]
    unfinished: TurnRecord | None
    approvals: list[Approval]
    inputs: list[QueuedInput]
    current: CurrentTurn | None = None
    blocked: Blocked | None = None
    code: StoredCode | None = None


async def list_sessions(
    runtime: Runtime, *, agent: str | None = None, limit: int | None = None
) -> list[SessionLine]:
    """Return up to *limit* sessions, only those of *agent* if given, the most recently used first."""
    now = runtime.now_ms()
    left = {record.turn_id for record in await runtime.store.unfinished(now)}
    found = await runtime.sessions(agent=agent, limit=limit)
    heads = [head for head in found if not is_past(head, now)]
    return await lines_of(runtime, heads, left)


async def lines_of(runtime: Runtime, heads: list[SessionHead], left: set[str]) -> list[SessionLine]:
    """Return the list entries of sessions; *left* are the ids of turns that no process runs."""
    outlines = await runtime.store.outlines(tuple(head.session_id for head in heads))
    return [await _line_of(runtime, head, outlines.get(head.session_id), left) for head in heads]


async def _line_of(
    runtime: Runtime, head: SessionHead, outline: SessionOutline | None, left: set[str]
) -> SessionLine:
    outline = outline or SessionOutline()
    return SessionLine(
        session_id=head.session_id,
        state=state_of_session(outline.open_turn, left, await blocked_in(runtime.store, head)),
        turns=outline.turns,
        nodes=head.depth,
        model=head.model,
        created_at=head.created_at,
        last_used_at=head.updated_at,
        forked_from=head.forked_from,
        code=await _stored_code(runtime, head),
        agent=head.agent,
    )


async def view_session(runtime: Runtime, session_id: str) -> SessionView:
    """Return one session with its history, turns, approvals and queued inputs."""
    session = await known_session(runtime, session_id)
    left = {record.turn_id for record in await runtime.store.unfinished(runtime.now_ms())}
    turns = await session.turns()
    open_turn = next((turn for turn in reversed(turns) if turn.state is not TurnState.ENDED), None)
    blocked = await session.blocked()
    nodes, current = await said_so_far(session)
    head = await session.head()
    return SessionView(
        state=state_of_session(open_turn, left, blocked),
        head=head,
        nodes=nodes,
        turns=turns,
        unfinished=open_turn,
        approvals=[] if open_turn is None else await pending_approvals(runtime, open_turn),
        inputs=await session.inputs(),
        blocked=blocked,
        current=current,
        code=await _stored_code(runtime, head),
    )


async def _stored_code(runtime: Runtime, head: SessionHead) -> StoredCode | None:
    if head.code is None:
        return None
    size = len(await stored_variables(runtime.store, head))
    return StoredCode(**msgspec.structs.asdict(head.code), state_bytes=size)


def state_of_session(turn: TurnRecord | None, left: set[str], blocked: Blocked | None) -> str:
    """Return `idle`, `waiting`, `running`, `interrupted` (its process died) or `blocked` (`SessionView`).

    *turn* is the session's unfinished turn; *left* has the ids of turns that no process runs.
    """
    if blocked is not None and (turn is None or turn.turn_id in left):
        return "blocked"
    if turn is None:
        return "idle"
    if turn.state is TurnState.WAITING:
        return "waiting"
    return "interrupted" if turn.turn_id in left else "running"


async def pending_approvals(runtime: Runtime, record: TurnRecord) -> list[Approval]:
    """Return the approvals that a turn waits for."""
    outcome = None if record.summary is None else record.summary.outcome
    waited = {wait.wait_id for wait in outcome.waits} if isinstance(outcome, Waiting) else set()
    asked = await runtime.approvals(session=record.session_id, pending=True)
    return [one for one in asked if one.approval_id in waited]


async def known_session(runtime: Runtime, session_id: str) -> Session[Any]:
    """Return a handle of a session; raise `SessionNotFound` if it does not exist or has expired."""
    head = await runtime.store.head(session_id)
    if head is None or is_past(head, runtime.now_ms()):
        raise SessionNotFound(session_id)
    return runtime.session_handle(session_id)


def is_past(head: SessionHead, now_ms: int) -> bool:
    """Return whether a session that runs code has expired."""
    expires_at = None if head.code is None else head.code.expires_at
    return expires_at is not None and expires_at <= now_ms


async def said_so_far(session: Session[Any]) -> tuple[list[Node], CurrentTurn | None]:
    """Return the nodes of a session, and its unfinished turn, if there is one."""
    current = await session.current_turn()
    nodes = await session.nodes()
    if current is not None and any(node.caused_by == current.turn_id for node in nodes):
        current = None  # it has ended in the meantime and is in the nodes
    return nodes, current


class SessionExport(msgspec.Struct, frozen=True, kw_only=True):
    """A session for export. `nodes` are the active path, oldest first; `attachments` are listed by digest.

    `current` is the unfinished turn, if there is one; its messages are not in `nodes` yet.
    """

    format: Literal["standfast.session"] = "standfast.session"
    version: Literal[1] = 1
    head: SessionHead
    nodes: tuple[Node, ...]
    turns: tuple[TurnRecord, ...]
    usage: tuple[UsageEntry, ...]
    approvals: tuple[Approval, ...]
    attachments: tuple[AttachmentPart, ...]
    current: CurrentTurn | None = None


async def export_session(runtime: Runtime, session_id: str) -> SessionExport:
    """Return the export of a session: everything that belongs to it, except the bytes of its attachments."""
    session = await known_session(runtime, session_id)
    nodes, current = await said_so_far(session)
    head = await session.head()
    turns = tuple(await session.turns())
    mine = {turn.turn_id for turn in turns}
    parts: dict[str, AttachmentPart] = {}
    for payload in (*(node.payload for node in nodes), *(() if current is None else current.messages)):
        found: Iterable[Part] = ()
        if isinstance(payload, UserMessage) and not isinstance(payload.content, str):
            found = payload.content
        elif isinstance(payload, ToolMessage):
            found = payload.attachments
        for part in found:
            if isinstance(part, InputPart):
                part = AttachmentPart(
                    digest=part.digest, media_type=part.media_type, size=part.size, name=part.name
                )
            if isinstance(part, AttachmentPart):
                parts[part.digest] = part
    return SessionExport(
        head=head,
        nodes=tuple(nodes),
        turns=turns,
        usage=head.usage,
        approvals=tuple(one for one in await session.approvals() if one.run_id in mine),
        attachments=tuple(parts.values()),
        current=current,
    )
