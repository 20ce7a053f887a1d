"""How code ends a turn: with an answer, or by continuing in a new frame."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from code_stand_ins import cell, finish, outcomes, reports
from code_turns import Played, coder_on, logging_tools, observations, play, read_of, take_turns
from stand_ins import Place, events_of, go_on, of_kind, said, until

from standfast import Session, tool
from standfast.model.approval import ApprovalState
from standfast.model.events import MessagesDelivered, TextStreamed
from standfast.model.message import AssistantMessage
from standfast.model.outcome import Finished, FrameSwitched, Stopped, StopReason, Waiting
from standfast.model.session import FrameOpened

pytestmark = pytest.mark.slow


@dataclass
class Order:
    """What some agents here answer with."""

    name: str
    cents: int = 0


# The answer


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'paid'", "paid"),
        ("''", ""),
        ("{'a': [1, 'b', None]}", '{"a":[1,"b",null]}'),
        ("3", "3"),
        ("(1, 2)", "[1,2]"),
        ("value='by name'", "by name"),
    ],
)
def test_finish_ends_the_turn_with_a_text(place: Place, expression: str, text: str) -> None:
    """Seed: SPEC 8, `finish(value)` ends the turn; a value that is not text becomes JSON."""
    played = play(place, finish(expression))
    assert played.first.outcome == Finished(text=text)
    assert played.first.output == text


def test_the_answer_is_streamed_and_stored(place: Place) -> None:
    """Ours: observers and readers of the session see the answer like that of any model."""
    played = play(place, f"I look.\n\n{cell('''finish(look('a'))''')}", turns=("go",))
    assert played.shown == ["I look.", "seen a"]
    spoken = [one.text for one in played.first.messages if isinstance(one, AssistantMessage)]
    assert spoken == ["I look.", "seen a"]


def test_the_next_turn_reads_the_answer_in_its_history(memory: Place) -> None:
    """Ours: the model sees its own earlier text."""
    played = play(memory, finish("'forty'"), "and two", turns=("a?", "b?"))
    messages = played.model.requests[-1].messages
    assert [one.text for one in messages if isinstance(one, AssistantMessage)] == [finish("'forty'"), "forty"]
    assert read_of(messages) == ["a?", "[cell 0] ok\nresult:\nforty", "b?"]


@pytest.mark.parametrize(
    ("kind", "expression", "output"),
    [
        (int, "1 + 1", 2),
        (str, "'text'", "text"),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, float], "{'a': 1}", {"a": 1.0}),
        (Order, "{'name': 'A1', 'cents': 5}", Order("A1", 5)),
        (bool, "True", True),
        (str | None, "None", None),
    ],
)
def test_the_answer_has_the_output_type(memory: Place, kind: Any, expression: str, output: Any) -> None:
    """Seed: `finish(value)` is validated against `output_type`."""
    assert play(memory, finish(expression), output_type=kind).first.output == output


def test_an_invalid_answer_is_a_value_error_that_code_may_catch(memory: Place) -> None:
    """Ours: code can catch the error and correct its answer."""
    code = """
        try:
            finish({"name": 5})
        except ValueError as error:
            print(error)
            finish({"name": "A1"})
    """
    played = play(memory, cell(code), output_type=Order)
    assert played.first.output == Order("A1")
    assert reports(played.first.messages)[0].stdout.startswith("the answer is not valid: Expected `str`")


def test_an_invalid_answer_that_is_not_caught_is_shown_to_the_model(place: Place) -> None:
    """Ours: the corrected next cell ends the turn."""
    played = play(place, finish("'three'"), finish("3"), output_type=int)
    assert observations(played.first.messages)[0] == (
        "[cell 0] failed\n"
        "error:\n"
        "RUNTIME_ERROR: ValueError: the answer is not valid: Expected `int`, got `str`\n"
        "  1 | finish('three')\n"
        "    | ^"
    )
    assert played.first.output == 3


def test_an_invalid_answer_at_the_end_of_longer_code_gets_the_same_message(memory: Place) -> None:
    """Ours: the message does not depend on whether the engine makes the last call, and variables are kept."""
    played = play(memory, cell("n = 'three'\nfinish(n)"), finish("len(n)"), output_type=int)
    assert observations(played.first.messages)[0] == (
        "[cell 0] failed\n"
        "error:\n"
        "RUNTIME_ERROR: ValueError: the answer is not valid: Expected `int`, got `str`\n"
        "  2 | finish(n)\n"
        "    | ^"
    )
    assert played.first.output == 5


def test_an_answer_at_the_end_of_longer_code_that_is_not_json_is_a_type_error(memory: Place) -> None:
    """Ours: the error is the same as in the middle of code."""
    played = play(memory, cell("f = len\nfinish(f)"), finish("3"), output_type=int)
    assert (
        "TypeError: an argument of finish() is not JSON: it holds" in observations(played.first.messages)[0]
    )


def test_an_answer_without_a_cell_is_validated_too(memory: Place) -> None:
    """Ours: a reply without a cell is the answer, validated against output_type."""
    played = play(memory, "three", finish("3"), output_type=int)
    assert "Your answer does not fit" in played.read()[-1]
    assert played.first.output == 3


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("{1, 2}", "TypeError: an argument of finish() is not JSON: it holds set"),
        ("look", "TypeError: an argument of finish() is not JSON: it holds function"),
        (
            "'x' * 2_000_000",
            "ValueError: the arguments of finish() are too large: the limit is 1048576 bytes as JSON",
        ),
        ("1, 2", "TYPE_ERROR: finish() takes 1 argument, 2 were given"),
    ],
)
def test_a_value_that_cannot_be_an_answer_is_refused(memory: Place, expression: str, problem: str) -> None:
    """Ours: the turn continues, and the model reads why."""
    played = play(memory, finish(expression), "over")
    assert problem in observations(played.first.messages)[0]
    assert played.first.output == "over"


# Where finish is called


@pytest.mark.parametrize(
    "code",
    [
        "def end():\n    finish(look('a'))\n    look('late')\nend()\nlook('late')",
        "async def end():\n    finish(await look('a'))\nawait end()\nlook('late')",
        "import asyncio\nasync def end(): finish(await look('a'))\nawait asyncio.gather(end())\nlook('late')",
        "finish(look('a')) if True else None\nlook('late')",
        "[finish(one) for one in [look('a'), 'b']]",
        "await finish(look('a'))",
    ],
    ids=["function", "coroutine", "task", "expression", "comprehension", "awaited"],
)
def test_finish_ends_the_turn_wherever_it_is_called(memory: Place, code: str) -> None:
    """Ours: no code after `finish` runs."""
    played = play(memory, cell(code))
    assert played.first.outcome == Finished(text="seen a")
    assert played.ran == ["a"]


def test_variables_bound_by_a_finished_cell_are_kept(place: Place) -> None:
    """Ours: the variables are those of the moment when the turn ended."""
    played = play(place, cell("x = 1\nfinish('a')\nx = 2"), finish("x"), turns=("a", "b"))
    assert played.last.output == "1"


def test_calls_still_running_when_a_task_finishes_are_awaited(memory: Place) -> None:
    """Ours: every call has its result before the turn ends, even if no code awaits it."""
    gate = asyncio.Event()

    @tool(side_effect="write", loop="runtime")
    async def slow() -> str:
        """Take as long as the answer is not shown."""
        await gate.wait()
        return "slow"

    code = """
        import asyncio
        async def end():
            finish(await look("a"))
        await asyncio.gather(slow(), end())
    """

    async def main() -> None:
        agent, _ = coder_on(cell(code), tools=[slow, *logging_tools([])])
        async with memory.runtime() as runtime:
            turn = (await runtime.session("s", agent=agent)).turn("go")
            async for event in turn:
                if isinstance(event, TextStreamed):
                    gate.set()
            result = await turn
            assert result.output == "seen a"
            assert [(one.name, one.status) for one in result.calls] == [("look", "ok"), ("slow", "ok")]
            told = observations(result.messages)[0]
            assert "slow() -> error: the code ended before it had the result" in told

    asyncio.run(main())


def test_a_call_that_waits_for_approval_is_abandoned_when_a_task_finishes(place: Place) -> None:
    """Ours: no approval is requested for a call that no code awaits."""
    ran: list[Any] = []

    @tool(side_effect="write", approval="manual")
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    code = """
        import asyncio
        async def end():
            finish(await look("a"))
        await asyncio.gather(pay(), end())
    """

    async def main() -> None:
        agent, model = coder_on(cell(code), "next", tools=[*logging_tools(ran), pay])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            played = Played(model)
            await take_turns(session, played, ["go", "on"])
            assert [one.output for one in played.results] == ["seen a", "next"]
            assert [one.state for one in await session.approvals()] == [ApprovalState.CANCELLED]
            assert ran == ["a"]

    asyncio.run(main())


def test_a_frame_requested_before_the_turn_waited_is_opened(place: Place) -> None:
    """Bug: a frame that was requested before the turn waited was lost with the process."""

    @tool(side_effect="read", approval="manual")
    async def ask() -> str:
        """Ask a person."""
        return "yes"

    code = """
        import asyncio
        async def end():
            try:
                continue_as("the task", "the seed")
            except SystemExit:
                pass
        await asyncio.gather(ask(), end())
    """

    async def main() -> None:
        agent, _ = coder_on(cell(code), "done", tools=[ask])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            first = await session.turn("go").settled()
            assert isinstance(first.outcome, Waiting)
            (approval,) = await session.approvals()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.approve(approval.approval_id)
            assert isinstance(result.outcome, FrameSwitched)
            assert result.outcome.switch.task == "the task"
            assert read_of(result.outcome.switch.seed) == ["the seed"]
            await until(lambda: has_turns(session, 2))

    asyncio.run(main())


# Deferred ends


def test_a_message_before_completion_defers_the_end(place: Place) -> None:
    """Ours: the model sees the message and answers again, as after any answer."""
    sessions: list[Session[Any]] = []

    @tool(side_effect="read", loop="runtime")
    async def slow() -> str:
        """Run while the user sends a message."""
        await sessions[0].inject("one more thing")
        return "slow"

    async def main() -> None:
        agent, model = coder_on(
            cell("found = slow()\nfinish('first ' + found)"), finish("'second ' + found"), tools=[slow]
        )
        async with place.runtime() as runtime:
            sessions.append(await runtime.session("s", agent=agent))
            turn = sessions[0].turn("go")
            events = await events_of(turn)
            result = await turn
            assert result.output == "second slow"
            assert said(of_kind(MessagesDelivered, events)[0].messages) == ["one more thing"]
            assert read_of(model.requests[1].messages)[-1] == "one more thing"
            spoken = [one.text for one in result.messages if isinstance(one, AssistantMessage)]
            assert spoken == ["", "first slow", "", "second slow"]

    asyncio.run(main())


# Frames


async def has_turns(session: Session[Any], count: int) -> bool:
    """Return whether `count` turns have ended."""
    turns = await session.turns()
    return len(turns) == count and turns[-1].summary is not None


@pytest.mark.parametrize(
    ("arguments", "seeds"),
    [
        ("'the task', 'a seed'", ["a seed"]),
        ("'the task', {'sum': 5}", ['{"sum":5}']),
        ("task='the task', seed=['x']", ['["x"]']),
        ("'the task'", []),
    ],
)
def test_continue_as_continues_in_a_frame_that_has_only_the_seed(
    place: Place, arguments: str, seeds: list[str]
) -> None:
    """Seed: `continue_as(task, seed)` opens a frame; variables are kept, `history` starts empty."""
    code = f"x = look('a')\nprint('long ago')\ncontinue_as({arguments})\nlook('late')"

    async def main() -> None:
        ran: list[Any] = []
        script = [
            cell("1"),
            cell(code),
            finish("[x, history]"),
            finish("[x, len(history), history[0]['code']]"),
        ]
        agent, model = coder_on(*script, tools=logging_tools(ran))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            first = await session.turn("go").settled()
            assert isinstance(first.outcome, FrameSwitched)
            await until(lambda: has_turns(session, 2))
            second = await session.follow((await session.turns())[1].turn_id)
            assert second.output == '["seen a",[]]'
            assert read_of(model.requests[2].messages) == [*seeds, "the task"]
            assert [one.index for one in reports(second.messages)] == [0]
            third = await session.turn("more")
            assert third.output == '["seen a",1,"finish([x, history])"]'
            assert ran == ["a"]
            opened = [one.payload for one in await session.nodes() if isinstance(one.payload, FrameOpened)]
            assert [one.switch.reason for one in opened] == ["continue_as"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("''", "ValueError: continue_as() takes a task, as text"),
        ("'  '", "ValueError: continue_as() takes a task, as text"),
        ("5", "TYPE_ERROR: continue_as(): task is 5, not string"),
        ("", "TYPE_ERROR: continue_as()"),
        ("[5][0]", "ValueError: continue_as() takes a task, as text"),
        ("'task', look", "TypeError: an argument of continue_as() is not JSON: it holds function"),
    ],
)
def test_a_value_that_cannot_be_a_task_is_refused(memory: Place, arguments: str, problem: str) -> None:
    """Ours: the turn continues, and the model reads why."""
    played = play(memory, cell(f"continue_as({arguments})"), "over")
    assert problem in observations(played.first.messages)[0]
    assert played.first.output == "over"


def test_a_cell_that_fails_hard_opens_no_new_frame(memory: Place) -> None:
    """Ours: the cell's changes and its requested ending are discarded."""
    code = "try:\n    continue_as('task')\nexcept BaseException:\n    pass\nx = [0] * 10**11"
    played = play(memory, cell(code), "over")
    assert (played.first.output, outcomes(played.first.messages)) == ("over", ["MEMORY_EXCEEDED"])


def test_a_turn_that_waits_in_a_cell_may_be_cancelled(place: Place) -> None:
    """Ours: the cell is abandoned, and the next turn has the variables from before it."""

    @tool(side_effect="read", approval="manual")
    async def ask() -> str:
        """Ask a person."""
        return "yes"

    async def main() -> None:
        agent, _ = coder_on(cell("x = 1"), cell("x = 2\nask()"), finish("x"), tools=[ask])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert isinstance((await session.turn("go").settled()).outcome, Waiting)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await session.cancel()
            result = await go_on_or_last(session)
            assert isinstance(result.outcome, Stopped)
            assert result.outcome.reason is StopReason.CANCELLED
            assert (await session.turn("and now")).output == "1"

    asyncio.run(main())


async def go_on_or_last(session: Session[Any]) -> Any:
    turns = await session.turns()
    if turns[-1].summary is None or isinstance(turns[-1].summary.outcome, Waiting):
        return await go_on(session)
    return await session.follow(turns[-1].turn_id).settled()
