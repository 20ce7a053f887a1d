"""A turn as people see it while it happens.

What the model says goes to standard output, everything about it to standard error. On a terminal text
appears as it comes, and what was void in the end is said to be so; a file or a pipe gets whole replies only.

A cell is shown with its code, the calls that it makes indented under it. The answer that code gives is text
that comes while the model is not asked; it is shown once, when it has counted.
"""

from __future__ import annotations

import sys

from standfast.cli.cell_view import code_lines, is_cell, outcome, remarks, report_of
from standfast.cli.output import error_console, visible, write_guest
from standfast.cli.short_text import error_text, short_json, shortened
from standfast.model.cell import CellReport
from standfast.model.events import (
    Event,
    MessagesDelivered,
    ModelCallFailed,
    ModelCallStarted,
    ReplyReceived,
    TextRetracted,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    TurnBegan,
    TurnCommitted,
    WaitOver,
)
from standfast.model.message import ToolCall
from standfast.model.outcome import Finished, FrameSwitched
from standfast.model.wait import Approved, Denied, WaitOutcome


class ChatScreen:
    """Shows the events of a session, one after the other."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._about = error_console()
        self._live = sys.stdout.isatty()
        self._line_is_open = False
        self._streamed = 0
        self._names: dict[int, str] = {}
        self._cell: int | None = None
        self._asking = False
        self._answer = ""
        self._turn_id = ""

    def show(self, event: Event) -> None:
        if not self._quiet:
            self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case TurnBegan():
                self._begin(event)
            case ModelCallStarted():
                self._begin_reply()
            case TextStreamed(text=text) if self._asking:
                self._stream(text)
            case TextStreamed(text=text):
                self._answer += text
            case TextRetracted():
                self._retract()
            case ReplyReceived(text=text):
                self._complete(text)
            case ModelCallFailed():
                self._show_failure(event)
            case ToolCallStarted(call=call):
                self._show_call(call)
            case ToolCallSettled():
                self._show_result(event)
            case WaitOver(outcome=over):
                self.note(_over_text(over))
            case MessagesDelivered():
                self._give_answer()
            case TurnCommitted():
                self._end(event)
            case _:
                return

    def note(self, text: str, style: str = "dim") -> None:
        """Say something about the conversation, on a line of its own."""
        from rich.text import Text

        self.end_line()
        self._about.print(Text(visible(text)), style=style, soft_wrap=True)

    def end_line(self) -> None:
        if self._line_is_open:
            sys.stdout.write("\n")
            self._line_is_open = False
        sys.stdout.flush()

    def _begin(self, event: TurnBegan) -> None:
        if event.resumed and event.turn_id != self._turn_id:
            self.note(f"going on with turn {event.turn_id}")
        self._turn_id = event.turn_id

    def _end(self, event: TurnCommitted) -> None:
        if isinstance(event.outcome, Finished):
            self._give_answer()
        elif isinstance(event.outcome, FrameSwitched):
            self.note(f"a new frame begins ({event.outcome.switch.reason})")
        self._answer = ""
        self._cell = None

    # Text

    def _begin_reply(self) -> None:
        self._give_answer()
        self._streamed = 0
        self._asking = True

    def _give_answer(self) -> None:
        """Show what code gave for an answer, now that it has counted."""
        self._write(self._answer)
        self._answer = ""
        self.end_line()

    def _stream(self, text: str) -> None:
        self._streamed += len(text)
        if self._live:
            self._write(text)

    def _complete(self, text: str) -> None:
        """The whole reply is there; what was not streamed of it is shown now."""
        if not self._live or not self._streamed:
            self._write(text)
        self._streamed = 0
        self._asking = False
        self.end_line()

    def _write(self, text: str) -> None:
        if text:
            write_guest(text, sys.stdout)
            self._line_is_open = not text.endswith("\n")

    def _retract(self) -> None:
        if self._live and self._streamed:
            self.note("the text above is void", "yellow")
        self._streamed = 0

    def _show_failure(self, event: ModelCallFailed) -> None:
        if event.retry_in_ms is None:  # the turn ends, which is told then
            return
        wait_s = round(event.retry_in_ms / 1000)
        soon = f" in {wait_s} s" if wait_s else ""
        self.note(f"the model call failed: {error_text(event.error)}; trying again{soon}", "yellow")

    # Calls

    def _show_call(self, call: ToolCall) -> None:
        self._names[call.call_id] = call.name
        if is_cell(call):
            self._cell = call.call_id
            self.note("\n".join(code_lines(call)))
        else:
            self._cell = call.parent or self._cell
            self.note(f"{self._indent(call.call_id)}{short_call(call)}")

    def _show_result(self, event: ToolCallSettled) -> None:
        report, record = report_of(event.value), event.record
        known = self._names.pop(event.call_id, f"call {event.call_id}")
        if report is not None:
            self._cell = None
            self._show_report(report)
            return
        name = known if record is None else record.name
        took = f" · {record.duration_ms} ms" if record is not None else ""
        lead = self._indent(event.call_id)
        if event.error is None:
            self.note(f"{lead}{name} → {short_json(event.value)}{took}")
        else:
            self.note(f"{lead}{name} ✗ {error_text(event.error)}{took}", "red")

    def _show_report(self, report: CellReport) -> None:
        for remark in remarks(report):
            self.note(f"  {remark}")
        self.note(f"  cell {report.index} {outcome(report)}", "dim" if report.error is None else "red")

    def _indent(self, call_id: int) -> str:
        """A call that a cell makes stands under it."""
        return "  " if self._cell in (None, call_id) else "    "


def short_call(call: ToolCall) -> str:
    """A call as Python would write it, shortened."""
    if call.arguments is None:
        return f"{call.name}({shortened(call.raw or '')})"
    parts = [repr(value) for value in call.args]
    parts += [f"{name}={value!r}" for name, value in call.arguments.items()]
    return f"{call.name}({shortened(', '.join(parts))})"


def _over_text(over: WaitOutcome) -> str:
    match over:
        case Approved(arguments=None):
            return "  approved"
        case Approved():
            return "  approved with other arguments"
        case Denied(reason=reason):
            return f"  denied: {reason}" if reason else "  denied"
        case _:
            return f"  {type(over).__struct_config__.tag}"
