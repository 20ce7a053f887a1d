"""`standfast`: the group of commands. Exit status: 0 for success, 2 for wrong usage, 1 otherwise.

This module imports click and nothing of the runtime; a command imports what it needs when it runs. A
traceback is shown only if STANDFAST_DEBUG is set.
"""

from __future__ import annotations

import atexit
import contextlib
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
        try:
            status = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            status = report_failure(error, as_json="--json" in given)
        status = status if isinstance(status, int) else 0
        if args is None:
            end_process(status)
        sys.exit(status)


def end_process(status: int) -> None:
    """End the process like `sys.exit`, without freeing its objects one by one; return if a flush fails."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a closed or a full stream
        sys.stdout.flush()
        sys.stderr.flush()
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
    if os.environ.get("STANDFAST_DEBUG"):
        import traceback

        traceback.print_exception(error)
    message = f"internal error: {type(error).__name__}: {error}"
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
