"""`standfast migrate`: rename the data of earlier releases."""

from __future__ import annotations

from pathlib import Path

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput


@click.command("migrate", epilog="\b\nExample:\n  standfast migrate ./data\n")
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@answers
def command(invocation: Invocation, *, directory: Path | None) -> CommandOutput:
    """Rename the database of an earlier release in DIRECTORY, so that this release finds it.

    Without DIRECTORY, the data in your home directory is renamed. End the programs that use it first. Tables
    inside a database need no command: opening it brings them up to date.
    """
    from standfast.model.former_name import FORMER_DATABASE, FORMER_HOME
    from standfast.runtime.data_dir import DATABASE, HOME
    from standfast.store.sqlite.maintenance import rename_database

    renamed: list[tuple[Path, Path]] = []
    old, new = Path.home() / FORMER_HOME, Path.home() / HOME
    if directory is None and invocation.given_data_dir is None and old.exists() and not new.exists():
        old.rename(new)
        renamed.append((old, new))
    where = directory or Path(invocation.data_dir)
    old, new = where / FORMER_DATABASE, where / DATABASE
    if old.exists():
        rename_database(old, new)
        renamed.append((old, new))
    lines = [f"renamed {old} to {new}" for old, new in renamed] or ["nothing to rename"]
    document = {"renamed": [{"from": str(old), "to": str(new)} for old, new in renamed]}
    return CommandOutput(document, lambda: click.echo("\n".join(lines)))
