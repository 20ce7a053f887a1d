"""Usage of model calls: sums, costs, and limits."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.model.limits import Usage, UsageEntry, UsageLimits, add_to_ledger, dollars

_numbers = st.integers(0, 2**63)
_usages = st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__, _numbers))


@given(st.lists(_usages, max_size=6))
def test_sums_are_exact_in_every_field(usages: list[Usage]) -> None:
    """Ours: the sum of a million small costs is exact to the last digit."""
    total = sum(usages, Usage())
    for name in Usage.__struct_fields__:
        assert getattr(total, name) == sum(getattr(one, name) for one in usages)


def test_the_cost_in_dollars_is_exact() -> None:
    """Ours: it is a Decimal, so that a caller need not guess what a float means."""
    assert Usage(cost_nano_usd=2_100_000).cost_usd == Decimal("0.0021")
    assert Usage(cost_nano_usd=10**18 + 1).cost_usd == Decimal("1000000000.000000001")
    assert Usage().cost_usd == 0


@pytest.mark.parametrize(
    ("usage", "known"),
    [
        (Usage(), True),
        (Usage(calls=1, priced=1), True),
        (Usage(calls=1), False),
        (Usage(calls=3, priced=2, cost_nano_usd=5), False),
    ],
)
def test_an_unknown_cost_does_not_look_free(usage: Usage, known: bool) -> None:
    """Ours: usage stored by an earlier version has no price, and is marked so."""
    assert usage.cost_is_known is known


def test_a_ledger_line_has_the_number_of_its_priced_calls() -> None:
    """Ours: the cost of a line is known completely, partly or not at all."""
    priced = UsageEntry(source="turn", model="m", usage=Usage(calls=1, priced=1, cost_nano_usd=7))
    unpriced = UsageEntry(source="turn", model="m", usage=Usage(calls=1, input=3))
    (line,) = add_to_ledger((priced,), (unpriced,))
    assert line.usage == Usage(calls=2, priced=1, cost_nano_usd=7, input=3)


def test_records_from_before_prices_can_be_read() -> None:
    """Ours: records of earlier versions stay readable."""
    assert msgspec.json.decode(b'{"input":3,"calls":1}', type=Usage) == Usage(input=3, calls=1)
    assert msgspec.json.encode(Usage(input=3, calls=1)) == b'{"input":3,"calls":1}'


@pytest.mark.parametrize(
    ("nano", "words"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (2_100_000, "$0.0021"),
        (1_500_000_000, "$1.50"),
        (10**13, "$10,000.00"),
    ],
)
def test_amounts_are_formatted_without_unnecessary_zeros(nano: int, words: str) -> None:
    """Ours: most amounts are small."""
    assert dollars(nano) == words


def test_cost_limits_survive_the_journal() -> None:
    """Ours: they are stored with the turn."""
    limits = UsageLimits(max_cost_usd=0.1, max_calls=3, max_retry_wait_ms=0)
    stored = msgspec.json.encode(limits)
    assert stored == b'{"max_calls":3,"max_cost_usd":0.1,"max_retry_wait_ms":0}'
    again = msgspec.json.decode(stored, type=UsageLimits)
    assert again == limits
    assert again.max_cost_nano_usd == 100_000_000
    assert UsageLimits(max_cost_usd=2).max_cost_nano_usd == 2 * 10**9
    assert UsageLimits().max_cost_nano_usd is None
