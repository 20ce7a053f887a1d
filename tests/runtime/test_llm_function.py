"""`llm(...)` in code, and `RunContext.complete` in tools: model calls from inside a turn."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from code_stand_ins import AnsweringModel, RecordingModel, cell, finish, outcomes, reports
from stand_ins import Place, asks

from standfast import Agent, ModelError, RunContext, UsageLimits, tool
from standfast.errors import InvalidArgument
from standfast.model.events import ToolCallSettled
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import AssistantMessage, Message, UserMessage
from standfast.model.outcome import Stopped, StopReason
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.providers.scripted import ScriptedModel

Answer = Callable[[str], str | Exception]
Start = Callable[..., Any]


def asking(answer: Answer, *cells: str, **options: Any) -> tuple[Agent[Any, Any], RecordingModel]:
    """Return an agent that writes these cells, and a model that answers their questions."""
    model = RecordingModel(AnsweringModel(cells, answer))
    return Agent(model, protocol="code", **options), model


def asked(model: RecordingModel) -> list[ModelRequest]:
    """Return the requests made by code."""
    return [one for one in model.requests if ".plugin." in one.idempotency_key]


def lines(usage: tuple[UsageEntry, ...]) -> dict[str, Usage]:
    return {one.source: one.usage for one in usage}


# Questions


def test_code_can_ask_a_model_for_a_text(place: Place) -> None:
    """Ours: only the prompt is sent, not the conversation."""

    async def main() -> None:
        agent, model = asking(lambda prompt: prompt.upper(), cell('x = llm("hello")'), finish("x"))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go")).output == "HELLO"
        (request,) = asked(model)
        assert request.messages == [UserMessage(content="hello")]
        assert (request.instructions, request.tools, request.output_schema) == ("", (), None)

    asyncio.run(main())


def test_data_and_instructions_are_sent_with_the_prompt(memory: Place) -> None:
    """Ours: data is sent as text if it is text, else as JSON."""

    async def main() -> None:
        code = """
        llm("Sum up:", data="a text")
        await llm("Count:", data={"rows": [1, None]}, instructions="Be brief.")
        """
        agent, model = asking(lambda prompt: "ok", cell(code), finish("1"))
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=agent)).turn("go")
        first, second = asked(model)
        assert first.messages == [UserMessage(content="Sum up:\n\na text")]
        assert second.messages == [UserMessage(content='Count:\n\n{"rows":[1,null]}')]
        assert second.instructions == "Be brief."

    asyncio.run(main())


@pytest.mark.parametrize("answer", ['{"late": true}', ' {"late":true}\n', '```json\n{"late": true}\n```'])
def test_with_a_schema_the_answer_is_a_value(memory: Place, answer: str) -> None:
    """Ours: the provider gets the schema, and a value in a code fence is found."""

    async def main() -> None:
        schema = {"type": "object", "properties": {"late": {"type": "boolean"}}, "required": ["late"]}
        code = f"found = llm('Is it late?', schema={schema!r})\nfinish(found['late'])"
        agent, model = asking(lambda prompt: answer, cell(code))
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert result.output == "true"
        assert asked(model)[0].output_schema == schema

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "told"),
    [("no idea", "did not answer with JSON"), ('{"late": 3}', "does not match the schema"), ("", "JSON")],
)
def test_an_answer_that_does_not_match_its_schema_raises_a_value_error(
    memory: Place, answer: str, told: str
) -> None:
    """Ours: code can catch it and ask again."""

    async def main() -> None:
        schema = {"type": "object", "properties": {"late": {"type": "boolean"}}}
        code = f"""
        try:
            llm("Is it late?", schema={schema!r})
        except ValueError as error:
            problem = str(error)
        """
        agent, _ = asking(lambda prompt: answer, cell(code), finish("problem"))
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert told in str(result.output)

    asyncio.run(main())


@pytest.mark.parametrize("schema", ["{'type': 'nonsense'}", "{'$ref': '#/nowhere'}", "{'pattern': '('}"])
def test_an_invalid_schema_raises_an_exception(memory: Place, schema: str) -> None:
    """Ours: the turn continues, whatever the code passes."""

    async def main() -> None:
        agent, _ = asking(lambda prompt: "{}", cell(f"llm('x', schema={schema})"), "sorry")
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert result.output == "sorry"
            assert reports(result.messages)[0].error is not None

    asyncio.run(main())


def test_many_questions_can_be_asked_concurrently(memory: Place) -> None:
    """Ours: with `gather` the questions run concurrently, and the answers are in order."""

    async def main() -> None:
        under_way = most = 0
        all_there = asyncio.Event()

        class Slow(AnsweringModel):
            async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
                nonlocal under_way, most
                if ".plugin." in request.idempotency_key:
                    under_way += 1
                    most = max(most, under_way)
                    if under_way == 5:
                        all_there.set()
                    await all_there.wait()
                async for delta in super().stream(request):
                    yield delta

        code = """
        import asyncio
        found = await asyncio.gather(*[llm(f"q{number}") for number in range(5)])
        """
        agent = Agent(Slow([cell(code), finish("found")], lambda prompt: f"a {prompt}"), protocol="code")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert outcomes(result.messages)[-1] == [f"a q{number}" for number in range(5)]
            assert most == 5
            assert lines(await session.usage())["llm"].calls == 5

    asyncio.run(main())


def test_answers_that_arrive_one_after_the_other_are_all_charged(memory: Place) -> None:
    """Bug: the ledger missed replies that arrived after another call had its result."""

    async def main() -> None:
        first_is_over = asyncio.Event()

        class Uneven(AnsweringModel):
            async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
                if "slow" in str(request.messages[-1]) and ".plugin." in request.idempotency_key:
                    await first_is_over.wait()
                async for delta in super().stream(request):
                    yield delta

        agent = Agent(
            Uneven(
                [cell("import asyncio\nx = await asyncio.gather(llm('slow'), llm('fast'))"), finish("x")], str
            ),
            protocol="code",
        )
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            turn = session.turn("go")
            async for event in turn:
                if isinstance(event, ToolCallSettled):
                    first_is_over.set()
            assert (await turn).usage == Usage(input=22, output=8, calls=4, priced=4)
            assert lines(await session.usage())["llm"] == Usage(input=20, output=6, calls=2, priced=2)

    asyncio.run(main())


def test_every_question_has_its_own_call_number(memory: Place) -> None:
    """Ours: every model call of a session has its own number, so that a script can answer each."""

    async def main() -> None:
        code = "import asyncio\nfound = await asyncio.gather(llm('a'), llm('b'))\nfound.append(llm('c'))"
        model = RecordingModel(ScriptedModel([cell(code), "one", "two", "three", finish("found"), "bye"]))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, protocol="code"))
            result = await session.turn("go")
            assert result.output == '["one","two","three"]'
            assert (await session.turn("more")).output == "bye"
        assert sorted(one.call_number for one in model.requests) == [1, 2, 3, 4, 5, 6]
        keys = [one.idempotency_key for one in model.requests]
        assert len(set(keys)) == len(keys)

    asyncio.run(main())


# Cost


def test_model_calls_of_code_are_in_the_ledger_under_their_own_name(place: Place) -> None:
    """Ours: the ledger and the turn's usage include the call."""

    async def main() -> None:
        code = "a = llm('one')\nb = llm('two')"
        agent, _ = asking(str, cell(code), finish("a + b"))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert lines(await session.usage()) == {
                "turn": Usage(input=2, output=2, calls=2, priced=2),
                "llm": Usage(input=20, output=6, calls=2, priced=2),
            }
            assert result.usage == Usage(input=22, output=8, calls=4, priced=4)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert lines(await session.usage())["llm"] == Usage(input=20, output=6, calls=2, priced=2)

    asyncio.run(main())


def test_model_calls_of_code_count_against_the_turns_tokens(memory: Place) -> None:
    """Ours: a loop of questions reaches the budget like any other call, and the model gets a last step."""

    async def main() -> None:
        code = cell("n = 0\nwhile n < 10:\n    n += 1\n    llm(str(n))")
        agent, model = asking(str, code, code, code, limits=UsageLimits(max_tokens=100))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go").settled()
            assert isinstance(result.outcome, Stopped)
            assert result.outcome.reason is StopReason.TURN_BUDGET
            assert len(asked(model)) == 8  # the last one exceeded the limit, and no more followed
            assert "the limit is 100" in str(result.messages)
            assert any("last step" in str(one) for one in result.messages)

    asyncio.run(main())


def test_a_failed_question_does_not_affect_the_usage_of_the_others(memory: Place) -> None:
    """Ours: code can catch the exception; the calls that were answered are counted."""

    async def main() -> None:
        def answer(prompt: str) -> str | Exception:
            return ModelError("the provider is down", code="PROVIDER_ERROR") if prompt == "bad" else "fine"

        code = """
        found = [llm("good")]
        try:
            llm("bad")
        except RuntimeError as error:
            found.append(str(error))
        found.append(llm("good"))
        """
        agent, _ = asking(answer, cell(code), finish("found"))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            good, bad, again = outcomes(result.messages)[-1]
            assert (good, again) == ("fine", "fine")
            assert "the provider is down" in bad
            assert lines(await session.usage())["llm"] == Usage(input=20, output=6, calls=2, priced=2)

    asyncio.run(main())


def test_an_uncaught_failure_of_a_question_fails_the_cell_and_not_the_turn(memory: Place) -> None:
    """Ours: the model reads the error, and may continue without the answer."""

    async def main() -> None:
        agent, _ = asking(lambda prompt: ModelError("down"), cell("llm('x')"), "I know it myself")
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
            assert result.output == "I know it myself"
            (report,) = reports(result.messages)
            assert "down" in str(report.error)

    asyncio.run(main())


# Tools


def test_a_users_tool_can_ask_the_sessions_model(place: Place) -> None:
    """Ours: `ctx.complete` takes messages or a text, and is charged under its own name."""

    @tool(side_effect="read")
    async def judged(ctx: RunContext[None], text: str) -> str:
        """Judge a text."""
        said: list[Message] = [
            UserMessage(content="Judge."),
            AssistantMessage(text="What?"),
            UserMessage(content=text),
        ]
        return await ctx.complete(said, instructions="Be kind.", source="judge")

    @tool(side_effect="read")
    async def plain(ctx: RunContext[None], text: str) -> str:
        """Ask."""
        return await ctx.complete(text)

    async def main() -> None:
        model = RecordingModel(
            ScriptedModel([asks(("judged", {"text": "a"}), ("plain", {"text": "p"})), "nice", "yes", "end"])
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[judged, plain]))
            assert (await session.turn("go")).output == "end"
            assert sorted(lines(await session.usage())) == ["judge", "tool", "turn"]
        request = next(one for one in model.requests if one.instructions == "Be kind.")
        assert [type(one) for one in request.messages] == [UserMessage, AssistantMessage, UserMessage]
        agent, _ = asking(lambda prompt: f"judged {prompt}", finish("judged('x')"), tools=[judged])
        async with place.runtime() as runtime:
            session = await runtime.session("coded", agent=agent)
            assert (await session.turn("go")).output == "judged x"
            assert lines(await session.usage())["judge"].calls == 1

    asyncio.run(main())


def test_a_context_outside_of_a_turn_has_no_model() -> None:
    """Ours: this includes a context made by hand."""
    context: RunContext[None] = RunContext(deps=None)
    with pytest.raises(InvalidArgument, match="within an agent's turn"):
        asyncio.run(context.complete("hello"))


# Crashes

PROGRAM = """
import asyncio, json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from code_stand_ins import AnsweringModel, cell, finish, outcomes
from standfast import Agent, Runtime, tool

DATABASE, LEDGER, DIES = sys.argv[2], sys.argv[3], sys.argv[4]

def note(line):
    handle = os.open(LEDGER, os.O_WRONLY | os.O_APPEND)
    os.write(handle, (line + "\\n").encode())
    os.close(handle)

def answer(prompt):
    note(prompt)
    return "a " + prompt

@tool(side_effect="external_system", on_interrupted="retry")
async def stamp(what: str) -> str:
    if DIES == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return "stamped " + what

CODE = cell('''
import asyncio
found = await asyncio.gather(llm("one"), llm("two"))
found.append(stamp("it"))
found.append(llm("three"))
''')

class Model(AnsweringModel):
    async def stream(self, request):
        if ".plugin." in request.idempotency_key:
            async for delta in super().stream(request):
                yield delta
            return
        from standfast.model.limits import Usage
        from standfast.ports.model_provider import ReplyEnded
        number = sum("```" in getattr(one, "text", "") for one in request.messages)
        yield ReplyEnded(text=[CODE, finish("found")][number], usage=Usage(input=1, output=1, calls=1))

async def main():
    async with Runtime(DATABASE) as runtime:
        session = await runtime.session("s", agent=Agent(Model([], answer), protocol="code", tools=[stamp]))
        if DIES == "dies":
            await session.turn("go")
        turn = await session.resume()
        result = await (turn or session.follow((await session.turns())[-1].turn_id)).settled()
        usage = {one.source: [one.usage.input, one.usage.calls] for one in await session.usage()}
        print(json.dumps([result.status, outcomes(result.messages)[-1], usage]))

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_crash_neither_loses_nor_duplicates_model_calls_of_code(
    child: Start, tmp_path: Path, ledger: Path
) -> None:
    """Ours: known answers are not requested again, and are charged once."""

    def start(dies: str) -> Any:
        return child(PROGRAM, Path(__file__).parent, tmp_path / "standfast.db", ledger, dies)

    assert start("dies").process.wait(30) == -signal.SIGKILL
    assert sorted(ledger.read_text().split()) == ["one", "two"]
    status, found, usage = json.loads(start("lives").output())
    assert (status, found) == ("finished", ["a one", "a two", "stamped it", "a three"])
    assert sorted(ledger.read_text().split()) == ["one", "three", "two"]
    assert usage == {"turn": [2, 2], "llm": [30, 3]}
