"""The user's own MCP server combined with Standfast's, at one URL.

Rule: Standfast's names take precedence, so that no other tool, prompt or resource can replace them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import NotConfigured

if TYPE_CHECKING:
    from mcp.server import Server

Handler = Callable[[Any, Any], Awaitable[Any]]

_LISTS: Final = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resource_templates",
}
_NAMED: Final = {"tools/call": "tools/list", "prompts/get": "prompts/list"}
_METHODS: Final = (*_LISTS, *_NAMED, "resources/read", "tasks/get", "tasks/update", "tasks/cancel")
"""The methods that Standfast handles; the SDK handles the rest."""


def joined(server: Server[Any], own: object) -> Server[Any]:
    """Add the handlers of *server* to *own*, an `MCPServer` or `Server` of the SDK, and return that."""
    from mcp.server import MCPServer, Server

    target = own._lowlevel_server if isinstance(own, MCPServer) else own
    if not isinstance(target, Server):
        raise NotConfigured(
            f"{type(own).__name__} is not an MCP server", hint="name an MCPServer or a Server of the MCP SDK"
        )
    for method in _METHODS:
        entry, theirs = server.get_request_handler(method), target.get_request_handler(method)
        assert entry is not None
        handler: Handler = entry.handler
        if theirs is not None:
            if method in _LISTS:
                handler = _listed(handler, theirs.handler, _LISTS[method])
            elif method == "resources/read":
                handler = _routed(handler, theirs.handler)
            elif method in _NAMED:
                names = server.get_request_handler(_NAMED[method])
                assert names is not None
                handler = _routed(handler, theirs.handler, names.handler, _LISTS[_NAMED[method]])
        target.add_request_handler(method, entry.params_type, handler)
    target.extensions.update(server.extensions)
    return target


def _listed(ours: Handler, theirs: Handler, field: str) -> Handler:
    """Return a list handler: Standfast's entries come on the first page, the user's on every page."""

    async def listing(ctx: Any, params: Any) -> Any:
        first = getattr(await ours(ctx, None), field)
        taken = {_identity(one) for one in first}
        page = await theirs(ctx, params)
        if params is not None and params.cursor is not None:
            first = []
        found = [*first, *(one for one in getattr(page, field) if _identity(one) not in taken)]
        return page.model_copy(update={field: found})

    return listing


def _identity(one: Any) -> str:
    """Return the identity of a list entry: its URI, URI template or name."""
    return str(getattr(one, "uri", None) or getattr(one, "uri_template", None) or one.name)


def _routed(ours: Handler, theirs: Handler, listing: Handler | None = None, field: str = "") -> Handler:
    """Return a handler that routes a request to the server that owns the named entry or URI."""

    async def routed(ctx: Any, params: Any) -> Any:
        if listing is None:
            is_ours = str(params.uri).startswith("standfast:")
        else:
            is_ours = params.name in {one.name for one in getattr(await listing(ctx, None), field)}
        return await (ours if is_ours else theirs)(ctx, params)

    return routed
