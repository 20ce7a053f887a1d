"""Runs the client scenarios of the MCP conformance suite with `McpServer`."""

from __future__ import annotations

import tempfile
from typing import Any

import httpx2

from standfast import McpServer, McpSignIn
from standfast.errors import StandfastError
from standfast.mcp.pins import Pin

METADATA_URL = "https://conformance-test.local/client-metadata.json"
_VALUES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True}


async def visit(address: str) -> None:
    """Do what a person does on a sign-in page: consent, and follow the redirect back."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False, timeout=280) as browser:
        await browser.get(address)


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that match the schema of a tool."""
    return {
        name: _VALUES.get(str(one.get("type")), "text")
        for name, one in schema.get("properties", {}).items()
        if name in schema.get("required", [])
    }


async def play(url: str, context: dict[str, Any], revision: str) -> None:
    """Connect, call every tool with valid arguments, and use prompts and resources if there are any."""
    with tempfile.TemporaryDirectory() as home:
        server = McpServer(
            url,
            name="suite",
            protocol=revision,  # type: ignore[arg-type]
            sign_in=McpSignIn(
                client_id=context.get("client_id"),
                client_secret=context.get("client_secret"),
                metadata_url=METADATA_URL,
                open_page=visit,
            ),
            data_dir=home,
            timeout_s=280,
            connect_s=280,
        )
        try:
            pin = await server.advertised()
            server.trust(pin)
            for name, arguments in calls(pin, context):
                await server.call(name, arguments, ask=lambda question: {})
            if "prompts" in pin.features:
                await server.prompt("test_prompt")
            if "resources" in pin.features:
                await server.resource("test://example-resource")
        finally:
            await server.close()


def calls(pin: Pin, context: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that the suite asks for, or one for each tool."""
    if "toolCalls" in context:
        return [(one["name"], one["arguments"]) for one in context["toolCalls"]]
    return [(tool.name, arguments_for(tool.input_schema)) for tool in pin.tools]


async def outcome(url: str, context: dict[str, Any], revision: str) -> str:
    """Run a scenario; return the error, which some scenarios expect."""
    try:
        await play(url, context, revision)
    except StandfastError as error:
        return f"{error.code}: {error.message}"
    return ""
