"""Models that ignore their instructions: the outcome is defined, and the session stays usable."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from code_stand_ins import cell, outcomes, reports
from code_turns import Played, observations, play
from stand_ins import Place, asks, results

from standfast import CodeMode, CodeProtocol, SessionLimits
from standfast.model.capability import CallStatus
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.outcome import Finished, Stopped, StopReason

pytestmark = pytest.mark.slow

SMALL = SessionLimits(
    memory_mb=64, cpu_ms=150, wall_ms=20_000, max_stdout_bytes=2_000, max_external_calls=5, max_stack_depth=64
)
BEFORE = cell("kept = 'before'")
AFTER = cell("finish(kept)")


def misbehave(place: Place, *bad: Any, **options: Any) -> Played:
    """Run a turn that binds a variable and then goes wrong, and a turn that reads the variable."""
    return play(place, BEFORE, *bad, AFTER, turns=("go", "and now"), **options)


def native(code: str) -> dict[str, Any]:
    """Return a cell as a native tool call."""
    return asks(("run_code", {"code": code}))


# Code that does not run


def test_code_with_a_syntax_error_is_not_run_but_shown_with_line_and_caret(place: Place) -> None:
    """Ours: such code fails its check and is not executed."""
    played = misbehave(place, cell("look('a')\nkept = = 1"), cell("kept = look('b')"), "over")
    assert observations(played.first.messages)[1] == (
        "[cell 1] failed, nothing was executed\n"
        "error:\n"
        "SYNTAX_ERROR: Expected an expression\n"
        "  2 | kept = = 1\n"
        "    |        ^"
    )
    assert played.ran == ["b"]
    assert played.last.output == "seen b"


def test_four_invalid_cells_in_a_row_end_the_turn(place: Place) -> None:
    """Ours: a turn that makes no progress is stopped."""
    played = misbehave(place, *[cell(f"kept = = {number}") for number in range(4)])
    assert isinstance(played.first.outcome, Stopped)
    assert played.first.outcome.reason is StopReason.NO_PROGRESS
    assert outcomes(played.first.messages) == [None, *["SYNTAX_ERROR"] * 4]
    assert played.last.output == "before"


def test_an_unknown_function_is_found_before_anything_runs(place: Place) -> None:
    """Ours: unknown names are found by the check before a cell runs."""
    played = misbehave(place, cell("kept = look('a')\nlok('b')"), "over")
    told = observations(played.first.messages)[1]
    assert told.startswith("[cell 1] failed, nothing was executed\nerror:\nUNKNOWN_TOOL: lok()")
    assert "  2 | lok('b')\n    | ^\nhint: did you mean look()?" in told
    assert (played.ran, played.first.calls, played.last.output) == ([], (), "before")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("add('one')", "add(): a is 'one', not integer"),
        ("add(1, 2, 3)", "add() takes 2 arguments, 3 were given"),
        ("add(b=2)", "add()"),
        ("add(1, c=2)", "add()"),
        ("add(a=None)", "add(): a is None, not integer"),
    ],
)
def test_wrong_arguments_are_found_before_anything_runs(memory: Place, call: str, problem: str) -> None:
    """Ours: if any call has wrong arguments, none of the cell's calls is made."""
    played = misbehave(memory, cell(f"kept = look('a')\n{call}"), "over")
    assert problem in observations(played.first.messages)[1]
    assert outcomes(played.first.messages)[1] == "TYPE_ERROR"
    assert (played.ran, played.first.calls, played.last.output) == ([], (), "before")


def test_arguments_that_only_fail_at_run_time_raise_in_the_code(memory: Place) -> None:
    """Ours: errors that a check cannot find raise TypeError at the call."""
    code = "wrong = ['one']\ntry:\n    add(wrong[0])\nexcept TypeError as error:\n    kept = str(error)"
    played = misbehave(memory, cell(code), "over")
    assert str(played.last.output).startswith("INVALID_ARGUMENT: add()")
    assert (played.ran, [one.status for one in played.first.calls]) == ([], [CallStatus.ERROR])


@pytest.mark.parametrize(("tag", "language"), [("javascript", "typescript"), ("bash", "bash"), ("sh", "sh")])
def test_a_cell_in_another_language_gets_an_error_and_the_turn_continues(
    memory: Place, tag: str, language: str
) -> None:
    """Bug: the cell was refused for an argument that no model had given."""
    played = misbehave(memory, f"```{tag}\nkept = 1\n```", cell("kept = 'python'"), "over")
    told = observations(played.first.messages)[1]
    assert told.startswith(
        "[cell 1] failed, nothing was executed\n"
        f"error:\nUNSUPPORTED_FEATURE: the cell is written in {language}, but this session runs python\n"
        "hint: "
    )
    assert played.last.output == "python"


def test_a_model_that_keeps_using_another_language_is_stopped(memory: Place) -> None:
    """Ours: code in the wrong language is not executed, and the turn ends."""
    played = misbehave(memory, *["```bash\nls\n```"] * 4)
    assert isinstance(played.first.outcome, Stopped)
    assert played.first.outcome.reason is StopReason.NO_PROGRESS
    assert played.last.output == "before"


@pytest.mark.parametrize("empty", ["```python\n```", "```python\n\n   \n```", "```python"])
def test_an_empty_cell_fails(memory: Place, empty: str) -> None:
    """Ours: nothing is executed, and the model reads why."""
    played = misbehave(memory, empty, "over")
    assert observations(played.first.messages)[1] == (
        "[cell 1] failed, nothing was executed\nerror:\nSYNTAX_ERROR: the cell is empty"
    )
    assert played.last.output == "before"


# How many cells, and where


def test_only_the_first_of_several_cells_runs(place: Place) -> None:
    """Ours: the model reads that its other cells did not run."""
    reply = "\n\n".join([cell("kept = look('a')"), "then", cell("kept = look('b')"), cell("look('c')")])
    played = misbehave(place, reply, "over")
    assert observations(played.first.messages)[1].endswith(
        "notes:\nonly the first cell of a reply is run; 2 more in this reply did not run"
    )
    assert (played.ran, played.last.output) == (["a"], "seen a")
    assert played.shown == ["then", "over", "seen a"]


def test_a_reply_without_a_cell_is_the_answer(memory: Place) -> None:
    """Ours: fences in other languages are part of the answer."""
    played = misbehave(memory, "Nothing to run: `kept` is fine.\n\n```json\n{}\n```")
    assert played.first.output == "Nothing to run: `kept` is fine.\n\n```json\n{}\n```"
    assert played.last.output == "before"


def test_an_empty_reply_is_an_empty_answer(memory: Place) -> None:
    """Ours: an empty reply ends the turn, as in the standard protocol."""
    played = misbehave(memory, "")
    assert played.first.outcome == Finished(text="")
    assert played.last.output == "before"


LISTED = """\
* Two things:

  1. look it up

     ```python
     if True:
         kept = look("a")
     ```

  2. be content"""


@pytest.mark.parametrize(
    ("reply", "prose"),
    [
        (LISTED, "* Two things:\n\n  1. look it up\n\n  2. be content"),
        (
            "> As you said:\n> ```python\n> kept = look('a')\n> ```\n> so be it",
            "> As you said:\n\n> so be it",
        ),
        ("So:\n~~~~py\nkept = look('a')\n~~~~", "So:"),
        ("So:\n```python\nkept = look('a')", "So:"),
    ],
    ids=["in a list", "in a quote", "other marks", "not closed"],
)
@pytest.mark.parametrize("chunk_size", [1, 1_000])
def test_a_cell_is_found_wherever_it_is_and_not_shown(
    memory: Place, reply: str, prose: str, chunk_size: int
) -> None:
    """Ours: a cell in the prose of a list runs; the prose is shown without it."""
    played = misbehave(memory, {"text": reply, "chunk_size": chunk_size}, "over")
    assert "".join(played.shown) == f"{prose}overseen a"
    spoken = [one for one in played.first.messages if isinstance(one, AssistantMessage)]
    assert (spoken[1].text, spoken[1].raw) == (prose, reply)
    assert played.last.output == "seen a"


@pytest.mark.parametrize("stop_reason", ["length", "max_tokens"])
def test_a_cell_that_was_cut_off_does_not_run(memory: Place, stop_reason: str) -> None:
    """Ours: an incomplete program must not run."""
    cut = {"text": "So:\n```python\nkept = look('a')", "stop_reason": stop_reason}
    played = misbehave(memory, cut, "over")
    assert "the reply was cut off in the middle of the cell" in observations(played.first.messages)[1]
    assert (played.ran, played.last.output) == ([], "before")


def test_a_complete_cell_runs_even_if_the_reply_was_cut_off_after_it(memory: Place) -> None:
    """Ours: the code is complete, so it is safe to run."""
    cut = {"text": f"{cell('kept = look(1 * chr(97))')}\n\nand th", "stop_reason": "length"}
    assert misbehave(memory, cut, "over").last.output == "seen a"


# Code that does not end, or ends badly


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("while True: pass", "TIMEOUT_CPU"),
        ("sum(range(10**12))", "TIMEOUT_CPU"),
        ("big = [0] * 10**10", "MEMORY_EXCEEDED"),
        ("big = []\nwhile True: big.append('x' * 100_000)", "MEMORY_EXCEEDED"),
        ("for _ in range(10**6): print('x' * 100)", "STDOUT_EXCEEDED"),
        ("for number in range(10**6): look(str(number))", "EXTERNAL_CALLS_EXCEEDED"),
        ("try:\n    while True: pass\nexcept BaseException:\n    pass", "TIMEOUT_CPU"),
    ],
    ids=["loop", "sum", "memory", "growing", "output", "calls", "catching"],
)
def test_a_cell_that_exceeds_its_limits_is_stopped_and_its_variables_are_rolled_back(
    place: Place, code: str, problem: str
) -> None:
    """Ours: a cell that never ends is stopped, and the state is restored."""
    bad = cell(f"kept = 'in between'\n{code}")
    cpu_ms = SMALL.cpu_ms if problem == "TIMEOUT_CPU" else 5_000  # a busy machine is slow
    limits = msgspec.structs.replace(SMALL, cpu_ms=cpu_ms)
    played = misbehave(place, bad, "over", protocol=CodeProtocol(limits=limits))
    assert outcomes(played.first.messages)[1] == problem
    assert "the variables are as they were before this cell" in observations(played.first.messages)[1]
    assert played.first.output == "over"
    assert played.last.output == "before"
    assert len(played.ran) == (5 if "CALLS" in problem else 0)


@pytest.mark.slow
def test_a_model_that_repeats_an_endless_loop_is_stopped(memory: Place) -> None:
    """Ours: repeated time-outs are not progress."""
    bad = [cell(f"kept = {number}\nwhile True: pass") for number in range(4)]
    played = misbehave(memory, *bad, protocol=CodeProtocol(limits=SMALL))
    assert isinstance(played.first.outcome, Stopped)
    assert played.first.outcome.reason is StopReason.NO_PROGRESS
    assert played.last.output == "before"


@pytest.mark.parametrize(
    ("code", "problem", "line"),
    [
        ("1 / 0", "RUNTIME_ERROR: ZeroDivisionError: division by zero", "  2 | 1 / 0\n    | ^"),
        ("missing + 1", "NameError", "  2 | missing + 1\n    | ^"),
        ("def down(): return down()\ndown()", "STACK_OVERFLOW: RecursionError", "down()"),
        ("raise ValueError('mine')", "RUNTIME_ERROR: ValueError: mine", "  2 | raise ValueError('mine')"),
        ("assert kept == 1", "AssertionError", "  2 | assert kept == 1"),
    ],
    ids=["zero", "name", "recursion", "raised", "assert"],
)
def test_effects_of_a_cell_before_an_exception_are_kept(
    memory: Place, code: str, problem: str, line: str
) -> None:
    """Ours: variables stay bound, as in a notebook, and the model is shown the failing line."""
    bad = cell(f"kept = 'in between'\n{code}")
    played = misbehave(memory, bad, "over", protocol=CodeProtocol(limits=SMALL))
    told = observations(played.first.messages)[1]
    assert told.startswith("[cell 1] failed\nerror:\n")
    assert problem in told
    assert line in told
    assert played.last.output == "in between"


@pytest.mark.parametrize(
    ("code", "kind"),
    [("{1, 2}", "set"), ("look", "function"), ("lambda: 1", "function"), ("[1, float('nan')]", "float nan")],
)
def test_a_result_that_is_not_json_fails_a_cell_that_took_effect(memory: Place, code: str, kind: str) -> None:
    """Ours: the error says that the cell took effect, and how to return its result."""
    played = misbehave(memory, cell(f"kept = 'in between'\n{code}"), "over")
    assert observations(played.first.messages)[1] == (
        f"[cell 1] failed\nerror:\nRESULT_NOT_SERIALIZABLE: the result is not JSON: it holds {kind}\n"
        "hint: the rest of the cell took effect; end it with JSON or text, list(...), str(...), or print"
    )
    assert played.last.output == "in between"


@pytest.mark.parametrize("code", [r"print('\ud800')", r"'\ud800'", r"finish('\udfff')"])
def test_code_with_a_lone_surrogate_is_refused_and_not_altered(place: Place, code: str) -> None:
    """Bug: Monty replaced it with U+FFFD and the model did not learn of it."""
    played = misbehave(place, cell(f"kept = 'changed'\n{code}"), "over")
    told = observations(played.first.messages)[1]
    assert told.startswith("[cell 1] failed, nothing was executed\nerror:\nUNSUPPORTED_FEATURE: ")
    assert "lone surrogate" in told
    assert f"  2 | {code}\n" in told
    assert "\N{REPLACEMENT CHARACTER}" not in told
    assert played.first.outcome == Finished(text="over")
    assert played.last.output == "before"


@pytest.mark.parametrize("code", ["print(chr(0xD800))", "chr(0xD800)", "finish(chr(0xDFFF))"])
def test_a_lone_surrogate_made_by_code_does_not_leave_its_cell(place: Place, code: str) -> None:
    """Ours: text that cannot be encoded neither reaches the journal nor is replaced."""
    played = misbehave(place, cell(code), "over")
    told = observations(played.first.messages)[1]
    assert "\N{REPLACEMENT CHARACTER}" not in told
    assert told.startswith("[cell 1] failed\nerror:\n")
    assert played.first.outcome == Finished(text="over")
    assert played.last.output == "before"


@pytest.mark.parametrize(
    "code", ["10**5_000", "deep = 1\nfor _ in range(5_000): deep = [deep]\ndeep", "{1: 2, None: 3}"]
)
def test_results_at_the_limits_of_json_do_no_harm(place: Place, code: str) -> None:
    """Ours: a cell's result can be stored and read again, or is rejected."""
    played = misbehave(place, cell(code), cell("len(history)"), "over")
    assert played.first.output == "over"
    assert outcomes(played.first.messages)[-1] == 2
    assert played.last.output == "before"


def test_ten_megabytes_of_output_do_no_harm(place: Place) -> None:
    """Ours: output is stored up to `max_stdout_bytes`; the model reads a part."""
    bad = cell("kept = 'in between'\nfor _ in range(100): print('x' * 100_000)")
    played = misbehave(place, bad, cell("kept = len(history[-1]['stdout'])"), "over")
    told = observations(played.first.messages)[1]
    assert told.startswith("[cell 1] ok\nstdout, the rest was too long and is lost:\nxxx")
    assert len(told) <= 8_000
    assert played.last.output == str(1 << 20)


# Code that continues after finish


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    finish('first')\nexcept SystemExit:\n    pass\nkept = 'after'",
        "try:\n    finish('first')\nexcept BaseException:\n    pass\nkept = 'after'",
        "try:\n    finish('first')\nexcept BaseException:\n    pass\nfinish('second')",
        "try:\n    finish('first')\nfinally:\n    look('a')",
        "try:\n    finish('first')\nexcept BaseException:\n    look('a')",
        "try:\n    finish('first')\nexcept BaseException:\n    continue_as('another')",
        "import asyncio\nawait asyncio.gather(finish('first'), look('a'), finish('second'))",
    ],
    ids=["SystemExit", "BaseException", "twice", "finally", "tool", "frame", "gather"],
)
def test_the_first_finish_counts_and_no_call_is_possible_after_it(memory: Place, code: str) -> None:
    """Ours: code can make no calls after it has ended the turn."""
    played = misbehave(memory, cell(code))
    assert played.first.outcome == Finished(text="first")
    assert (played.ran, played.first.calls) == ([], ())
    assert played.last.output == ("after" if "after" in code else "before")


def test_code_that_loops_after_finish_has_not_finished(memory: Place) -> None:
    """Ours: a hard failure undoes the cell, including its answer."""
    code = "try:\n    finish('first')\nexcept BaseException:\n    pass\nwhile True: pass"
    played = misbehave(memory, cell(code), "over", protocol=CodeProtocol(limits=SMALL))
    assert (played.first.output, played.last.output) == ("over", "before")


# Native calls


def read_by_model(played: Played, call: int) -> list[Message]:
    return list(played.model.requests[call].messages)


def unanswered(messages: list[Message]) -> set[int]:
    """Return the calls without a result right after their reply, and the results without a call."""
    wrong: set[int] = set()
    due: set[int] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            wrong ^= {message.call_id} - due
            due.discard(message.call_id)
        else:
            wrong |= due
            due = {call.call_id for call in getattr(message, "tool_calls", ())}
    return wrong | due


def test_native_calls_that_were_not_offered_run_like_any_other(memory: Place) -> None:
    """Ours: they go through the same dispatch, and each has its result."""
    played = misbehave(memory, asks(("look", {"key": "a"}), ("lok", {})), "over")
    assert results(played.first.messages)[1:] == ["seen a", "UNKNOWN_TOOL"]
    assert all(not request.tools for request in played.model.requests)
    assert unanswered(read_by_model(played, -1)) == set()
    assert (played.ran, played.last.output) == (["a"], "before")


def test_a_native_call_of_run_code_is_a_cell_and_later_text_for_the_model(memory: Place) -> None:
    """Bug: the model's provider was sent a call without a result."""
    played = misbehave(memory, native("kept = look('a')"), "over")
    assert played.last.output == "seen a"
    messages = read_by_model(played, -1)
    assert unanswered(messages) == set()
    spoken = [one for one in messages if isinstance(one, AssistantMessage)]
    assert (spoken[1].text, spoken[1].tool_calls) == ("```python\nkept = look('a')\n```", ())


def test_a_cell_and_native_calls_in_one_reply_all_run(place: Place) -> None:
    """Bug: the report of the cell was placed between a call and its result."""
    reply = {
        "text": cell("kept = look('a')"),
        **asks(("look", {"key": "b"}), ("run_code", {"code": "look('c')"})),
    }
    played = misbehave(place, reply, "over")
    assert sorted(played.ran) == ["a", "b"]
    assert results(played.first.messages)[2:] == ["seen b", "INVALID_ARGUMENT"]
    messages = read_by_model(played, 2)
    assert unanswered(messages) == set()
    assert [type(one) for one in messages[-4:]] == [AssistantMessage, ToolMessage, UserMessage, UserMessage]
    assert "only the first cell of a reply is run" in played.read(2)[-1]
    assert played.last.output == "seen a"


NATIVE_BEFORE, NATIVE_AFTER = native("kept = 'before'"), native("finish(kept)")


def misbehave_natively(place: Place, *bad: Any, **options: Any) -> Played:
    options.setdefault("protocol", CodeProtocol(cells="tool_call"))
    return play(place, NATIVE_BEFORE, *bad, NATIVE_AFTER, turns=("go", "and now"), **options)


@pytest.mark.parametrize(
    "options",
    [{"protocol": CodeProtocol(cells="tool_call")}, {"protocol": "standard", "plugins": [CodeMode()]}],
    ids=["protocol", "mode"],
)
def test_only_the_first_of_several_native_cells_runs(place: Place, options: dict[str, Any]) -> None:
    """Ours: one cell runs per step, however it is sent; the other calls of the reply run."""
    reply = asks(
        ("run_code", {"code": "kept = look('a')"}),
        ("look", {"key": "b"}),
        ("run_code", {"code": "kept = look('c')"}),
    )
    played = misbehave_natively(place, reply, "over", **options)
    assert sorted(played.ran) == ["a", "b"]
    assert results(played.first.messages)[2:] == ["seen b", "INVALID_ARGUMENT"]
    refused = played.first.messages[-2]
    assert isinstance(refused, ToolMessage)
    assert refused.error is not None
    assert refused.error.message == "only the first cell of a reply is run; this one was not"
    assert unanswered(read_by_model(played, -1)) == set()
    assert played.last.output == "seen a"


@pytest.mark.parametrize(
    "arguments", ["{not json", "[]", '"x"', {}, {"code": 5}, {"cod": "x"}, {"code": "x", "language": "bash"}]
)
def test_native_cells_with_invalid_arguments_are_refused(memory: Place, arguments: Any) -> None:
    """Ours: the arguments of run_code are validated like those of any tool."""
    played = misbehave_natively(memory, asks(("run_code", arguments)), "over")
    assert results(played.first.messages)[1] == "INVALID_ARGUMENT"
    assert (played.first.output, played.last.output) == ("over", "before")


def test_a_fence_is_not_a_cell_if_cells_are_tool_calls(memory: Place) -> None:
    """Ours: with the option `cells="tool_call"`, a fence is part of the answer."""
    played = misbehave_natively(memory, cell("kept = look('a')"))
    assert played.first.output == cell("kept = look('a')")
    assert (played.ran, played.last.output) == ([], "before")


def test_a_session_survives_all_of_this_in_a_row(place: Place) -> None:
    """Ours: the session stays usable, and every cell is in the history."""
    bad = [
        cell("x = = 1"), "```bash\nls\n```", cell("kept = 1\nwhile True: pass"), cell("nope()"),
        cell("1 / 0"), cell("{1}"), asks(("nope", {})), native("kept = = 1"),
    ]  # fmt: skip
    good = [cell(f"number = {number}\nlen(history)") for number in range(len(bad))]
    script = [*itertools.chain(*zip(bad, good, strict=True)), "over"]
    played = misbehave(place, *script, protocol=CodeProtocol(limits=SMALL))
    assert (played.first.output, played.last.output) == ("over", "before")
    found = reports(played.first.messages)
    assert [one.index for one in found] == list(range(len(found)))
    assert [one.result for one in found if one.result is not None] == [2, 4, 6, 8, 10, 12, 13, 15]
