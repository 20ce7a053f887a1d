"""`holdfast triggers`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def session(holdfast: Any) -> str:
    """A session of the scripted demo."""
    assert holdfast("chat", "--session", "ops", "hello", "--json").status == 0
    return "ops"


def test_a_trigger_is_added_listed_and_removed(holdfast: Any, session: str) -> None:
    """Ours: issue 8, `holdfast triggers list|add|remove`."""
    assert holdfast("triggers", "list", "--json").document == []
    assert "no triggers" in holdfast("triggers", "list").stdout
    made = holdfast(
        "triggers", "add", "nightly", "--session", session, "--cron", "0 3 * * *", "--json"
    ).document
    assert (made["source"], made["schedule"]) == ("nightly", {"cron": "0 3 * * *"})
    assert made["next_at"] % 86_400_000 == 3 * 3_600_000
    added = holdfast("triggers", "add", "orders", "--session", session, "--source", "shop", "--prompt", "Hm")
    assert "orders" in added.stdout
    shown = holdfast("triggers", "list").stdout
    assert "0 3 * * * UTC" in shown
    assert [one["name"] for one in holdfast("triggers", "list", "--json").document] == ["nightly", "orders"]
    assert holdfast("triggers", "remove", "orders").stdout == "trigger orders is gone\n"
    gone = holdfast("triggers", "remove", "orders", "--json")
    assert (gone.status, gone.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
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
def test_the_options_of_time_make_a_schedule(
    holdfast: Any, session: str, words: tuple[str, ...], schedule: dict[str, Any]
) -> None:
    """Ours: spans and times are written as people write them."""
    made = holdfast("triggers", "add", "t", "--session", session, *words, "--json").document
    assert made["schedule"] == schedule
    assert made["next_at"] > 0
    assert holdfast("triggers", "list").status == 0


def test_wrong_times_are_refused(holdfast: Any, session: str) -> None:
    """Ours: usage where the options do not fit, an error with a hint where the expression does not."""
    add = ("triggers", "add", "t", "--session", session)
    assert holdfast(*add, "--cron", "@daily", "--every", "1h").status == 2
    assert holdfast(*add, "--at", "tomorrow").status == 2
    assert holdfast(*add, "--every", "soon").status == 2
    assert holdfast("triggers", "add", "t").status == 2
    for wrong in (("--cron", "0 0 30 2 *"), ("--at", "2031-01-01", "--timezone", "Mars"), ("--every", "0s")):
        ran = holdfast(*add, *wrong, "--json")
        assert (ran.status, ran.document["error"]["code"]) == (1, "INVALID_ARGUMENT")


def test_a_trigger_of_an_unknown_session_says_how_to_make_one(holdfast: Any) -> None:
    """Ours: the hint leads on."""
    ran = holdfast("triggers", "add", "t", "--session", "nobody", "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "SESSION_NOT_FOUND")
    assert "holdfast chat" in ran.document["error"]["hint"]


def test_what_is_fired_is_queued_once_for_each_key(holdfast: Any, session: str) -> None:
    """Ours: issue 8, `holdfast triggers fire`; the turn is left to the program that knows the agent."""
    holdfast("triggers", "add", "orders", "--session", session, "--source", "shop")
    words = ("triggers", "fire", "shop", "--key", "A1", "--payload", '{"id": "A1"}')
    fired = holdfast(*words, "--json").document
    assert fired["delivered"] == [{"trigger": "orders", "session_id": session}]
    assert holdfast(*words, "--json").document["delivered"] == []
    assert "told before" in holdfast(*words).stdout
    assert "nobody hears of elsewhere" in holdfast("triggers", "fire", "elsewhere").stdout
    view = holdfast("sessions", "show", session, "--json").document
    assert [item["message"]["content"] for item in view["inputs"]] == ['{"id":"A1"}']
    assert len(view["turns"]) == 1
    first, second = (holdfast("triggers", "fire", "shop", "--json").document for _ in range(2))
    assert first["key"] != second["key"]


def test_what_is_fired_with_run_is_answered_here(holdfast: Any, session: str) -> None:
    """Ours: the session remembers its agent, so that the turn can run at once."""
    holdfast("triggers", "add", "orders", "--session", session, "--prompt", "order {payload}")
    fired = holdfast("triggers", "fire", "orders", "--payload", '"A1"', "--run", "--json").document
    assert "The order tool returned" in fired["answers"][session]
    view = holdfast("sessions", "show", session, "--json").document
    assert (len(view["turns"]), view["inputs"]) == (2, [])
    assert (
        "orders → session ops" in holdfast("triggers", "fire", "orders", "--payload", '"A2"', "--run").stdout
    )


def test_a_payload_that_is_no_json_is_wrong_usage(holdfast: Any, session: str) -> None:
    """Ours: nothing is fired."""
    holdfast("triggers", "add", "orders", "--session", session)
    assert holdfast("triggers", "fire", "orders", "--payload", "{").status == 2
    assert holdfast("sessions", "show", session, "--json").document["inputs"] == []
