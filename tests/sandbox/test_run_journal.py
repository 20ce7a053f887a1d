"""The journal of a run's calls."""

from __future__ import annotations

from typing import Any, cast

import pytest

from standfast.errors import StoreUnavailable
from standfast.sandbox.run_journal import RunJournal


class _Faulty:
    """A store that refuses to settle so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.settled: list[Any] = []

    def settle(self, *what: Any) -> None:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("the disk is full")
        self.settled.append(what)


class _Order:
    run_id = "r1"


def _journal(store: _Faulty, pauses: list[float]) -> RunJournal:
    return RunJournal(cast(Any, store), cast(Any, _Order()), pauses.append)


def test_the_outcome_of_a_call_is_written_when_the_store_can_be_written_again() -> None:
    """Bug: one failed write made the known outcome of a call unknown."""
    store, pauses = _Faulty(3), list[float]()
    _journal(store, pauses).settle(1, cast(Any, "settled"))
    assert store.settled == [("r1", 1, "settled")]
    assert pauses == [0.05, 0.1, 0.2]


def test_a_store_that_stays_broken_is_given_up() -> None:
    """Ours: a run has a limit of time."""
    store, pauses = _Faulty(1_000), list[float]()
    with pytest.raises(StoreUnavailable):
        _journal(store, pauses).settle(1, cast(Any, "settled"))
    assert 5 <= sum(pauses) < 15
