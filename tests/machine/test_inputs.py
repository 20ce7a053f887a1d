"""Inputs in the form that the journal stores."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from machine_turns import (
    BROKEN,
    COMPACTION,
    ENOUGH,
    NOTE,
    SPENT,
    STAGES,
    SWITCH,
    aborted,
    answered,
    asked_for,
    at,
    call,
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

from standfast.errors import ErrorObject
from standfast.machine import (
    CallPrepared,
    CellCalled,
    CellPaused,
    HooksRan,
    Input,
    KeptRange,
    ToolSettled,
    TurnStarted,
    decode_input,
    encode_input,
)
from standfast.model.capability import GuestException
from standfast.model.limits import Usage
from standfast.model.message import AttachmentPart, TextPart, ToolMessage, UserMessage
from standfast.model.outcome import Approved, Completed, Denied, Elapsed, Expired, Failed
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.model.ruling import NOTHING_SAID

_PICTURE = UserMessage(
    content=(
        TextPart(text="what is this?"),
        AttachmentPart(digest="ab", media_type="image/png", size=3, name="é.png"),
    )
)

_RULING: dict[str, Any] = {
    "messages": (said("wait"),), "events": (NOTE,), "abort": ENOUGH, "failure": BROKEN, "usage": (SPENT,),
    "model_calls": 2,
}  # fmt: skip

_LAYER = PromptLayer(
    contributions=(PromptContribution(content="be brief", slot=PromptSlot.INTRO, priority=1),),
    replaces=frozenset({PromptSlot.GUIDANCE}),
)

INPUTS: tuple[Input, ...] = (
    started(_PICTURE, said("x", "i_1"), max_tokens=5, max_wall_ms=None),
    TurnStarted(
        at_ms=1, turn_id="t_1", message=said("x"), stages=STAGES, extension={"a": [1]}, prompt=_LAYER
    ),
    started(warns=True),
    ran("before_turn"),
    ran("after_turn", 3, **_RULING),
    prepared(),
    prepared(
        2,
        prompt="",
        view=(KeptRange(start=0, stop=2), said("short"), ToolMessage(call_id=1, name="a", shown="cut")),
        compaction=COMPACTION,
        switch=SWITCH,
        ruling=ran("before_turn", **_RULING).ruling,
    ),
    ruled(1),
    ruled(2, **_RULING, arguments={"a": None}, settled=True, value=[1], error=BROKEN),
    settled(1, 1, **_RULING),
    msgspec.structs.replace(answered(), events=(NOTE,)),
    asked_for(call("a", "not json", "id"), call("b", '{"é": 1}')),
    answered("é\u2028", Usage(input=1, cache_read=2, cache_write=3, output=4, reasoning=5), "m"),
    msgspec.structs.replace(answered("I look."), raw="I look.\n```python\né\n```"),
    failed(retryable=True, after=5),
    recorded(1),
    settled(1, {"a": [1, 2.5, None, True, "é", 2**60]}),
    settled(1, error=ErrorObject(code="X", message="x", hint="y")),
    msgspec.structs.replace(
        settled(1, error=ErrorObject(code="X", message="x")),
        exception=GuestException(type="KeyError", message="'é'"),
    ),
    timed_out(1),
    msgspec.structs.replace(timed_out(2, 3), record=None),
    paused(1, 1, "look", "look!"),
    CellPaused(
        at_ms=1, call_id=1, number=2, calls=(CellCalled(name="a", arguments={"é": None}, args=(1, [2.5])),)
    ),
    finish(1, "é"),
    waits(1, kind="completion"),
    *(
        ended("w1", outcome)
        for outcome in (
            Approved(arguments={"a": 1}), Approved(), Denied(reason="no"), Denied(), Expired(), Elapsed(),
            Completed(value=[1]), Failed(error=ErrorObject(code="X", message="x")),
        )
    ),
    passed("after_work", said("x")), misfit(), switched(), cancelled(), out_of_time(), aborted(), resumed(),
)  # fmt: skip


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: type(given).__name__)
def test_an_input_survives_the_journal_unchanged(given: Input) -> None:
    """Ours: SPEC §7, a recovered turn feeds the journal to a fresh machine."""
    given = at(1_700_000_000_000, given)
    assert decode_input(encode_input(given)) == given
    assert encode_input(decode_input(encode_input(given))) == encode_input(given)


def test_every_type_of_input_is_tested() -> None:
    """Ours: an input that is added later must be added to the list above."""
    assert {type(given) for given in INPUTS} == set(get_args(Input))


def test_the_tags_of_inputs_in_the_journal_never_change() -> None:
    """Ours: a journal of an earlier version must stay readable."""
    tags = {msgspec.json.decode(encode_input(given))["type"] for given in INPUTS}
    assert tags == {
        "turn_started", "hooks_ran", "call_prepared", "model_replied", "model_failed", "call_ruled",
        "tool_settled", "cell_paused", "wait_opened", "wait_ended", "checkpoint_passed",
        "frame_switch_requested", "finish_requested", "cancel_requested", "deadline_passed", "aborted",
        "resumed", "call_timed_out",
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        HooksRan(at_ms=1, stage="after_work", number=1, ruling=NOTHING_SAID),
        CallPrepared(at_ms=1, number=1, ruling=NOTHING_SAID),
        ToolSettled(at_ms=1, call_id=1, ruling=NOTHING_SAID),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_empty_ruling_takes_no_space_in_the_journal(given: Input) -> None:
    """Ours: most rulings are empty, and a turn without plugins is written as before plugins existed."""
    assert b"ruling" not in encode_input(given)
    assert decode_input(encode_input(given)).ruling is NOTHING_SAID


@pytest.mark.parametrize(
    ("given", "field"),
    [(started(), b"warns"), (answered(), b"raw"), (settled(1), b"exception"), (paused(1, 1, "a"), b"args")],
    ids=["warns", "raw", "exception", "args"],
)
def test_fields_for_code_take_no_space_in_turns_without_code(given: Input, field: bytes) -> None:
    """Ours: a turn of the standard protocol is written as before cells existed."""
    assert field not in encode_input(given)
    assert decode_input(encode_input(given)) == given


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"nope","at_ms":1}',
        b'{"type":"resumed"}',
        b'{"type":"resumed","at_ms":"1"}',
    ],
    ids=["nothing", "no type", "a list", "an unknown type", "no time", "a time that is text"],
)
def test_a_body_that_is_not_an_input_is_refused(body: bytes) -> None:
    """Ours: SPEC §7 rule 6, an error and never a wrong answer."""
    with pytest.raises(msgspec.DecodeError):
        decode_input(body)
