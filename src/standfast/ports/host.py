"""The services of the runtime that plugins and tools may call, and the roles that have them.

Theory of operation
-------------------
Each service is a protocol of its own. A hook gets those of its role: a prompt hook may read and call a model,
but not start a turn. The runtime implements all of them in one class; a context exposes a view that has only
the methods of its role.

Rules
-----
1. A service that this session lacks raises `ServiceUnavailable`, which names the service and the reason.
2. Changes made by these methods are durable when they return. Hidden tasks are not stored; they are awaited.
3. A method with a `session_id` works on that session. A session that the caller may not see counts as
   missing.
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
"""The work of a task: returns the task's result, and can be cancelled like any coroutine."""

TaskCancel = Callable[[], Awaitable[None]]
"""Ends a task that runs outside the runtime."""


class SessionTurnHandle(msgspec.Struct, frozen=True):
    """A turn that was started, and a stream of its events, which the caller need not read."""

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
        """Apply *snapshot*, which must be of the current generation; return the new generation."""

    async def set_tools_availability(
        self, session_id: str, tool_names: Sequence[str], availability: ToolAvailability | None
    ) -> int:
        """Set the availability of all *tool_names* or of none; None clears it. Return the new generation."""

    async def set_tool_availability(
        self, session_id: str, tool_name: str, availability: ToolAvailability | None
    ) -> int: ...


class SessionLifecycleHost(Protocol):
    async def create_session(self, request: SessionCreateRequest) -> SessionHandle: ...

    async def take_first_turn_input(self, session_id: str) -> UserMessage | None:
        """Claim and return the input that waits for the first turn of a session; None if there is none."""

    async def close_session(self, session_id: str) -> None:
        """End everything that runs in a session and its children. Their history is kept."""


class TurnHost(Protocol):
    async def start_turn_stream(self, session_id: str, input: TurnInput) -> SessionTurnHandle: ...

    async def await_turn(self, turn_id: str) -> AssembledTurn: ...

    async def cancel_turn(self, turn_id: str) -> None: ...

    async def start_turn(self, session_id: str, input: TurnInput) -> AssembledTurn:
        """Start a turn and await its end, or the point where it parks."""


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
        """Forget a task. Does nothing if it does not exist."""

    async def complete_background_task(self, session_id: str, task_id: str, state: TaskState) -> None:
        """End a task with *state*. Does nothing if it has ended or does not exist."""

    async def transition_background_task_live_state(
        self, session_id: str, task_id: str, state: TaskState
    ) -> None:
        """Set a live task to `running` or `idle`. Does nothing if it has ended."""

    async def list_background_tasks(self, session_id: str) -> list[TaskRecord]: ...

    async def cancel_background_task(self, session_id: str, task_id: str) -> TaskRecord: ...

    async def cancel_all_background_tasks(self, session_id: str) -> list[TaskRecord]: ...

    async def validate_async_handles_visible(self, session_id: str, handle_ids: Sequence[str]) -> None:
        """Raise `TaskNotFound` for the first id that does not name a task of the session."""

    async def transfer_async_handles(
        self, from_session_id: str, to_session_id: str, handle_ids: Sequence[str]
    ) -> None:
        """Move tasks to another session: all of them or none."""

    async def cancel_unreferenced_async_handles(
        self, session_id: str, keep_handle_ids: Sequence[str]
    ) -> list[TaskRecord]: ...


class MonitorHost(Protocol):
    async def monitor_snapshot(self, session_id: str) -> MonitorSnapshot: ...

    async def take_monitor_updates(self, session_id: str) -> MonitorUpdateBatch:
        """Return the monitor updates that were not taken before, and acknowledge the pending wake."""

    async def start_monitor(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot: ...

    async def stop_monitor(self, session_id: str, monitor_id: str) -> MonitorSnapshot: ...


class SessionGraphHost(Protocol):
    async def append_session_nodes(
        self, session_id: str, request: AppendSessionNodesRequest
    ) -> AppendSessionNodesResult: ...


class DirectCompletionHost(Protocol):
    async def direct_completion(self, request: DirectRequest, usage_source: str) -> DirectCompletion:
        """Return a model's text reply. Its usage is charged to *usage_source* in the session's ledger."""

    async def direct_llm_completion(self, request: ModelRequest, usage_source: str) -> DirectLlmCompletion:
        """Return the whole reply to a request that the caller built itself."""


class TraceHost(Protocol):
    async def emit_trace_event(self, name: str, body: Json = None) -> None:
        """Add a record to the trace, below the current span. Never raises."""


class SessionStateService(SessionSnapshotHost, ToolCatalogHost, ToolStateHost, Protocol):
    """Sessions and their tools, as a protocol reads them before a model call."""


class ProcessService(TaskHost, MonitorHost, Protocol):
    """Background work that runs alongside turns: tasks and monitors."""


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
    """The services of history transforms and compactors."""


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
