"""`standfast trace`: show how turns spent their time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import CommandOutput

if TYPE_CHECKING:
    from standfast.trace.jsonl import JsonlTrace
    from standfast.trace.trace_reader import SpanTree

TRACE_VARIABLE = "STANDFAST_TRACE"
_USUAL = "trace.jsonl"


@click.group(
    "trace",
    epilog=f"""\b
Examples:
  {TRACE_VARIABLE}=1 standfast chat 'order A1'
  standfast trace show default
  standfast trace show support-42 --file trace.jsonl --json
  standfast trace export support-42 --html > support-42.html
""",
)
@inherited_options
def command() -> None:
    """Show the traces that commands and programs have written.

    With STANDFAST_TRACE=1 commands write a trace to the data directory, with STANDFAST_TRACE=FILE to that
    file; `standfast chat --trace FILE` does so for one conversation.
    """


@command.command("show")
@click.argument("session_id")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The trace.  [default: {TRACE_VARIABLE}, else {_USUAL} in the data directory]",
)
@click.option("--turn", "turn_id", metavar="ID", help="Show only this turn.")
@answers
def show(invocation: Invocation, *, session_id: str, file: Path | None, turn_id: str | None) -> CommandOutput:
    """Draw the turns of a session as spans over time."""
    from standfast.cli.waterfall import show_waterfalls
    from standfast.errors import InvalidArgument, NotConfigured
    from standfast.trace.trace_reader import read_trace, span_trees

    path = file or trace_file(invocation.data_dir) or invocation.beside(_USUAL)
    if not path.exists():
        raise NotConfigured(
            f"there is no trace {path}",
            hint=f"write one with {TRACE_VARIABLE}=1 standfast chat ..., or give --file",
        )
    trees = span_trees(read_trace(path), session_id=session_id, turn_id=turn_id)
    if not trees:
        turn = "" if turn_id is None else f"turn {turn_id!r} of "
        raise InvalidArgument(f"the trace {path} has no records of {turn}session {session_id!r}")
    return CommandOutput([_document(tree) for tree in trees], lambda: show_waterfalls(trees))


@command.command("export")
@click.argument("session_id")
@click.option("--html", is_flag=True, help="Write one HTML file that needs no server and no network.")
@click.option("--out", "-o", type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
@answers
def export(invocation: Invocation, *, session_id: str, html: bool, out: Path | None) -> CommandOutput:
    """Write a session as a page: the conversation, calls, cells and attached images."""
    if not html:
        raise click.UsageError("choose a format: --html; `standfast sessions export` writes JSON")
    from standfast.server.serving import require_server_extra

    require_server_extra()
    from standfast.workbench.export import export_html

    text = invocation.with_runtime(lambda runtime: export_html(runtime, session_id))
    if out is None:
        return CommandOutput({"html": text}, lambda: click.echo(text))
    out.write_text(text, encoding="utf-8")
    return CommandOutput.line(str(out), {"file": str(out)})


def trace_file(data_dir: Path | str, given: str | None = None) -> Path | None:
    """Return the file for a command's trace, from *given* or the environment; None for no trace."""
    chosen = given or os.environ.get(TRACE_VARIABLE, "")
    if chosen in ("", "0"):
        return None
    if chosen != "1":
        return Path(chosen).expanduser()
    from standfast.runtime.data_dir import DataDir

    return DataDir(data_dir).beside(_USUAL)


def trace_sink(data_dir: Path | str, given: str | None = None) -> JsonlTrace | None:
    """Open the trace that a command writes to; None for no trace."""
    path = trace_file(data_dir, given)
    if path is None:
        return None
    from standfast.trace.jsonl import JsonlTrace

    return JsonlTrace(path)


def _document(tree: SpanTree) -> dict[str, Any]:
    import msgspec

    return {
        **msgspec.to_builtins(tree.record),
        "trace_id": tree.record.trace_id,
        "open": tree.is_open,
        "children": [_document(child) for child in tree.children],
    }
