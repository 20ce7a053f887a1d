"""What a session is told when a monitor wakes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from standfast.model.monitor import MonitorSpec, MonitorUpdate

SHOWN: Final = 20
SHOWN_CHARS: Final = 500


def wake_id(run: str, number: int) -> str:
    """The id of the input of a run's wake: the same number is the same input."""
    return f"monitor.{run}.{number}"


def wake_text(spec: MonitorSpec, updates: Sequence[MonitorUpdate], left_out: int) -> str:
    """The input of a turn that a monitor starts: who it is, and the last that it said."""
    about = f" ({spec.description})" if spec.description else ""
    shown = updates[-SHOWN:]
    left_out += len(updates) - len(shown)
    lines = [f"Monitor {spec.id!r}{about}:"]
    if left_out:
        lines.append(f"({left_out} earlier lines are not shown)")
    return "\n".join([*lines, *map(_line, shown)])


def _line(update: MonitorUpdate) -> str:
    text = update.text if len(update.text) <= SHOWN_CHARS else f"{update.text[:SHOWN_CHARS]}…"
    match update.kind:
        case "update":
            return f"> {text}"
        case "notice":
            return f"! {text}"
        case "end":
            return f"It has ended: {text}."
