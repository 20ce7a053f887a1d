"""The resources of an MCP server: the tools that read them, and requests of the SDK."""

from __future__ import annotations

from collections.abc import Container, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from standfast.errors import McpServerFailed
from standfast.mcp.connection import McpConnection
from standfast.mcp.contracts import Declarations, clean_text
from standfast.mcp.pins import Pin
from standfast.mcp.results import decoded
from standfast.model.canonical import Json
from standfast.model.capability import Capability, SideEffect
from standfast.model.limits import CapabilityLimits
from standfast.runtime.agent_session import Attachment

T = TypeVar("T")

MAX_RESOURCES: Final = 1000


def resource_tools(
    declared: Declarations, pin: Pin | None, taken: Container[str]
) -> dict[str, tuple[Capability, Any]]:
    """Return the contracts and handlers of the tools that read resources, if the pinned server has any.

    The user's declarations about `list_resources` and `read_resource` apply to them, and so does `include`.
    A name that is *taken* by a tool of the server is left to that tool.
    """
    if pin is None or "resources" not in pin.features:
        return {}
    about = {
        "list_resources": f"List the resources of the MCP server {declared.server}, and address templates.",
        "read_resource": f"Read a resource of the MCP server {declared.server}.",
    }
    uri = {"uri": {"type": "string", "description": "the address of the resource"}}
    made: dict[str, tuple[Capability, Any]] = {}
    for own in declared.included(about):
        name, settings = f"mcp__{declared.server}__{own}", declared.of(own)
        if name in taken:
            continue
        fields = uri if own == "read_resource" else {}
        contract = Capability(
            name=name,
            description=about[own],
            input_schema={
                "type": "object",
                "properties": fields,
                "required": list(fields),
                "additionalProperties": False,
            },
            side_effect=SideEffect(settings.side_effect or SideEffect.READ),
            limits=CapabilityLimits(timeout_ms=settings.timeout_ms),
            approval_policy=settings.approval or "none",
            idempotent=settings.idempotent,
        )
        made[own] = contract, read_resource if fields else list_resources
    return made


async def list_resources(connection: McpConnection) -> Json:
    """List the resources, and the URI templates of further ones."""
    client, pages, server = connection.client, connection.pages, connection.endpoint.name
    listed = await sdk_request(server, pages(client.list_resources, "resources", MAX_RESOURCES))
    templates: list[Any] = []
    with suppress(McpServerFailed):  # many servers do not implement templates
        listing = pages(client.list_resource_templates, "resource_templates", MAX_RESOURCES)
        templates = await sdk_request(server, listing)
    addressed = [({"uri": str(one.uri)}, one) for one in listed]
    addressed += [({"uri_template": one.uri_template}, one) for one in templates]
    return [
        {
            **address,
            "name": one.name,
            "description": clean_text(one.description or "", 300),
            "media_type": one.mime_type or "",
        }
        for address, one in addressed
    ]


async def read_resource(connection: McpConnection, uri: str) -> Any:
    """Return the SDK's result for the resource at *uri*."""
    return await sdk_request(connection.endpoint.name, connection.client.read_resource(uri))


def as_attachment(server: str, result: Any, uri: str) -> Attachment:
    """Return the first part of a resource as an attachment for a turn."""
    if not result.contents:
        raise McpServerFailed(server, f"has nothing at {uri[:200]!r}")
    one = result.contents[0]
    is_text = hasattr(one, "text")
    data = one.text.encode() if is_text else decoded(server, one.blob)
    return Attachment(data, one.mime_type or ("text/plain" if is_text else "application/octet-stream"), uri)


async def sdk_request(server: str, work: Coroutine[Any, Any, T]) -> T:
    """Await an SDK request, converting its exceptions to `McpServerFailed`."""
    try:
        return await work
    except McpServerFailed:
        raise
    except Exception as error:
        raise McpServerFailed(server, f"refused: {clean_text(str(error), 500)}") from None
