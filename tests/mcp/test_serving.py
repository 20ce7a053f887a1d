"""Standfast as an MCP server, with the official SDK as its client, in both revisions."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import interpreters
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

pytestmark = pytest.mark.slow

APP = """
from standfast import Agent, ScriptedModel, tool

@tool(approval="manual")
def refund(order: str, cents: int) -> str:
    "Refund an order."
    return f"refunded {cents} of {order}"

@tool(side_effect="read")
def price(order: str) -> int:
    "Return the price of an order."
    return 500

calls = {"tool_calls": [{"name": "refund", "arguments": {"order": "A1", "cents": 5}}]}
model = ScriptedModel([calls, "It is refunded."])
agents = [Agent(model, name="support", instructions="You help.", tools=[refund])]
"""

ASKING_APP = """
from standfast import Agent, AskPerson, RunContext, ScriptedModel, tool

@tool
def book(ctx: RunContext[None]) -> str | AskPerson:
    "Book a seat."
    if ctx.answer is None:
        schema = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
        return AskPerson("Which seat?", schema)
    return f"booked {ctx.answer.value['seat']}"

model = ScriptedModel([{"tool_calls": [{"name": "book", "arguments": {}}]}, "It is booked."])
agents = [Agent(model, name="support", tools=[book])]
"""

REVISIONS = ["legacy", "auto"]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(APP)
    return file


async def _with_client(
    app: Path,
    mode: str,
    work: Callable[[Client], Awaitable[Any]],
    answer: Callable[[Any], types.ElicitResult] | None = None,
) -> Any:
    async def elicit(context: object, params: Any) -> types.ElicitResult:
        assert answer is not None
        return answer(params)

    command = ["-m", "standfast", "mcp", "stdio", f"{app}:agents", "--tools", str(app)]
    server = StdioServerParameters(
        command=sys.executable, args=[*command, "--data-dir", str(app.parent / "home")], cwd=app.parent
    )
    async with Client(server, mode=mode, elicitation_callback=elicit if answer else None) as client:
        return await work(client)


def _text(result: Any) -> str:
    return "".join(one.text for one in result.content)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", REVISIONS)
def test_a_client_can_run_code_that_calls_the_users_tools(app: Path, mode: str) -> None:
    """Ours: run_code, validate_code, sessions and snapshots are tools; variables persist in a session."""

    async def work(client: Client) -> None:
        names = {one.name for one in (await client.list_tools()).tools}
        assert {"run_code", "validate_code", "list_sessions", "snapshot_session", "ask_support"} <= names
        await client.call_tool("run_code", {"code": "total = price('A1') * 2", "session": "a"})
        result = await client.call_tool("run_code", {"code": "total + 1", "session": "a"})
        assert result.structured_content["result"] == 1001
        checked = await client.call_tool("validate_code", {"code": "nope(", "session": "a"})
        assert checked.structured_content["status"] == "validation_error"
        snapshot = (await client.call_tool("snapshot_session", {"session": "a"})).structured_content
        restored = {"snapshot_id": snapshot["snapshot_id"], "session": "b"}
        assert not (await client.call_tool("restore_session", restored)).is_error
        listed = (await client.call_tool("list_sessions", {})).structured_content["sessions"]
        assert {one["meta"]["id"] for one in listed} == {"a", "b"}
        again = await client.call_tool("run_code", {"code": "total", "session": "b"})
        assert again.structured_content["result"] == 1000
        for arguments in ({}, {"code": 5}, {"code": "1", "session": "../x"}, {"code": "1", "more": 1}):
            assert (await client.call_tool("run_code", arguments)).is_error
        assert (await client.call_tool("nothing", {})).is_error

    asyncio.run(_with_client(app, mode, work))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", REVISIONS)
@pytest.mark.parametrize("approve", [True, False])
def test_an_approval_is_a_question_to_the_clients_user(app: Path, mode: str, approve: bool) -> None:
    """Ours: the question is `input_required` or an elicitation, and the user's decision is recorded."""
    asked: list[str] = []

    def answer(params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": approve, "reason": "too much"})

    async def work(client: Client) -> tuple[Any, Any]:
        code = "try:\n    out = refund('A1', 5)\nexcept PermissionError as error:\n    out = str(error)\nout"
        ran = await client.call_tool("run_code", {"code": code})
        said = await client.call_tool("ask_support", {"prompt": "Refund A1", "key": "k1"})
        return ran, said

    ran, said = asyncio.run(_with_client(app, mode, work, answer))
    assert len(asked) == 2
    assert "refund(" in asked[0]
    if approve:
        assert ran.structured_content["result"] == "refunded 5 of A1"
    else:
        assert "too much" in ran.structured_content["result"]
    assert _text(said) == "It is refunded."  # the script says so in either case


def _decide(command: str, app: Path, **replaced: str) -> None:
    """Run the command from a result, with the home directory of another store."""
    words = [replaced.get(word, word) for word in shlex.split(command)]
    interpreters.run(
        [sys.executable, "-m", "standfast", *words[words.index("approvals") :]],
        env={**os.environ, "STANDFAST_HOME": str(app.parent / "elsewhere")},
        cwd=app.parent,
        check=True,
        timeout=60,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", REVISIONS)
def test_a_client_that_cannot_ask_gets_the_command_that_answers_a_question(app: Path, mode: str) -> None:
    """Bug: the command lacked the store and, for a question, its answer and the schema."""
    app.write_text(ASKING_APP)
    request = {"prompt": "Book", "key": "k1"}

    async def ask(client: Client) -> Any:
        return await client.call_tool("ask_support", request)

    [wait] = asyncio.run(_with_client(app, mode, ask)).structured_content["waits_for"]
    assert (wait["reason"], wait["answer_schema"]["required"]) == ("Which seat?", ["seat"])
    _decide(wait["decide_with"], app, JSON='{"seat": "7A"}')
    assert _text(asyncio.run(_with_client(app, mode, ask))) == "It is booked."


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", REVISIONS)
def test_a_client_that_cannot_ask_gets_the_command_that_decides_and_can_find_the_turn_again(
    app: Path, mode: str
) -> None:
    """Ours: the key finds the turn after the client was disconnected and a person decided elsewhere."""
    request = {"prompt": "Refund A1", "key": "k1"}

    async def ask(client: Client) -> Any:
        assert (await client.call_tool("run_code", {"code": "refund('A1', 7)"})).structured_content[
            "status"
        ] == "waiting_for_approval"
        return (await client.call_tool("ask_support", request)).structured_content

    waiting = asyncio.run(_with_client(app, mode, ask))
    assert waiting["status"] == "waiting"
    [wait] = waiting["waits_for"]
    assert wait["arguments"] == {"order": "A1", "cents": 5}
    _decide(wait["decide_with"], app)

    async def again(client: Client) -> tuple[str, Any]:
        said = _text(await client.call_tool("ask_support", request))
        history = await client.read_resource("standfast://sessions/mcp-support")
        return said, json.loads(history.contents[0].text)

    said, history = asyncio.run(_with_client(app, mode, again))
    assert said == "It is refunded."
    assert any(one.get("value") == "refunded 5 of A1" for one in history)
