"""The host of code that runs outside of an agent's turn or without a runtime.

Rule: a method that must not fail does nothing; every other raises `ServiceUnavailable`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from standfast.errors import ServiceUnavailable

_BY_SERVICE: Final = {
    "the session snapshot": "snapshot_current snapshot_session",
    "the tool catalog": "tool_catalog",
    "the tool state": "tool_state apply_tool_state set_tools_availability set_tool_availability",
    "session creation": "create_session",
    "the first turn's input": "take_first_turn_input",
    "session closing": "close_session",
    "starting turns": "start_turn_stream start_turn",
    "awaiting turns": "await_turn",
    "cancelling turns": "cancel_turn",
    "turn input injection": "inject_turn_input",
    "background tasks": "spawn_hidden_task await_hidden_tasks",
    "managed background tasks": "spawn_managed_task cancel_managed_task",
    "the background task registry": "register_background_task unregister_background_task"
    " complete_background_task transition_background_task_live_state list_background_tasks"
    " cancel_background_task cancel_all_background_tasks validate_async_handles_visible"
    " transfer_async_handles cancel_unreferenced_async_handles",
    "monitors": "monitor_snapshot take_monitor_updates start_monitor stop_monitor",
    "session graph mutation": "append_session_nodes",
    "direct completions": "direct_completion",
    "direct LLM completions": "direct_llm_completion",
    "the trace": "emit_trace_event",
}
SERVICES: Final = {name: service for service, names in _BY_SERVICE.items() for name in names.split()}
"""The service that each method of the host belongs to, for error messages."""

HARMLESS: Final = frozenset((
    "await_hidden_tasks", "unregister_background_task", "complete_background_task",
    "transition_background_task_live_state", "emit_trace_event",
))  # fmt: skip
"""Methods that do nothing, instead of raising, if there is no service."""


class NoHost:
    """A host without services: its methods raise `ServiceUnavailable` or do nothing."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        if name not in SERVICES:
            raise AttributeError(f"the host has no method {name!r}")
        why = self._why

        async def unavailable(*args: object, **kwargs: object) -> None:
            if name not in HARMLESS:
                raise ServiceUnavailable(SERVICES[name], why)

        return unavailable

    def __repr__(self) -> str:
        return "<no host>"


NO_HOST: Final[Any] = NoHost("there is no runtime around it")
