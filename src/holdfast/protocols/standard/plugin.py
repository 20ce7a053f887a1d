"""The standard protocol as the plugin that it is: it fills the two slots of a protocol, and has no hooks."""

from __future__ import annotations

from holdfast.plugins.plugin import Plugin
from holdfast.plugins.protocol import ProtocolBuildInput, ProtocolSessionPlugin, TurnDriverPreamble
from holdfast.plugins.registrar import PluginRegistrar
from holdfast.protocols.standard.host import StandardHost


class StandardDriver:
    """Offers the showcased tools to the model as native tool calls."""

    shares_preambles = True
    """What it makes of a catalog has nothing of the session in it."""

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        return TurnDriverPreamble(
            host=StandardHost,
            tools=tuple(given.tool_catalog.capabilities(given.resolve)),
            prompt=given.extra_prompt_contributions,
        )


class StandardProtocol(Plugin):
    """Native tool calls, concurrent, results in source order."""

    id = "standard"
    summary = "Protocol: native tool calls, concurrent, results in source order."

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.protocol.session(ProtocolSessionPlugin())
        registrar.protocol.driver(StandardDriver())
