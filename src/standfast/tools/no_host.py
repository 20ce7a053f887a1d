"""The runtime's services where there are none: outside of an agent's turn, and without a runtime.

Rule: nothing here pretends. What must not fail does nothing; everything else is `ServiceUnavailable`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from standfast.errors import ServiceUnavailable

SERVICES: Final[dict[str, str]] = {
    "snapshot_current": "the session snapshot",
    "snapshot_session": "the session snapshot",
    "tool_catalog": "the tool catalog",
    "tool_state": "the tool state",
    "apply_tool_state": "the tool state",
    "set_tools_availability": "the tool state",
    "set_tool_availability": "the tool state",
    "create_session": "session creation",
    "take_first_turn_input": "the first turn's input",
    "close_session": "session closing",
    "start_turn_stream": "starting turns",
    "await_turn": "awaiting turns",
    "cancel_turn": "cancelling turns",
    "start_turn": "starting turns",
    "inject_turn_input": "turn input injection",
    "spawn_hidden_task": "background tasks",
    "await_hidden_tasks": "background tasks",
    "spawn_managed_task": "managed background tasks",
    "cancel_managed_task": "managed background tasks",
    "register_background_task": "the background task registry",
    "unregister_background_task": "the background task registry",
    "complete_background_task": "the background task registry",
    "transition_background_task_live_state": "the background task registry",
    "list_background_tasks": "the background task registry",
    "cancel_background_task": "the background task registry",
    "cancel_all_background_tasks": "the background task registry",
    "validate_async_handles_visible": "the background task registry",
    "transfer_async_handles": "the background task registry",
    "cancel_unreferenced_async_handles": "the background task registry",
    "monitor_snapshot": "monitors",
    "take_monitor_updates": "monitors",
    "start_monitor": "monitors",
    "stop_monitor": "monitors",
    "append_session_nodes": "session graph mutation",
    "direct_completion": "direct completions",
    "direct_llm_completion": "direct LLM completions",
    "emit_trace_event": "the trace",
}
"""What each method of the host is called when it is not to be had."""

HARMLESS: Final = frozenset(
    {
        "await_hidden_tasks",
        "unregister_background_task",
        "complete_background_task",
        "transition_background_task_live_state",
        "emit_trace_event",
    }
)
"""Methods that never fail for the want of a service: there is nothing to wait for, to forget or to tell."""


class NoHost:
    """Has every method of the host, and none of its services."""

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
