"""A run's result for people: output, value, diagnostics with their source line, calls, what waits.

What the code printed and its value go to standard output, everything about the run to standard error,
so that `standfast run … > file` keeps what one would want in the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from standfast.cli.options import Invocation
from standfast.cli.output import Answer, console, error_console, moment, visible, write_guest

if TYPE_CHECKING:
    from rich.console import Console

    from standfast.model import Approval, Diagnostic, ExternalCallRecord, RunResult, Span

_COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True)
class RunReport:
    """A result with what is needed to explain it."""

    result: RunResult
    invocation: Invocation
    code: str | None = None
    waiting: Sequence[Approval] = ()

    def answer(self) -> Answer:
        return Answer(self.result, self.show, 0 if self.result.status == "ok" else 1)

    def show(self) -> None:
        show_streams(self.result)
        show_value(self.result.result)
        about = error_console()
        for diagnostic in self.result.diagnostics:
            if not (self._parked and diagnostic.code == "WAITING_FOR_APPROVAL"):
                show_diagnostic(about, diagnostic, self.code)
        show_calls(about, self.result.external_calls)
        for approval in self.waiting:
            show_waiting(about, approval, self.invocation)
        show_status(about, self.result)

    @property
    def _parked(self) -> bool:
        """Whether this run waits, and not one before it that stands in its way; then the boxes tell it."""
        return self.result.snapshot_id is not None and bool(self.waiting)

    def show_briefly(self) -> None:
        """As in an interactive session: a run that went well shows what it printed and its value."""
        if self.result.status != "ok" or self.result.diagnostics:
            self.show()
            return
        show_streams(self.result)
        show_value(self.result.result)

    def show_check(self) -> None:
        """The result of a check: its diagnostics are what was asked for."""
        shown = console()
        for diagnostic in self.result.diagnostics:
            show_diagnostic(shown, diagnostic, self.code)
        show_status(error_console(), self.result)


def show_streams(result: RunResult) -> None:
    for text, stream in ((result.stdout, sys.stdout), (result.stderr, sys.stderr)):
        if text:
            write_guest(text if text.endswith("\n") else text + "\n", stream)


def show_value(value: Any) -> None:
    """The value as JSON, coloured on a terminal; nothing for null."""
    if value is None:
        return
    text = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, (dict, list)) else None)
    if not sys.stdout.isatty():
        sys.stdout.write(text + "\n")
        return
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    coloured = Text(visible(text))
    JSONHighlighter().highlight(coloured)
    console().print(coloured, soft_wrap=True)


def show_status(shown: Console, result: RunResult) -> None:
    """One dim line: status, time, calls, snapshot."""
    from rich.text import Text

    metrics = result.metrics
    parts = [f"{metrics.duration_ms} ms"]
    if metrics.external_calls_count:
        parts.append(f"{metrics.external_calls_count} call{'s' * (metrics.external_calls_count != 1)}")
    if result.snapshot_id:
        parts.append(result.snapshot_id)
    colour = {"ok": "green", "waiting_for_approval": "yellow"}.get(result.status, "red")
    shown.print(
        Text.assemble((str(result.status), colour), " · ", " · ".join(parts), style="dim"), soft_wrap=True
    )


def show_diagnostic(shown: Console, diagnostic: Diagnostic, code: str | None) -> None:
    from rich.text import Text

    colour = _COLOURS[diagnostic.severity]
    shown.print(Text.assemble((f"{diagnostic.code}: ", colour), visible(diagnostic.message)))
    if code is not None and diagnostic.span is not None:
        _show_source(shown, code, diagnostic.span, colour)
    if diagnostic.hint:
        shown.print(Text.assemble(("  hint: ", "cyan"), visible(diagnostic.hint)))


def _show_source(shown: Console, code: str, span: Span, colour: str) -> None:
    """The line a diagnostic is about, with carets under the place."""
    from rich.cells import cell_len
    from rich.text import Text

    lines = code.split("\n")
    if not 1 <= span.line <= len(lines):
        return
    line = lines[span.line - 1].rstrip("\r")
    before, marked = _split_at(line, span)
    gutter = f"  {span.line} | "
    shown.print(Text.assemble((gutter, "dim"), _flat(line)), soft_wrap=True)
    indent = len(gutter) + cell_len(_flat(before))
    shown.print(Text(" " * indent + "^" * max(1, cell_len(_flat(marked))), colour), soft_wrap=True)


def _split_at(line: str, span: Span) -> tuple[str, str]:
    """What is before the span on its first line, and what is in it."""
    start = min(span.column - 1, len(line))
    same_line = span.end_column is not None and span.end_line in (None, span.line)
    end = span.end_column - 1 if same_line and span.end_column is not None else len(line.rstrip())
    return line[:start], line[start : max(start, end)]


def _flat(text: str) -> str:
    return visible(text.expandtabs(4))


def show_calls(shown: Console, calls: Sequence[ExternalCallRecord]) -> None:
    if not calls:
        return
    failing = any(call.error for call in calls)
    table = plain_table("call", "status", "ms", "side effect", *(["error"] if failing else []))
    for call in calls:
        colour = {"ok": "green", "approval_pending": "yellow"}.get(call.status, "red")
        row = [f"{call.name}()", _coloured(call.status, colour), str(call.duration_ms), call.side_effect]
        table.add_row(*row, *([visible(f"{call.error.code}: {call.error.message}")] if call.error else []))
    shown.print(table)


def show_waiting(shown: Console, approval: Approval, invocation: Invocation) -> None:
    """Which call waits, and the commands that decide it."""
    show_box(shown, approval)
    show_commands(shown, approval, invocation)


def show_box(shown: Console, approval: Approval) -> None:
    """The call with every argument it would be made with."""
    from rich.panel import Panel
    from rich.text import Text

    call = Text(call_text(approval.capability, approval.args, approval.kwargs), "bold", overflow="fold")
    body = Text.assemble(call, ("\n\nasked by session ", "dim"), approval.session_id)
    body.append(f", can be decided until {moment(approval.expires_at)}", "dim")
    title = Text(f"waiting for approval · {approval.approval_id}")
    shown.print(Panel(body, title=title, title_align="left", border_style="yellow", expand=False))


def show_commands(shown: Console, approval: Approval, invocation: Invocation) -> None:
    """The commands, outside of any box, so that they can be copied."""
    from rich.text import Text

    decide = ("approvals", "approve", approval.approval_id)
    refuse = ("approvals", "deny", approval.approval_id, "--reason", "not this one")
    for label, words in (("approve", decide), ("deny   ", refuse)):
        shown.print(Text.assemble((f"  {label}  ", "dim"), invocation.command(*words)), soft_wrap=True)


def call_text(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """A call as Python would write it; control characters are escaped."""
    parts = [repr(value) for value in args] + [f"{key}={value!r}" for key, value in kwargs.items()]
    return f"{name}({', '.join(parts)})"


def plain_table(*headers: str) -> Any:
    """A table without lines; the columns fold, so that nothing is cut off."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Any:
    """A table of labels and values, without headers."""
    from rich.text import Text

    table = plain_table("", "")
    table.show_header = False
    for label, value in facts:
        table.add_row(Text(label, "dim"), Text(visible(value), overflow="fold"))
    return table


def _coloured(text: str, colour: str) -> Any:
    from rich.text import Text

    return Text(str(text), colour)
