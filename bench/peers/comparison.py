"""The table of a run: a row for each workload, a column for each framework, medians in the cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

ROWS = (
    ("plain turn, memory: CPU ms", "turn_plain", "cpu_ms_median"),
    ("plain turn, new session, stored: CPU ms", "turn_plain_sqlite", "cpu_ms_median"),
    ("the same: wall ms", "turn_plain_sqlite", "ms_median"),
    ("plain turn, turn 100, stored: CPU ms", "growth_sqlite", "cpu_ms_at_100"),
    ("the same: wall ms", "growth_sqlite", "ms_at_100"),
    ("the same, turn 1,000: CPU ms", "growth_sqlite", "cpu_ms_at_1000"),
    ("1,000 plain turns on disk: MB", "growth_sqlite", "bytes_after_1000_turns"),
    ("one tool, stored: CPU ms", "turn_tool1_sqlite", "cpu_ms_median"),
    ("ten tools in sequence, memory: CPU ms", "turn_tool10_seq", "cpu_ms_median"),
    ("ten tools in sequence, stored: CPU ms", "turn_tool10_seq_sqlite", "cpu_ms_median"),
    ("the same: wall ms", "turn_tool10_seq_sqlite", "ms_median"),
    ("ten tools at once, stored: CPU ms", "turn_tool10_par_sqlite", "cpu_ms_median"),
    ("reopen a session of 1,000 turns, and one turn: ms", "reopen_1000_sqlite", "ms_median"),
    ("streamed chunk, memory: CPU µs", "stream_10k", "cpu_us_per_chunk"),
    ("100 sessions × 10 turns, stored: turns/s", "concurrent_100x10_sqlite", "turns_per_s"),
    ("code step with one call, memory: wall ms", "code_step_1call", "ms_median"),
    ("the same, stored: wall ms", "code_step_1call_sqlite", "ms_median"),
    ("pause for an approval, memory: ms", "hitl_pause_resume", "pause_ms"),
    ("resume, memory: ms", "hitl_pause_resume", "resume_ms"),
    ("pause for an approval, stored: ms", "hitl_pause_resume_sqlite", "pause_ms"),
    ("resume, stored: ms", "hitl_pause_resume_sqlite", "resume_ms"),
    ("idle session, memory: KB", "idle_sessions_mem", "kb_per_session"),
    ("idle session, stored: KB", "idle_sessions_sqlite", "kb_per_session"),
    ("import: CPU ms", "import", "cpu_seconds_median"),
)
SCALES = {"bytes_after_1000_turns": 1e-6, "cpu_seconds_median": 1e3}
"""Factors from the unit that is measured to the unit of the row."""

Lines = Iterable[dict[str, Any]]


def markdown(lines: Lines, frameworks: Iterable[str]) -> str:
    """Return the table of `lines`; a dash where a framework lacks what is measured."""
    columns = list(frameworks)
    values = by_cell(lines)
    head = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    rows = []
    for label, workload, metric in ROWS:
        cells = [cell(values, (name, workload), metric) for name in columns]
        if any(cells):
            rows.append(f"| {label} | " + " | ".join(text or "–" for text in cells) + " |")
    return "\n".join([*head, *rows])


def by_cell(lines: Lines) -> dict[tuple[str, str], dict[str, list[Any]]]:
    found: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for line in lines:
        metrics = found.setdefault((line["framework"], line["workload"]), {})
        metrics.setdefault(line["metric"], []).append(line["value"])
    return found


def cell(values: dict[tuple[str, str], dict[str, list[Any]]], key: tuple[str, str], metric: str) -> str:
    metrics = values.get(key, {})
    if "error" in metrics:
        return "failed"
    if metric not in metrics:
        return ""
    failed = max(metrics.get("failed_sessions", [0]))
    # Memory that was given back meanwhile can make a small amount negative.
    text = short(max(0, statistics.median(metrics[metric])) * SCALES.get(metric, 1))
    return f"{text} ({failed} failed)" if failed else text


def short(value: float) -> str:
    """Return `value` with two significant digits, or as a whole number from 10 on."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def problems(lines: Lines) -> list[str]:
    """Return a sentence for each workload that failed or that was cut short."""
    found = []
    for line in lines:
        if line["metric"] in ("error", "first_failure", "stopped_at_turn"):
            found.append(f"{line['framework']}, {line['workload']}: {line['metric']} {line['value']}")
    return found
