"""Agents that act in TypeScript, or on another engine, from the command line."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)


@pytest.mark.slow
def test_naming_a_language_selects_the_code_protocol_and_is_remembered(standfast: Any) -> None:
    """Seed: `--language typescript`; another command decides, and the session resumes in its language."""
    waiting = standfast("chat", "--language", "typescript", "refund A1", "--json")
    assert (waiting.status, waiting.document["status"]) == (1, "waiting")
    (asked,) = waiting.document["approvals"]
    assert (asked["capability"], asked["kwargs"]) == ("refund", {"order_id": "A1", "cents": 1999})
    ran = standfast("approvals", "approve", asked["approval_id"])
    assert "The refund tool answered: 1999 cents refunded for order A1" in ran.stdout
    again = standfast("chat", "order A1")
    assert '  │ const {days_late: late} = await order({order_id: "A1"});' in again.stderr.splitlines()
    record = standfast("sessions", "export", "chat").document["head"]["host"]
    assert (record["protocol"], record["language"]) == ("code", "typescript")


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "first"), [("cpython", "found = "), ("quickjs", "const {days_late")])
def test_naming_an_engine_selects_its_language(standfast: Any, engine: str, first: str) -> None:
    """Seed: `--engine` implies the language that the model writes."""
    ran = standfast("chat", "--engine", engine, "order A1")
    assert ran.stdout.splitlines()[-1].startswith("Order A1 came 6 days late.")
    assert f"  │ {first}" in ran.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--language", "typescript", "--engine", "monty"], "engine monty runs python, not typescript"),
        (["--protocol", "standard", "--language", "python"], "are for --protocol code"),
        (["--language", "ruby"], "'python', 'typescript'"),
    ],
)
def test_conflicting_options_are_a_usage_error(standfast: Any, options: list[str], told: str) -> None:
    """Ours: the error is raised before anything is opened."""
    ran = standfast("chat", *options, "hello")
    assert ran.status == 2
    assert told in ran.stderr
