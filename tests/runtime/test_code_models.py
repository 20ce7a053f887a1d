"""`llm(...)` in a cell: a model called from code, several times concurrently."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from code_stand_ins import cell, coder, outcomes

from standfast import Agent, Runtime
from standfast.model.limits import Usage
from standfast.model.message import UserMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded

THREE = cell("""
    import asyncio
    said = await asyncio.gather(llm("a"), llm("b"), llm("c"))
    finish("".join(said))
""")


class Choir:
    """A model that writes a cell with three questions, and answers none before all are asked."""

    model_id = "choir:1"

    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []
        self._all = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        if last.content == "go":
            yield ReplyEnded(text=THREE, usage=Usage(input=1))
            return
        self.asked.append(request)
        if len(self.asked) == 3:
            self._all.set()
        await self._all.wait()
        yield ReplyEnded(text=str(last.content).upper(), usage=Usage(input=10))

    async def close(self) -> None: ...


def test_concurrent_model_calls_have_separate_numbers_and_are_all_charged() -> None:
    """Bug: concurrent calls shared a number and a key, and the usage of all but the first was lost."""

    async def main() -> None:
        model = Choir()
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, protocol="code"))
            result = await session.turn("go")
            used = {line.source: line.usage for line in await session.usage()}
            head = await session.head()
        assert result.output == "ABC"
        assert [request.call_number for request in model.asked] == [2, 3, 4]
        assert len({request.idempotency_key for request in model.asked}) == 3
        assert (used["llm"].calls, used["llm"].input) == (3, 30)
        assert (used["turn"].calls, head.model_calls) == (1, 4)

    asyncio.run(main())


def test_concurrent_answers_of_a_script_are_each_used_once() -> None:
    """Bug: the answers of one script were given out twice."""
    replies: list[Any] = [THREE, "x", "y", "z"]
    assert coder(*replies).run_sync("go").output == "xyz"


def test_an_answer_that_does_not_match_its_schema_raises_an_exception_in_the_code() -> None:
    """Ours: the code may catch it and ask again."""
    ask = cell("""
        schema = {"type": "object", "required": ["n"]}
        try:
            llm("how many?", schema=schema)
        except ValueError as error:
            print(error)
        llm("how many?", data=[1, 2], schema=schema)["n"]
    """)
    result = coder(ask, '{"m": 1}', '```json\n{"n": 2}\n```', "Two.").run_sync("go")
    assert outcomes(result.messages) == [2]
    assert "does not match the schema" in result.messages[2].value["stdout"]
