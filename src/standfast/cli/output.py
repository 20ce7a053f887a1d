"""The output of a command: one JSON document, or text for people.

With `--json` standard output carries one document and nothing else, whatever tools print; rich is imported
only for people. Text from guest code or a model reaches a terminal only with its control characters escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

    from standfast.errors import ErrorObject
    from standfast.model.limits import Usage

_KEPT = "\n\t\N{ZERO WIDTH JOINER}"


class CommandOutput(NamedTuple):
    """The result of a command: a document, a function that shows it to a person, and an exit status."""

    document: Any
    show: Callable[[], None]
    exit_status: int = 0

    @classmethod
    def line(cls, text: str, document: Any) -> CommandOutput:
        """Show *document* to a person as one line of text."""
        return cls(document, lambda: console().print(text, soft_wrap=True))

    @classmethod
    def failed(cls, error: ErrorObject) -> CommandOutput:
        return cls({"error": error}, lambda: show_error(error.code, error.message, error.hint), 1)

    def write(self, *, as_json: bool) -> None:
        """Print the document, or show it, and flush, so that a closed pipe is noticed here."""
        if as_json:
            import msgspec

            data = msgspec.json.encode(self.document)
            if sys.stdout.isatty():
                data = msgspec.json.format(data, indent=2)
            sys.stdout.write(data.decode() + "\n")
        else:
            self.show()
        sys.stdout.flush()


def write_error(code: str, message: str, *, hint: str | None = None, as_json: bool) -> int:
    """Report a failure outside of any command, even if the installation is broken; return the exit status."""
    if as_json:
        error = {"code": code, "message": message, "hint": hint, "span": None}
        sys.stdout.write(json.dumps({"error": error}) + "\n")
        sys.stdout.flush()
    else:
        show_error(code, message, hint)
    return 1


def show_error(code: str, message: str, hint: str | None) -> None:
    for label, colour, text in ((f"{code}: ", "red", message), ("hint: ", "cyan", hint)):
        if text:
            shown = label if "NO_COLOR" in os.environ else click.style(label, fg=colour, bold=True)
            click.echo(shown + visible(text), err=True)


@contextmanager
def stdout_reserved(reserved: bool) -> Iterator[None]:
    """Reserve standard output for the document: output of tools and their children goes to stderr."""
    if not reserved:
        yield
        return
    sys.stdout.flush()
    try:
        replaced = sys.stdout.fileno() != 1 or sys.stdout is not sys.__stdout__
    except (OSError, ValueError):
        replaced = True
    with redirect_stdout(sys.stderr):
        if replaced:  # replaced by a test
            yield
            return
        saved = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)


def console(stream: TextIO | None = None) -> Console:
    """Return a console for people on *stream*, by default standard output."""
    from rich.console import Console

    file = stream or sys.stdout
    width = None if file.isatty() or "COLUMNS" in os.environ else 120
    return Console(file=file, highlight=False, soft_wrap=False, emoji=False, markup=False, width=width)


def error_console() -> Console:
    return console(sys.stderr)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read; raise `UsageError` if it cannot be written."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def write_guest(text: str, stream: TextIO) -> None:
    """Write the output of guest code: unchanged into a file or pipe, escaped on a terminal."""
    stream.write(visible(text) if stream.isatty() else text)
    stream.flush()


def visible(text: str) -> str:
    """Return *text* with control and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else ascii(c)[1:-1] for c in text)


def styled(text: str, style: str = "", *, overflow: Any = None) -> Text:
    """Return *text* for a console, with control characters escaped."""
    from rich.text import Text

    return Text(visible(text), style, overflow=overflow)


# Texts, values and errors on one line


def moment(ms: int | None) -> str:
    """Format milliseconds since 1970 as local time."""
    from datetime import datetime

    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S") if ms else "-"


def shortened(text: str, limit: int = 160) -> str:
    """Collapse *text* into one line and truncate it to *limit* characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def short_json(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def error_text(error: ErrorObject) -> str:
    return f"{error.code}: {shortened(error.message)}"


def cost_text(usage: Usage) -> str:
    """Format the cost, or the known part of it."""
    from standfast.model.limits import dollars

    if not usage.priced and usage.calls:
        return "unknown"
    return f"{'' if usage.cost_is_known else 'at least '}{dollars(usage.cost_nano_usd)}"


def this_user() -> str:
    """Return the name of the user who runs this process, or the uid of a user without a name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER") or f"uid {os.getuid()}"
