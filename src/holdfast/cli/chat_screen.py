"""A turn as people see it while it happens.

What the model says goes to standard output, everything about it to standard error. On a terminal text
appears as it comes, and what was void in the end is said to be so; a file or a pipe gets whole replies only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from holdfast.cli.output import error_console, visible, write_guest
from holdfast.errors import ErrorObject
from holdfast.model.events import (
    Event,
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
from holdfast.model.message import ToolCall
from holdfast.model.outcome import FrameSwitched
from holdfast.model.wait import Approved, Denied, WaitOutcome

_SHORT = 160


class ChatScreen:
    """Shows the events of a session, one after the other."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._about = error_console()
        self._live = sys.stdout.isatty()
        self._line_is_open = False
        self._streamed = 0
        self._names: dict[int, str] = {}
        self._turn_id = ""

    def show(self, event: Event) -> None:
        if not self._quiet:
            self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case TurnBegan():
                self._begin(event)
            case ModelCallStarted():
                self._streamed = 0
            case TextStreamed(text=text):
                self._stream(text)
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
            case WaitOver(outcome=outcome):
                self.note(_over_text(outcome))
            case TurnCommitted(outcome=FrameSwitched(switch=switch)):
                self.note(f"a new frame begins ({switch.reason})")
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

    # Text

    def _stream(self, text: str) -> None:
        self._streamed += len(text)
        if self._live:
            self._write(text)

    def _complete(self, text: str) -> None:
        """The whole reply is there; what was not streamed of it is shown now."""
        if not self._live or not self._streamed:
            self._write(text)
        self._streamed = 0
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
        if event.retryable:  # what cannot be tried again ends the turn, which is told then
            self.note(f"the model call failed: {_error_text(event.error)}; trying again", "yellow")

    # Calls

    def _show_call(self, call: ToolCall) -> None:
        self._names[call.call_id] = call.name
        self.note(f"  {short_call(call)}")

    def _show_result(self, event: ToolCallSettled) -> None:
        record = event.record
        known = self._names.pop(event.call_id, f"call {event.call_id}")
        name = known if record is None else record.name
        took = f" · {record.duration_ms} ms" if record is not None else ""
        if event.error is None:
            self.note(f"  {name} → {short_json(event.value)}{took}")
        else:
            self.note(f"  {name} ✗ {_error_text(event.error)}{took}", "red")


def short_call(call: ToolCall) -> str:
    """A call as Python would write it, shortened."""
    if call.arguments is None:
        return f"{call.name}({shortened(call.raw or '')})"
    parts = (f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({shortened(', '.join(parts))})"


def short_json(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def shortened(text: str, limit: int = _SHORT) -> str:
    """Text on one line that is not too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _error_text(error: ErrorObject) -> str:
    return f"{error.code}: {shortened(error.message)}"


def _over_text(outcome: WaitOutcome) -> str:
    match outcome:
        case Approved(arguments=None):
            return "  approved"
        case Approved():
            return "  approved with other arguments"
        case Denied(reason=reason):
            return f"  denied: {reason}" if reason else "  denied"
        case _:
            return f"  {type(outcome).__struct_config__.tag}"
