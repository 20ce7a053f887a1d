"""Contracts with positional arguments, called natively."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Capability, CodeProtocol, RegisteredTool, Runtime, ScriptedModel, SideEffect
from standfast.errors import InvalidArgument
from standfast.model.message import ToolMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.providers.anthropic.model import AnthropicDialect
from standfast.providers.google.model import GoogleDialect
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.openai.model import OpenAIDialect
from standfast.providers.openai_compatible.model import OpenAICompatibleDialect
from standfast.providers.openai_compatible.request import ChatHost
from standfast.providers.settings import read_settings
from standfast.tools.settlement import request_digest

SCHEMA = {
    "type": "array",
    "prefixItems": [{"type": "integer"}, {"$ref": "#/$defs/To"}],
    "minItems": 1,
    "maxItems": 2,
}
TO = {"To": {"type": "string"}}


def adder(seen: list[Any], **contract: Any) -> RegisteredTool:
    def add(call: Any) -> Any:
        seen.append((call.args, call.kwargs))
        return len(call.args)

    made = Capability(name="add", description="Add.", side_effect=SideEffect.WRITE, **contract)
    return RegisteredTool.sync(made, add)


def asks(arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": "add", "arguments": arguments}]}


def result_of(messages: Sequence[Any]) -> ToolMessage:
    (found,) = (one for one in messages if isinstance(one, ToolMessage))
    return found


@pytest.mark.parametrize("arguments", [{"args": [1, "x", None]}, {"args": []}, {}])
def test_the_default_contract_accepts_arguments_in_a_native_call(arguments: dict[str, Any]) -> None:
    """Bug: a tool with `{"type": "array"}`, the seed's default schema, got no arguments."""
    seen: list[Any] = []
    agent = Agent(ScriptedModel([asks(arguments), "end"]), tools=[adder(seen)])
    result = asyncio.run(agent.run("go"))
    args = arguments.get("args", [])
    assert seen == [(args, {})]
    assert result_of(result.messages).value == len(args)
    assert result.calls[0].request_digest == request_digest("add", args, {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"args": "no"}, "as a list"),
        ({"x": 1}, "as a list"),
        ({"args": [1], "x": 1}, "as a list"),
        ({"args": ["one"]}, "integer"),
        ({}, "1 item"),
    ],
)
def test_invalid_arguments_are_refused_with_a_helpful_message(arguments: Any, words: str) -> None:
    """Ours: native calls are validated like those of code, and the error shows the right form."""
    seen: list[Any] = []
    contract = {"input_schema": {**SCHEMA, "$defs": TO}}
    result = asyncio.run(
        Agent(ScriptedModel([asks(arguments), "end"]), tools=[adder(seen, **contract)]).run("go")
    )
    error = result_of(result.messages).error
    assert error is not None
    assert (error.code, seen) == ("INVALID_ARGUMENT", [])
    assert words in error.message


class ListeningModel(ScriptedModel):
    """A model that answers once and stores the request."""

    def __init__(self) -> None:
        super().__init__(["end"])
        self.requests: list[ModelRequest] = []

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        return super().stream(request)


def request_with(**contract: Any) -> ModelRequest:
    """Return the request that reaches the model of an agent with this tool."""
    model = ListeningModel()
    asyncio.run(Agent(model, tools=[adder([], **contract)]).run("go"))
    return model.requests[0]


def test_the_schema_sent_to_the_model_is_an_object() -> None:
    """Bug: providers refuse schemas other than objects, and got the array; references must still resolve."""
    (made,) = request_with(input_schema={**SCHEMA, "$defs": TO}).tools
    assert made.input_schema["type"] == "object"
    assert made.input_schema["properties"]["args"]["prefixItems"] == SCHEMA["prefixItems"]
    assert (made.input_schema["required"], made.input_schema["$defs"]) == (["args"], TO)


def test_a_contract_with_named_arguments_is_sent_unchanged() -> None:
    """Ours: only positional contracts are converted."""
    by_name = {"type": "object", "properties": {"args": {"type": "array"}}}
    (made,) = request_with(input_schema=by_name).tools
    assert made.input_schema == by_name


@pytest.mark.parametrize(
    "dialect",
    [AnthropicDialect(), GoogleDialect(), OpenAIDialect(), OpenAICompatibleDialect(ChatHost())],
    ids=lambda one: type(one).__name__,
)
def test_every_vendor_receives_the_object_schema(dialect: Any) -> None:
    """Bug: two dialects sent a tool without parameters, and one the array that its API refuses."""
    request = request_with(input_schema={**SCHEMA, "$defs": TO})
    sent = dialect.call(PreparedRequest("m", request, read_settings({}), {}, "http://127.0.0.1")).body
    parameters = _parameters(sent)
    assert parameters["type"] == "object"
    assert parameters["properties"]["args"]["type"] == "array"


def _parameters(body: Any) -> Any:
    (tool,) = body["tools"]
    tool = tool.get("function", tool)
    tool = tool.get("functionDeclarations", [tool])[0]
    found = (tool.get(name) for name in ("input_schema", "parameters", "parametersJsonSchema"))
    return next(one for one in found if one is not None)


def manual(protocol: str, seen: list[Any], args: list[int]) -> Agent[Any, Any]:
    """Return an agent whose model makes one call that a person has to approve."""
    tools = [adder(seen, approval_policy="manual")]
    if protocol == "standard":
        return Agent(ScriptedModel([asks({"args": args}), "end"]), tools=tools)
    cell = f"```python\nadd({', '.join(map(str, args))})\n```"
    return Agent(ScriptedModel([cell, "end"]), tools=tools, protocol=CodeProtocol())


@pytest.mark.parametrize("protocol", ["standard", "code"])
@pytest.mark.parametrize("edited", [None, [7, 8], []])
@pytest.mark.parametrize("asked", [[1, 2], []])
def test_approving_a_positional_call_works_the_same_for_native_calls_and_code(
    protocol: str, edited: list[int] | None, asked: list[int]
) -> None:
    """Bug: a person could not give arguments to a call that had none.

    Ours: SPEC §4; request, digest, edited arguments and record agree between native calls and code.
    """
    seen: list[Any] = []

    async def main() -> None:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=manual(protocol, seen, asked))
            await session.turn("go").settled()
            (request,) = await session.approvals(pending=True)
            assert (request.args, request.kwargs) == (asked, {})
            arguments = None if edited is None else {"args": edited}
            result = await session.approve(request.approval_id, arguments=arguments)
            ran = asked if edited is None else edited
            assert seen == [(ran, {})]
            (record,) = (one for one in result.calls if one.name == "add")
            assert record.request_digest == request_digest("add", ran, {})
            (decided,) = await session.approvals()
            if edited is not None:
                assert decided.edited_digest == record.request_digest

    asyncio.run(main())


@pytest.mark.parametrize("edited", [{"x": 1}, {"args": 7}, {"args": [7], "x": 1}])
def test_edited_arguments_that_are_not_a_list_are_refused_and_the_approval_stays_open(
    edited: dict[str, Any],
) -> None:
    """Ours: the error shows the right form, and the person can decide again."""
    seen: list[Any] = []

    async def main() -> None:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=manual("standard", seen, [1, 2]))
            await session.turn("go").settled()
            (request,) = await session.approvals(pending=True)
            with pytest.raises(InvalidArgument, match="by position, as a list"):
                await session.approve(request.approval_id, arguments=edited)
            assert await session.approvals(pending=True) == [request]
            assert seen == []

    asyncio.run(main())


@pytest.mark.parametrize("asked", [[1, 2], []])
def test_a_process_without_the_agent_may_edit_the_arguments(tmp_path: Path, asked: list[int]) -> None:
    """Ours: a process without the contract records the decision, and one that has it executes the call."""
    seen: list[Any] = []
    agent = manual("standard", seen, asked)

    async def main() -> None:
        async with Runtime(tmp_path / "x.db") as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("go").settled()
        async with Runtime(tmp_path / "x.db") as elsewhere:
            (request,) = await elsewhere.approvals(pending=True)
            await elsewhere.approve(request.approval_id, arguments={"args": [7]})
        async with Runtime(tmp_path / "x.db", agents=[agent]) as runtime:
            session = await runtime.session("s", agent=agent)
            turn = await session.resume() or session.follow((await session.turns())[-1].turn_id)
            result = await turn.settled()
            assert (result.output, seen) == ("end", [([7], {})])

    asyncio.run(main())
