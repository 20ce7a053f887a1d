"""The standard protocol as the plugin that it is: it fills the two slots of a protocol, and has no hooks."""

from __future__ import annotations

from standfast.errors import ToolNameTaken
from standfast.plugins.plugin import Plugin
from standfast.plugins.protocol import ProtocolBuildInput, ProtocolSessionPlugin, TurnDriverPreamble
from standfast.plugins.registrar import PluginRegistrar
from standfast.protocols.standard.host import StandardHost
from standfast.tools.registered_tool import RegisteredTool, native_contract


class StandardDriver:
    """Offers the showcased tools to the model as native tool calls, and a search if there are others."""

    shares_preambles = True
    """What it makes of a catalog has nothing of the session in it."""

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        own = _search(given) if given.tool_catalog.has_more() else {}
        found = [native_contract(given.resolve(tool.name).capability) for tool in given.tool_catalog.found()]
        shown = given.tool_catalog.capabilities(given.resolve)
        return TurnDriverPreamble(
            host=StandardHost,
            tools=tuple(map(native_contract, (*shown, *(tool.capability for tool in own.values()), *found))),
            prompt=given.extra_prompt_contributions,
            own=own,
            found=tuple(found),
        )


def _search(given: ProtocolBuildInput) -> dict[str, RegisteredTool]:
    """The tool that finds those which the model is not shown; what it finds is offered from then on."""
    from standfast.protocols.tool_docs.tool_search import searching  # only catalogs with such tools need it

    tool = searching(given.tool_catalog, given.resolve)
    if given.tool_catalog.find(tool.name) is not None:
        raise ToolNameTaken(tool.name, tool.owner, given.resolve(tool.name).owner)
    return {tool.name: tool}


class StandardProtocol(Plugin):
    """Native tool calls, concurrent, results in source order."""

    id = "standard"
    summary = "Protocol: native tool calls, concurrent, results in source order."

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.protocol.session(ProtocolSessionPlugin())
        registrar.protocol.driver(StandardDriver())
