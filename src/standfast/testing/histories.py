"""Golden histories: recorded turns that every later version must replay with the same results.

A history holds the inputs of a turn, as in the journal, and the results of the machine: the commands after
each input, the entries, the outcome, the next messages of plugins. `replay` feeds the inputs to a fresh
machine and reports every difference: such a turn could not be recovered from a journal of that version.

A file with nothing but `name` and `inputs` is a draft. `write` completes it; `check` replays files::

    python -m standfast.testing.histories write tests/histories/refund.json
    python -m standfast.testing.histories check tests/histories/*.json

`write` changes a recorded history only with `--replace`, and reports the changes. Every file has the version
of its format; another version is an error. Command fields with their default value are omitted, so that
adding a field later changes no file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from standfast.errors import InvalidArgument, SchemaTooNew, StandfastError
from standfast.machine import Command, Input, TurnMachine, decode_input
from standfast.model.canonical import Json

FORMAT: Final = 1
"""The version of the file format that this module reads and writes."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded turn. A draft has no `commands`; `outcome` is None if the turn did not end."""

    format: int = FORMAT
    name: str
    inputs: tuple[Input, ...]
    commands: tuple[tuple[Json, ...], ...] = ()
    entries: tuple[Json, ...] = ()
    outcome: Json = None
    next_messages: tuple[Json, ...] = ()

    @property
    def is_draft(self) -> bool:
        return not self.commands


def record(name: str, inputs: Iterable[Input]) -> History:
    """Feed *inputs* to a fresh machine and record its results."""
    machine = TurnMachine()
    fed: list[Input] = []
    commands: list[tuple[Json, ...]] = []
    for given in inputs:
        fed.append(given)
        commands.append(tuple(command_as_json(command) for command in machine.feed(given)))
    return History(
        name=name,
        inputs=tuple(fed),
        commands=tuple(commands),
        entries=tuple(map(_as_json, machine.entries)),
        outcome=_as_json(machine.outcome),
        next_messages=tuple(map(_as_json, machine.next_messages())),
    )


def record_journal(name: str, bodies: Iterable[bytes]) -> History:
    """Record the inputs in the bodies of a journal."""
    return record(name, map(decode_input, bodies))


def replay(history: History) -> list[str]:
    """Return every difference between the recorded results and those of this version, one line each."""
    try:
        now = record(history.name, history.inputs)
    except StandfastError as error:
        return [f"the inputs cannot be fed any more: {error}"]
    apart = []
    if len(history.commands) != len(now.commands):
        apart.append(
            f"{len(history.inputs)} inputs, but the commands of {len(history.commands)} are recorded"
        )
    else:
        steps = zip(history.inputs, history.commands, now.commands, strict=True)
        for number, (given, before, after) in enumerate(steps, start=1):
            if before != after:
                kind = type(given).__name__
                apart.append(f"input {number} ({kind}): commands were {_text(before)}, are {_text(after)}")
    if len(history.entries) != len(now.entries):
        apart.append(f"there were {len(history.entries)} entries, there are {len(now.entries)}")
    for number, (before, after) in enumerate(zip(history.entries, now.entries, strict=False), start=1):
        if before != after:
            apart.append(f"entry {number} was {_text(before)}, is {_text(after)}")
    if history.outcome != now.outcome:
        apart.append(f"the outcome was {_text(history.outcome)}, is {_text(now.outcome)}")
    if history.next_messages != now.next_messages:
        messages = f"{_text(history.next_messages)}, are {_text(now.next_messages)}"
        apart.append(f"the next messages were {messages}")
    return apart


def command_as_json(command: Command) -> Json:
    """Convert a command into JSON: its name as `do`, and its fields without defaults."""
    fields = {
        field.name: _as_json(getattr(command, field.name))
        for field in msgspec.structs.fields(command)
        if getattr(command, field.name) != field.default
    }
    return {"do": type(command).__name__, **fields}


def _as_json(value: object) -> Json:
    """Return the value as it would be read from a file."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def load(path: Path) -> History:
    """Read a history or a draft. A file of a later format raises `SchemaTooNew`."""
    data = path.read_bytes()
    try:
        version = msgspec.json.decode(data, type=_Version).format
        if version > FORMAT:
            raise SchemaTooNew(f"{path.name} has format {version}, this version reads {FORMAT}")
        if version < FORMAT:
            raise InvalidArgument(f"{path.name} has format {version}, which does not exist")
        return msgspec.json.decode(data, type=History)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path.name} is not a history: {error}") from None


class _Version(msgspec.Struct):
    format: int = FORMAT


def save(history: History, path: Path, *, replace: bool = False) -> None:
    """Write a history. Raise `FileExistsError` if the file exists, unless *replace* is given."""
    text = msgspec.json.format(msgspec.json.encode(history), indent=2)
    with path.open("wb" if replace else "xb") as file:
        file.write(text + b"\n")


def complete(path: Path, *, replace: bool = False) -> list[str]:
    """Complete the draft at *path*, or update a recorded history with *replace*; return the differences.

    Without *replace*, raise `InvalidArgument` for a recorded history that would change.
    """
    history = load(path)
    apart = [] if history.is_draft else replay(history)
    if apart and not replace:
        raise InvalidArgument(
            f"{path.name} is recorded and would change: {'; '.join(apart)}",
            hint="pass --replace if later versions should replay it as it is now",
        )
    if history.is_draft or apart:
        save(record(history.name, history.inputs), path, replace=True)
    return apart


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write files; return 1 if one of them differs or could not be written."""
    parser = argparse.ArgumentParser(
        prog="python -m standfast.testing.histories", description="golden histories"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    check = actions.add_parser("check", help="replay histories and report every difference")
    write = actions.add_parser("write", help="complete drafts: files that have `name` and `inputs`")
    write.add_argument("--replace", action="store_true", help="update recorded histories that have changed")
    for action in (check, write):
        action.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    exit_code = 0
    for path in options.files:
        try:
            if options.action == "write":
                lines = complete(path, replace=options.replace)
            elif lines := replay(load(path)):
                exit_code = 1
        except (StandfastError, OSError) as error:
            sys.stderr.write(f"{path}: {error}\n")
            exit_code = 1
        else:
            sys.stdout.writelines(f"{path}: {line}\n" for line in lines or ["ok"])
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
