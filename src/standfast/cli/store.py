"""`standfast store`: move a store."""

from __future__ import annotations

import time
from pathlib import Path

import click

from standfast.cli.options import Invocation, LocationParameter, answers, inherited_options
from standfast.cli.output import CommandOutput, counted


@click.group(
    "store",
    epilog="\b\nExample:\n  standfast store copy shop.db postgresql://db.example.com/shop\n",
)
@inherited_options
def command() -> None:
    """Move a store from a SQLite file to PostgreSQL, or back."""


@command.command("copy")
@click.argument("source", type=LocationParameter())
@click.argument("target", type=LocationParameter())
@answers
def copy(invocation: Invocation, *, source: Path | str, target: Path | str) -> CommandOutput:
    """Copy everything in SOURCE to the empty store TARGET, and check every record there.

    Both are a PostgreSQL URL, a database file or a data directory. End the programs that use SOURCE first. A
    copy that was interrupted continues when the command is run again. The key that signs snapshots is copied
    too.
    """
    import asyncio

    from standfast.durable.journal import owner_is_dead
    from standfast.errors import InvalidArgument
    from standfast.runtime.data_dir import DataDir, open_sql_store, without_password
    from standfast.store.copying import Copied, copy_store

    homes = DataDir(source, make=False), DataDir(target)
    if not homes[0].exists:
        raise InvalidArgument(f"there is no store at {without_password(str(source))}")
    if homes[0].database == homes[1].database:
        raise InvalidArgument("source and target are the same store")

    async def run() -> Copied:
        stores = [open_sql_store(home.database, lambda owner: False) for home in homes]
        try:
            place = homes[0].database
            name = without_password(place) if isinstance(place, str) else str(place.resolve())
            now_ms = time.time_ns() // 1_000_000
            databases = stores[0].database, stores[1].database
            return copy_store(*databases, name, now_ms, owner_is_dead, lambda: homes[1].take_key(homes[0]))
        finally:
            for store in stores:
                await store.close()

    done = asyncio.run(run())
    where = without_password(str(target))
    return CommandOutput.line(f"{counted(done.rows, 'record')} in {where}, {done.copied} copied now", done)
