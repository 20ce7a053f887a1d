"""How a command answers: one JSON document, or text for people.

Rules
-----
1. With `--json` standard output carries one document and nothing else, whatever tools print.
2. rich is imported only to show text to people.
3. Text that guest code made never reaches a terminal with its control characters alive.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from standfast.errors import ErrorObject

_KEPT = "\n\t\N{ZERO WIDTH JOINER}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found: as data, and as a function that shows it to a person."""

    document: Any
    show: Callable[[], None]
    exit_status: int = 0

    @classmethod
    def failed(cls, error: ErrorObject) -> Answer:
        """The answer of a command that could not be carried out."""
        return cls({"error": error}, lambda: show_error(error.code, error.message, error.hint), 1)


def give(answer: Answer, *, as_json: bool) -> None:
    """Print an answer, and make sure here that it was read."""
    if as_json:
        write_document(answer.document)
    else:
        answer.show()
    sys.stdout.flush()


def write_document(value: Any) -> None:
    """The one JSON document: indented on a terminal, on one line elsewhere."""
    import msgspec

    data = msgspec.json.encode(value)
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def write_error(code: str, message: str, *, hint: str | None = None, as_json: bool) -> int:
    """Report a failure that no command could answer with; returns the exit status.

    It needs nothing but the standard library and click: it must work in a broken installation too.
    """
    if as_json:
        import json

        error = {"code": code, "message": message, "hint": hint, "span": None}
        sys.stdout.write(json.dumps({"error": error}) + "\n")
        sys.stdout.flush()
    else:
        show_error(code, message, hint)
    return 1


def show_error(code: str, message: str, hint: str | None) -> None:
    _say_in_colour(f"{code}: ", "red", message)
    if hint:
        _say_in_colour("hint: ", "cyan", hint)


def _say_in_colour(label: str, colour: str, text: str) -> None:
    plain = "NO_COLOR" in os.environ
    shown = label if plain else click.style(label, fg=colour, bold=True)
    click.echo(shown + visible(text), err=True)


@contextmanager
def stdout_reserved(reserved: bool) -> Iterator[None]:
    """Keep standard output free for the document: prints of tools and of their children go to stderr."""
    if not reserved:
        yield
        return
    sys.stdout.flush()
    with _descriptor_reserved(sys.stdout), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _descriptor_reserved(stdout: TextIO) -> Iterator[None]:
    if stdout is not sys.__stdout__ or _descriptor(stdout) != 1:
        yield  # a test's stand-in
        return
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def console() -> Console:
    """Standard output for people."""
    return _console(sys.stdout)


def error_console() -> Console:
    """Standard error for people."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    width = None if stream.isatty() or "COLUMNS" in os.environ else 120
    return Console(file=stream, highlight=False, soft_wrap=False, emoji=False, markup=False, width=width)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read; one that cannot be written is wrong usage."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def write_guest(text: str, stream: TextIO) -> None:
    """Print what guest code printed: as it is into a file or pipe, made harmless on a terminal."""
    stream.write(visible(text) if stream.isatty() else text)
    stream.flush()


def visible(text: str) -> str:
    """The text with control characters and the like spelled out instead of obeyed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else ascii(c)[1:-1] for c in text)


def moment(ms: int | None) -> str:
    """A time in milliseconds since 1970, as local time."""
    from datetime import datetime

    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S") if ms else "-"
