"""`standfast`: the group of commands. Exit status: 0 for success, 2 for wrong usage, 1 otherwise.

This module imports click and nothing of the runtime; a command imports what it needs when it runs. A
traceback is shown only if STANDFAST_DEBUG is set.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from standfast import __version__
from standfast.cli.options import inherited_options
from standfast.cli.output import write_error

_COMMANDS = (
    "tour", "chat", "serve", "daemon", "acp", "tokens", "sessions", "recover", "approvals", "tasks",
    "triggers", "trace", "worker", "run", "validate", "repl", "tools", "mcp", "plugins", "models", "new",
    "doctor", "migrate", "store", "usage",
)  # fmt: skip

_STREAM_ERRORS = (errno.EBADF, errno.EIO, errno.ENOSPC)
"""Errors of streams: a standard stream is closed, its terminal is gone, or a disk is full."""


class CommandLine(click.Group):
    """Loads a command's module when the command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"standfast.cli.{cmd_name}").command
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its status."""
        given = list(sys.argv[1:] if args is None else args)
        open_closed_streams()
        try:
            status = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            status = report_failure(error, as_json="--json" in given)
        status = status if isinstance(status, int) else 0
        if args is None:
            end_process(status)
        sys.exit(status)


def open_closed_streams() -> None:
    """Open the standard streams that are closed, so that no other file gets their descriptors.

    As glibc does it for privileged programs: reading standard input or writing standard output fails. What is
    written to standard error is discarded.
    """
    for name, wrong_way in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, wrong_way)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w"))  # noqa: SIM115


def end_process(status: int) -> None:
    """End the process like `sys.exit`, without freeing its objects one by one."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # a closed or a full stream
        status = status or 1
    os._exit(status)


def report_failure(error: Exception, *, as_json: bool) -> int:
    """Report an error that no command handled, and return the exit status."""
    from standfast.errors import Code  # not needed by `--version` and `--help`

    if isinstance(error, click.UsageError):
        error.show()
        if as_json:
            write_error(Code.INVALID_ARGUMENT, error.format_message(), as_json=True)
        return 2
    if isinstance(error, click.Abort):
        return write_error(Code.CANCELLED, "interrupted", as_json=as_json)
    if isinstance(error, click.ClickException):
        return write_error(Code.INVALID_ARGUMENT, error.format_message(), as_json=as_json)
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno in _STREAM_ERRORS and cause.filename is None:
        message = f"reading or writing failed: {cause.strerror}"
        try:
            return write_error(Code.IO_ERROR, message, as_json=as_json)
        except OSError:  # standard output is what failed
            return write_error(Code.IO_ERROR, message, as_json=False)
    if os.environ.get("STANDFAST_DEBUG"):
        import traceback

        traceback.print_exception(error)
    message = f"internal error: {type(cause).__name__}: {cause}"
    hint = "set STANDFAST_DEBUG=1 to see the traceback, and please report it"
    return write_error(Code.RUNTIME_ERROR, message, hint=hint, as_json=as_json)


@click.command(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Start here:
  standfast tour                             see it work, nothing to set up
  standfast chat                             talk to an agent; a scripted one, if you name no model
  standfast run -e 'sum(range(10))'          run code in the session "default"
  standfast run --tools examples/refunds.py -e 'fee() + refund("A1", 500)'
  standfast approvals list                   list the calls that wait for a decision
""",
)
@click.version_option(__version__, prog_name="standfast")
@inherited_options
def main() -> None:
    """Run agents and untrusted code with the tools you grant and nothing more.

    Sessions, unfinished turns and approvals live in a data directory (--store, STANDFAST_STORE, else
    ~/.standfast) and outlive processes. A call that needs approval suspends its turn, code even in the middle
    of an expression; a decision resumes it, from any process.
    """


if __name__ == "__main__":
    main()
