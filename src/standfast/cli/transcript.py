"""A session's history for people to read; a cell is a call of `run_code` whose result is a `CellReport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from standfast.cli.output import cost_text, error_text, short_json, shortened, visible
from standfast.cli.report import plain_table
from standfast.model.code import RUN_CODE, CellReport
from standfast.model.limits import UsageEntry
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    text_of,
)
from standfast.model.session import FrameOpened, Node, Payload, PluginNode, TurnEnded

if TYPE_CHECKING:
    from rich.console import Console

    from standfast.model.session import CurrentTurn

_STYLES = {"user": "bold", "tool": "dim", "cell": "dim", "stopped": "red", "frame": "cyan", "plugin": "dim"}


_STATES = {"running": "runs", "waiting": "waits", "interrupted": "was interrupted"}


def show_conversation(
    shown: Console, nodes: Sequence[Node], current: CurrentTurn | None, *, ids: bool, code: bool = False
) -> None:
    """Print each node, with its id if *ids*, then the unfinished turn; turns of *code* have no number."""
    from rich.text import Text

    def show(payload: Payload) -> None:
        who, text = _paragraph(payload)
        if code:
            who = "code" if who == "model" else who.partition(" ")[0]
        said = (visible(text), _STYLES.get(who.partition(" ")[0], ""))
        shown.print(Text.assemble((f"{who}: ", "cyan"), said), soft_wrap=True)

    if not nodes and current is None:
        shown.print("no code was run yet" if code else "nothing was said yet", style="dim")
    for node in nodes:
        if ids:
            shown.print(Text(node.id, "dim"), soft_wrap=True)
        show(node.payload)
    if current is not None:
        shown.print(Text(f"turn {current.turn_id} {_STATES[current.state]}", "yellow"), soft_wrap=True)
        for message in current.messages:
            show(message)


def _paragraph(payload: Payload) -> tuple[str, str]:
    """Return the speaker and the text of a node."""
    match payload:
        case UserMessage(content=str(text)):
            return "user", text
        case UserMessage(content=content):
            lines = [text_of(content)]
            for part in content:
                if isinstance(part, (AttachmentPart, InputPart)):
                    is_input = isinstance(part, InputPart)
                    name = f"input {part.name}" if is_input else part.name or part.digest[:12]
                    lines.append(f"[{name}, {part.media_type}, {part.size} bytes]")
            return "user", "\n".join(lines)
        case AssistantMessage(text=text, tool_calls=calls):
            lines = [text] if text or any(map(is_cell, calls)) else []
            for call in calls:
                lines += code_lines(call) if is_cell(call) else [f"  {short_call(call)}"]
            return "model", "\n".join(lines)
        case ToolMessage(value=value) if (report := report_of(value)) is not None:
            lines = [outcome(report), *(f"  {line}" for line in (*remarks(report), *calls_made(report)))]
            return f"cell {report.index}", "\n".join(lines)
        case ToolMessage(name=name, error=None, value=value, texts=texts):
            beside = (f"  {shortened(text)}" for text in texts)
            return "tool", "\n".join((f"{name} → {short_json(value)}", *beside))
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


def usage_table(usage: Sequence[UsageEntry]) -> Any:
    """Return a table of tokens by source and model, with the cost if there is any."""
    heads = ["source", "model", "calls", "input", "cached", "output", "reasoning"]
    costs = any(line.usage.cost_nano_usd for line in usage)
    table = plain_table(*heads, *(["cost"] if costs else []))
    for line in usage:
        used = line.usage
        numbers = (used.calls, used.input, used.cache_read + used.cache_write, used.output, used.reasoning)
        table.add_row(line.source, line.model, *map(str, numbers), *([cost_text(used)] if costs else []))
    return table


_MOST_LINES: Final = 60

_MOST_CALLS: Final = 20


def is_cell(call: ToolCall) -> bool:
    return call.name == RUN_CODE and not call.parent and isinstance((call.arguments or {}).get("code"), str)


def code_lines(call: ToolCall) -> list[str]:
    """Return the code of a cell as lines; those beyond the limit are only counted."""
    code = str((call.arguments or {}).get("code"))
    lines = code.strip("\n").expandtabs(4).split("\n")
    more = len(lines) - _MOST_LINES
    shown = [f"  │ {line}".rstrip() for line in lines[:_MOST_LINES]]
    return shown if more < 1 else [*shown, f"  │ … and {more} more lines"]


def report_of(value: Any) -> CellReport | None:
    """Convert a result into the report of a cell; None if it is not one."""
    if not isinstance(value, dict) or "index" not in value:
        return None
    try:
        return msgspec.convert(value, CellReport)
    except msgspec.ValidationError:
        return None


def outcome(report: CellReport) -> str:
    """Describe the result of a cell in one line."""
    if report.error is not None:
        place = "" if report.error.span is None else f" (line {report.error.span.line})"
        return f"✗ {error_text(report.error)}{place}"
    if report.finished:
        return "gave the answer"
    return "→ no result" if report.result is None else f"→ {short_json(report.result)}"


def remarks(report: CellReport) -> list[str]:
    """Return the output of a cell and the runtime's notes about it, one line each."""
    streams = (("printed", report.stdout), ("printed to stderr", report.stderr))
    said = [f"{label}: {shortened(text)}" for label, text in streams if text.strip()]
    return [*said, *(f"note: {note}" for note in report.notes)]


def calls_made(report: CellReport) -> list[str]:
    """Return the calls of a cell, one line each."""
    lines = []
    for call in report.calls[:_MOST_CALLS]:
        end = f"→ {call.status.replace('_', ' ')}" if call.error is None else f"✗ {error_text(call.error)}"
        lines += [f"{call.name}({call.arguments}) {end}", *(f"  {shortened(one)}" for one in call.texts)]
    more = len(report.calls) - _MOST_CALLS
    return lines if more < 1 else [*lines, f"… and {more} more calls"]


def short_call(call: ToolCall) -> str:
    """Format a call as Python, shortened."""
    if call.arguments is None:
        return f"{call.name}({shortened(call.raw or '')})"
    parts = [repr(value) for value in call.args]
    parts += [f"{name}={value!r}" for name, value in call.arguments.items()]
    return f"{call.name}({shortened(', '.join(parts))})"
