"""`standfast sessions`: look at the conversations of agents, copy them, take them back, remove them."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import Answer, console

if TYPE_CHECKING:
    from standfast.ports.session_store import Pruned
    from standfast.runtime.agent_runtime import Runtime

T = TypeVar("T")

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.group(
    "sessions",
    epilog="""\b
Examples:
  standfast sessions list
  standfast sessions show support-42
  standfast sessions fork support-42 experiment
  standfast sessions prune --older-than 30d --yes
""",
)
@inherited_options
def command() -> None:
    """List, show, fork, rewind, export and remove the sessions of agents.

    The sessions of the sandbox, which hold variables and no conversation, are those of `standfast session`.
    """


class Age(click.ParamType[float]):
    """A time such as 30d, 12h or 90s, in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value))
        if found is None:
            self.fail(f"{value!r} is not an age; write 30d, 12h, 45m, 90s or 2w", param, ctx)
        return float(found[1]) * _UNITS_S[found[2]]


@command.command("list")
@answers
def list_sessions(invocation: Invocation) -> Answer:
    """List sessions, the latest used first, with their state."""
    from standfast.cli.session_view import overview, show_overview

    rows = _with_runtime(invocation, overview)
    return Answer(rows, lambda: show_overview(rows))


@command.command("show")
@click.argument("session_id")
@answers
def show(invocation: Invocation, *, session_id: str) -> Answer:
    """Show a conversation with its node ids, what it used and what it waits for."""
    from standfast.cli.session_view import look, show_view

    view = _with_runtime(invocation, lambda runtime: look(runtime, session_id))
    return Answer(view, lambda: show_view(view, invocation))


@command.command("fork")
@click.argument("session_id")
@click.argument("new_session_id")
@click.option("--at", metavar="NODE", help="Up to this node instead of the whole conversation.")
@answers
def fork(invocation: Invocation, *, session_id: str, new_session_id: str, at: str | None) -> Answer:
    """Make a new session over the same history."""

    async def work(runtime: Runtime) -> str:
        return (await runtime.fork(session_id, new_session_id, at=at)).session_id

    forked = _with_runtime(invocation, work)
    return _said(forked, {"session_id": forked, "forked_from": session_id})


@command.command("rewind")
@click.argument("session_id")
@click.option("--to", metavar="NODE", help="To this node; one that was rewound before leads forward.")
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="By so many turns.  [default: 1]")
@answers
def rewind(invocation: Invocation, *, session_id: str, to: str | None, turns: int | None) -> Answer:
    """Take a conversation back. Nothing is lost: `prune --branches` removes what was rewound."""
    if to is not None and turns is not None:
        raise click.UsageError("give --to or --turns, not both")
    head = _with_runtime(invocation, lambda runtime: runtime.rewind(session_id, to, turns=turns or 1))
    return _said(f"session {session_id} ends at {head.leaf} now", head)


@command.command("cancel")
@click.argument("session_id")
@answers
def cancel(invocation: Invocation, *, session_id: str) -> Answer:
    """Give up the turn that a session waits with; every call of it gets a result."""
    from standfast.cli.turn_cancel import cancel_turn

    with sessions_hint():
        ended = cancel_turn(invocation, session_id)
    said = f"the turn of session {session_id} is cancelled"
    later = f"{said} as soon as `{invocation.command('recover')}` or its own program goes on with it"
    return _said(said if ended else later, {"session_id": session_id, "cancelled": True, "ended": ended})


@command.command("export")
@click.argument("session_id")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it here.")
@click.option(
    "--attachments",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the attachments here, named by their digests.",
)
@answers
def export(invocation: Invocation, *, session_id: str, out: Path | None, attachments: Path | None) -> Answer:
    """Print a session as one JSON document: head, nodes, turns, usage and approvals."""
    from standfast.cli.session_export import export_session, write_attachments, write_export

    exported = _with_runtime(invocation, lambda runtime: export_session(runtime, session_id))
    if attachments is not None:
        _with_runtime(invocation, lambda runtime: write_attachments(runtime, exported, attachments))
    if out is None:
        return Answer(exported, lambda: write_export(exported, None))
    write_export(exported, out)
    return _said(str(out), {"session_id": session_id, "file": str(out)})


@command.command("prune")
@click.option("--older-than", type=Age(), metavar="AGE", help="Idle sessions not used for so long, as 30d.")
@click.option("--frames", is_flag=True, help="What lies before the current frame of a session.")
@click.option(
    "--branches", is_flag=True, help="What no conversation leads through, such as what was rewound."
)
@click.option("--session", "session_id", metavar="ID", help="Of this session alone.")
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
) -> Answer:
    """Remove what is no longer wanted, and give the space back."""
    if older_than is None and not frames and not branches:
        raise click.UsageError("say what may go: --older-than AGE, --frames or --branches")
    if not yes:
        _confirm(_intention(older_than, frames, branches, session_id), invocation)

    async def work(runtime: Runtime) -> Pruned:
        return await runtime.prune(
            older_than_s=older_than, frames=frames, branches=branches, session=session_id
        )

    pruned = _with_runtime(invocation, work)
    return _said(_pruned_text(pruned), pruned)


@command.command("backup")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@answers
def backup(invocation: Invocation, *, file: Path) -> Answer:
    """Copy the whole database to a new FILE, also while programs use it."""
    import contextlib

    from standfast.runtime.data_dir import DataDir
    from standfast.store.sqlite.backup import back_up
    from standfast.store.sqlite.database import Database

    with contextlib.closing(Database(DataDir(invocation.data_dir).database)) as database:
        copy = back_up(database, file)
    return _said(str(copy), {"file": str(copy), "bytes": copy.stat().st_size})


@command.command("rewrite-checksums")
@answers
def rewrite_checksums(invocation: Invocation) -> Answer:
    """Accept a database that another SQLite program wrote to after a crash.

    Such a program leaves pages without their checksums, which look damaged. This checks every record, and
    writes the checksums of all pages anew. A file that is really damaged, or in use, is refused unchanged.
    """
    from standfast.cli.standing import counted
    from standfast.runtime.data_dir import DataDir
    from standfast.store.sqlite.checksum_rewrite import rewrite_checksums

    file = DataDir(invocation.data_dir, make=False).database
    records = rewrite_checksums(file)
    said = "every page matches its checksum; nothing to do"
    if records is not None:
        said = f"checked {counted(records, 'record')} and wrote every checksum of {file} anew"
    return _said(said, {"file": str(file), "rewritten": records is not None, "records": records})


@command.command("delete")
@click.argument("session_id")
@answers
def delete(invocation: Invocation, *, session_id: str) -> Answer:
    """Forget a session, its turns and what it waits for."""
    from standfast.errors import SessionNotFound

    async def work(runtime: Runtime) -> None:
        if not await runtime.delete(session_id):
            raise SessionNotFound(session_id)

    _with_runtime(invocation, work)
    return _said(f"session {session_id} is gone", {"session_id": session_id, "deleted": True})


def _with_runtime(invocation: Invocation, work: Callable[[Runtime], Awaitable[T]]) -> T:
    """Do something with the sessions of the data directory."""
    import asyncio

    from standfast.cli.agent_host import open_sessions

    async def run() -> T:
        async with open_sessions(invocation.data_dir) as runtime:
            return await work(runtime)

    with sessions_hint():
        return asyncio.run(run())


@contextmanager
def sessions_hint() -> Iterator[None]:
    """Let a session that does not exist lead to the list of these sessions, not to the sandbox's."""
    from standfast.errors import SessionNotFound

    try:
        yield
    except SessionNotFound as error:
        error.hint = "`standfast sessions list` shows those that exist"
        raise


def _confirm(intention: str, invocation: Invocation) -> None:
    """Ask a person; where none is there, `--yes` has to say it."""
    if invocation.as_json or not sys.stdin.isatty():
        raise click.UsageError(f"{intention}: add --yes to mean it")
    click.confirm(f"{intention}. Go on?", abort=True, err=True)


def _intention(older_than: float | None, frames: bool, branches: bool, session_id: str | None) -> str:
    parts = []
    if older_than is not None:
        parts.append(f"idle sessions and records not used for {_age_text(older_than)}")
    if frames:
        parts.append("what lies before the current frames")
    if branches:
        parts.append("what no conversation leads through")
    where = "" if session_id is None else f" of session {session_id}"
    return f"this removes {' and '.join(parts)}{where} for good"


def _age_text(seconds: float) -> str:
    unit = next((unit for unit in "dhm" if seconds >= _UNITS_S[unit]), "s")
    return f"{seconds / _UNITS_S[unit]:g} {unit}"


def _pruned_text(pruned: Pruned) -> str:
    from standfast.cli.standing import counted

    parts = [
        counted(pruned.sessions, "session"),
        counted(pruned.segments, "segment"),
        counted(pruned.records, "record"),
        counted(pruned.states, "plugin state"),
        counted(pruned.blobs, "attachment"),
    ]
    return f"removed {', '.join(parts)}; {counted(pruned.bytes_freed, 'byte')} freed"


def _said(text: str, document: Any) -> Answer:
    return Answer(document, lambda: console().print(text, soft_wrap=True))
