"""Contracts that take arguments by position, called natively."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from standfast import Agent, Capability, CodeProtocol, RegisteredTool, Runtime, ScriptedModel, SideEffect
from standfast.model.message import ToolMessage, UserMessage
from standfast.ports.model_provider import ModelRequest
from standfast.providers.anthropic.dialect import AnthropicDialect
from standfast.providers.google.dialect import GoogleDialect
from standfast.providers.http.dialect import Asked
from standfast.providers.openai.dialect import ResponsesDialect
from standfast.providers.openai_compatible.dialect import ChatDialect
from standfast.providers.openai_compatible.hosts import Host
from standfast.providers.settings import read_settings
from standfast.tools.positional import native_contract
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


def result_of(messages: list[Any]) -> ToolMessage:
    (found,) = (one for one in messages if isinstance(one, ToolMessage))
    return found


@pytest.mark.parametrize("arguments", [{"args": [1, "x", None]}, {"args": []}, {}])
def test_the_default_contract_takes_arguments_in_a_native_call(arguments: dict[str, Any]) -> None:
    """Bug: `{"type": "array"}`, the seed's default, took none."""
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
def test_arguments_that_do_not_fit_are_refused_in_words_that_help(arguments: Any, words: str) -> None:
    """Ours: the same check as for code, and the form is named."""
    seen: list[Any] = []
    contract = {"input_schema": {**SCHEMA, "$defs": TO}}
    result = asyncio.run(
        Agent(ScriptedModel([asks(arguments), "end"]), tools=[adder(seen, **contract)]).run("go")
    )
    error = result_of(result.messages).error
    assert error is not None
    assert (error.code, seen) == ("INVALID_ARGUMENT", [])
    assert words in error.message


def test_the_schema_that_is_sent_is_an_objects() -> None:
    """Ours: providers refuse other schemas; references keep pointing at the root."""
    made = native_contract(Capability(name="f", description="", input_schema={**SCHEMA, "$defs": TO}))
    assert made.input_schema["type"] == "object"
    assert made.input_schema["properties"]["args"]["prefixItems"] == SCHEMA["prefixItems"]
    assert (made.input_schema["required"], made.input_schema["$defs"]) == (["args"], TO)
    by_name = Capability(name="f", description="", input_schema={"type": "object", "properties": {}})
    assert native_contract(by_name) is by_name


@pytest.mark.parametrize(
    "dialect",
    [AnthropicDialect(), GoogleDialect(), ResponsesDialect(), ChatDialect(Host())],
    ids=lambda one: type(one).__name__,
)
def test_every_vendor_is_sent_the_object(dialect: Any) -> None:
    """Bug: two dialects sent a tool without parameters, and one the array that its API refuses."""
    tool = native_contract(Capability(name="add", description="Add.", input_schema={**SCHEMA, "$defs": TO}))
    request = ModelRequest(messages=[UserMessage(content="hi")], tools=(tool,))
    sent = dialect.call(Asked("m", request, read_settings({}), {}, "http://127.0.0.1")).body
    parameters = _parameters(sent)
    assert parameters["type"] == "object"
    assert parameters["properties"]["args"]["type"] == "array"


def _parameters(body: Any) -> Any:
    (tool,) = body["tools"]
    tool = tool.get("function", tool)
    tool = tool.get("functionDeclarations", [tool])[0]
    found = (tool.get(name) for name in ("input_schema", "parameters", "parametersJsonSchema"))
    return next(one for one in found if one is not None)


@pytest.mark.parametrize("protocol", ["standard", "code"])
@pytest.mark.parametrize("edited", [None, [7, 8], []])
def test_an_approval_of_a_positional_call_is_the_same_however_it_was_made(
    protocol: str, edited: list[int] | None
) -> None:
    """Ours: SPEC §4; request, digest, edited arguments and record agree between native calls and code."""
    seen: list[Any] = []
    tool = adder(seen, approval_policy="manual")
    replies = (
        [asks({"args": [1, 2]}), "end"] if protocol == "standard" else ["```python\nadd(1, 2)\n```", "end"]
    )
    options: dict[str, Any] = {} if protocol == "standard" else {"protocol": CodeProtocol()}

    async def main() -> None:
        async with Runtime() as runtime:
            agent = Agent(ScriptedModel(replies), tools=[tool], **options)
            session = await runtime.session("s", agent=agent)
            await session.turn("go").settled()
            (request,) = await session.approvals(pending=True)
            assert (request.args, request.kwargs) == ([1, 2], {})
            arguments = None if edited is None else {"args": edited}
            result = await session.approve(request.approval_id, arguments=arguments)
            ran = [1, 2] if edited is None else edited
            assert seen == [(ran, {})]
            (record,) = (one for one in result.calls if one.name == "add")
            assert record.request_digest == request_digest("add", ran, {})
            (decided,) = await session.approvals()
            if edited is not None:
                assert decided.edited_digest == record.request_digest

    asyncio.run(main())
