"""`standfast triggers`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def session(standfast: Any) -> str:
    """A session with the scripted demo."""
    assert standfast("chat", "--session", "ops", "hello", "--json").status == 0
    return "ops"


def test_a_trigger_can_be_added_listed_and_removed(standfast: Any, session: str) -> None:
    """Ours: `standfast triggers list|add|remove` manage triggers."""
    assert standfast("triggers", "list", "--json").document == []
    assert "no triggers" in standfast("triggers", "list").stdout
    made = standfast(
        "triggers", "add", "nightly", "--session", session, "--cron", "0 3 * * *", "--json"
    ).document
    assert (made["source"], made["schedule"]) == ("nightly", {"cron": "0 3 * * *"})
    assert made["next_at"] % 86_400_000 == 3 * 3_600_000
    added = standfast("triggers", "add", "orders", "--session", session, "--source", "shop", "--prompt", "Hm")
    assert "orders" in added.stdout
    shown = standfast("triggers", "list").stdout
    assert "0 3 * * * UTC" in shown
    assert [one["name"] for one in standfast("triggers", "list", "--json").document] == ["nightly", "orders"]
    assert standfast("triggers", "remove", "orders").stdout == "trigger orders is removed\n"
    gone = standfast("triggers", "remove", "orders", "--json")
    assert (gone.status, gone.document["error"]["code"]) == (1, "TRIGGER_NOT_FOUND")
    assert "triggers list" in gone.document["error"]["hint"]


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        (("--every", "15m", "--catch-up", "skip"), {"every_ms": 900_000, "catch_up": "skip"}),
        (("--at", "2031-05-04T09:00:00Z"), {"at_ms": 1_935_651_600_000}),
        (
            ("--at", "2031-05-04T11:00", "--timezone", "Europe/Berlin"),
            {"at_ms": 1_935_651_600_000, "timezone": "Europe/Berlin"},
        ),
    ],
)
def test_time_options_make_a_schedule(
    standfast: Any, session: str, words: tuple[str, ...], schedule: dict[str, Any]
) -> None:
    """Ours: durations and times are written as people write them."""
    made = standfast("triggers", "add", "t", "--session", session, *words, "--json").document
    assert made["schedule"] == schedule
    assert made["next_at"] > 0
    assert standfast("triggers", "list").status == 0


def test_invalid_times_are_refused(standfast: Any, session: str) -> None:
    """Ours: conflicting options are a usage error; an invalid expression is an error with a hint."""
    add = ("triggers", "add", "t", "--session", session)
    assert standfast(*add, "--cron", "@daily", "--every", "1h").status == 2
    assert standfast(*add, "--at", "tomorrow").status == 2
    assert standfast(*add, "--every", "soon").status == 2
    assert standfast("triggers", "add", "t").status == 2
    for wrong in (("--cron", "0 0 30 2 *"), ("--at", "2031-01-01", "--timezone", "Mars"), ("--every", "0s")):
        ran = standfast(*add, *wrong, "--json")
        assert (ran.status, ran.document["error"]["code"]) == (1, "INVALID_ARGUMENT")


def test_a_trigger_for_an_unknown_session_says_how_to_create_it(standfast: Any) -> None:
    """Ours: the hint names the command that creates the session."""
    ran = standfast("triggers", "add", "t", "--session", "unknown", "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "SESSION_NOT_FOUND")
    assert "standfast chat" in ran.document["error"]["hint"]


def test_a_fired_trigger_is_queued_once_per_key(standfast: Any, session: str) -> None:
    """Ours: `standfast triggers fire` leaves the turn to a program that has the agent."""
    standfast("triggers", "add", "orders", "--session", session, "--source", "shop")
    words = ("triggers", "fire", "shop", "--key", "A1", "--payload", '{"id": "A1"}')
    fired = standfast(*words, "--json").document
    assert fired["delivered"] == [{"trigger": "orders", "session_id": session}]
    assert standfast(*words, "--json").document["delivered"] == []
    assert "fired before" in standfast(*words).stdout
    assert "elsewhere has no trigger" in standfast("triggers", "fire", "elsewhere").stdout
    view = standfast("sessions", "show", session, "--json").document
    assert [item["message"]["content"] for item in view["inputs"]] == ['{"id":"A1"}']
    assert len(view["turns"]) == 1
    first, second = (standfast("triggers", "fire", "shop", "--json").document for _ in range(2))
    assert first["key"] != second["key"]


def test_a_trigger_fired_with_run_is_answered_at_once(standfast: Any, session: str) -> None:
    """Ours: the session stores its agent, so the turn can run in this process."""
    standfast("triggers", "add", "orders", "--session", session, "--prompt", "order {payload}")
    fired = standfast("triggers", "fire", "orders", "--payload", '"A1"', "--run", "--json").document
    assert "The order tool returned" in fired["answers"][session]
    view = standfast("sessions", "show", session, "--json").document
    assert (len(view["turns"]), view["inputs"]) == (2, [])
    assert (
        "orders → session ops" in standfast("triggers", "fire", "orders", "--payload", '"A2"', "--run").stdout
    )


def test_a_payload_that_is_not_json_is_a_usage_error(standfast: Any, session: str) -> None:
    """Ours: an invalid payload fires nothing."""
    standfast("triggers", "add", "orders", "--session", session)
    assert standfast("triggers", "fire", "orders", "--payload", "{").status == 2
    assert standfast("sessions", "show", session, "--json").document["inputs"] == []
