"""`standfast sessions`: list, show, copy, rewind, resume, export and remove sessions of agents or code."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import SandboxGrants, make_recorded_sandbox, make_sandbox
from standfast.cli.options import (
    Invocation,
    JsonParameter,
    answers,
    grants_options,
    inherited_options,
    server_option,
)
from standfast.cli.output import CommandOutput, moment, write_private
from standfast.cli.report import show_table

if TYPE_CHECKING:
    from standfast.client import BlockingClient
    from standfast.model.session import SessionHead, TurnRecord
    from standfast.ports.session_store import Pruned
    from standfast.runtime.agent_runtime import Runtime
    from standfast.runtime.session_views import SessionExport

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.group(
    "sessions",
    epilog="""\b
Examples:
  standfast sessions list
  standfast sessions show support-42
  standfast sessions fork support-42 experiment
  standfast sessions snapshot default --out default.snap
  standfast sessions prune --older-than 30d --yes
""",
)
@inherited_options
def command() -> None:
    """List, show, fork, rewind, resume, export and remove sessions, of agents and of code.

    `resume`, `snapshot`, `restore` and `reset` are for sessions that run code.
    """


class Age(click.ParamType[float]):
    """A duration such as 30d, 12h or 90s, in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value))
        if found is None:
            self.fail(f"{value!r} is not an age; write 30d, 12h, 45m, 90s or 2w", param, ctx)
        return float(found[1]) * _UNITS_S[found[2]]


@command.command("list")
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N sessions.")
@server_option
@answers
def list_command(invocation: Invocation, *, agent: str | None, limit: int | None) -> CommandOutput:
    """List sessions, the most recently used first, with their state."""
    from standfast.cli.session_view import show_list
    from standfast.runtime.session_views import list_sessions

    rows = invocation.ask(
        lambda client: client.sessions(agent=agent)[:limit],
        lambda runtime: list_sessions(runtime, agent=agent, limit=limit),
    )
    return CommandOutput(rows, lambda: show_list(rows))


@command.command("show")
@click.argument("session_id")
@server_option
@answers
def show(invocation: Invocation, *, session_id: str) -> CommandOutput:
    """Show a session's history with its node ids, its usage and its waits."""
    from standfast.cli.session_view import show_view
    from standfast.runtime.session_views import view_session

    view = invocation.ask(
        lambda client: client.session_handle(session_id).view(),
        lambda runtime: view_session(runtime, session_id),
    )
    return CommandOutput(view, lambda: show_view(view, invocation))


@command.command("export")
@click.argument("session_id")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it here.")
@click.option(
    "--attachments",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the attachments here, named by their digests.",
)
@server_option
@answers
def export(
    invocation: Invocation, *, session_id: str, out: Path | None, attachments: Path | None
) -> CommandOutput:
    """Print a session as one JSON document: head, nodes, turns, usage and approvals."""
    import msgspec

    from standfast.cli.session_view import write_attachments
    from standfast.runtime.session_views import export_session

    async def read(runtime: Runtime) -> SessionExport:
        exported = await export_session(runtime, session_id)
        if attachments is not None:
            await write_attachments(runtime, exported, attachments)
        return exported

    if invocation.server is not None and attachments is not None:
        raise click.UsageError("--attachments is for the data directory; leave it out with --server")
    exported = invocation.ask(lambda client: client.session_handle(session_id).export(), read)
    data = msgspec.json.format(msgspec.json.encode(exported), indent=2) + b"\n"
    if out is None:
        return CommandOutput(exported, lambda: click.echo(data, nl=False))
    write_private(out, data)
    return CommandOutput.line(str(out), {"session_id": session_id, "file": str(out)})


@command.command("fork")
@click.argument("session_id")
@click.argument("new_session_id")
@click.option("--at", metavar="NODE", help="Copy the history up to this node only; with --input, a turn.")
@click.option(
    "--input", "number", type=click.IntRange(min=1), metavar="N", help="Fork after this input of the turn."
)
@click.option(
    "--edit",
    type=JsonParameter(dict),
    metavar="JSON",
    help="Replace that input's outcome: value or error of a result, text and calls of a reply.",
)
@server_option
@answers
def fork(
    invocation: Invocation,
    *,
    session_id: str,
    new_session_id: str,
    at: str | None,
    number: int | None,
    edit: dict[str, Any] | None,
) -> CommandOutput:
    """Create a session that shares the history, and has the variables that code had at its end.

    With --at TURN --input N the fork begins in the middle of a turn (`standfast sessions journal` shows its
    inputs). A program that knows the session's agent continues the turn from there.
    """
    import msgspec

    from standfast.model.journal import JournalEdit
    from standfast.runtime.session_views import known_session

    try:
        edited = None if edit is None else msgspec.convert(edit, JournalEdit)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"--edit: {error}") from None

    async def fork_here(runtime: Runtime) -> str:
        await known_session(runtime, session_id)
        made = await runtime.fork(session_id, new_session_id, at=at, input=number, edit=edited)
        return made.session_id

    def fork_there(client: BlockingClient) -> str:
        source = client.session_handle(session_id)
        return source.fork(new_session_id, at=at, input=number, edit=edited).session_id

    forked = invocation.ask(fork_there, fork_here)
    return CommandOutput.line(forked, {"session_id": forked, "forked_from": session_id})


@command.command("journal")
@click.argument("session_id")
@click.argument("turn_id")
@server_option
@answers
def journal(invocation: Invocation, *, session_id: str, turn_id: str) -> CommandOutput:
    """Show a turn's inputs, each with what the turn decided next."""
    steps = invocation.ask(
        lambda client: client.session_handle(session_id).journal(turn_id),
        lambda runtime: runtime.session_handle(session_id).journal(turn_id),
    )

    def show() -> None:
        rows = [
            (
                str(step.number),
                moment(step.at_ms),
                str(step.input["type"]),
                ", ".join(str(one["command"]) for one in step.commands),
                step.phase,
            )
            for step in steps
        ]
        show_table("input", "time", "what happened", "decided", "state", rows=rows, empty="no inputs")

    return CommandOutput(steps, show)


@command.command("rewind")
@click.argument("session_id")
@click.option(
    "--to",
    metavar="NODE",
    help="Move to this node; a node that was rewound earlier moves the session forward again.",
)
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Move back by N turns.  [default: 1]")
@server_option
@answers
def rewind(invocation: Invocation, *, session_id: str, to: str | None, turns: int | None) -> CommandOutput:
    """Move a session and its variables back. `prune --branches` removes the rewound history."""
    from standfast.runtime.session_views import known_session

    if to is not None and turns is not None:
        raise click.UsageError("give --to or --turns, not both")

    async def work(runtime: Runtime) -> SessionHead:
        await known_session(runtime, session_id)
        return await runtime.rewind(session_id, to, turns=turns or 1)

    head = invocation.ask(
        lambda client: client.session_handle(session_id).rewind(to, turns=turns or 1),
        work,
    )
    return CommandOutput.line(f"session {session_id} ends at {head.leaf} now", head)


@command.command("cancel")
@click.argument("session_id")
@server_option
@answers
def cancel(invocation: Invocation, *, session_id: str) -> CommandOutput:
    """Cancel a session's waiting or interrupted turn; every call of it gets a result."""
    if invocation.server is not None:
        with invocation.client() as client:
            cancelled = client.session_handle(session_id).cancel()
        text = "the turn is cancelled" if cancelled else "the session has no unfinished turn"
        return CommandOutput.line(text, {"session_id": session_id, "cancelled": cancelled})
    ended = _cancel_turn(invocation, session_id)
    text = f"the turn of session {session_id} is cancelled"
    if not ended:
        text = f"{text} as soon as `{invocation.command('recover')}` or its own program resumes it"
    return CommandOutput.line(text, {"session_id": session_id, "cancelled": True, "ended": ended})


def _cancel_turn(invocation: Invocation, session_id: str) -> bool:
    """Request cancellation and end the turn here; return False if only another process can end it."""
    from standfast.cli.agent_host import AgentHost, recorded_settings
    from standfast.cli.follower import Follower, carry_out
    from standfast.errors import InvalidArgument, SessionBusy, StandfastError
    from standfast.runtime.session_views import known_session

    async def request(runtime: Runtime) -> tuple[SessionHead, TurnRecord]:
        session = await known_session(runtime, session_id)
        record = await session.unfinished()
        if record is None or not await runtime.store.cancel(record.turn_id):
            raise InvalidArgument(f"session {session_id!r} has no turn that could be cancelled")
        return await session.head(), record

    head, record = invocation.with_runtime(request)
    if head.code is not None:
        try:
            with make_sandbox(invocation.data_dir, SandboxGrants()) as box:
                box.cancel(session_id)
        except SessionBusy:
            return False
        return True
    try:
        host = AgentHost(invocation.data_dir, recorded_settings(head.host))
    except StandfastError:
        return False
    work = host.settle(session_id, record.turn_id)
    carry_out(Follower(host, session_id, lambda _: None), work, lambda: None)
    return True


@command.command("resume")
@click.argument("session_id")
@grants_options
@answers
def resume(invocation: Invocation, *, session_id: str, grants: SandboxGrants) -> CommandOutput:
    """Resume the waiting turn of a code session as far as decisions allow, and show its result."""
    from standfast.cli.run import continue_run

    head = _code_session(
        invocation, session_id, "resume an agent's turn with `standfast recover --session ID`"
    )
    box = make_recorded_sandbox(invocation.data_dir, grants, head.host)
    return continue_run(invocation, session_id, box, lambda box: box.resume(session_id))


@command.command("snapshot")
@click.argument("session_id")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write it here."
)
@grants_options
@answers
def snapshot(
    invocation: Invocation, *, session_id: str, out: Path | None, grants: SandboxGrants
) -> CommandOutput:
    """Store a signed snapshot of a code session and print its id."""
    _code_session(invocation, session_id, "copy a conversation with `standfast sessions fork`")
    with make_sandbox(invocation.data_dir, grants) as box:
        name = box.snapshot(session_id)
        if out is not None:
            write_private(out, box.export_snapshot(name))
    return CommandOutput.line(name, {"snapshot_id": name, "session_id": session_id})


@command.command("restore")
@click.argument("snapshot", metavar="SNAPSHOT_ID|FILE")
@click.option("--session-id", metavar="S", help="Restore into this session instead of its own.")
@grants_options
@answers
def restore(
    invocation: Invocation, *, snapshot: str, session_id: str | None, grants: SandboxGrants
) -> CommandOutput:
    """Restore a code session from a snapshot, by its id or from a file.

    The tools, mounts and hosts come from the snapshot; give them only if they have moved.
    """
    source: str | bytes = snapshot
    if not snapshot.startswith("snap_") or os.path.exists(snapshot):
        try:
            source = Path(snapshot).read_bytes()
        except OSError as error:
            raise click.UsageError(f"{snapshot} cannot be read: {error.strerror or error}") from None
    with make_sandbox(invocation.data_dir, SandboxGrants()) as plain:
        recorded = plain.snapshot_host(source)
    with make_recorded_sandbox(invocation.data_dir, grants, recorded) as box:
        restored = box.restore(source, session=session_id)
    return CommandOutput.line(restored, {"session_id": restored})


@command.command("reset")
@click.argument("session_id")
@answers
def reset(invocation: Invocation, *, session_id: str) -> CommandOutput:
    """Remove a code session's variables and its waiting turn; its limits and its history stay."""
    _code_session(invocation, session_id, "move a conversation back with `standfast sessions rewind`")
    with make_sandbox(invocation.data_dir, SandboxGrants()) as box:
        box.reset(session_id)
    return CommandOutput.line(f"session {session_id} is empty", {"session_id": session_id, "reset": True})


def _code_session(invocation: Invocation, session_id: str, otherwise: str) -> SessionHead:
    """Return the head of a code session; for any other session, raise with the hint *otherwise*."""
    from standfast.errors import InvalidArgument
    from standfast.runtime.session_views import known_session

    async def read(runtime: Runtime) -> SessionHead:
        return await (await known_session(runtime, session_id)).head()

    head = invocation.with_runtime(read)
    if head.code is None:
        raise InvalidArgument(f"session {session_id!r} belongs to an agent and runs no code", hint=otherwise)
    return head


@command.command("delete")
@click.argument("session_id")
@answers
def delete(invocation: Invocation, *, session_id: str) -> CommandOutput:
    """Remove a session with its turns, variables and waits."""
    from standfast.errors import SessionNotFound

    if not invocation.with_runtime(lambda runtime: runtime.delete(session_id)):
        raise SessionNotFound(session_id)
    return CommandOutput.line(f"session {session_id} is removed", {"session_id": session_id, "deleted": True})


@command.command("prune")
@click.option(
    "--older-than",
    type=Age(),
    metavar="AGE",
    help="Remove idle sessions that were not used for this long, such as 30d.",
)
@click.option("--frames", is_flag=True, help="Remove history before the current frame of each session.")
@click.option(
    "--branches", is_flag=True, help="Remove history that is on no session's path, such as rewound turns."
)
@click.option("--session", "session_id", metavar="ID", help="Prune only this session.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@answers
def prune(
    invocation: Invocation,
    *,
    older_than: float | None,
    frames: bool,
    branches: bool,
    session_id: str | None,
    yes: bool,
) -> CommandOutput:
    """Remove old sessions and history, and free the space."""
    from standfast.cli.output import counted

    parts = []
    if older_than is not None:
        unit = next((unit for unit in "dhm" if older_than >= _UNITS_S[unit]), "s")
        parts.append(f"idle sessions and records not used for {older_than / _UNITS_S[unit]:g} {unit}")
    if frames:
        parts.append("the history before the current frames")
    if branches:
        parts.append("the history that is on no session's path")
    if not parts:
        raise click.UsageError("choose what to remove: --older-than AGE, --frames or --branches")
    if not yes:
        where = "" if session_id is None else f" of session {session_id}"
        intention = f"this removes {' and '.join(parts)}{where} for good"
        if invocation.as_json or not sys.stdin.isatty():
            raise click.UsageError(f"{intention}; add --yes to confirm")
        click.confirm(f"{intention}. Continue?", abort=True, err=True)

    async def work(runtime: Runtime) -> Pruned:
        return await runtime.prune(
            older_than_s=older_than, frames=frames, branches=branches, session=session_id
        )

    pruned = invocation.with_runtime(work)
    removed = (
        (pruned.sessions, "session"),
        (pruned.segments, "segment"),
        (pruned.records, "record"),
        (pruned.states, "plugin state"),
        (pruned.blobs, "attachment"),
    )
    text = f"removed {', '.join(counted(*one) for one in removed)}"
    return CommandOutput.line(f"{text}; {counted(pruned.bytes_freed, 'byte')} freed", pruned)


@command.command("backup")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@answers
def backup(invocation: Invocation, *, file: Path) -> CommandOutput:
    """Copy the whole database to a new FILE, even while programs use it."""
    import contextlib

    from standfast.runtime.data_dir import DataDir
    from standfast.store.sqlite.database import Database
    from standfast.store.sqlite.maintenance import back_up

    with contextlib.closing(Database(DataDir(invocation.data_dir).file)) as database:
        copy = back_up(database, file)
    return CommandOutput.line(str(copy), {"file": str(copy), "bytes": copy.stat().st_size})


@command.command("rewrite-checksums")
@answers
def rewrite_checksums(invocation: Invocation) -> CommandOutput:
    """Accept a database that another SQLite program wrote to after a crash.

    Such a program leaves pages without checksums, which look damaged. This command checks every record and
    rewrites the checksums of all pages. A file that is damaged or in use is rejected and left unchanged.
    """
    from standfast.cli.output import counted
    from standfast.runtime.data_dir import DataDir
    from standfast.store.sqlite.maintenance import rewrite_checksums

    file = DataDir(invocation.data_dir, make=False).file
    records = rewrite_checksums(file)
    text = "every page matches its checksum; nothing to do"
    if records is not None:
        text = f"checked {counted(records, 'record')} and rewrote every checksum of {file}"
    document = {"file": str(file), "rewritten": records is not None, "records": records}
    return CommandOutput.line(text, document)
