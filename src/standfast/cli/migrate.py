"""`standfast migrate`: give the data of earlier releases its present name."""

from __future__ import annotations

from pathlib import Path

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import Answer


@click.command("migrate", epilog="\b\nExample:\n  standfast migrate ./data\n")
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@answers
def command(invocation: Invocation, *, directory: Path | None) -> Answer:
    """Rename the database of an earlier release in DIRECTORY, so that this release finds it.

    Without DIRECTORY, the data in your home directory is renamed. End the programs that use it first. Tables
    inside a database need no command: opening it brings them up to date.
    """
    renamed = _rename_home() if directory is None and invocation.given_data_dir is None else []
    renamed += _rename_database(directory or invocation.data_dir)
    return Answer(
        {"renamed": [{"from": str(old), "to": str(new)} for old, new in renamed]}, lambda: _show(renamed)
    )


def _rename_home() -> list[tuple[Path, Path]]:
    from standfast.model.former_name import FORMER_HOME
    from standfast.runtime.data_dir import HOME

    old, new = Path.home() / FORMER_HOME, Path.home() / HOME
    if new.exists() or not old.exists():
        return []
    old.rename(new)
    return [(old, new)]


def _rename_database(directory: Path) -> list[tuple[Path, Path]]:
    from standfast.model.former_name import FORMER_DATABASE
    from standfast.runtime.data_dir import DATABASE
    from standfast.store.sqlite.maintenance import rename_database

    old, new = directory / FORMER_DATABASE, directory / DATABASE
    if not old.exists():
        return []
    rename_database(old, new)
    return [(old, new)]


def _show(renamed: list[tuple[Path, Path]]) -> None:
    for old, new in renamed:
        click.echo(f"renamed {old} to {new}")
    if not renamed:
        click.echo("nothing to rename")
