"""Code mode: a tool `run_code` next to the native ones, with the same executor as the code protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from code_stand_ins import RecordingModel, outcomes, reports
from stand_ins import Place, agent_of, asks, results

from standfast import Agent, Runtime, UsageLimits, tool
from standfast.errors import Code, PluginConflict
from standfast.model.capability import CallStatus
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.model.outcome import FrameSwitched
from standfast.protocols.code.plugin import CodeMode, CodeProtocol
from standfast.providers.scripted import ScriptedModel


@tool(side_effect="read")
async def price(order: str) -> int:
    """Return the price of an order."""
    return 100 * len(order)


@tool(side_effect="external_system", approval="manual")
async def refund(order: str, cents: int) -> str:
    """Pay back."""
    return f"{order}: {cents}"


def code(text: str) -> tuple[str, dict[str, Any]]:
    """Return a call of run_code."""
    return ("run_code", {"code": text})


def clerk(*replies: Any, **options: Any) -> Agent[Any, Any]:
    return agent_of(*replies, tools=[price, refund], plugins=[CodeMode()], **options)


def test_native_calls_and_cells_can_be_mixed_in_one_session(place: Place) -> None:
    """Ours: a model can use native calls and code in one session."""

    async def main() -> None:
        agent = clerk(
            asks(("price", {"order": "AB"})),
            asks(code("total = sum(price(one) for one in ('A', 'BC'))\ntotal")),
            asks(("price", {"order": "ABC"})),
            "three hundred",
            asks(code("total + 1")),
            "and one",
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert result.output == "three hundred"
            first, cell, last = [one for one in result.messages if isinstance(one, ToolMessage)]
            assert (first.value, last.value) == (200, 300)
            assert (cell.name, outcomes([cell])) == ("run_code", [300])
            assert [one.name for one in result.calls] == ["price"] * 4
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert outcomes((await session.turn("more")).messages) == [301]

    asyncio.run(main())


def test_the_model_is_offered_run_code_next_to_its_tools_and_a_description_of_it(memory: Place) -> None:
    """Ours: native tools remain, the prompt describes code, and the model reads observations."""

    async def main() -> None:
        model = RecordingModel(ScriptedModel([asks(code("print('seen')\n[1, 2]")), "ok"]))
        async with memory.runtime() as runtime:
            agent = Agent(model, tools=[price, refund], plugins=[CodeMode()])
            await (await runtime.session("s", agent=agent)).turn("go")
        first, second = model.requests
        assert {one.name for one in first.tools} == {"price", "refund", "run_code"}
        assert "run_code runs a cell of Python" in first.instructions
        read = second.messages[-1]
        assert isinstance(read, ToolMessage)
        assert "seen" in str(read.shown)
        assert "[1,2]" in str(read.shown)

    asyncio.run(main())


def test_a_native_call_and_a_cell_run_in_one_reply(place: Place) -> None:
    """Ours: results come back in the order of the calls."""

    async def main() -> None:
        agent = clerk(
            asks(("price", {"order": "A"}), code("x = price('AB')\nx"), ("price", {"order": "ABC"})), "ok"
        )
        async with place.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            one, cell, other = [one for one in result.messages if isinstance(one, ToolMessage)]
            assert (one.value, outcomes([cell]), other.value) == (100, [200], 300)
            assert [one.call_id for one in (one, cell, other)] == [1, 2, 3]

    asyncio.run(main())


def test_a_native_call_and_a_cell_of_one_reply_can_both_wait(place: Place) -> None:
    """Ours: waits end independently, in any order and runtime."""

    async def main() -> None:
        agent = clerk(
            asks(
                ("refund", {"order": "A", "cents": 1}),
                code("x = refund('B', 2)\nx"),
                ("price", {"order": "A"}),
            ),
            "ok",
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waits = (await session.turn("go")).waits
            asked = {one.kwargs["order"]: one.approval_id for one in await session.approvals(pending=True)}
            assert len(waits) == len(asked) == 2
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.approve(asked["B"])).status == "waiting"
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.approve(asked["A"])
            native, cell, _ = [one for one in result.messages if isinstance(one, ToolMessage)]
            assert (native.value, outcomes([cell])) == ("A: 1", ["B: 2"])

    asyncio.run(main())


def test_an_approval_inside_a_cell_of_code_mode_suspends_the_cell(place: Place) -> None:
    """Ours: approvals work as in the code protocol."""

    async def main() -> None:
        agent = clerk(asks(code("done = [refund(o, price(o)) for o in ('A', 'BC')]\ndone")), "ok")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("go")
            waiting = await session.approve(waiting.waits[0].wait_id)
            result = await session.approve(waiting.waits[0].wait_id, arguments={"order": "BC", "cents": 1})
            assert outcomes(result.messages) == [["A: 100", "BC: 1"]]
            (report,) = reports(result.messages)
            assert [one.status for one in report.calls] == [CallStatus.OK] * 4

    asyncio.run(main())


def test_finish_inside_run_code_ends_the_turn(place: Place) -> None:
    """Ours: the answer appears as the model's text; calls of the same reply still get their results."""

    async def main() -> None:
        agent = clerk(asks(code("finish({'total': 3})"), ("price", {"order": "A"})), "next")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert result.output == '{"total":3}'
            assert results(result.messages)[1] == 100
            last = result.messages[-1]
            assert isinstance(last, AssistantMessage)
            assert (last.text, last.tool_calls) == ('{"total":3}', ())
            assert (await session.turn("again")).output == "next"

    asyncio.run(main())


def test_finish_inside_run_code_is_checked_against_the_output_type(memory: Place) -> None:
    """Ours: an invalid answer raises at the call, and the model may try again."""

    async def main() -> None:
        agent = clerk(asks(code("finish('many')")), asks(code("finish(3)")), output_type=int)
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert result.output == 3
            first, second = reports(result.messages)
            assert "is not valid" in str(first.error)
            assert second.finished

    asyncio.run(main())


def test_continue_as_inside_run_code_begins_a_frame(memory: Place) -> None:
    """Ours: the new frame has the variables but not the messages."""

    async def main() -> None:
        agent = clerk(asks(code("x = 7\ncontinue_as('go on', {'seen': x})")), asks(code("finish(x)")))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            turn = session.turn("go")
            result = await turn.settled()
            assert isinstance(result.outcome, FrameSwitched)
            while session._live.draining is not None and not session._live.draining.done():
                await asyncio.wait([session._live.draining])
            assert outcomes(await session.messages()) == [7]

    asyncio.run(main())


def test_only_the_first_of_two_cells_in_one_reply_runs(place: Place) -> None:
    """Ours: one cell runs per step; the other gets an error and has no effect."""

    async def main() -> None:
        agent = clerk(asks(code("x = 1"), code("y = 2"), ("price", {"order": "A"})), asks(code("x")), "ok")
        async with place.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            first, second, native, last = [one for one in result.messages if isinstance(one, ToolMessage)]
            assert outcomes([first, last]) == [None, 1]
            assert native.value == 100
            assert second.error is not None
            assert second.error.code == Code.INVALID_ARGUMENT
            assert "only the first cell" in second.error.message

    asyncio.run(main())


def test_run_code_cannot_be_called_from_a_cell(memory: Place) -> None:
    """Ours: a cell cannot run another cell."""

    async def main() -> None:
        agent = clerk(asks(code("run_code('1 + 1')")), "ok")
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            (report,) = reports(result.messages)
            assert report.error is not None

    asyncio.run(main())


def test_a_cell_that_fails_its_check_is_not_executed(memory: Place) -> None:
    """Ours: this applies in code mode as in the code protocol."""

    async def main() -> None:
        agent = clerk(asks(code("x = price('A')\nprise('B')")), asks(code("x")), "ok")
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert outcomes(result.messages) == [Code.UNKNOWN_TOOL, Code.RUNTIME_ERROR]
            assert result.calls == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    "arguments", ['{"code": 5}', "{}", '{"code": "1", "more": 2}', "[1]", '{"code": ""}']
)
def test_an_invalid_call_of_run_code_gets_an_error_result(memory: Place, arguments: str) -> None:
    """Ours: a model may send invalid arguments."""

    async def main() -> None:
        agent = clerk(asks(("run_code", arguments)), "sorry")
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert result.output == "sorry"
            (told,) = [one for one in result.messages if isinstance(one, ToolMessage)]
            assert told.error is not None

    asyncio.run(main())


def test_combining_code_mode_with_the_code_protocol_is_a_conflict_that_names_both() -> None:
    """Ours: a session has one executor, and the conflict is found at registration."""

    async def main() -> None:
        agent = agent_of("never", protocol="code", plugins=[CodeMode()])
        async with Runtime() as runtime:
            with pytest.raises(PluginConflict) as refused:
                await runtime.session("s", agent=agent)
            assert {refused.value.owner, refused.value.other} == {"code", "code-mode"}
            assert "'code'" in refused.value.message
            assert "'code-mode'" in refused.value.message

    asyncio.run(main())


def test_the_code_protocol_can_receive_cells_as_native_calls(place: Place) -> None:
    """Ours: `cells="tool_call"`; only run_code is offered, the tools are functions."""

    async def main() -> None:
        model = RecordingModel(
            ScriptedModel([asks(code("x = price('AB')")), {"text": "So:", **asks(code("finish(x)"))}])
        )
        async with place.runtime() as runtime:
            agent = Agent(model, protocol=CodeProtocol(cells="tool_call"), tools=[price])
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert result.output == "200"
        assert [one.name for one in model.requests[0].tools] == ["run_code"]
        assert "price" in model.requests[0].instructions

    asyncio.run(main())


def test_a_turn_with_code_mode_respects_its_limits(memory: Place) -> None:
    """Ours: rounds without progress end the turn, even if they are cells."""

    async def main() -> None:
        agent = Agent(
            ScriptedModel([asks(code("1 / 0"))] * 9, strict=False),
            plugins=[CodeMode()],
            limits=UsageLimits(max_no_progress=3),
        )
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go").settled()
            assert result.status == "stopped"
            assert len(reports(result.messages)) < 9

    asyncio.run(main())
