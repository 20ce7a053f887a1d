"""The views of one session's host, one for each role; each is made when it is first wanted."""

from __future__ import annotations

from typing import Any, TypeVar

from standfast.ports import host as ports
from standfast.runtime.host.views import plugin_view, view

R = TypeVar("R")


class HostViews:
    """The `SessionHosts` of a session of a runtime."""

    __slots__ = ("_host", "_made")

    def __init__(self, host: ports.RuntimeSessionHost) -> None:
        self._host = host
        self._made: dict[type, Any] = {}

    def _view(self, role: type[R]) -> R:
        found = self._made.get(role)
        if found is None:
            found = self._made[role] = view(self._host, role)
        made: R = found
        return made

    @property
    def prompt(self) -> ports.PromptHookHost:
        return self._view(ports.PromptHookHost)  # type: ignore[type-abstract]

    @property
    def turn(self) -> ports.TurnHookHost:
        return self._view(ports.TurnHookHost)  # type: ignore[type-abstract]

    @property
    def checkpoint(self) -> ports.CheckpointHookHost:
        return self._view(ports.CheckpointHookHost)  # type: ignore[type-abstract]

    @property
    def turn_result(self) -> ports.TurnResultHookHost:
        return self._view(ports.TurnResultHookHost)  # type: ignore[type-abstract]

    @property
    def history(self) -> ports.HistoryHost:
        return self._view(ports.HistoryHost)  # type: ignore[type-abstract]

    @property
    def tool(self) -> ports.ToolHookHost:
        return self._view(ports.ToolHookHost)  # type: ignore[type-abstract]

    @property
    def action(self) -> ports.PluginActionHost:
        return self._view(ports.PluginActionHost)  # type: ignore[type-abstract]

    @property
    def sessions(self) -> ports.SessionStateService:
        return self._view(ports.SessionStateService)  # type: ignore[type-abstract]

    @property
    def session_graph(self) -> ports.SessionGraphHost:
        return self._view(ports.SessionGraphHost)  # type: ignore[type-abstract]

    @property
    def processes(self) -> ports.ProcessService:
        return self._view(ports.ProcessService)  # type: ignore[type-abstract]

    @property
    def completions(self) -> ports.DirectCompletionHost:
        return self._view(ports.DirectCompletionHost)  # type: ignore[type-abstract]

    @property
    def session(self) -> ports.PluginActionHost:
        return plugin_view(self._host)
