"""Costs and failed model calls in the output of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standfast.cli.chat_screen import ChatScreen
from standfast.cli.output import cost_text
from standfast.errors import ErrorObject
from standfast.model.events import ModelCallFailed
from standfast.model.limits import Usage


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(calls=2, priced=2, cost_nano_usd=2_100_000), "$0.0021"),
        (Usage(calls=3, priced=2, cost_nano_usd=2_100_000), "at least $0.0021"),
        (Usage(calls=2), "unknown"),
        (Usage(calls=1, priced=1), "$0.00"),
    ],
)
def test_an_unknown_or_partly_known_cost_is_printed_as_such(usage: Usage, text: str) -> None:
    """Ours: an unknown cost is not shown as zero."""
    assert cost_text(usage) == text


@pytest.fixture
def costly(tmp_path: Path) -> str:
    """A model whose replies cost something."""
    usage = {"input": 1000, "output": 10, "cost_nano_usd": 2_100_000, "priced": 1}
    path = tmp_path / "costly.json"
    path.write_text(json.dumps([{"text": "one", "usage": usage}, {"text": "two", "usage": usage}]))
    return f"scripted:{path}"


def test_a_turn_and_a_session_show_their_cost(standfast: Any, costly: str) -> None:
    """Ours: the cost is shown with the usage."""
    ran = standfast("chat", "hi", "--model", costly)
    assert "1 model call · 1010 tokens · $0.0021" in ran.stderr
    ran = standfast("chat", "again", "--model", costly, "--json")
    assert ran.document["usage"]["cost_nano_usd"] == 2_100_000
    shown = standfast("sessions", "show", "chat").stdout
    assert "cost" in shown
    assert "$0.0042" in shown


def test_a_turn_without_cost_is_printed_without_a_price(standfast: Any) -> None:
    """Ours: a script or a local model needs no column of zeros."""
    assert "$" not in standfast("chat", "hello").stderr
    assert "cost" not in standfast("sessions", "show", "chat").stdout


@pytest.mark.parametrize(
    ("retry_in_ms", "told"), [(2_300, "trying again in 2 s"), (0, "trying again"), (None, "")]
)
def test_a_failed_model_call_is_printed_with_the_delay_before_the_retry(
    retry_in_ms: int | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: "trying again" was printed for the last attempt, too."""
    error = ErrorObject(code="RATE_LIMITED", message="slow down")
    ChatScreen().show(
        ModelCallFailed(turn_id="t", error=error, retryable=True, attempt=1, retry_in_ms=retry_in_ms)
    )
    shown = "".join(capsys.readouterr())
    assert shown.strip().endswith(told)
    assert ("slow down" in shown) == (retry_in_ms is not None)
