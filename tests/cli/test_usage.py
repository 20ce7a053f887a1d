"""`standfast usage`: tokens by day, agent, model and session."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_usage_is_summed_by_day_agent_model_or_session(
    standfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the command adds up the usage of turns."""
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)
    assert "no turns" in standfast("usage").stdout
    standfast("chat", "hello", "--session", "one")
    standfast("chat", "hello", "--session", "two")
    (day,) = standfast("usage", "--since", "1d", "--json").document
    assert (day["turns"], day["usage"]["calls"]) == (2, 2)
    sessions = standfast("usage", "--by", "session", "--json").document
    assert sorted(one["session"] for one in sessions) == ["one", "two"]
    assert standfast("usage", "--by", "model", "--json").document[0]["model"] == "scripted:demo"
    assert "tokens in" in standfast("usage", "--by", "agent").stdout
