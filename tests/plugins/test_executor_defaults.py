"""Code executors that implement only a part of the interface."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_stand_ins import ObedientModel
from stand_ins import Place

from standfast import Agent, Plugin, tool
from standfast.errors import InvalidPlugin
from standfast.model.code import CellReport
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.turn_protocol import CodeExecutionContext, ExecRequest, ExecResponse
from standfast.ports.code_engine import CallAnswer, CellCall


@tool(side_effect="none")
async def run_code(code: str) -> str:
    """Run a cell."""
    raise AssertionError("the executor runs it")


@tool(side_effect="read")
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


class Bare:
    """An executor that has `execute_code` and nothing else."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse:
        self.heard.append(request)
        answers: asyncio.Queue[CallAnswer] = asyncio.Queue()
        ctx.ask(
            [CellCall(number=1, name="look", kwargs={"what": request.code})],
            lambda number, answer: answers.put_nowait(answer),
        )
        answer = await answers.get()
        self.heard.append(sorted(ctx.functions.names()))
        return ExecResponse(report=CellReport(index=0, result=answer.value))


class Speaks(Bare):
    """An executor that declares its language, its engine, and that code does not end turns."""

    language = "lua"
    accepts_finish = False


class Runs(Plugin):
    """A plugin that registers an executor and its tool."""

    id = "runs"

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def __deepcopy__(self, memo: Any) -> Runs:
        return Runs(self._executor)

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.tools.add(run_code)
        registrar.protocol.code_executor(self._executor)


def test_an_executor_needs_only_execute_code(place: Place) -> None:
    """Bug: such an executor was accepted, but the first turn failed with a bare AttributeError."""

    async def main() -> None:
        heard: list[Any] = []
        agent: Agent[Any, Any] = Agent(ObedientModel(), name="a", tools=[look], plugins=[Runs(Bare(heard))])
        for _ in range(2):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                result = await session.turn('call run_code:{"code":"pen"}')
                assert result.output == "ok"
                assert [call.name for call in result.calls] == ["look"]
                assert "seen pen" in str(result.messages[2])
        assert heard[:2] == [ExecRequest("python", "pen", True), ["look"]]

    asyncio.run(main())


def test_a_request_to_run_code_has_its_language_and_whether_it_may_finish(memory: Place) -> None:
    """Bug: the seed's ExecRequest.language was empty, and accept_finish always true."""

    async def main() -> None:
        heard: list[Any] = []
        agent: Agent[Any, Any] = Agent(ObedientModel(), tools=[look], plugins=[Runs(Speaks(heard))])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn('call run_code:{"code":"pen"}')
        assert heard[0] == ExecRequest("lua", "pen", False)

    asyncio.run(main())


class Trips:
    """An executor that fails when it runs code."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def execute_code(self, ctx: Any, request: Any) -> Any:
        if self.how == "raises":
            raise ValueError("no idea")
        return {"result": 1}


@pytest.mark.parametrize(
    ("how", "problem"),
    [("raises", "no idea"), ("answers", "not with ExecResponse")],
    ids=["raises", "answers"],
)
def test_an_executors_failure_names_its_plugin(memory: Place, how: str, problem: str) -> None:
    """Bug: an invalid answer raised an internal AttributeError."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent: Agent[Any, Any] = Agent(ObedientModel(), plugins=[Runs(Trips(how))])
            session = await runtime.session("s", agent=agent)
            result = await session.turn('call run_code:{"code":"pen"}')
            error = result.messages[2].error
            assert error is not None
            assert "plugin 'runs' failed in execute_code" in error.message
            assert problem in error.message

    asyncio.run(main())


class Forgetful(Bare):
    """An executor with a state but without the methods to store it."""

    def execution_state_dirty(self) -> bool:
        return True


class Plain:
    def execute_code(self, ctx: Any, request: Any) -> None: ...


@pytest.mark.parametrize(
    ("executor", "problem"),
    [
        (Forgetful([]), "code executor of plugin 'runs' has no method `snapshot_execution_state`"),
        (Plain(), "execute_code of plugin 'runs' is not `async def`"),
        (object(), "plugin 'runs' fills the slot code_executor with a object"),
    ],
    ids=["forgetful", "plain", "nothing"],
)
def test_an_executor_without_a_usable_default_is_refused_and_named(
    memory: Place, executor: Any, problem: str
) -> None:
    """Ours: otherwise the variables of such an executor would be lost without an error."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent: Agent[Any, Any] = Agent(ObedientModel(), plugins=[Runs(executor)])
            with pytest.raises(InvalidPlugin) as caught:
                await (await runtime.session("s", agent=agent)).turn("hello")
            assert problem in caught.value.message

    asyncio.run(main())
