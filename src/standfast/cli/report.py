"""Run results for people (only the code's output and result go to standard output), and tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from standfast.cli.options import Invocation
from standfast.cli.output import (
    CommandOutput,
    console,
    counted,
    error_console,
    moment,
    styled,
    this_user,
    visible,
    write_guest,
)
from standfast.errors import Code, InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from standfast.errors import Span
    from standfast.model.approval import Approval, Decision
    from standfast.model.code import Diagnostic
    from standfast.model.run import RunResult

_COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class RunReport(NamedTuple):
    """A result with its code and the approvals that it waits for."""

    result: RunResult
    invocation: Invocation
    code: str | None = None
    waiting: Sequence[Approval] = ()

    def output(self) -> CommandOutput:
        return CommandOutput(self.result, self.show, 0 if self.result.status == "ok" else 1)

    def show(self) -> None:
        result = self.result
        show_streams(result)
        show_value(result.result)
        if result.diagnostics or result.external_calls or self.waiting:
            self._show_details(error_console())
        show_status(result)

    def _show_details(self, about: Console) -> None:
        result = self.result
        # If this run waits, and not an earlier one, the boxes below replace the diagnostic.
        is_parked = result.snapshot_id is not None and bool(self.waiting)
        for diagnostic in result.diagnostics:
            if not (is_parked and diagnostic.code == Code.WAITING_FOR_APPROVAL):
                show_diagnostic(about, diagnostic, self.code)
        if result.external_calls:
            failing = any(call.error for call in result.external_calls)
            table = plain_table("call", "status", "ms", "side effect", *(["error"] if failing else []))
            for call in result.external_calls:
                colour = {"ok": "green", "approval_pending": "yellow"}.get(call.status, "red")
                row = (f"{call.name}()", styled(call.status, colour), str(call.duration_ms), call.side_effect)
                error = [visible(f"{call.error.code}: {call.error.message}")] if call.error else []
                table.add_row(*row, *error)
            about.print(table)
        for approval in self.waiting:
            show_waiting(about, approval, self.invocation)

    def show_briefly(self) -> None:
        """Show a successful run by its output and value only, as in an interactive session."""
        if self.result.status != "ok" or self.result.diagnostics:
            self.show()
            return
        show_streams(self.result)
        show_value(self.result.result)

    def show_check(self) -> None:
        """Show the result of a check: its diagnostics on standard output."""
        for diagnostic in self.result.diagnostics:
            show_diagnostic(console(), diagnostic, self.code)
        show_status(self.result)


def show_streams(result: RunResult) -> None:
    for text, stream in ((result.stdout, sys.stdout), (result.stderr, sys.stderr)):
        if text:
            write_guest(text if text.endswith("\n") else text + "\n", stream)


def show_value(value: Any) -> None:
    """Print the value as JSON, coloured on a terminal; nothing for null."""
    if value is None:
        return
    text = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, (dict, list)) else None)
    if not sys.stdout.isatty():
        sys.stdout.write(text + "\n")
        return
    from rich.highlighter import JSONHighlighter

    coloured = styled(text)
    JSONHighlighter().highlight(coloured)
    console().print(coloured, soft_wrap=True)


def show_status(result: RunResult) -> None:
    """Print one dim line to standard error: status, time, calls, snapshot."""
    parts = [f"{result.metrics.duration_ms} ms"]
    if result.metrics.external_calls_count:
        parts.append(counted(result.metrics.external_calls_count, "call"))
    if result.snapshot_id:
        parts.append(result.snapshot_id)
    colour = {"ok": "green", "waiting_for_approval": "yellow"}.get(result.status, "red")
    status, rest = str(result.status), " · " + " · ".join(parts)
    if "NO_COLOR" not in os.environ:
        status, rest = click.style(status, fg=colour, dim=True), click.style(rest, dim=True)
    click.echo(status + rest, err=True)


def show_diagnostic(shown: Console, diagnostic: Diagnostic, code: str | None) -> None:
    from rich.text import Text

    colour = _COLOURS[diagnostic.severity]
    shown.print(Text.assemble((f"{diagnostic.code}: ", colour), visible(diagnostic.message)))
    if code is not None and diagnostic.span is not None:
        _show_source(shown, code, diagnostic.span, colour)
    if diagnostic.hint:
        shown.print(Text.assemble(("  hint: ", "cyan"), visible(diagnostic.hint)))


def _show_source(shown: Console, code: str, span: Span, colour: str) -> None:
    """Print the line of a diagnostic, with carets under its span."""
    from rich.cells import cell_len
    from rich.text import Text

    def flat(text: str) -> str:
        return visible(text.expandtabs(4))

    lines = code.split("\n")
    if not 1 <= span.line <= len(lines):
        return
    line = lines[span.line - 1].rstrip("\r")
    start = min(span.column - 1, len(line))
    end = len(line.rstrip())
    if span.end_column is not None and span.end_line in (None, span.line):
        end = span.end_column - 1
    gutter = f"  {span.line} | "
    shown.print(Text.assemble((gutter, "dim"), flat(line)), soft_wrap=True)
    indent = len(gutter) + cell_len(flat(line[:start]))
    width = max(1, cell_len(flat(line[start : max(start, end)])))
    shown.print(Text(" " * indent + "^" * width, colour), soft_wrap=True)


def show_waiting(shown: Console, approval: Approval, invocation: Invocation) -> None:
    """Print the call that waits, and the commands that decide it."""
    show_box(shown, approval)
    show_commands(shown, approval, invocation)


def show_box(shown: Console, approval: Approval) -> None:
    """Print a call that waits, with all of its arguments, or the question that it asks."""
    from rich.panel import Panel
    from rich.text import Text

    fields = answer_fields(approval)
    if fields:
        body = styled(approval.reason or "", "bold", overflow="fold")
        body.append(f"\n\nThe answer must match {json.dumps(approval.answer_schema)}")
    else:
        called = call_text(approval.capability, approval.args, approval.kwargs)
        body = Text(called, "bold", overflow="fold")
        if approval.reason:
            body.append_text(styled(f"\n\n{approval.reason}", "yellow"))
    body.append(
        f"\n\nasked by {approval.capability} of session " if fields else "\n\nasked by session ", "dim"
    )
    body.append(approval.session_id)
    body.append(f", can be decided until {moment(approval.expires_at)}", "dim")
    title = Text(f"waiting for {'an answer' if fields else 'approval'} · {approval.approval_id}")
    shown.print(Panel(body, title=title, title_align="left", border_style="yellow", expand=False))


def answer_fields(approval: Approval) -> dict[str, Any]:
    """Return the fields that the answer to a question has, with their defaults; {} if there are none."""
    schema = approval.answer_schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: approval.kwargs.get(name, "...") for name in properties}


def ask_decision(approval: Approval, ask: Callable[[str, str], str | None]) -> Decision | None:
    """Ask for a decision: yes, no with a reason, or yes with other arguments; None for later.

    *ask* reads a line after a prompt; the line starts with the second argument.
    """
    from standfast.model.approval import Decision

    user, fields = this_user(), answer_fields(approval)
    question = "Answer? [y]es, [n]o, [l]ater: " if fields else "Approve? [y]es, [n]o, [e]dit, [l]ater: "
    while True:
        answer = ask(question, "")
        match answer and answer.strip().lower():
            case "y" | "yes" if not fields:
                return Decision(approved=True, decided_by=user)
            case "n" | "no":
                reason = ask("Reason, shown to the model: ", "")
                return Decision(approved=False, reason=reason or None, decided_by=user)
            case "e" | "edit" | "y" | "yes":
                given = json.dumps(fields or approval.arguments, ensure_ascii=False)
                edited = ask("Answer as JSON: " if fields else "Arguments as JSON: ", given)
                if edited is None:
                    return None
                try:
                    arguments = json.loads(edited)
                except ValueError as error:
                    raise InvalidArgument(f"this is not JSON: {error}") from None
                if not isinstance(arguments, dict):
                    raise InvalidArgument("the arguments must be a JSON object")
                return Decision(approved=True, kwargs=arguments, decided_by=user)
            case None | "l" | "later":
                return None


def show_commands(shown: Console, approval: Approval, invocation: Invocation) -> None:
    """Print the commands that decide an approval, outside of any box, so that they can be copied."""
    from rich.text import Text

    decide: tuple[str, ...] = ("approvals", "approve", approval.approval_id)
    refuse = ("approvals", "deny", approval.approval_id, "--reason", "not this one")
    if fields := answer_fields(approval):
        decide = (*decide, "--arguments", json.dumps(fields, ensure_ascii=False))
    for label, words in (("answer " if fields else "approve", decide), ("deny   ", refuse)):
        shown.print(Text.assemble((f"  {label}  ", "dim"), invocation.command(*words)), soft_wrap=True)


def call_text(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Format a call as Python; control characters are escaped."""
    parts = [repr(value) for value in args] + [f"{key}={value!r}" for key, value in kwargs.items()]
    return f"{name}({', '.join(parts)})"


def plain_table(*headers: str, rows: Iterable[Sequence[Any]] = (), whole: Sequence[int] = ()) -> Any:
    """Return a table without lines. Columns fold, so that nothing is cut; those in *whole* do not wrap."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.show_header = any(headers)
    for place, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=place in whole)
    for row in rows:
        table.add_row(*row)
    return table


def show_table(*headers: str, rows: Sequence[Sequence[Any]], empty: str, whole: Sequence[int] = ()) -> None:
    """Print a table, or the line *empty* if it has no rows."""
    if rows:
        console().print(plain_table(*headers, rows=rows, whole=whole))
    else:
        console().print(empty, style="dim")


def facts_table(facts: Iterable[tuple[str, str]]) -> Any:
    """Return a table of labels and values, without headers."""
    return plain_table(
        "", "", rows=[(styled(label, "dim"), styled(value, overflow="fold")) for label, value in facts]
    )
