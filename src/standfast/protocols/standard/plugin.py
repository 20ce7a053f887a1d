"""The standard protocol as a plugin: it fills the two slots of a protocol and has no hooks."""

from __future__ import annotations

from typing import Final

from standfast.errors import ToolNameTaken
from standfast.plugins.plugin import Plugin
from standfast.plugins.protocol import ProtocolBuildInput, ProtocolSessionPlugin
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.turn_protocol import TurnDriverPreamble
from standfast.protocols.standard.host import StandardHost
from standfast.tools.registered_tool import RegisteredTool, native_contract


class StandardDriver:
    """Offers the showcased tools as native tool calls, and a tool search if the catalog has others."""

    shares_preambles = True
    """The preamble depends on the catalog alone, so sessions can share it."""

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        catalog, own = given.tool_catalog, dict[str, RegisteredTool]()
        if catalog.has_more():
            from standfast.protocols.tool_docs.tool_guide import searching  # needed only for a search

            search = searching(catalog, given.resolve)
            if catalog.find(search.name) is not None:
                raise ToolNameTaken(search.name, search.owner, given.resolve(search.name).owner)
            own = {search.name: search}
        found = [native_contract(given.resolve(tool.name).capability) for tool in catalog.found()]
        shown = (*catalog.capabilities(given.resolve), *(tool.capability for tool in own.values()))
        return TurnDriverPreamble(
            host=StandardHost,
            tools=(*map(native_contract, shown), *found),
            prompt=given.extra_prompt_contributions,
            own=own,
            found=tuple(found),
        )


_SESSION: Final = ProtocolSessionPlugin()
_DRIVER: Final = StandardDriver()
"""They have no state, so all sessions share them."""


class StandardProtocol(Plugin):
    """A protocol with native tool calls, executed concurrently, with results in the order of the calls."""

    id = "standard"
    summary = "Protocol: native tool calls, concurrent, results in source order."

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.protocol.session(_SESSION)
        registrar.protocol.driver(_DRIVER)
