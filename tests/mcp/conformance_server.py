"""Tools and prompts for the server scenarios of the MCP conformance suite, added to `standfast mcp http`."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_PIXEL = b"".join(
    [
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")),
        _chunk(b"IEND", b""),
    ]
)
PNG = base64.b64encode(_PIXEL).decode()
WAV = base64.b64encode(
    b"RIFF"
    + struct.pack("<I", 36)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    + b"data\0\0\0\0"
).decode()

server = MCPServer("standfast-conformance", version="1", log_level="WARNING")
Asked = types.CallToolResult | types.InputRequiredResult


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _said(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[_text(text)])


def _image() -> types.ImageContent:
    return types.ImageContent(type="image", data=PNG, mime_type="image/png")


def _resource(uri: str, kind: str, text: str) -> types.EmbeddedResource:
    content = types.TextResourceContents(uri=uri, mime_type=kind, text=text)
    return types.EmbeddedResource(type="resource", resource=content)


# Content


@server.tool(structured_output=False)
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@server.tool(structured_output=False)
def test_image_content() -> types.CallToolResult:
    """Return an image."""
    return types.CallToolResult(content=[_image()])


@server.tool(structured_output=False)
def test_audio_content() -> types.CallToolResult:
    """Return a sound."""
    sound = types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")
    return types.CallToolResult(content=[sound])


@server.tool(structured_output=False)
def test_embedded_resource() -> types.CallToolResult:
    """Return a resource."""
    text = "This is an embedded resource content."
    return types.CallToolResult(content=[_resource("test://embedded-resource", "text/plain", text)])


@server.tool(structured_output=False)
def test_multiple_content_types() -> types.CallToolResult:
    """Return a text, an image and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    resource = _resource("test://mixed-content-resource", "application/json", data)
    return types.CallToolResult(content=[_text("Multiple content types test:"), _image(), resource])


@server.tool(structured_output=False)
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


# Notifications


@server.tool(structured_output=False)
async def test_tool_with_logging(ctx: Context) -> str:
    """Send three log messages."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message(level="info", data=text, related_request_id=ctx.request_id)
        await asyncio.sleep(0.05)
    return "logged"


@server.tool(structured_output=False)
async def test_logging_tool(ctx: Context) -> str:
    """Send a log message to clients that have asked for it."""
    await ctx.session.send_log_message(level="info", data="hello", related_request_id=ctx.request_id)
    return "logged"


@server.tool(structured_output=False)
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return "done"


@server.tool(structured_output=False)
async def test_trigger_tool_change(ctx: Context) -> str:
    """Announce another list of tools."""
    await ctx.notify_tools_changed()
    return "announced"


@server.tool(structured_output=False)
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Announce another list of prompts."""
    await ctx.notify_prompts_changed()
    return "announced"


# Questions in the middle of a call (2025-11-25)


async def _elicited(ctx: Context, message: str, properties: dict[str, Any], required: list[str]) -> str:
    schema = {"type": "object", "properties": properties, "required": required}
    answer = await ctx.session.elicit_form(message, schema, ctx.request_id)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


@server.tool(structured_output=False)
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the client's model."""
    message = types.SamplingMessage(role="user", content=_text(prompt))
    answer = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {answer.content}"


@server.tool(structured_output=False)
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the client's person."""
    fields = {"username": {"type": "string"}, "email": {"type": "string"}}
    return await _elicited(ctx, message, fields, list(fields))


@server.tool(structured_output=False)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask with default values."""
    fields: dict[str, Any] = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await _elicited(ctx, "Check the values", fields, [])


@server.tool(structured_output=False)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask with every kind of choice."""
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
    names = ["Option One", "Option Two", "Option Three"]
    fields: dict[str, Any] = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await _elicited(ctx, "Choose", fields, [])


# Questions as results (2026-07-28)


def _elicit(message: str, field: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    params = types.ElicitRequestFormParams(mode="form", message=message, requested_schema=schema)
    return types.ElicitRequest(params=params)


def _sample(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=_text(text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=100)
    )


def _asked(state: str | None = None, **requests: Any) -> types.InputRequiredResult:
    return types.InputRequiredResult(
        result_type="input_required", input_requests=requests, request_state=state
    )


@server.tool(structured_output=False)
def test_input_required_result_elicitation(ctx: Context) -> Asked:
    """Ask for a name."""
    answer = (ctx.input_responses or {}).get("user_name")
    if not isinstance(answer, types.ElicitResult):
        return _asked(user_name=_elicit("What is your name?", "name"))
    return _said(f"Hello, {(answer.content or {}).get('name')}!")


@server.tool(structured_output=False)
def test_input_required_result_sampling(ctx: Context) -> Asked:
    """Ask the model."""
    answer = (ctx.input_responses or {}).get("capital_question")
    if not isinstance(answer, types.CreateMessageResult):
        return _asked(capital_question=_sample("What is the capital of France?"))
    return _said(str(answer.content))


@server.tool(structured_output=False)
def test_input_required_result_list_roots(ctx: Context) -> Asked:
    """Ask for the roots."""
    answer = (ctx.input_responses or {}).get("client_roots")
    if not isinstance(answer, types.ListRootsResult):
        return _asked(client_roots=types.ListRootsRequest())
    return _said(", ".join(str(root.uri) for root in answer.roots))


@server.tool(structured_output=False)
def test_input_required_result_request_state(ctx: Context) -> Asked:
    """Ask, and check the state that the client returns."""
    if not ctx.input_responses:
        return _asked("first", confirm=_elicit("Please confirm", "ok", "boolean"))
    return _said("state-ok" if ctx.request_state == "first" else "state-wrong")


@server.tool(structured_output=False)
def test_input_required_result_tampered_state(ctx: Context) -> Asked:
    """Ask with a state that the client may not change."""
    return test_input_required_result_request_state(ctx)


@server.tool(structured_output=False)
def test_input_required_result_multiple_inputs(ctx: Context) -> Asked:
    """Ask a person, the model and for the roots at once."""
    requests: dict[str, Any] = {
        "user_name": _elicit("What is your name?", "name"),
        "greeting": _sample("Generate a greeting"),
        "client_roots": types.ListRootsRequest(),
    }
    if set(requests) - set(ctx.input_responses or {}):
        return _asked("all", **requests)
    return _said("all answered")


@server.tool(structured_output=False)
def test_input_required_result_multi_round(ctx: Context) -> Asked:
    """Ask twice, one after the other."""
    answers = ctx.input_responses or {}
    if ctx.request_state == "second" and "step2" in answers:
        return _said("both answered")
    if ctx.request_state == "first" and "step1" in answers:
        return _asked("second", step2=_elicit("Step 2: What is your favorite color?", "color"))
    return _asked("first", step1=_elicit("Step 1: What is your name?", "name"))


@server.tool(structured_output=False)
def test_input_required_result_capabilities(ctx: Context) -> Asked:
    """Ask only for what the client can do."""
    requests: dict[str, Any] = {}
    if ctx.client_capabilities is not None and ctx.client_capabilities.sampling is not None:
        requests["sample"] = _sample("Say hello")
    if ctx.client_capabilities is not None and ctx.client_capabilities.elicitation is not None:
        requests["ask"] = _elicit("Say hello", "hello")
    return _asked(**requests)


@server.tool(structured_output=False)
def test_streaming_elicitation(ctx: Context) -> Asked:
    """Ask, on a stream that carries no request."""
    return _asked(ask=_elicit("Say hello", "hello"))


@server.tool(structured_output=False)
def test_missing_capability(ctx: Context) -> str:
    """Need sampling."""
    if ctx.client_capabilities is None or ctx.client_capabilities.sampling is None:
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="the client did not declare sampling",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return "sampling is there"


# Resources and prompts


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """Data by id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """A resource that clients subscribe to."""
    return "watched"


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:
    """A prompt with a resource."""
    resource = _resource(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [
        {"role": "user", "content": resource},
        {"role": "user", "content": _text("Please process the embedded resource above.")},
    ]


@server.prompt()
def test_prompt_with_image() -> list[Any]:
    """A prompt with an image."""
    return [
        {"role": "user", "content": _image()},
        {"role": "user", "content": _text("Please analyze the image above.")},
    ]


@server.prompt()
def test_input_required_result_prompt(ctx: Context) -> Any:
    """A prompt that needs an answer."""
    answer = (ctx.input_responses or {}).get("user_context")
    if not isinstance(answer, types.ElicitResult):
        return _asked(user_context=_elicit("What context should the prompt use?", "context"))
    return f"Use {(answer.content or {}).get('context')}."


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
    """Complete an argument."""
    return types.Completion(values=[f"{argument.value}-1"], total=1, has_more=False)


async def _accept(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


server._lowlevel_server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, _accept)
