"""The display of a turn while it runs.

The model's text goes to standard output, everything else to standard error. A terminal shows text as it
arrives, and a note if it was retracted; a file or a pipe gets complete replies only.

A cell is shown with its code, its calls indented below it. An answer given by code is text that arrives
outside of a model call; it is shown once, after the turn has accepted it.
"""

from __future__ import annotations

import sys

from standfast.cli.output import error_console, error_text, short_json, styled, write_guest
from standfast.cli.transcript import code_lines, is_cell, outcome, remarks, report_of, short_call
from standfast.model import events
from standfast.model.outcome import Approved, Denied, Finished, FrameSwitched


class ChatScreen:
    """Shows the events of a session."""

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

    def show(self, event: events.Event) -> None:
        if self._quiet:
            return
        match event:
            case events.TurnBegan(turn_id=turn_id):
                if event.resumed and turn_id != self._turn_id:
                    self.note(f"resuming turn {turn_id}")
                self._turn_id = turn_id
            case events.ModelCallStarted():
                self._give_answer()
                self._streamed = 0
                self._asking = True
            case events.TextStreamed(text=text) if self._asking:
                self._streamed += len(text)
                if self._live:
                    self._write(text)
            case events.TextStreamed(text=text):
                self._answer += text
            case events.TextRetracted():
                if self._live and self._streamed:
                    self.note("the text above was retracted", "yellow")
                self._streamed = 0
            case events.ReplyReceived(text=text):
                if not self._live or not self._streamed:
                    self._write(text)
                self._streamed = 0
                self._asking = False
                self.end_line()
            case events.ModelCallFailed(
                retry_in_ms=int(wait_ms)
            ):  # without a retry the turn ends, and says why
                soon = f" in {round(wait_ms / 1000)} s" if round(wait_ms / 1000) else ""
                self.note(f"the model call failed: {error_text(event.error)}; trying again{soon}", "yellow")
            case events.ToolCallStarted(call=call):
                self._names[call.call_id] = call.name
                self._cell = call.call_id if is_cell(call) else call.parent or self._cell
                text = f"{self._indent(call.call_id)}{short_call(call)}"
                self.note("\n".join(code_lines(call)) if is_cell(call) else text)
            case events.ToolCallSettled():
                self._show_result(event)
            case events.WaitOver(outcome=Approved(arguments=arguments)):
                self.note("  approved" if arguments is None else "  approved with other arguments")
            case events.WaitOver(outcome=Denied(reason=reason)):
                self.note(f"  denied: {reason}" if reason else "  denied")
            case events.WaitOver(outcome=over):
                self.note(f"  {type(over).__struct_config__.tag}")
            case events.MessagesDelivered():
                self._give_answer()
            case events.TurnCommitted(outcome=ended):
                if isinstance(ended, Finished):
                    self._give_answer()
                elif isinstance(ended, FrameSwitched):
                    self.note(f"a new frame begins ({ended.switch.reason})")
                self._answer, self._cell = "", None
            case _:
                return

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line about the conversation."""
        self.end_line()
        self._about.print(styled(text), style=style, soft_wrap=True)

    def end_line(self) -> None:
        if self._line_is_open:
            sys.stdout.write("\n")
            self._line_is_open = False
        sys.stdout.flush()

    def _give_answer(self) -> None:
        """Show the answer that code gave, now that the turn has accepted it."""
        self._write(self._answer)
        self._answer = ""
        self.end_line()

    def _write(self, text: str) -> None:
        if text:
            write_guest(text, sys.stdout)
            self._line_is_open = not text.endswith("\n")

    def _show_result(self, event: events.ToolCallSettled) -> None:
        report, record = report_of(event.value), event.record
        known = self._names.pop(event.call_id, f"call {event.call_id}")
        if report is not None:
            self._cell = None
            for remark in remarks(report):
                self.note(f"  {remark}")
            colour = "dim" if report.error is None else "red"
            self.note(f"  cell {report.index} {outcome(report)}", colour)
            return
        name = known if record is None else record.name
        took = f" · {record.duration_ms} ms" if record is not None else ""
        lead = self._indent(event.call_id)
        if event.error is None:
            self.note(f"{lead}{name} → {short_json(event.value)}{took}")
        else:
            self.note(f"{lead}{name} ✗ {error_text(event.error)}{took}", "red")

    def _indent(self, call_id: int) -> str:
        """Indent a call that a cell makes below that cell."""
        return "  " if self._cell in (None, call_id) else "    "
