"""Sessions as `standfast sessions` lists, shows and exports them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import click
import msgspec

from standfast.cli.agent_host import is_past, known_session, said_so_far
from standfast.cli.options import Invocation
from standfast.cli.output import console, error_console, moment, styled, write_private
from standfast.cli.report import facts_table, show_table, show_waiting
from standfast.cli.transcript import show_conversation, usage_table
from standfast.cli.turn_report import TurnReport, report_turn
from standfast.model.approval import Approval
from standfast.model.limits import UsageEntry
from standfast.model.message import AttachmentPart, InputPart, Part, ToolMessage, UserMessage
from standfast.model.session import (
    Blocked,
    CodeSettings,
    CurrentTurn,
    Node,
    SessionHead,
    TurnRecord,
    TurnState,
)
from standfast.ports.session_store import QueuedInput
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.sessions.observation import blocked_in

_COLOURS = {"running": "green", "waiting": "yellow", "interrupted": "red", "blocked": "red"}


class StoredCode(CodeSettings, frozen=True, kw_only=True):
    """The settings of a session that runs code, and the size of its stored variables."""

    state_bytes: int


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the list. `nodes` counts its history. A session that runs code has `code`."""

    session_id: str
    state: str
    turns: int
    nodes: int
    model: str
    created_at: int
    last_used_at: int
    forked_from: str | None = None
    code: StoredCode | None = None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session with its history. `unfinished` is the turn that runs, waits or was interrupted.

    `current` has the messages of that turn, which are not in `nodes` yet. `blocked` says why that turn, or
    the next queued input, could not run when a process last tried. A session that runs code has `code`.
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


async def list_sessions(runtime: Runtime) -> list[SessionLine]:
    """Return all sessions, the most recently used first."""
    now = runtime.now_ms()
    left = {record.turn_id for record in await runtime.store.unfinished(now)}
    rows = []
    for head in await runtime.sessions():
        if is_past(head, now):
            continue
        turns = await runtime.store.turns(head.session_id)
        rows.append(
            SessionLine(
                session_id=head.session_id,
                state=_state(turns, left, await blocked_in(runtime.store, head)),
                turns=len(turns),
                nodes=head.depth,
                model=head.model,
                created_at=head.created_at,
                last_used_at=head.updated_at,
                forked_from=head.forked_from,
                code=await _stored_code(runtime, head),
            )
        )
    return rows


async def view_session(runtime: Runtime, session_id: str) -> SessionView:
    """Return one session with its history, turns, approvals and queued inputs."""
    session = await known_session(runtime, session_id)
    left = {record.turn_id for record in await runtime.store.unfinished(runtime.now_ms())}
    turns = await session.turns()
    open_turn = _open_turn(turns)
    report = None if open_turn is None else await report_turn(runtime, open_turn.turn_id)
    blocked = await session.blocked()
    nodes, current = await said_so_far(session)
    head = await session.head()
    return SessionView(
        state=_state(turns, left, blocked),
        head=head,
        nodes=nodes,
        turns=turns,
        unfinished=open_turn,
        approvals=[] if report is None else list(report.approvals),
        inputs=await session.inputs(),
        blocked=blocked,
        current=current,
        code=await _stored_code(runtime, head),
    )


async def _stored_code(runtime: Runtime, head: SessionHead) -> StoredCode | None:
    if head.code is None:
        return None
    from standfast.runtime.code_sessions import stored_variables

    size = len(await stored_variables(runtime.store, head))
    return StoredCode(**msgspec.structs.asdict(head.code), state_bytes=size)


def _open_turn(turns: list[TurnRecord]) -> TurnRecord | None:
    return next((turn for turn in reversed(turns) if turn.state is not TurnState.ENDED), None)


def _state(turns: list[TurnRecord], left: set[str], blocked: Blocked | None) -> str:
    """`idle`, `waiting`, `running`, `interrupted` (its process has gone) or `blocked` (see `SessionView`)."""
    turn = _open_turn(turns)
    if blocked is not None and (turn is None or turn.turn_id in left):
        return "blocked"
    if turn is None:
        return "idle"
    if turn.state is TurnState.WAITING:
        return "waiting"
    return "interrupted" if turn.turn_id in left else "running"


def show_list(rows: list[SessionLine]) -> None:
    table = [
        (
            row.session_id,
            styled(row.state, _COLOURS.get(row.state, "dim")),
            str(row.turns),
            str(row.nodes),
            row.model if row.code is None else f"{row.code.language} on {row.code.engine}",
            moment(row.last_used_at),
        )
        for row in rows
    ]
    headers = ("session", "state", "turns", "nodes", "model or engine", "last used")
    show_table(*headers, rows=table, whole=(0, 5), empty="no sessions yet")


def show_view(view: SessionView, invocation: Invocation) -> None:
    shown = console()
    shown.print(facts_table(_facts(view)))
    shown.print()
    show_conversation(shown, view.nodes, view.current, ids=True, code=view.code is not None)
    if view.head.usage:
        shown.print()
        shown.print(usage_table(view.head.usage))
    if view.unfinished is None:
        return
    about = error_console()
    for approval in view.approvals:
        show_waiting(about, approval, invocation)
    TurnReport(view.unfinished).show_other_waits()
    if not view.approvals and view.state != "running":
        about.print(f"  resume  {invocation.command('recover')}", style="dim", soft_wrap=True)


def _facts(view: SessionView) -> list[tuple[str, str]]:
    head, code = view.head, view.code
    facts = [("session", head.session_id), ("state", view.state), ("turns", str(len(view.turns)))]
    if code is None:
        facts += [("model", head.model), ("frame", head.frame)]
    else:
        facts += [("language", code.language), ("engine", code.engine), ("bytes", str(code.state_bytes))]
    facts += [("created", moment(head.created_at)), ("last used", moment(head.updated_at))]
    if code is not None:
        facts.append(("expires", moment(code.expires_at)))
        facts += [(name, str(value)) for name, value in msgspec.to_builtins(code.limits).items()]
    if head.forked_from:
        facts.append(("forked from", head.forked_from))
    facts += [("queued", item.input_id) for item in view.inputs]
    if view.blocked is not None:
        error = view.blocked.error
        hint = f" ({error.hint})" if error.hint else ""
        facts.append(("blocked", f"{error.code}: {error.message}{hint}"))
    return facts


class SessionExport(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` are those of the active path, oldest first; `attachments` are named by their digests.

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


async def export_session(runtime: Runtime, session_id: str, attachments: Path | None = None) -> SessionExport:
    """Read a session; write the bytes of its attachments to the directory *attachments*, if given."""
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
    if attachments is not None and parts:
        try:
            os.makedirs(attachments, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"{attachments} cannot be written: {error.strerror or error}") from None
        for digest in parts:
            write_private(attachments / digest, await session.attachment(digest))
    return SessionExport(
        head=head,
        nodes=tuple(nodes),
        turns=turns,
        usage=head.usage,
        approvals=tuple(one for one in await session.approvals() if one.run_id in mine),
        attachments=tuple(parts.values()),
        current=current,
    )
