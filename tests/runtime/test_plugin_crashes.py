"""Kills at every crash point of a turn with hooks everywhere; no hook with a journaled outcome runs again.

The points are those of `test_crash_points.py`, and two more around every hook.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from crash_scenarios.plugin_theatre import PluginTheatre, watched


@pytest.fixture
def theatre(tmp_path: Path, sampled: Callable[[int], slice]) -> Iterator[PluginTheatre]:
    made = PluginTheatre(tmp_path, range(1, 1_000)[sampled(41)])
    yield made
    made.close()


@pytest.mark.slow
def test_a_turn_with_hooks_survives_kills_at_some_points(theatre: PluginTheatre) -> None:
    """Ours: a fast version of the crash sweeps below."""
    for number in (9, 20, 41, 70, 99, 130):
        assert theatre.play(partial(watched, scenario="every_hook", kills=(number,))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["every_hook", "at_once"])
def test_a_turn_with_hooks_survives_a_kill_at_every_point_and_another_one_during_recovery(
    theatre: PluginTheatre, scenario: str
) -> None:
    """Ours: recovery never repeats a recorded hook, and plugin states are correct."""
    points = theatre.kill_everywhere(scenario)
    assert points > 80
    print(f"{scenario}: {points} points")
    theatre.kill_again(scenario, points)


@pytest.mark.slow
def test_a_store_that_loses_plugin_state_is_detected(theatre: PluginTheatre) -> None:
    """Ours: the crash tests must fail for a defective store."""
    found = Counter[bool]()
    for number in range(40, 100, 6):
        try:
            theatre.play(partial(watched, scenario="every_hook", kills=(number,), forgetful=True))
        except AssertionError as error:
            found["hooks.before_turn.1', 1)" in str(error)] += 1
        if found[True] == 2:
            break
    assert found[True] == 2
    assert found[False] == 0
