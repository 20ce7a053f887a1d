"""Sessions of agents as `standfast sessions` shows them."""

from __future__ import annotations

from typing import Any

import msgspec

from standfast.cli.agent_host import known_session, said_so_far
from standfast.cli.options import Invocation
from standfast.cli.output import console, error_console, moment
from standfast.cli.report import plain_table, show_waiting
from standfast.cli.standing import Standing, standing_of
from standfast.cli.transcript import show_conversation, usage_table
from standfast.model.approval import Approval
from standfast.model.blocked import Blocked
from standfast.model.current_turn import CurrentTurn
from standfast.model.head import SessionHead
from standfast.model.node import Node
from standfast.model.turn import TurnRecord, TurnState
from standfast.ports.session_store import QueuedInput
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.blocked_turns import blocked_in

_COLOURS = {"running": "green", "waiting": "yellow", "interrupted": "red", "blocked": "red"}


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the list. `nodes` counts those of its conversation."""

    session_id: str
    state: str
    turns: int
    nodes: int
    model: str
    created_at: int
    last_used_at: int
    forked_from: str | None = None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session with its conversation. `unfinished` is the turn that runs, waits or was interrupted.

    `current` is what was said in that turn so far; it is no part of `nodes` yet. `blocked` says why that
    turn, or the next queued input, could not run when a process last tried.
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


async def overview(runtime: Runtime) -> list[SessionRow]:
    """All sessions, the latest used first."""
    left = {record.turn_id for record in await runtime.store.unfinished(runtime.now_ms())}
    rows = []
    for head in await runtime.sessions():
        turns = await runtime.store.turns(head.session_id)
        rows.append(
            SessionRow(
                session_id=head.session_id,
                state=_state(turns, left, await blocked_in(runtime.store, head)),
                turns=len(turns),
                nodes=head.depth,
                model=head.model,
                created_at=head.created_at,
                last_used_at=head.updated_at,
                forked_from=head.forked_from,
            )
        )
    return rows


async def look(runtime: Runtime, session_id: str) -> SessionView:
    """One session with everything that belongs to it."""
    session = await known_session(runtime, session_id)
    left = {record.turn_id for record in await runtime.store.unfinished(runtime.now_ms())}
    turns = await session.turns()
    open_turn = _open_turn(turns)
    standing = None if open_turn is None else await standing_of(runtime, open_turn.turn_id)
    blocked = await session.blocked()
    nodes, current = await said_so_far(session)
    return SessionView(
        state=_state(turns, left, blocked),
        head=await session.head(),
        nodes=nodes,
        turns=turns,
        unfinished=open_turn,
        approvals=[] if standing is None else list(standing.approvals),
        inputs=await session.inputs(),
        blocked=blocked,
        current=current,
    )


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


def show_overview(rows: list[SessionRow]) -> None:
    from rich.text import Text

    if not rows:
        console().print("no sessions yet", style="dim")
        return
    table = plain_table("session", "state", "turns", "nodes", "model", "last used")
    table.columns[0].no_wrap = table.columns[5].no_wrap = True
    for row in rows:
        state = Text(row.state, _COLOURS.get(row.state, "dim"))
        table.add_row(
            row.session_id, state, str(row.turns), str(row.nodes), row.model, moment(row.last_used_at)
        )
    console().print(table)


def show_view(view: SessionView, invocation: Invocation) -> None:
    shown = console()
    shown.print(_facts_table(view))
    shown.print()
    show_conversation(shown, view.nodes, view.current, ids=True)
    if view.head.usage:
        shown.print()
        shown.print(usage_table(view.head.usage))
    _show_open(view, invocation)


def _facts_table(view: SessionView) -> Any:
    from rich.text import Text

    head = view.head
    table = plain_table("", "")
    table.show_header = False
    facts = [
        ("session", head.session_id),
        ("state", view.state),
        ("turns", str(len(view.turns))),
        ("model", head.model),
        ("frame", head.frame),
        ("created", moment(head.created_at)),
        ("last used", moment(head.updated_at)),
        *([("forked from", head.forked_from)] if head.forked_from else []),
        *(("queued", item.input_id) for item in view.inputs),
        *([("blocked", _why(view.blocked))] if view.blocked is not None else []),
    ]
    for label, value in facts:
        table.add_row(Text(label, "dim"), Text(value))
    return table


def _why(blocked: Blocked) -> str:
    error = blocked.error
    return f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else "")


def _show_open(view: SessionView, invocation: Invocation) -> None:
    """What the session waits for, and how to go on."""
    if view.unfinished is None:
        return
    about = error_console()
    for approval in view.approvals:
        show_waiting(about, approval, invocation)
    Standing(view.unfinished).show_other_waits()
    if not view.approvals and view.state != "running":
        about.print(f"  go on   {invocation.command('recover')}", style="dim", soft_wrap=True)
