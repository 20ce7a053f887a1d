"""`standfast session`: look at sessions, copy them, put them back, end them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.approvals import continue_run
from standfast.cli.host import Grants, make_recorded_sandbox, make_sandbox
from standfast.cli.options import Invocation, answers, grants_options, inherited_options
from standfast.cli.output import Answer, console, moment
from standfast.cli.report import plain_table

if TYPE_CHECKING:
    from standfast.model import SessionInfo


@click.group(
    "session",
    epilog="""\b
Examples:
  standfast session list
  standfast session snapshot default --out default.snap
  standfast session restore default.snap --session-id copy
  standfast session fork default experiment
""",
)
@inherited_options
def command() -> None:
    """List, show, snapshot, restore, fork, reset and destroy sessions."""


@command.command("list")
@answers
def list_sessions(invocation: Invocation) -> Answer:
    """List the sessions of the data directory."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        sessions = box.sessions()
    return Answer(sessions, lambda: _show_list(sessions))


@command.command("show")
@click.argument("session_id")
@answers
def show(invocation: Invocation, *, session_id: str) -> Answer:
    """Show one session: its limits, size, times and what it waits for."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        info = box.session(session_id)
    return Answer(info, lambda: _show(info))


@command.command("snapshot")
@click.argument("session_id")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write it here."
)
@grants_options
@answers
def snapshot(invocation: Invocation, *, session_id: str, out: Path | None, grants: Grants) -> Answer:
    """Store a signed snapshot of a session and print its id."""
    with make_sandbox(invocation.data_dir, grants) as box:
        name = box.snapshot(session_id)
        if out is not None:
            _write_private(out, box.export_snapshot(name))
    return _said(name, {"snapshot_id": name, "session_id": session_id})


@command.command("restore")
@click.argument("snapshot", metavar="SNAPSHOT_ID|FILE")
@click.option("--session-id", metavar="S", help="Into this session instead of its own.")
@grants_options
@answers
def restore(invocation: Invocation, *, snapshot: str, session_id: str | None, grants: Grants) -> Answer:
    """Put a snapshot back, by its id or from a file.

    The tools, mounts and hosts that it was made with are taken from the snapshot; give them only if
    they have moved.
    """
    source = _snapshot_source(snapshot)
    with make_sandbox(invocation.data_dir, Grants()) as plain:
        recorded = plain.snapshot_host(source)
    with make_recorded_sandbox(invocation.data_dir, grants, recorded) as box:
        restored = box.restore(source, session=session_id)
    return _said(restored, {"session_id": restored})


@command.command("fork")
@click.argument("session_id")
@click.argument("new_session_id")
@grants_options
@answers
def fork(invocation: Invocation, *, session_id: str, new_session_id: str, grants: Grants) -> Answer:
    """Make a new session with the same variables."""
    with make_sandbox(invocation.data_dir, grants) as box:
        forked = box.fork(session_id, new_session_id)
    return _said(forked, {"session_id": forked, "forked_from": session_id})


@command.command("reset")
@click.argument("session_id")
@answers
def reset(invocation: Invocation, *, session_id: str) -> Answer:
    """Forget a session's variables and its waiting run; its limits stay."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        box.reset(session_id)
    return _said(f"session {session_id} is empty", {"session_id": session_id, "reset": True})


@command.command("destroy")
@click.argument("session_id")
@answers
def destroy(invocation: Invocation, *, session_id: str) -> Answer:
    """Forget a session."""
    from standfast.errors import SessionNotFound

    with make_sandbox(invocation.data_dir, Grants()) as box:
        if not box.destroy(session_id):
            raise SessionNotFound(session_id, sandbox=True)
    return _said(f"session {session_id} is gone", {"session_id": session_id, "destroyed": True})


@command.command("resume")
@click.argument("session_id")
@grants_options
@answers
def resume(invocation: Invocation, *, session_id: str, grants: Grants) -> Answer:
    """Continue a session's waiting run as far as decisions allow, and show its result."""
    with make_sandbox(invocation.data_dir, Grants()) as plain:
        asked = plain.approvals(session=session_id)
        recorded = plain.approval_host(asked[-1].approval_id) if asked else {}
    box = make_recorded_sandbox(invocation.data_dir, grants, recorded)
    return continue_run(invocation, session_id, box, lambda box: box.resume(session_id))


@command.command("cancel")
@click.argument("session_id")
@answers
def cancel(invocation: Invocation, *, session_id: str) -> Answer:
    """Give up a session's waiting run; the session is as it was before that run."""
    from standfast.errors import InvalidArgument

    with make_sandbox(invocation.data_dir, Grants()) as box:
        box.session(session_id)
        if not box.cancel(session_id):
            raise InvalidArgument(
                f"session {session_id!r} has no run that waits",
                hint="a run that another process runs is cancelled there, with Ctrl-C",
            )
    return _said(
        f"the run of session {session_id} is cancelled", {"session_id": session_id, "cancelled": True}
    )


def _said(text: str, document: dict[str, Any]) -> Answer:
    return Answer(document, lambda: click.echo(text))


def _snapshot_source(text: str) -> str | bytes:
    """An id, or the bytes of a file."""
    if text.startswith("snap_") and not os.path.exists(text):
        return text
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{text} cannot be read: {error.strerror or error}") from None


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read: a snapshot holds the session's variables."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def _show_list(sessions: list[SessionInfo]) -> None:
    if not sessions:
        console().print("no sessions yet", style="dim")
        return
    table = plain_table("session", "state", "language", "engine", "bytes", "last used")
    for info in sessions:
        meta = info.meta
        table.add_row(
            meta.id,
            info.state,
            meta.language,
            info.engine,
            str(info.state_bytes),
            moment(meta.last_used_at),
        )
    console().print(table)


def _show(info: SessionInfo) -> None:
    import msgspec
    from rich.text import Text

    meta = info.meta
    facts = [
        ("session", meta.id),
        ("state", info.state),
        ("language", meta.language),
        ("engine", info.engine),
        ("bytes", str(info.state_bytes)),
        ("created", moment(meta.created_at)),
        ("last used", moment(meta.last_used_at)),
        ("expires", moment(info.expires_at)),
        *((name, str(value)) for name, value in msgspec.to_builtins(meta.limits).items()),
        *(("waits for", approval) for approval in info.approvals),
    ]
    table = plain_table("", "")
    table.show_header = False
    for label, value in facts:
        table.add_row(Text(label, "dim"), value)
    console().print(table)
