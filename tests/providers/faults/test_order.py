"""Events that are duplicated, swapped, missing or unreadable: each event of a reply in turn."""

from __future__ import annotations

from collections import Counter

import pytest
from fault_stage import Played, answering, by_results, faulty, play, turn
from fault_table import cell
from fault_vendors import LINES, OLDER_GOOGLE, TEXT, THOUGHT, Vendor

from standfast.errors import Code
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.testing.servers.http_server import Served

pytestmark = pytest.mark.slow

KINDS = ("duplicate", "swap", "drop", "garbage")


def slips_of(played: Played) -> set[str]:
    """Return the damage in the outcome of a turn, in the terms of the vendors' table."""
    reply = next(one for one in played.result.messages if isinstance(one, AssistantMessage))
    written = Counter(played.desk.written)
    found = {
        "text": reply.text != TEXT,
        "thought": "".join(one.text for one in reply.reasoning) != THOUGHT,
        "arguments": any(line not in LINES for line in written),
        "call twice": any(count > 1 for count in written.values()),
        "call missing": len(reply.tool_calls) < len(LINES),
        "refused later": played.status == "stopped",
    }
    return {name for name, slipped in found.items() if slipped}


def check_that_only_whole_calls_ran(played: Played) -> None:
    """Check that every call was written once and unchanged, or was reported as unreadable."""
    results = [one for one in played.result.messages if isinstance(one, ToolMessage)]
    told = [one.error.code for one in results if one.error is not None]
    assert set(told) <= {Code.INVALID_ARGUMENT}
    assert len(played.desk.written) == len(results) - len(told)
    assert played.shown() == "".join(played.said())
    assert len(played.requests) <= 3


async def slips(vendor: Vendor, kind: str) -> set[str]:
    """Return the damage that goes unnoticed if each event in turn is disordered in this way."""
    count = len(vendor.blocks())
    found: set[str] = set()
    for at in range(count - 1 if kind == "swap" else count):
        replies: list[Served] = [faulty(order=f"{kind}:{at}"), "again", "and again"]
        played = await turn(vendor, replies, server=answering(vendor, by_results))
        check_that_only_whole_calls_ran(played)
        found |= slips_of(played)
    return found


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@cell("order")
def test_disordered_events_yield_the_right_reply_or_fail_except_for_the_known_slips(
    vendor: Vendor, kind: str
) -> None:
    """Seed: events may be malformed, duplicated or out of order; no partial tool call runs."""

    async def scene() -> None:
        assert await slips(vendor, kind) == set(vendor.slips.get(kind, ()))

    play(scene())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_calls_without_ids_may_run_twice_but_nothing_worse_happens(kind: str) -> None:
    """Ours: models of Google's second generation cannot distinguish a repeated call from two calls."""

    async def scene() -> None:
        assert await slips(OLDER_GOOGLE, kind) == set(OLDER_GOOGLE.slips.get(kind, ()))

    play(scene())
