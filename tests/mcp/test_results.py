"""Results with structured content: the structure is the value, and the other content reaches the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp_types import CallToolResult

from standfast import Agent, CodeMode, McpServer, Runtime
from standfast.errors import ToolError
from standfast.machine.inputs import ToolSettled
from standfast.mcp.results import result_value
from standfast.model.message import ToolMessage
from standfast.plugins.shipped.redact import Redact
from standfast.plugins.shipped.tool_output_budget import ToolOutputBudget
from standfast.protocols.code.plugin import CodeProtocol
from standfast.providers.http.content import result_text
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.result import WaitingTurn
from standfast.testing.stored_bytes import stored_bytes
from standfast.tools.context import MAX_TEXT_CHARS, RunContext

Raw = Callable[..., McpServer]

ORDER = {"order": "A1", "cents": 500}
BESIDE = ("swordfish ", "[resource file:///a: a]", "of b", "[image: image/png, 70 bytes, attached below]")


class Watching(ScriptedModel):
    """A model that stores its requests."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__(replies)
        self.requests: list[Any] = []

    def stream(self, request: Any) -> Any:
        self.requests.append(request)
        return super().stream(request)


class Texts:
    """A store for the texts beside a value."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def keep(self, data: bytes, *, media_type: str, name: str | None = None, shown: bool = False) -> Any:
        return None

    def add_text(self, text: str) -> None:
        self.texts.append(text)

    async def read(self, digest: str) -> bytes | None:
        return None


def _calls(*names: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": f"mcp__raw__{name}", "arguments": arguments} for name in names]}


async def _turn(agent: Agent[None, str], store: Any = None) -> Any:
    async with Runtime(store) as runtime:
        session = await runtime.session("s", agent=agent)
        return await session.turn("go")


def _result(turn: Any) -> ToolMessage:
    [result] = [one for one in turn.messages if isinstance(one, ToolMessage)]
    return result


def _read(model: Watching) -> str:
    """Return the text of the last result that the model was sent."""
    return [result_text(one) for one in model.requests[-1].messages if isinstance(one, ToolMessage)][-1]


@pytest.mark.parametrize("era", ["", "2026"])
def test_other_content_beside_structured_content_reaches_the_model(raw: Raw, era: str) -> None:
    """Bug: texts and resources of a result with structured content did not reach the model."""
    model = Watching([_calls("rich"), "done"])
    result = _result(asyncio.run(_turn(Agent(model, tools=[raw(era=era)]))))
    assert result.value == ORDER
    assert result.texts == BESIDE
    value, beside = _read(model).split("\n\n", 1)
    assert json.loads(value) == ORDER
    assert beside == "\n".join(BESIDE)


def test_other_content_of_a_call_from_code_reaches_the_model_with_the_cell(raw: Raw) -> None:
    """Bug: code gets the structure as the value, and the model never read the rest."""
    model = Watching(
        [
            "```python\nfound = mcp__raw__rich()\nfound['cents']\n```",
            "```python\nhistory[0]['texts']\n```",
            "done",
        ]
    )
    turn = asyncio.run(_turn(Agent(model, tools=[raw()], protocol=CodeProtocol())))
    shown = model.requests[1].messages[-2].content
    assert "result:\n500\n" in shown
    assert shown.endswith("text beside results:\nmcp__raw__rich():\n" + "\n".join(BESIDE))
    cell = [one for one in turn.messages if isinstance(one, ToolMessage)][1]
    assert cell.value["result"] == [{"name": "mcp__raw__rich", "texts": list(BESIDE)}]


def test_other_content_reaches_a_model_that_uses_code_as_a_tool(raw: Raw) -> None:
    """Ours: `CodeMode` shows a cell as the code protocol does."""
    code = {"name": "run_code", "arguments": {"code": "mcp__raw__rich()['cents']"}}
    model = Watching([{"tool_calls": [code]}, "done"])
    asyncio.run(_turn(Agent(model, tools=[raw()], plugins=[CodeMode()])))
    assert _read(model).endswith("text beside results:\nmcp__raw__rich():\n" + "\n".join(BESIDE))


def test_other_content_is_in_the_journal_and_the_history(raw: Raw, tmp_path: Path) -> None:
    """Ours: a process that takes over the turn, or a later turn, sends the model the same text."""
    store, waits = tmp_path / "standfast.db", _calls("rich", "wipe")
    first = Agent(Watching([waits, "done"]), tools=[raw()])
    assert isinstance(asyncio.run(_turn(first, store)), WaitingTurn)
    model = Watching([waits, "done", "again"])

    async def resume() -> None:
        async with Runtime(store) as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[raw()]))
            [approval] = await runtime.approvals(pending=True)
            await runtime.deny(approval.approval_id)
            turn = await session.resume() or session.follow((await session.turns())[-1].turn_id)
            await turn.settled()
        async with Runtime(store) as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[raw()]))
            await session.turn("and now?")

    asyncio.run(resume())
    for request in model.requests[-2:]:
        rich = next(one for one in request.messages if isinstance(one, ToolMessage))
        assert result_text(rich).endswith("\n\n" + "\n".join(BESIDE))


def test_secrets_are_removed_from_text_beside_a_value(raw: Raw, tmp_path: Path) -> None:
    """Ours: `Redact` cleans all parts of a result, for the store and for the model."""
    model, store = Watching([_calls("rich"), "done"]), tmp_path / "standfast.db"
    agent = Agent(model, tools=[raw()], plugins=[Redact(secrets=["swordfish"])])
    result = _result(asyncio.run(_turn(agent, store)))
    assert (result.value, result.texts) == (ORDER, ("[redacted] ", *BESIDE[1:]))
    assert "swordfish" not in _read(model)
    stored = stored_bytes(tmp_path)
    assert b"[redacted]" in stored
    assert b"swordfish" not in stored


def test_secrets_are_removed_from_text_beside_a_value_in_code(raw: Raw) -> None:
    """Ours: the text of a cell is cleaned like the text of a result."""
    model = Watching(["```python\nmcp__raw__rich()['cents']\n```", "done"])
    redact = Redact(secrets=["swordfish"])
    asyncio.run(_turn(Agent(model, tools=[raw()], plugins=[redact], protocol=CodeProtocol())))
    shown = str(model.requests[-1].messages)
    assert "[redacted]" in shown
    assert "swordfish" not in shown


def test_the_output_budget_includes_text_beside_a_value(raw: Raw) -> None:
    """Ours: one result stays within the budget, and can be read back completely."""
    model = Watching([_calls("rich", x=2000), "done"])
    agent = Agent(model, tools=[raw()], plugins=[ToolOutputBudget(max_bytes=1000)])
    result = _result(asyncio.run(_turn(agent)))
    assert result.texts == ()
    assert len(_read(model)) <= 1000
    assert '"order": "A1"' in _read(model)
    assert "read_output(" in _read(model)
    assert result.attachments[-1].size > 20_000


def test_text_beside_a_value_is_truncated(raw: Raw) -> None:
    """Ours: the size is limited; a long text does not fail a call that succeeded."""
    model = Watching([_calls("rich", x=20_000), "done"])
    result = _result(asyncio.run(_turn(Agent(model, tools=[raw()]))))
    assert result.value == ORDER
    assert sum(map(len, result.texts)) <= MAX_TEXT_CHARS
    assert result.texts[0].startswith("swordfish swordfish")
    assert "characters left out" in result.texts[-1]


def test_many_texts_of_one_cell_stay_within_its_budget(raw: Raw) -> None:
    """Ours: a cell with many calls floods neither the model nor the store."""
    code = "for _ in range(12):\n    mcp__raw__rich(x=2000)"
    model = Watching([f"```python\n{code}\n```", "done"])
    turn = asyncio.run(_turn(Agent(model, tools=[raw()], protocol=CodeProtocol())))
    shown = model.requests[-1].messages[-2].content
    assert "swordfish" in shown
    assert len(shown) <= 8_000
    cell = next(one for one in turn.messages if isinstance(one, ToolMessage))
    whole = next(part for part in cell.attachments if part.name == "cell.json")
    assert whole.size < 2 * MAX_TEXT_CHARS


@pytest.mark.parametrize(
    ("structured", "text"),
    [
        ({"a": 1, "b": [2]}, '{"b": [2], "a": 1}'),
        ({"a": 1.0}, '{\n  "a": 1\n}'),
        ({"result": "sunny"}, "sunny"),
        ({"result": [1, {"x": 2}]}, "[1, {'x': 2}]".replace("'", '"')),
        ({"result": [1, {"x": 2}]}, '{"x":2}'),
        ({"result": ["a", "b"]}, "b"),
        ({"content": "of the file\n"}, "of the file\n"),
        ({"a": "\U0001f600"}, '{"a": "\\ud83d\\ude00"}'),
        ({}, "{}"),
        ({"a": 1}, " \n"),
    ],
)
def test_text_that_repeats_the_structure_is_dropped(structured: Any, text: str) -> None:
    """Ours: MCP asks servers to repeat the structure as text, and the model should read it once."""
    result = CallToolResult.model_validate(
        {"content": [{"type": "text", "text": text}], "structuredContent": structured}
    )
    kept = Texts()
    assert result_value("s", result, RunContext(None, attachments=kept)) == structured
    assert kept.texts == []


@pytest.mark.parametrize(
    "text", ["found 1", '{"a": 2}', '{"a": 1} and more', "[" * 100_000, '{"a": 1, "b": 2}', "NaN", "\ud800"]
)
def test_text_that_differs_from_the_structure_is_kept(text: str) -> None:
    """Ours: text is compared as JSON; anything else is kept as text."""
    result = CallToolResult.model_construct(
        content=[_Block(type="text", text=text)], structured_content={"a": 1}, is_error=False
    )
    kept = Texts()
    assert result_value("s", result, RunContext(None, attachments=kept)) == {"a": 1}
    assert kept.texts == [text]


class _Block(msgspec.Struct):
    type: str
    text: str


def test_without_a_turn_only_the_value_is_returned() -> None:
    """Ours: `McpServer.call` and sandboxes without a model return only the value."""
    result = CallToolResult.model_validate(
        {"content": [{"type": "text", "text": "more"}], "structuredContent": {"a": 1}}
    )
    assert result_value("s", result, RunContext(None)) == {"a": 1}


def test_a_failure_without_text_shows_its_structure() -> None:
    """Ours: the model reads the reason for a failure, even if it is only in structured content."""
    result = CallToolResult.model_validate(
        {"content": [], "structuredContent": {"reason": "closed"}, "isError": True}
    )
    with pytest.raises(ToolError, match=r'\{"reason":"closed"\}'):
        result_value("s", result, RunContext(None))


def test_a_journal_without_texts_is_still_readable() -> None:
    """Ours: entries and messages of earlier versions have no texts, and keep their bytes."""
    old = b'{"type":"tool_settled","at_ms":1,"call_id":2,"value":{"a":1}}'
    read = msgspec.json.decode(old, type=ToolSettled)
    assert read.texts == ()
    assert msgspec.json.encode(read) == old
