"""The output of `standfast sessions`."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from standfast.cli.options import Invocation
from standfast.cli.output import console, error_console, moment, styled, write_private
from standfast.cli.report import facts_table, show_table, show_waiting
from standfast.cli.transcript import show_conversation, usage_table
from standfast.cli.turn_report import TurnReport
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.session_views import SessionExport, SessionLine, SessionView

_COLOURS = {"running": "green", "waiting": "yellow", "interrupted": "red", "blocked": "red"}


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


async def write_attachments(runtime: Runtime, exported: SessionExport, directory: Path) -> None:
    """Write the attachments of an exported session to *directory*, named by their digests."""
    if not exported.attachments:
        return
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{directory} cannot be written: {error.strerror or error}") from None
    session = runtime.session_handle(exported.head.session_id)
    for part in exported.attachments:
        write_private(directory / part.digest, await session.attachment(part.digest))
