"""The examples do what they say, run as a user runs them: each in its own process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import interpreters
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class ExampleOutput:
    """The output of an example, by the first words of the lines, and the effects that its tools logged."""

    lines: dict[str, str]
    text: str
    effects: list[str]


def _run(name: str, directory: Path) -> ExampleOutput:
    ledger = directory / "ledger.txt"
    done = interpreters.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=directory,
        env={**os.environ, "SHOP_LEDGER": str(ledger)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    pairs = (line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    effects = ledger.read_text().splitlines() if ledger.exists() else []
    return ExampleOutput({label: rest.strip() for label, rest in pairs}, done.stdout, effects)


def test_one_cell_replaces_four_native_model_calls(tmp_path: Path) -> None:
    """Seed: three tools, a loop and an approval in one cell; the same effects by native calls."""
    (tmp_path / "code").mkdir()
    (tmp_path / "native").mkdir()
    in_code = _run("refund_in_code.py", tmp_path / "code")
    native = _run("refund_native.py", tmp_path / "native")
    assert (in_code.lines["model calls"], native.lines["model calls"]) == ("1", "4")
    assert in_code.effects == native.effects == ["refund A1 4200"]
    for label in ("approval", "finished"):
        assert in_code.lines[label] == native.lines[label]
    assert in_code.lines["approval"] == "refund(order_id='A1', cents=4200): yes"
    assert _calls(in_code) == _calls(native) == ["order", "order", "order", "orders", "refund"]


def test_the_same_cell_works_in_typescript(tmp_path: Path) -> None:
    """Seed: the code protocol with `language="typescript"`, over the same tools."""
    (tmp_path / "python").mkdir()
    (tmp_path / "typescript").mkdir()
    in_python = _run("refund_in_code.py", tmp_path / "python")
    in_typescript = _run("refund_in_typescript.py", tmp_path / "typescript")
    assert in_typescript == in_python
    assert in_typescript.effects == ["refund A1 4200"]


def test_a_cell_stops_in_one_process_and_resumes_in_another(tmp_path: Path) -> None:
    """Seed: the cell resumes at its call; earlier calls do not run again."""
    first = _run("cell_in_two_processes.py", tmp_path)
    assert "stops, the turn is waiting" in first.text
    assert first.effects == []
    second = _run("cell_in_two_processes.py", tmp_path)
    assert "resumes at refund()" in second.text
    assert second.lines["model calls"] == "1"
    assert second.lines["tool calls"] == "orders, order, refund, order, order"
    assert second.lines["finished"] == "Paid back: A1."
    assert second.effects == ["refund A1 4200"]


def test_a_text_of_five_megabytes_is_searched_without_being_sent(tmp_path: Path) -> None:
    """Seed: a prompt never has more than 64 KB."""
    told = _run("large_text.py", tmp_path)
    assert _number(told.lines["the log"]) > 5_000_000
    assert _number(told.lines["the largest"]) < 64_000
    assert (told.lines["turn"], told.lines["llm"]) == ("3 model calls", "3 model calls")
    assert told.lines["finished"] == "3 faults: {'disk': 2, 'payments': 1}"


def test_the_same_agent_calls_four_providers_by_name(tmp_path: Path) -> None:
    """Seed: each provider runs against its test server; only the model's name changes."""
    told = _run("provider_against_test_server.py", tmp_path)
    assert told.lines == dict.fromkeys(
        (
            "anthropic:claude-sonnet-4-5",
            "openai:gpt-5",
            "google:gemini-2.5-flash",
            "openai-compatible:llama3.2",
        ),
        "Order A1 came six days late. (2 model calls, 1 tool call)",
    )


def test_a_lead_agent_delegates_its_work_to_subagents(tmp_path: Path) -> None:
    """Seed: they work at the same time, answer with values, and their usage adds up."""
    told = _run("subagents.py", tmp_path)
    assert [
        line.split("  ", 1)[1].strip() for line in told.text.splitlines() if line.startswith("subagent")
    ] == [
        "finished: {'id': 'A1', 'cents': 4200, 'days_late': 6}",
        "finished: {'id': 'B2', 'cents': 1900, 'days_late': 0}",
        "finished: {'id': 'C3', 'cents': 700, 'days_late': 0}",
        "finished: A1 is paid back.",
    ]
    assert told.lines["approval"] == "refund in sub-…: yes"
    assert told.lines["model calls"] == "5 by the lead, 8 by subagents, 13 in all"
    assert told.effects == ["refund A1 4200"]


def test_the_example_in_the_readme_is_the_one_in_examples() -> None:
    """Ours: the README shows what `examples/ten_lines.py` runs."""
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    _, _, example = (EXAMPLES / "ten_lines.py").read_text(encoding="utf-8").partition("from standfast")
    assert example.strip() in readme


def _calls(told: ExampleOutput) -> list[str]:
    return sorted(told.lines["tool calls"].split(", "))


def _number(text: str) -> int:
    return int(text.split()[0].replace(",", ""))


def test_a_program_is_stopped_killed_approved_elsewhere_and_finished_on_every_engine(tmp_path: Path) -> None:
    """Seed: it stops in the middle of an expression, and no earlier call is repeated."""
    told = _run("refund_on_every_engine.py", tmp_path)
    for engine in ("monty", "cpython", "quickjs"):
        lines = [line for line in told.text.splitlines() if line.startswith(engine)]
        assert lines == [
            f"{engine}: waiting_for_approval",
            f"{engine}: ok, 811",
            f"{engine}: price A1, refund A1, price B2",
        ]
