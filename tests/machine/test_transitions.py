"""For every situation of a turn and every input: the commands and the phase that follow.

A cell of the table has the commands and the resulting phase. `ignored` means no command and no change,
`kept` means no command and the same phase, but the input is remembered, `wrong` that the machine refuses it.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from machine_turns import (
    BROKEN,
    NOTE,
    SPENT,
    Turn,
    aborted,
    answered,
    asked_for,
    call,
    calls,
    cancelled,
    ended,
    failed,
    finish,
    misfit,
    out_of_time,
    passed,
    paused,
    prepared,
    ran,
    recorded,
    resumed,
    ruled,
    said,
    settled,
    started,
    switched,
    timed_out,
    waits,
)

from standfast.errors import InternalError
from standfast.machine import HooksRan, Input, Phase

SITUATIONS: dict[str, tuple[Input, ...]] = {
    "new": (),
    "asking": (started(),),
    "acting": (started(), calls("a", "b")),
    "acting beside a wait": (started(), calls("a", "b"), waits(1)),
    "acting on the last call": (started(), calls("a", "b"), settled(2, 2)),
    "acting after a time-out": (started(), calls("a", "b"), settled(2, 2), timed_out(1)),
    "parked": (started(), calls("a", "b"), settled(2, 2), waits(1)),
    "parked twice": (started(), calls("a", "b"), waits(2), waits(1)),
    "after work": (started(), calls("a"), settled(1, 1)),
    "before completion": (started(), answered()),
    "ended": (started(), failed()),
    "opening": (started(stages=("before_turn",)),),
    "preparing": (started(stages=("prepare",)),),
    "acting, calls not ruled on": (started(stages=("before_tool_call",)), calls("a", "b")),
    "after work, plugins not asked": (started(stages=("checkpoint",)), calls("a"), settled(1, 1)),
    "before completion, plugins not asked": (started(stages=("checkpoint",)), answered()),
    "before completion, held": (
        started(stages=("checkpoint",)),
        answered(),
        ran("before_completion", messages=(said("wait"),)),
    ),
    "before completion, end not shown": (started(stages=("after_turn",)), answered()),
    "before completion, end shown": (started(stages=("after_turn",)), answered(), ran("after_turn")),
    "closing": (started(stages=("after_turn",)), failed()),
    "acting, a cell has made a call": (started(), calls("run_code"), paused(1, 1, "x")),
    "acting, a cell resumes": (started(), calls("run_code"), paused(1, 1, "x", "y"), settled(2)),
    "acting, a cell has ended before its call": (
        started(),
        calls("run_code"),
        paused(1, 1, "x", "y"),
        settled(2),
        settled(1),
    ),
    "parked in a cell": (started(), calls("run_code"), paused(1, 1, "x"), waits(2)),
}

HAPPENINGS: dict[str, Input] = {
    "the turn starts": started(),
    "an answer": answered(),
    "a reply with calls": calls("c", "d"),
    "a reply with unreadable calls": asked_for(call(arguments="[")),
    "the model fails": failed(),
    "the model fails for now": failed(retryable=True),
    "call 1 settles": recorded(1),
    "call 2 settles": recorded(2),
    "call 3 settles": recorded(3),
    "call 9 settles": recorded(9),
    "call 1 times out": timed_out(1),
    "call 3 times out": timed_out(3),
    "call 1 times out once more": timed_out(1, 2),
    "call 9 times out": timed_out(9),
    "call 1 makes a call": paused(1, 1, "x"),
    "call 1 makes a second call": paused(1, 2, "y"),
    "call 1 makes a call that cannot be carried out": paused(1, 1, "x!"),
    "call 1 waits for nothing": paused(1, 1),
    "call 1 waits for what it has called": paused(1, 2),
    "call 9 makes a call": paused(9, 1, "x"),
    "call 1 has the answer": finish(1),
    "call 9 has the answer": finish(9),
    "call 1 waits": waits(1, "new"),
    "call 3 waits": waits(3, "new"),
    "call 9 waits": waits(9),
    "wait 1 ends": ended("w1"),
    "wait 2 ends": ended("w2"),
    "wait 9 ends": ended("w9"),
    "work is passed": passed("after_work"),
    "work is passed with a message": passed("after_work", said("and")),
    "completion is passed": passed("before_completion"),
    "completion is passed with a message": passed("before_completion", said("and")),
    "the answer does not fit": misfit(),
    "a frame is to open": switched(),
    "the turn is cancelled": cancelled(),
    "the time is over": out_of_time(),
    "the turn is aborted": aborted(),
    "the turn is resumed": resumed(),
    "plugins let the turn begin": ran("before_turn"),
    "plugins have prepared the call": prepared(),
    "plugins let call 1 run": ruled(1),
    "plugins let call 9 run": ruled(9),
    "plugins let work pass": ran("after_work"),
    "plugins let completion pass": ran("before_completion"),
    "plugins hold completion": ran("before_completion", messages=(said("wait"),)),
    "plugins let another completion pass": ran("before_completion", 9),
    "plugins hear of the end": ran("after_turn"),
    "plugins fail at the end": ran("after_turn", failure=BROKEN),
    "plugins hear of another end": ran("after_turn", 9, usage=(SPENT,), model_calls=1, events=(NOTE,)),
}

_ANYWHERE = {
    "the turn starts": "wrong",
    "an answer": "wrong",
    "a reply with calls": "wrong",
    "a reply with unreadable calls": "wrong",
    "the model fails": "wrong",
    "the model fails for now": "wrong",
    "call 1 settles": "ignored",
    "call 2 settles": "ignored",
    "call 3 settles": "ignored",
    "call 9 settles": "ignored",
    "call 1 times out": "ignored",
    "call 3 times out": "ignored",
    "call 1 times out once more": "ignored",
    "call 9 times out": "ignored",
    "call 1 makes a call": "ignored",
    "call 1 makes a second call": "ignored",
    "call 1 makes a call that cannot be carried out": "ignored",
    "call 1 waits for nothing": "ignored",
    "call 1 waits for what it has called": "ignored",
    "call 9 makes a call": "ignored",
    "call 1 has the answer": "ignored",
    "call 9 has the answer": "ignored",
    "call 1 waits": "ignored",
    "call 3 waits": "ignored",
    "call 9 waits": "ignored",
    "wait 1 ends": "ignored",
    "wait 2 ends": "ignored",
    "wait 9 ends": "ignored",
    "work is passed": "wrong",
    "work is passed with a message": "wrong",
    "completion is passed": "wrong",
    "completion is passed with a message": "wrong",
    "the answer does not fit": "wrong",
    "a frame is to open": "stop, commit switched to f_2 -> ended",
    "the turn is cancelled": "stop, commit cancelled -> ended",
    "the time is over": "stop, commit turn_budget -> ended",
    "the turn is aborted": "stop, commit plugin_abort -> ended",
    "the turn is resumed": "kept",
    "plugins let the turn begin": "wrong",
    "plugins have prepared the call": "wrong",
    "plugins let call 1 run": "ignored",
    "plugins let call 9 run": "ignored",
    "plugins let work pass": "wrong",
    "plugins let completion pass": "wrong",
    "plugins hold completion": "wrong",
    "plugins let another completion pass": "wrong",
    "plugins hear of the end": "wrong",
    "plugins fail at the end": "wrong",
    "plugins hear of another end": "wrong",
}
"""The default for situations that do not override it."""

_PLUGINS_HEAR = {
    "a frame is to open": "stop, hooks.after_turn.2 -> closing",
    "the turn is cancelled": "stop, hooks.after_turn.2 -> closing",
    "the time is over": "stop, hooks.after_turn.2 -> closing",
    "the turn is aborted": "stop, hooks.after_turn.2 -> closing",
}
"""Additional transitions before completion if after_turn hooks run."""

_CALLS_ARE_OPEN = {"call 1 has the answer": "kept", "a frame is to open": "kept"}
"""Additional transitions while call 1 has no result."""

_A_CELL_BEGINS = {
    **_CALLS_ARE_OPEN,
    "call 1 times out": "tool.1.2 -> acting",
    "call 1 makes a call": "tool.3.1 -> acting",
    "call 1 makes a call that cannot be carried out": "cell.1 hears 3 -> acting",
}
"""Additional transitions while call 1 runs and has made no call; call 2 is the last one so far."""

_WAITS_END = {
    **_CALLS_ARE_OPEN,
    "wait 1 ends": "tool.1.2 -> acting",
    "wait 2 ends": "tool.2.2 -> acting",
}

TABLE: dict[str, dict[str, str]] = {
    "new": {"the turn starts": "model.1 -> asking"},
    "asking": {
        "an answer": "before_completion.1 -> passing",
        "a reply with calls": "tool.1.1, tool.2.1 -> acting",
        "a reply with unreadable calls": "after_work.1 -> passing",
        "the model fails": "commit provider_error -> ended",
        "the model fails for now": "model.2 -> asking",
    },
    "acting": {
        **_A_CELL_BEGINS,
        "call 1 settles": "kept",
        "call 2 settles": "kept",
        "call 1 waits": "kept",
    },
    "acting beside a wait": {
        **_WAITS_END,
        "call 1 settles": "kept",
        "call 2 settles": "park w1 -> parked",
        "call 1 waits": "kept",
        "wait 2 ends": "ignored",
    },
    "acting on the last call": {
        **_A_CELL_BEGINS,
        "call 1 settles": "after_work.1 -> passing",
        "call 1 waits": "park new -> parked",
    },
    "acting after a time-out": {
        **_A_CELL_BEGINS,
        "call 1 times out": "ignored",
        "call 1 times out once more": "tool.1.3 -> acting",
        "call 1 settles": "after_work.1 -> passing",
        "call 1 waits": "park new -> parked",
    },
    "parked": {
        **_WAITS_END,
        "call 1 settles": "after_work.1 -> passing",
        "call 1 waits": "park new -> parked",
        "wait 2 ends": "ignored",
    },
    "parked twice": {
        **_WAITS_END,
        "call 1 settles": "park w2 -> parked",
        "call 2 settles": "park w1 -> parked",
        "call 1 waits": "park new w2 -> parked",
    },
    "after work": {
        "work is passed": "model.2 -> asking",
        "work is passed with a message": "model.2 -> asking",
    },
    "before completion": {
        "completion is passed": "commit finished -> ended",
        "completion is passed with a message": "model.2 -> asking",
        "the answer does not fit": "model.2 -> asking",
    },
    "ended": dict.fromkeys(_ANYWHERE, "ignored"),
    "opening": {"plugins let the turn begin": "model.1 -> asking"},
    "preparing": {"plugins have prepared the call": "model.1 -> asking"},
    "acting, calls not ruled on": {
        **_A_CELL_BEGINS,
        "plugins let call 1 run": "kept",
        "call 1 times out": "tool.1.2? -> acting",
        "call 1 settles": "kept",
        "call 2 settles": "kept",
        "call 1 waits": "kept",
        "call 1 makes a call": "tool.3.1? -> acting",
    },
    "after work, plugins not asked": {"plugins let work pass": "after_work.1 -> passing"},
    "before completion, plugins not asked": {
        "plugins let completion pass": "before_completion.1 -> passing",
        "plugins hold completion": "before_completion.1 held -> passing",
    },
    "before completion, held": {
        "completion is passed": "model.2 -> asking",
        "completion is passed with a message": "model.2 -> asking",
        "the answer does not fit": "model.2 -> asking",
    },
    "before completion, end not shown": {
        **_PLUGINS_HEAR,
        "plugins hear of the end": "before_completion.1 -> passing",
        "plugins fail at the end": "commit plugin_abort -> ended",
        "completion is passed": "hooks.after_turn.2 -> closing",
        "completion is passed with a message": "model.2 -> asking",
        "the answer does not fit": "model.2 -> asking",
    },
    "before completion, end shown": {
        **_PLUGINS_HEAR,
        "completion is passed": "commit finished -> ended",
        "completion is passed with a message": "model.2 -> asking",
        "the answer does not fit": "model.2 -> asking",
    },
    "closing": {
        **dict.fromkeys(_ANYWHERE, "ignored"),
        **{name: "wrong" for name, given in HAPPENINGS.items() if isinstance(given, HooksRan)},
        "plugins hear of the end": "commit provider_error -> ended",
        "plugins fail at the end": "commit plugin_abort -> ended",
    },
    "acting, a cell has made a call": {
        **_CALLS_ARE_OPEN,
        "call 1 settles": "kept",
        "call 2 settles": "cell.1 hears 2 -> acting",
    },
    "acting, a cell resumes": {
        **_CALLS_ARE_OPEN,
        "call 1 settles": "kept",
        "call 3 settles": "kept",
        "call 3 times out": "tool.3.2 -> acting",
        "call 3 waits": "kept",
        "call 1 makes a second call": "tool.4.1 -> acting",
        "call 1 waits for what it has called": "kept",
    },
    "acting, a cell has ended before its call": {
        "call 3 settles": "after_work.1 -> passing",
        "call 3 times out": "tool.3.2 -> acting",
        "call 3 waits": "after_work.1 -> passing",
        "a frame is to open": "kept",
    },
    "parked in a cell": {
        **_WAITS_END,
        "wait 1 ends": "ignored",
        "call 1 settles": "after_work.1 -> passing",
        "call 2 settles": "cell.1 hears 2 -> acting",
    },
}

CELLS = [
    pytest.param(
        situation, happening, TABLE[situation].get(happening, follows), id=f"{situation}: {happening}"
    )
    for situation in SITUATIONS
    for happening, follows in _ANYWHERE.items()
]


def _state(turn: Turn) -> tuple[Any, ...]:
    machine = turn.machine
    return copy.deepcopy(
        (
            machine.phase, machine.entries, machine.messages, machine.calls.records, machine.account.usage,
            machine.account.model_calls, machine.outcome, machine.outstanding(), machine.whole(),
            machine.next_messages(), machine.account.ledger("turn"),
        )
    )  # fmt: skip


@pytest.mark.parametrize(("situation", "happening", "follows"), CELLS)
def test_every_input_in_every_situation_leads_to_the_result_in_the_table(
    situation: str, happening: str, follows: str
) -> None:
    """Ours: SPEC §7, the machine folds inputs into commands; the table has every pair."""
    turn = Turn(*SITUATIONS[situation])
    before = _state(turn)
    if follows == "wrong":
        with pytest.raises(InternalError, match=type(HAPPENINGS[happening]).__name__):
            turn.tell(HAPPENINGS[happening])
        assert _state(turn) == before
        return
    commands = turn.tell(HAPPENINGS[happening])
    if follows == "ignored":
        assert (commands, _state(turn)) == ([], before)
    elif follows == "kept":
        assert (commands, turn.machine.phase) == ([], before[0])
    else:
        assert f"{', '.join(commands)} -> {turn.machine.phase.value}" == follows


def test_the_table_has_every_phase_and_every_input() -> None:
    """Ours: a phase or an input that is added later must be added to the table."""
    assert {Turn(*inputs).machine.phase for inputs in SITUATIONS.values()} == set(Phase)
    assert {type(given) for given in HAPPENINGS.values()} == set(get_args(Input))
    assert set(_ANYWHERE) == set(HAPPENINGS)
    assert set(TABLE) == set(SITUATIONS)
    assert all(set(cells) <= set(HAPPENINGS) for cells in TABLE.values())


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_input_in_the_wrong_phase_is_refused_with_a_helpful_message(situation: str) -> None:
    """Ours: a journal of another version raises an internal error instead of yielding a wrong turn."""
    turn = Turn(*SITUATIONS[situation])
    wrong = next((cell for cell in CELLS if cell.values[0] == situation and cell.values[2] == "wrong"), None)
    if wrong is None:
        assert situation == "ended"
        return
    with pytest.raises(InternalError, match=r"turn .* got .* while") as caught:
        turn.feed(HAPPENINGS[str(wrong.values[1])])
    assert caught.value.hint == "open the session with the version of standfast that wrote its journal"


def test_a_value_that_is_not_an_input_is_refused_and_never_skipped() -> None:
    """Ours: an input that is added to the union but forgotten in the machine must raise."""
    turn = Turn(started())
    with pytest.raises(AssertionError):
        turn.machine.feed(SimpleNamespace(at_ms=1))  # type: ignore[arg-type]


def test_a_phase_that_the_machine_does_not_handle_is_refused_and_never_taken_for_idle() -> None:
    """Ours: a recovered turn that has nothing to do would never end."""
    turn = Turn(started())
    turn.machine.phase = "dreaming"  # type: ignore[assignment]
    with pytest.raises(AssertionError):
        turn.machine.outstanding()
