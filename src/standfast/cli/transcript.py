"""A session's history for people to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from standfast.cli.cell_view import calls_made, code_lines, is_cell, outcome, remarks, report_of
from standfast.cli.chat_screen import short_call
from standfast.cli.output import visible
from standfast.cli.report import plain_table
from standfast.cli.short_text import cost_text, short_json
from standfast.model.cell import CellReport
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Content,
    InputPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    text_of,
)
from standfast.model.node import FrameOpened, Node, Payload, PluginNode, TurnEnded
from standfast.model.usage import UsageEntry

if TYPE_CHECKING:
    from rich.console import Console

    from standfast.model.current_turn import CurrentTurn

_STYLES = {"user": "bold", "tool": "dim", "cell": "dim", "stopped": "red", "frame": "cyan", "plugin": "dim"}


_STATES = {"running": "runs", "waiting": "waits", "interrupted": "was interrupted"}


def show_conversation(
    shown: Console, nodes: Sequence[Node], current: CurrentTurn | None, *, ids: bool, code: bool = False
) -> None:
    """Print a paragraph for each node, with its id if *ids*, then the turn that has not ended.

    With *code* it is a session without a model: its cells are turns, which have no number.
    """
    from rich.text import Text

    if not nodes and current is None:
        shown.print("nothing was run yet" if code else "nothing was said yet", style="dim")
    for node in nodes:
        if ids:
            shown.print(Text(node.id, "dim"), soft_wrap=True)
        _show_paragraph(shown, node.payload, code)
    if current is not None:
        shown.print(Text(f"turn {current.turn_id} {_STATES[current.state]}", "yellow"), soft_wrap=True)
        for message in current.messages:
            _show_paragraph(shown, message, code)


def _show_paragraph(shown: Console, payload: Payload, code: bool) -> None:
    from rich.text import Text

    who, text = _paragraph(payload)
    if code:
        who = "code" if who == "model" else who.partition(" ")[0]
    said = (visible(text), _STYLES.get(who.partition(" ")[0], ""))
    shown.print(Text.assemble((f"{who}: ", "cyan"), said), soft_wrap=True)


def _paragraph(payload: Payload) -> tuple[str, str]:
    """Who speaks, and what is said."""
    match payload:
        case UserMessage(content=content):
            return "user", "\n".join((text_of(content), *_attachments(content)))
        case AssistantMessage(text=text, tool_calls=calls):
            said = [text] if text or any(map(is_cell, calls)) else []
            return "model", "\n".join((*said, *(line for call in calls for line in _call_lines(call))))
        case ToolMessage(value=value) if (report := report_of(value)) is not None:
            return f"cell {report.index}", _cell_text(report)
        case ToolMessage(name=name, error=None, value=value):
            return "tool", f"{name} → {short_json(value)}"
        case ToolMessage(name=name, error=error):
            return "tool", f"{name} ✗ {error.code}: {error.message}" if error else name
        case TurnEnded(outcome=ended):
            return "stopped", f"{ended.reason}: {ended.error.message}"
        case FrameOpened(switch=switch):
            return "frame", f"{switch.frame_id} begins here ({switch.reason})"
        case PluginNode(plugin_id=plugin_id, kind=kind, body=body):
            return "plugin", f"{plugin_id} {kind} {short_json(body)}"
        case _:
            assert_never(payload)


def _call_lines(call: ToolCall) -> list[str]:
    return code_lines(call) if is_cell(call) else [f"  {short_call(call)}"]


def _cell_text(report: CellReport) -> str:
    beside = (*remarks(report), *calls_made(report))
    return "\n".join((outcome(report), *(f"  {line}" for line in beside)))


def _attachments(content: Content) -> Iterable[str]:
    parts = () if isinstance(content, str) else content
    for part in parts:
        if isinstance(part, AttachmentPart):
            yield f"[{part.name or part.digest[:12]}, {part.media_type}, {part.size} bytes]"
        elif isinstance(part, InputPart):
            yield f"[input {part.name}, {part.media_type}, {part.size} bytes]"


def usage_table(usage: Sequence[UsageEntry]) -> Any:
    """What model calls used, a line for each source and model. What they cost only if one did."""
    heads = ["source", "model", "calls", "input", "cached", "output", "of it reasoning"]
    costs = any(line.usage.cost_nano_usd for line in usage)
    table = plain_table(*heads, *(["cost"] if costs else []))
    for line in usage:
        used = line.usage
        cached = used.cache_read + used.cache_write
        numbers = (used.calls, used.input, cached, used.output, used.reasoning)
        amount = [cost_text(used)] if costs else []
        table.add_row(line.source, line.model, *(str(number) for number in numbers), *amount)
    return table
