"""Budgets of turns that act in code: the model is warned in time, and a turn without progress ends."""

from __future__ import annotations

from typing import Any

import pytest
from code_stand_ins import cell, finish
from code_turns import Played, play
from stand_ins import Place, asks

from standfast import CodeMode, CodeProtocol
from standfast.model.limits import UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, Stopped, StopReason


def cells(count: int, first: int = 0) -> list[str]:
    """Return `count` cells, each of which makes progress."""
    return [cell(f"x = {number}\nx") for number in range(first, first + count)]


def warnings(played: Played) -> list[str]:
    """Return the messages to the model that are not from the user, without repetitions."""
    said = [one.content for one in played.first.messages if isinstance(one, UserMessage)]
    return [str(one) for one in said[1:]]


def stopped(played: Played) -> StopReason:
    assert isinstance(played.first.outcome, Stopped)
    return played.first.outcome.reason


def test_the_model_is_warned_at_60_90_and_100_percent_of_its_steps(place: Place) -> None:
    """Seed: the model is warned at 60, 90 and 100 % of its budget; then the turn stops."""
    played = play(place, *cells(11), limits=UsageLimits(max_iterations=10))
    assert warnings(played) == [
        "6 of 10 steps used (60 %). Plan what is left so that you come to an answer in time.",
        "9 of 10 steps used (90 %). Finish soon: do only what the answer still needs, then give it.",
        "10 of 10 steps used (100 %). This is the last step: give your answer now, with what you have. "
        "After it the turn is stopped.",
    ]
    assert stopped(played) is StopReason.TURN_BUDGET
    heard = [number for number, _ in enumerate(played.model.requests) if "%)" in played.read(number)[-1]]
    assert heard == [6, 9, 10]


@pytest.mark.parametrize("last", [finish("x"), "2"])
def test_the_last_step_may_end_the_turn(place: Place, last: str) -> None:
    """Ours: the last step exists so that the model can answer."""
    played = play(place, *cells(3), last, limits=UsageLimits(max_iterations=3))
    assert played.first.outcome == Finished(text="2")
    assert len(warnings(played)) == 3 - 1  # two of three steps are 66 %, then none is left


def test_there_is_only_one_last_step(memory: Place) -> None:
    """Ours: a model that ignores the last warning is stopped, and the session stays usable."""
    played = play(
        memory, *cells(2), finish("x"), turns=("go", "and now"), limits=UsageLimits(max_iterations=1)
    )
    assert stopped(played) is StopReason.TURN_BUDGET
    assert played.last.output == "1"


def test_the_model_is_warned_about_its_tokens(place: Place) -> None:
    """Seed: the most used budget decides; a jump over several levels warns of the highest."""
    used = [
        {"text": one, "usage": {"input": tokens}}
        for one, tokens in zip([*cells(3), finish("x")], [650, 50, 400, 50], strict=True)
    ]
    played = play(place, *used, limits=UsageLimits(max_tokens=1_000))
    assert warnings(played) == [
        "650 of 1,000 tokens used (65 %). Plan what is left so that you come to an answer in time.",
        "1,100 of 1,000 tokens used (110 %). This is the last step: give your answer now, "
        "with what you have. After it the turn is stopped.",
    ]
    assert played.first.output == "2"


def test_a_turn_that_used_up_its_tokens_stops_after_the_last_step(memory: Place) -> None:
    """Ours: after the one last step, the token limit is enforced."""
    used = [{"text": one, "usage": {"input": 600}} for one in cells(3)]
    played = play(memory, *used, limits=UsageLimits(max_tokens=1_000))
    assert stopped(played) is StopReason.TURN_BUDGET
    assert len(warnings(played)) == 2


def test_the_model_is_warned_when_cells_are_tool_calls_too(memory: Place) -> None:
    """Ours: warnings do not depend on how the model sends its cells."""
    script = [asks(("run_code", {"code": "1"})), asks(("run_code", {"code": "finish(2)"}))]
    protocol = CodeProtocol(cells="tool_call")
    played = play(memory, *script, protocol=protocol, limits=UsageLimits(max_iterations=1))
    assert played.first.output == "2"
    assert len(warnings(played)) == 1


@pytest.mark.parametrize("plugins", [[], [CodeMode()]], ids=["plain", "with code mode"])
def test_the_standard_protocol_sends_no_warnings(memory: Place, plugins: list[Any]) -> None:
    """Ours: the messages and limits of the standard protocol stay unchanged."""
    script = [asks(("look", {"key": str(number)})) for number in range(3)]
    played = play(memory, *script, protocol="standard", plugins=plugins, limits=UsageLimits(max_iterations=3))
    assert stopped(played) is StopReason.TURN_BUDGET
    assert warnings(played) == []


# No progress


@pytest.mark.parametrize(
    "code",
    ["look('a')", "x = 1\nx", "print('still here')", "pass"],
    ids=["call", "value", "output", "nothing"],
)
def test_repeating_a_cell_with_the_same_outcome_ends_the_turn(place: Place, code: str) -> None:
    """Bug: each report has another number, so a model in a loop seemed to make progress."""
    played = play(place, *[cell(code)] * 5, finish("'next'"), turns=("go", "and now"))
    assert stopped(played) is StopReason.NO_PROGRESS
    assert played.last.output == "next"


def test_repeating_a_cell_with_another_outcome_is_progress(memory: Place) -> None:
    """Ours: a cell that counts up, or reads the next page, makes progress."""
    again = cell("n = globals_n[-1] + 1\nglobals_n.append(n)\nlook(str(n))")
    played = play(memory, cell("globals_n = [0]"), *[again] * 6, finish("globals_n[-1]"))
    assert played.first.output == "6"
    assert played.ran == ["1", "2", "3", "4", "5", "6"]


def test_a_cell_that_makes_progress_resets_the_count(memory: Place) -> None:
    """Ours: only consecutive iterations without progress count."""
    failing = [cell("1 / 0")] * 3
    played = play(memory, *failing, cell("x = 1\nx"), *failing, finish("x"))
    assert played.first.output == "1"


def test_a_refused_cell_is_not_progress(memory: Place) -> None:
    """Ours: this also holds for a refused second cell in each reply."""
    reply = asks(("run_code", {"code": "x = = 1"}), ("run_code", {"code": "y = 1"}))
    played = play(memory, *[reply] * 2, limits=UsageLimits(max_no_progress=2))
    assert stopped(played) is StopReason.NO_PROGRESS
