"""Rulings before each model call: plugins may change the prompt and the view, compact, or open a frame."""

from __future__ import annotations

from typing import Any

import pytest
from machine_turns import (
    BROKEN,
    COMPACTION,
    ENOUGH,
    NOTE,
    SPENT,
    SWITCH,
    Turn,
    answered,
    calls,
    cancelled,
    failed,
    passed,
    prepared,
    ran,
    said,
    settled,
    started,
)

from standfast.errors import ErrorObject
from standfast.machine import CallModel, KeptRange, ModelReplied, Phase, PrepareCall
from standfast.model.frame import FrameSwitch
from standfast.model.outcome import FrameSwitched, StopReason
from standfast.model.ruling import Ruling


def preparing(**limits: Any) -> Turn:
    return Turn(started(stages=("prepare",), **limits))


def test_every_model_call_is_prepared_under_its_own_number() -> None:
    """Seed: prompt, transforms and compaction run before each model call."""
    turn = preparing()
    assert turn.machine.phase is Phase.PREPARING
    assert turn.recovered() == ["prepare.1"]
    assert turn.tell(prepared(1)) == ["model.1"]
    assert turn.tell(calls("a"), settled(1), passed("after_work")) == ["prepare.2"]
    assert turn.recovered() == ["prepare.2"]
    assert turn.tell(prepared(2)) == ["model.2"]


def test_preparing_comes_after_before_turn() -> None:
    """Ours: messages that plugins add before the turn are prepared like any other message."""
    turn = Turn(started(stages=("before_turn", "prepare")))
    assert turn.tell(ran("before_turn", messages=(said("psst"),))) == ["prepare.1"]
    assert turn.talk() == ["user: hello", "user: psst"]


def test_a_retry_is_not_prepared_again() -> None:
    """Ours: the request stays the same between attempts."""
    turn = preparing()
    turn.feed(prepared(1))
    assert turn.feed(failed(retryable=True)) == [CallModel(2, 2, 500)]


def test_the_prompt_stays_until_plugins_change_it_but_a_view_is_for_one_call() -> None:
    """Seed: an unchanged prompt is not written again; the view is computed each time."""
    turn = preparing()
    view = (KeptRange(start=0, stop=1), said("in short"))
    turn.feed(prepared(1, prompt="be brief", view=view))
    assert turn.machine.prompt == "be brief"
    assert turn.machine.prepared is not None
    assert turn.machine.prepared.view == view
    turn.feed(answered(), passed("before_completion", said("and")), prepared(2))
    assert turn.machine.prompt == "be brief"
    assert turn.machine.prepared.view is None
    assert turn.talk() == ["user: hello", "assistant: done", "user: and"]  # the history is unchanged


def test_a_compaction_opens_a_frame_before_the_turn() -> None:
    """Seed: the seed of a compaction replaces earlier turns and precedes this one."""
    turn = preparing()
    assert turn.tell(prepared(1, compaction=COMPACTION)) == ["model.1"]
    turn.feed(answered(), passed("before_completion"))
    assert turn.machine.compaction == COMPACTION
    assert turn.history() == ["frame f_c", "user: hello", "assistant: done"]
    assert turn.talk() == ["user: hello", "assistant: done"]


def test_a_turn_is_compacted_once() -> None:
    """Ours: a segment with two such frames would lose the first."""
    turn = preparing()
    turn.feed(prepared(1, compaction=COMPACTION), answered(), passed("before_completion", said("and")))
    turn.feed(prepared(2, compaction=FrameSwitch(frame_id="f_d")), answered())
    assert turn.history()[0] == "frame f_c"
    assert turn.machine.compaction == COMPACTION
    assert sum(line.startswith("frame") for line in turn.history()) == 1


def test_a_compaction_during_a_turn_still_precedes_it() -> None:
    """Ours: FrameOpened is the first of the turn's entries, whenever it was added."""
    turn = preparing()
    turn.feed(prepared(1), calls("a"), settled(1, "r"), passed("after_work"))
    turn.feed(prepared(2, compaction=COMPACTION))
    assert turn.history() == ["frame f_c", "user: hello", "assistant: a", "tool 1: r"]
    assert turn.machine.entries[0].at_ms == turn.inputs[-1].at_ms


def test_a_frame_opened_instead_of_the_call_ends_the_turn() -> None:
    """Seed: before_llm_call may return a frame switch."""
    turn = preparing()
    assert turn.tell(prepared(1, switch=SWITCH)) == ["commit switched to f_2"]
    assert turn.machine.outcome == FrameSwitched(switch=SWITCH)
    assert turn.history() == ["user: hello", "frame f_2"]
    assert turn.machine.account.model_calls == 0


def test_a_compaction_and_another_frame_at_the_same_time_open_both() -> None:
    """Ours: the compaction frame precedes the turn's entries, the other frame follows them."""
    turn = preparing()
    turn.feed(prepared(1, compaction=COMPACTION, switch=SWITCH))
    assert turn.history() == ["frame f_c", "user: hello", "frame f_2"]


@pytest.mark.parametrize(("how", "error"), [("abort", ENOUGH), ("failure", BROKEN)])
def test_a_plugin_that_aborts_or_fails_ends_the_turn_before_the_call(how: str, error: ErrorObject) -> None:
    """Seed: a hook that fails while a call is prepared ends the turn; no frame is opened instead."""
    turn = preparing()
    ruling = Ruling(**{how: error}, events=(NOTE,))  # type: ignore[arg-type]
    assert turn.tell(prepared(1, switch=SWITCH, ruling=ruling)) == ["stop", "commit plugin_abort"]
    assert (turn.stopped().reason, turn.stopped().error) == (StopReason.PLUGIN_ABORT, error)
    assert turn.history() == ["user: hello", "p note", "ended plugin_abort"]


def test_messages_added_while_a_call_is_prepared_are_delivered_at_the_next_checkpoint() -> None:
    """Bug: the turn was committed, and its machine still called the model."""
    turn = preparing()
    turn.feed(prepared(1, ruling=Ruling(messages=(said("psst"),))))
    assert turn.talk() == ["user: hello"]
    assert turn.tell(answered()) == ["before_completion.1 held"]
    assert turn.tell(passed("before_completion")) == ["prepare.2"]
    assert turn.talk()[-1] == "user: psst"


def test_a_call_that_overflows_the_window_is_prepared_once_more() -> None:
    """Seed: compaction runs again after a context overflow."""
    turn = preparing(max_iterations=1)
    assert turn.tell(prepared(1), failed("CONTEXT_OVERFLOW")) == ["prepare.2 overflowed"]
    assert turn.machine.outstanding() == [PrepareCall(2, overflowed=True)]
    assert turn.recovered() == ["prepare.2 overflowed"]
    assert turn.feed(prepared(2, compaction=COMPACTION)) == [CallModel(2)]
    assert turn.tell(answered()) == ["before_completion.1"]


def test_a_second_overflow_ends_the_turn() -> None:
    """Seed: an overflowing call is prepared again once, not for ever."""
    turn = preparing()
    turn.feed(prepared(1), failed("CONTEXT_OVERFLOW"), prepared(2))
    assert turn.tell(failed("CONTEXT_OVERFLOW")) == ["commit context_overflow"]
    assert turn.stopped().error.code == "CONTEXT_OVERFLOW"


def test_after_each_reply_an_overflow_may_be_retried_again() -> None:
    """Ours: a turn of many calls may outgrow its window more than once."""
    turn = preparing()
    turn.feed(prepared(1), failed("CONTEXT_OVERFLOW"), prepared(2), calls("a"), settled(1))
    assert turn.tell(passed("after_work")) == ["prepare.3"]
    assert turn.tell(prepared(3), failed("CONTEXT_OVERFLOW")) == ["prepare.4 overflowed"]


def test_without_plugins_that_prepare_calls_an_overflow_ends_the_turn() -> None:
    """Seed: without compaction, the request would overflow again."""
    turn = Turn(started(stages=("before_turn",)), ran("before_turn"))
    assert turn.tell(failed("CONTEXT_OVERFLOW")) == ["commit context_overflow"]


def test_a_hook_that_fails_while_the_model_replies_is_a_plugin_abort() -> None:
    """Seed: a stream or response hook that fails is plugin_abort, not the provider's fault."""
    turn = Turn(started())
    assert turn.tell(failed("PLUGIN_ERROR")) == ["commit plugin_abort"]


def test_events_of_a_reply_precede_it() -> None:
    """Ours: events that hooks emit about a reply belong to that reply."""
    turn = Turn(started(), ModelReplied(at_ms=5, text="done", events=(NOTE,)))
    assert turn.history() == ["user: hello", "p note", "assistant: done"]


def test_preparing_does_not_count_as_an_iteration() -> None:
    """Ours: max_iterations counts how often the model is called."""
    turn = preparing(max_iterations=1)
    turn.feed(prepared(1), answered())
    assert turn.tell(passed("before_completion", said("and"))) == ["commit turn_budget"]


def test_tokens_used_by_plugins_count_towards_the_turns_limit() -> None:
    """Ours: UsageLimits.max_tokens covers all model calls."""
    turn = preparing(max_tokens=7)
    turn.feed(prepared(1, ruling=Ruling(usage=(SPENT,), model_calls=1)), calls("a"), settled(1))
    assert turn.tell(passed("after_work")) == ["commit turn_budget"]


def test_a_turn_can_be_cancelled_while_a_call_is_prepared() -> None:
    """Ours: a compaction may take long, and cancelling must not wait for it."""
    assert preparing().tell(cancelled()) == ["stop", "commit cancelled"]
