"""The services of the runtime that plugins and tools may call, and the roles that have them.

Theory of operation
-------------------
Each service is a protocol of its own. A hook gets those of its role: a prompt hook may read and call a model,
but start no turn. The runtime has one implementation of all of them; a context hands out a view that has the
methods of the role and no others.

Rules
-----
1. A service that this session does not have raises `ServiceUnavailable`, which says which and why.
2. What these methods change is durable when they return, except hidden tasks, which are awaited.
3. A method that names a session works on that one. A session that the caller may not see does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from standfast.model.canonical import Json
from standfast.model.capability import ToolAvailability, ToolState
from standfast.model.events import Event
from standfast.model.limits import Usage
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.ports.model_provider import ModelRequest, ReplyEnded

if TYPE_CHECKING:
    from standfast.model.host_requests import (
        AppendSessionNodesRequest,
        AppendSessionNodesResult,
        AssembledTurn,
        DirectCompletion,
        DirectRequest,
        SessionCreateRequest,
        SessionHandle,
        SessionSnapshot,
        TurnInput,
    )
    from standfast.model.monitor import MonitorSnapshot, MonitorSpec, MonitorUpdateBatch
    from standfast.model.task import TaskRecord, TaskSpec, TaskState

SessionTask = Callable[[], Awaitable[Json]]
"""The work of a task. It is cancelled like any coroutine; it returns the task's result."""

TaskCancel = Callable[[], Awaitable[None]]
"""Ends a task that runs outside the runtime."""


class SessionTurnHandle(msgspec.Struct, frozen=True):
    """A turn that was started, and its events, which need not be read."""

    turn_id: str
    events: AsyncIterator[Event]


class DirectLlmCompletion(msgspec.Struct, frozen=True):
    """A whole reply and its usage: one call, with its cost if that is known."""

    response: ReplyEnded
    usage: Usage


class SessionSnapshotHost(Protocol):
    async def snapshot_current(self) -> SessionSnapshot: ...

    async def snapshot_session(self, session_id: str) -> SessionSnapshot: ...


class ToolCatalogHost(Protocol):
    async def tool_catalog(self, session_id: str) -> list[dict[str, Any]]:
        """Return the session's tools as the model sees them."""


class ToolStateHost(Protocol):
    async def tool_state(self, session_id: str) -> ToolState: ...

    async def apply_tool_state(self, session_id: str, snapshot: ToolState) -> int:
        """Apply a state of the current generation; return the generation after it."""

    async def set_tools_availability(
        self, session_id: str, tool_names: Sequence[str], availability: ToolAvailability | None
    ) -> int:
        """Set all of them or none; None clears. Return the generation after it."""

    async def set_tool_availability(
        self, session_id: str, tool_name: str, availability: ToolAvailability | None
    ) -> int: ...


class SessionLifecycleHost(Protocol):
    async def create_session(self, request: SessionCreateRequest) -> SessionHandle: ...

    async def take_first_turn_input(self, session_id: str) -> UserMessage | None:
        """Return the input that waits for the first turn of a session, once."""

    async def close_session(self, session_id: str) -> None:
        """End everything that runs in a session and its children. Their history stays."""


class TurnHost(Protocol):
    async def start_turn_stream(self, session_id: str, input: TurnInput) -> SessionTurnHandle: ...

    async def await_turn(self, turn_id: str) -> AssembledTurn: ...

    async def cancel_turn(self, turn_id: str) -> None: ...

    async def start_turn(self, session_id: str, input: TurnInput) -> AssembledTurn:
        """Start a turn and wait until it has ended, or waits itself."""


class TaskHost(Protocol):
    async def inject_turn_input(self, session_id: str, input: InjectedTurnInput) -> str:
        """Queue a message for the running turn's next checkpoint, or for the next turn; return its id."""

    async def spawn_hidden_task(self, session_id: str, label: str, task: SessionTask) -> None: ...

    async def await_hidden_tasks(self, session_id: str) -> None: ...

    async def spawn_managed_task(self, session_id: str, spec: TaskSpec, task: SessionTask) -> TaskRecord: ...

    async def cancel_managed_task(self, session_id: str, task_id: str) -> None: ...

    async def register_background_task(
        self, session_id: str, spec: TaskSpec, cancel: TaskCancel | None = None
    ) -> TaskRecord: ...

    async def unregister_background_task(self, session_id: str, task_id: str) -> None:
        """Forget a task. Harmless if there is none."""

    async def complete_background_task(self, session_id: str, task_id: str, state: TaskState) -> None:
        """End a task. Harmless if it has ended, or does not exist."""

    async def transition_background_task_live_state(
        self, session_id: str, task_id: str, state: TaskState
    ) -> None:
        """Set a live task to `running` or `idle`. Harmless if it is over."""

    async def list_background_tasks(self, session_id: str) -> list[TaskRecord]: ...

    async def cancel_background_task(self, session_id: str, task_id: str) -> TaskRecord: ...

    async def cancel_all_background_tasks(self, session_id: str) -> list[TaskRecord]: ...

    async def validate_async_handles_visible(self, session_id: str, handle_ids: Sequence[str]) -> None:
        """Raise `TaskNotFound` for the first id that is no task of the session."""

    async def transfer_async_handles(
        self, from_session_id: str, to_session_id: str, handle_ids: Sequence[str]
    ) -> None:
        """Give tasks to another session: all of them or none."""

    async def cancel_unreferenced_async_handles(
        self, session_id: str, keep_handle_ids: Sequence[str]
    ) -> list[TaskRecord]: ...


class MonitorHost(Protocol):
    async def monitor_snapshot(self, session_id: str) -> MonitorSnapshot: ...

    async def take_monitor_updates(self, session_id: str) -> MonitorUpdateBatch:
        """Return the updates of monitors, each once, and acknowledge the pending wake."""

    async def start_monitor(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot: ...

    async def stop_monitor(self, session_id: str, monitor_id: str) -> MonitorSnapshot: ...


class SessionGraphHost(Protocol):
    async def append_session_nodes(
        self, session_id: str, request: AppendSessionNodesRequest
    ) -> AppendSessionNodesResult: ...


class DirectCompletionHost(Protocol):
    async def direct_completion(self, request: DirectRequest, usage_source: str) -> DirectCompletion:
        """Return a text from a model. Its usage is charged to *usage_source* in the session's ledger."""

    async def direct_llm_completion(self, request: ModelRequest, usage_source: str) -> DirectLlmCompletion:
        """Return the whole reply to a request of the caller's own."""


class TraceHost(Protocol):
    async def emit_trace_event(self, name: str, body: Json = None) -> None:
        """Add a record to the trace, below the current span. It never fails."""


class SessionStateService(SessionSnapshotHost, ToolCatalogHost, ToolStateHost, Protocol):
    """Sessions and their tools, as a protocol reads them before a model call."""


class ProcessService(TaskHost, MonitorHost, Protocol):
    """Work beside turns: tasks and monitors."""


class PromptHookHost(SessionSnapshotHost, ToolCatalogHost, TaskHost, DirectCompletionHost, Protocol):
    """The services of a prompt hook."""


class TurnHookHost(SessionSnapshotHost, ToolStateHost, SessionLifecycleHost, TraceHost, Protocol):
    """The services of `before_turn`."""


class TurnResultHookHost(SessionLifecycleHost, TraceHost, Protocol):
    """The services of `after_turn`."""


class CheckpointHookHost(SessionLifecycleHost, TraceHost, Protocol):
    """The services of a checkpoint hook."""


class HistoryHost(
    SessionSnapshotHost,
    SessionLifecycleHost,
    TurnHost,
    TaskHost,
    SessionGraphHost,
    DirectCompletionHost,
    Protocol,
):
    """The services of transforms and compactors of the history."""


class PluginActionHost(
    SessionSnapshotHost,
    ToolCatalogHost,
    ToolStateHost,
    SessionLifecycleHost,
    TurnHost,
    TaskHost,
    MonitorHost,
    SessionGraphHost,
    DirectCompletionHost,
    TraceHost,
    Protocol,
):
    """The services of a plugin's action."""


class ToolHookHost(PluginActionHost, TurnResultHookHost, CheckpointHookHost, Protocol):
    """The services of a tool, and of a hook around tool calls."""


class RuntimeSessionHost(ToolHookHost, PluginActionHost, HistoryHost, TurnHookHost, PromptHookHost, Protocol):
    """All services of one session."""
