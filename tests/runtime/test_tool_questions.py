"""Tools that ask a person a question, report their progress, and show attachments to the model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, go_on

from standfast import Agent, AskPerson, RunContext, Runtime, Sandbox, tool
from standfast.errors import InvalidArgument
from standfast.model.directive import ShortCircuitTool
from standfast.model.events import ToolReported
from standfast.model.message import AttachmentPart, ToolMessage
from standfast.plugins.contexts import ToolResultHookContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.result import WaitingTurn

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "integer", "default": 1}},
    "required": ["city"],
}
executed: list[int] = []


@tool
def forecast(ctx: RunContext[None], units: str) -> str | AskPerson:
    """Return the weather where a person wants it."""
    executed.append(ctx.attempt)
    if ctx.answer is None:
        return AskPerson("Where?", CITY, state={"asked": units})
    return f"{ctx.answer.value} {ctx.answer.state} {ctx.answer.by}"


def _agent(*tools: Any, calls: list[dict[str, Any]]) -> Agent[None, str]:
    return Agent(ScriptedModel([{"tool_calls": calls}, "done"]), tools=list(tools))


_FORECAST = [{"name": "forecast", "arguments": {"units": "C"}}]


def test_a_person_in_another_process_can_answer_a_tools_question(place: Place) -> None:
    """Ours: `AskPerson` parks the turn; the call is executed again with the answer and its state."""
    executed.clear()

    async def ask() -> str:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=_agent(forecast, calls=_FORECAST))
            assert isinstance(await session.turn("go"), WaitingTurn)
            [approval] = await runtime.approvals(pending=True)
            assert (approval.reason, approval.kwargs) == ("Where?", {"days": 1})
            assert approval.answer_schema == CITY
            return approval.approval_id

    approval_id = asyncio.run(ask())

    async def answer() -> Any:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=_agent(forecast, calls=_FORECAST))
            with pytest.raises(InvalidArgument, match="city"):
                await runtime.approve(approval_id)
            await runtime.approve(approval_id, arguments={"city": "Oslo", "days": 2}, decided_by="ann")
            return await go_on(session)

    [result] = [one for one in asyncio.run(answer()).messages if isinstance(one, ToolMessage)]
    assert result.value == "{'city': 'Oslo', 'days': 2} {'asked': 'C'} ann"
    assert result.edited_arguments is None
    assert executed == [1, 2]


def test_a_denied_question_fails_the_call() -> None:
    """Ours: a denial ends the call without another execution."""
    executed.clear()

    async def run() -> Any:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=_agent(forecast, calls=_FORECAST))
            await session.turn("go")
            [approval] = await runtime.approvals(pending=True)
            await runtime.deny(approval.approval_id)
            return await go_on(session)

    [result] = [one for one in asyncio.run(run()).messages if isinstance(one, ToolMessage)]
    assert result.error is not None
    assert result.error.code == "PERMISSION_DENIED"
    assert executed == [1]


def test_a_declined_question_runs_the_call_again_if_its_tool_requests_that() -> None:
    """Ours: a tool that relays a question must also relay the refusal."""

    @tool
    def relay(ctx: RunContext[None]) -> str | AskPerson:
        if ctx.answer is None:
            return AskPerson("Where?", CITY, state={"asked": "C"}, declinable=True)
        return f"{ctx.answer.action} {ctx.answer.value} {ctx.answer.state} {ctx.answer.by}"

    async def run() -> Any:
        async with Runtime() as runtime:
            agent = _agent(relay, calls=[{"name": "relay", "arguments": {}}])
            session = await runtime.session("s", agent=agent)
            await session.turn("go")
            [approval] = await runtime.approvals(pending=True)
            await runtime.deny(approval.approval_id, decided_by="ann")
            return await go_on(session)

    [result] = [one for one in asyncio.run(run()).messages if isinstance(one, ToolMessage)]
    assert result.value == "decline {} {'asked': 'C'} ann"


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": "object", "$ref": "https://example.org/x"}, {"type": 3}]
)
def test_a_question_without_a_usable_schema_fails_the_call(schema: dict[str, Any]) -> None:
    """Ours: the answer must be an object, and no schema is fetched."""

    @tool
    def ask() -> AskPerson:
        return AskPerson("?", schema)

    async def run() -> Any:
        async with Runtime() as runtime:
            agent = _agent(ask, calls=[{"name": "ask", "arguments": {}}])
            return await (await runtime.session("s", agent=agent)).turn("go")

    [result] = [one for one in asyncio.run(run()).messages if isinstance(one, ToolMessage)]
    assert result.error is not None
    assert result.error.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("question", ["caf\udce9?", 5, None])
def test_a_question_that_is_not_text_fails_the_call(place: Place, question: Any) -> None:
    """Bug: a lone surrogate left the turn unfinished for ever, and a number made all approvals unreadable."""

    @tool
    def ask() -> AskPerson:
        return AskPerson(question)

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=_agent(ask, calls=[{"name": "ask", "arguments": {}}]))
            [result] = [one for one in (await session.turn("go")).messages if isinstance(one, ToolMessage)]
            assert result.error is not None
            assert result.error.code == "INVALID_ARGUMENT"
            assert await runtime.approvals() == []

    asyncio.run(main())


def test_a_tool_can_report_progress_and_show_an_image() -> None:
    """Ours: reports are live events; shown attachments reach the model after the results."""
    requests: list[Any] = []

    class Watching(ScriptedModel):
        def stream(self, request: Any) -> Any:
            requests.append(request)
            return super().stream(request)

    @tool
    async def paint(ctx: RunContext[None]) -> str:
        ctx.report("progress", {"done": 1})
        ctx.attachments.keep(b"png", media_type="image/png", shown=True)
        ctx.attachments.keep(b"log", media_type="text/plain")
        return "painted"

    async def run() -> list[Any]:
        model = Watching([{"tool_calls": [{"name": "paint", "arguments": {}}]}, "done"])
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[paint]))
            return [one async for one in session.turn("go") if isinstance(one, ToolReported)]

    [event] = asyncio.run(run())
    assert (event.kind, event.body) == ("progress", {"done": 1})
    shown = [part for part in requests[-1].messages[-1].content if isinstance(part, AttachmentPart)]
    assert [part.media_type for part in shown] == ["image/png"]


def test_a_tool_can_send_the_model_texts_next_to_its_value() -> None:
    """Ours: texts next to a value follow it; a failure, or a plugin's own result, has none."""
    seen: list[Any] = []

    class Watching(ScriptedModel):
        def stream(self, request: Any) -> Any:
            seen.append([one.shown for one in request.messages if isinstance(one, ToolMessage)])
            return super().stream(request)

    @tool
    def look(ctx: RunContext[None], how: str) -> dict[str, int]:
        ctx.attachments.add_text("the door is open \ud800")
        if how == "badly":
            raise ValueError("too dark")
        return {"doors": 1}

    class Judge(Plugin):
        id = "judge"

        @hook
        async def after_tool_call(self, ctx: ToolResultHookContext) -> ShortCircuitTool | None:
            if ctx.arguments["how"] == "again":
                return ShortCircuitTool(value="replaced")
            if ctx.arguments["how"] == "closely":
                ctx.attachments.add_text("and the window")
            return None

    def turn(*plugins: Plugin) -> list[str | None]:
        asked = [{"name": "look", "arguments": {"how": how}} for how in ("once", "badly", "again", "closely")]
        model = Watching([{"tool_calls": asked}, "done"])
        assert Agent(model, tools=[look], plugins=plugins).run_sync("go").output == "done"
        return list(seen[-1])

    text = '{"doors":1}\n\nthe door is open ?'
    assert turn() == [text, None, text, text]
    assert turn(Judge()) == [text, None, None, f"{text}\nand the window"]


def test_a_question_suspends_a_sandbox_run_until_it_is_answered() -> None:
    """Ours: code resumes with the answer, in the middle of an expression."""

    async def run() -> Any:
        async with Sandbox(tools=[forecast]) as box:
            waiting = await box.run("'> ' + forecast('C')")
            assert waiting.status == "waiting_for_approval"
            [approval] = await box.approvals(pending=True)
            return await box.approve(approval.approval_id, kwargs={"city": "Rome"}, decided_by="bob")

    assert asyncio.run(run()).result == "> {'city': 'Rome'} {'asked': 'C'} bob"
