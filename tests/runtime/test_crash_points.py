"""Kills of a turn at every crash point, and again while it is recovered; nothing is lost or duplicated.

These tests do not list the points. They run a scenario that dies at its first point, then at its second, and
so on until one survives; `make test` takes a sample. One external ledger records the effects of tools,
another the requests to the model; at the end both are compared with the stored history.
"""

from __future__ import annotations

import inspect
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from crash_scenarios.theatre import ENDS, ForkServer, Theatre, killed_at

from standfast.ports.session_store import SessionStore
from standfast.testing import crash_points
from standfast.testing.postgres_server import PostgresServer


@pytest.fixture
def theatre(tmp_path: Path, sampled: Callable[[int], slice]) -> Iterator[Theatre]:
    made = Theatre(tmp_path, range(1, 1_000)[sampled(29)])
    yield made
    made.close()


@pytest.fixture
def postgres_theatre(
    tmp_path: Path, sampled: Callable[[int], slice], postgres: PostgresServer
) -> Iterator[Theatre]:
    made = Theatre(tmp_path, range(1, 1_000)[sampled(17)], postgres.new_url)
    yield made
    made.close()


def _killed_while_deciding(server: ForkServer, home: Path, kill: int) -> bool:
    """Park a turn, let a process without an agent decide and die there, and let another one resume."""
    assert server.run("sequence", home, how="ask")["status"] == "waiting"
    killed = server.run("sequence", home, kill, how="decide").get("killed", False)
    killed_at(server, home, "sequence", ())
    return bool(killed)


# The tests


def test_a_turn_survives_kills_at_some_points(theatre: Theatre) -> None:
    """Ours: a fast version of the slow tests below, which kill at every point."""
    for number in (5, 13, 23, 38, 54):
        assert theatre.play(partial(killed_at, scenario="sequence", kills=(number,))) == 1


@pytest.mark.slow
def test_a_turn_survives_a_kill_at_every_point_and_another_one_during_recovery(theatre: Theatre) -> None:
    """Ours: two kills around an idempotent call, a non-idempotent one, an approval and the commit."""
    points = theatre.kill_everywhere("sequence")
    assert points > 50
    theatre.kill_twice("sequence", points, 2)


@pytest.mark.slow
def test_a_turn_in_postgresql_survives_a_kill_at_every_point(postgres_theatre: Theatre) -> None:
    """Ours: PostgreSQL passes the same crash sweeps as SQLite."""
    assert postgres_theatre.kill_everywhere("sequence") > 50


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["parallel", "cancel"])
def test_other_turns_in_postgresql_survive_a_kill_at_every_point(
    postgres_theatre: Theatre, scenario: str
) -> None:
    """Ours: these sweeps have concurrent writes of several callers."""
    assert postgres_theatre.kill_everywhere(scenario) > 15


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted(ENDS.keys() - {"sequence"}))
def test_other_turns_survive_two_kills_at_every_point(theatre: Theatre, scenario: str) -> None:
    """Ours: SPEC §7, parallel calls, every kind of wait, cancellation, injected messages, budgets, frames."""
    points = theatre.kill_everywhere(scenario)
    assert points > 15
    theatre.kill_twice(scenario, points, 1)


@pytest.mark.slow
def test_a_decision_survives_a_kill_at_every_point_of_the_deciding_process(
    theatre: Theatre,
) -> None:
    """Ours: a decision of another process is either stored or not, and is used once."""
    assert theatre.enumerate(_killed_while_deciding, count(1)) >= 3


@pytest.mark.slow
def test_a_store_that_loses_intents_is_detected(theatre: Theatre) -> None:
    """Ours: the crash tests must fail for a defective store."""
    broken = partial(killed_at, scenario="sequence", forgetful=True)
    found = Counter[bool]()
    for number in range(5, 60):
        try:
            theatre.play(partial(broken, kills=(number,)))
        except AssertionError as error:
            found["charge was done 2 times" in str(error)] += 1
        if found[True] == 2:
            break
    assert found[True] > 0
    assert found[False] == 0


def test_every_write_method_of_a_store_has_crash_points() -> None:
    """Ours: a method that is added to the port counts as a write until it is listed as read-only."""
    methods = {name for name, member in vars(SessionStore).items() if inspect.iscoroutinefunction(member)}
    assert set(crash_points._READS) < methods
    writes = {"open_session", "describe", "delete_session", "append", "fork", "rewind", "begin", "take_over"}
    writes |= {"save", "park", "commit", "renew", "cancel", "put_input", "withdraw_input", "ended_waits"}
    writes |= {"complete", "decide", "prune"}
    assert writes <= methods - set(crash_points._READS)


def test_a_process_dies_at_the_point_that_the_environment_names(child: Callable[..., Any]) -> None:
    """Ours: a test needs to know only the number of the point."""
    script = """
    from standfast.testing.crash_points import CrashPoints
    points = CrashPoints.from_environment()
    for name in "abc":
        print(name, flush=True)
        points.point(name)
    """
    dying = child(script, env={"STANDFAST_CRASH_AT": "2"}).process
    assert (dying.communicate()[0].split(), dying.returncode) == (["a", "b"], -signal.SIGKILL)
    assert child(script).output().split() == ["a", "b", "c"]
