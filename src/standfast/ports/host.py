"""What a plugin or a tool may ask of the runtime while it runs: narrow services, and who has which.

Theory of operation
-------------------
Each service is a protocol of its own. A hook is given just those of its role: a prompt hook may look and ask
a model, but start no turn. The runtime has one implementation of all of them; what a context hands out is a
view that has the methods of the role and no others.

Rules
-----
1. A service that this session does not have raises `ServiceUnavailable`, which says which and why.
2. Whatever these methods change is durable when they return, except hidden tasks, which are awaited.
3. A method that names a session works on that one; whoever may not see it is told that there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from standfast.model.canonical import Json
from standfast.model.capability import ToolAvailability, ToolState
from standfast.model.events import Event
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
from standfast.model.limits import Usage
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.monitor import MonitorSnapshot, MonitorSpec, MonitorUpdateBatch
from standfast.model.task import TaskRecord, TaskSpec, TaskState
from standfast.ports.model_provider import ModelRequest, ReplyEnded

SessionTask = Callable[[], Awaitable[Json]]
"""What a task does. It is cancelled as any coroutine is; what it returns is the task's result."""

TaskCancel = Callable[[], Awaitable[None]]
"""Ends a task that somebody else runs."""


@dataclass(frozen=True, slots=True)
class SessionTurnHandle:
    """A turn that was started, and what happens in it. Nobody has to read the events."""

    turn_id: str
    events: AsyncIterator[Event]


@dataclass(frozen=True, slots=True)
class DirectLlmCompletion:
    """A whole reply, and what it used: one call, with its cost if that is known."""

    response: ReplyEnded
    usage: Usage


class SessionSnapshotHost(Protocol):
    async def snapshot_current(self) -> SessionSnapshot: ...

    async def snapshot_session(self, session_id: str) -> SessionSnapshot: ...


class ToolCatalogHost(Protocol):
    async def tool_catalog(self, session_id: str) -> list[dict[str, Any]]:
        """The session's tools as the model is told of them."""


class ToolStateHost(Protocol):
    async def tool_state(self, session_id: str) -> ToolState: ...

    async def apply_tool_state(self, session_id: str, snapshot: ToolState) -> int:
        """Take a state over whose generation is the current one; the generation after it."""

    async def set_tools_availability(
        self, session_id: str, tool_names: Sequence[str], availability: ToolAvailability | None
    ) -> int:
        """All of them or none; None clears. The generation after it."""

    async def set_tool_availability(
        self, session_id: str, tool_name: str, availability: ToolAvailability | None
    ) -> int: ...


class SessionLifecycleHost(Protocol):
    async def create_session(self, request: SessionCreateRequest) -> SessionHandle: ...

    async def take_first_turn_input(self, session_id: str) -> UserMessage | None:
        """What was left for the first turn of a session, once."""

    async def close_session(self, session_id: str) -> None:
        """End what runs in a session and its children. Their history stays."""


class TurnHost(Protocol):
    async def start_turn_stream(self, session_id: str, input: TurnInput) -> SessionTurnHandle: ...

    async def await_turn(self, turn_id: str) -> AssembledTurn: ...

    async def cancel_turn(self, turn_id: str) -> None: ...

    async def start_turn(self, session_id: str, input: TurnInput) -> AssembledTurn:
        """Start a turn and wait until it has ended, or waits itself."""


class TaskHost(Protocol):
    async def inject_turn_input(self, session_id: str, input: InjectedTurnInput) -> str:
        """A message for the next checkpoint of the running turn, or for the next turn; its id."""

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
        """A task has ended. Harmless if it had, or is not there."""

    async def transition_background_task_live_state(
        self, session_id: str, task_id: str, state: TaskState
    ) -> None:
        """A live task is `running` or `idle` from here on. Harmless if it is over."""

    async def list_background_tasks(self, session_id: str) -> list[TaskRecord]: ...

    async def cancel_background_task(self, session_id: str, task_id: str) -> TaskRecord: ...

    async def cancel_all_background_tasks(self, session_id: str) -> list[TaskRecord]: ...

    async def validate_async_handles_visible(self, session_id: str, handle_ids: Sequence[str]) -> None:
        """`TaskNotFound` for the first id that is no task of the session."""

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
        """What monitors told, once. This acknowledges the wake that is under way."""

    async def start_monitor(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot: ...

    async def stop_monitor(self, session_id: str, monitor_id: str) -> MonitorSnapshot: ...


class SessionGraphHost(Protocol):
    async def append_session_nodes(
        self, session_id: str, request: AppendSessionNodesRequest
    ) -> AppendSessionNodesResult: ...


class DirectCompletionHost(Protocol):
    async def direct_completion(self, request: DirectRequest, usage_source: str) -> DirectCompletion:
        """Ask a model for a text. What that used is in the session's ledger, under *usage_source*."""

    async def direct_llm_completion(self, request: ModelRequest, usage_source: str) -> DirectLlmCompletion:
        """The same with a request of one's own, and the whole reply."""


class TraceHost(Protocol):
    async def emit_trace_event(self, name: str, body: Json = None) -> None:
        """Put a record into the trace, below the span that is under way. It never fails."""


class SessionStateService(SessionSnapshotHost, ToolCatalogHost, ToolStateHost, Protocol):
    """Sessions as they stand, and their tools: what a protocol has of them before a model call."""


class ProcessService(TaskHost, MonitorHost, Protocol):
    """What goes on beside turns: tasks and monitors."""


class PromptHookHost(SessionSnapshotHost, ToolCatalogHost, TaskHost, DirectCompletionHost, Protocol):
    """What a prompt hook may ask for."""


class TurnHookHost(SessionSnapshotHost, ToolStateHost, SessionLifecycleHost, TraceHost, Protocol):
    """What `before_turn` may ask for."""


class TurnResultHookHost(SessionLifecycleHost, TraceHost, Protocol):
    """What `after_turn` may ask for."""


class CheckpointHookHost(SessionLifecycleHost, TraceHost, Protocol):
    """What a checkpoint hook may ask for."""


class HistoryHost(
    SessionSnapshotHost,
    SessionLifecycleHost,
    TurnHost,
    TaskHost,
    SessionGraphHost,
    DirectCompletionHost,
    Protocol,
):
    """What transforms and compactors of the history may ask for."""


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
    """What an action of a plugin may ask for."""


class ToolHookHost(PluginActionHost, TurnResultHookHost, CheckpointHookHost, Protocol):
    """What a tool, and a hook around tool calls, may ask for."""


class RuntimeSessionHost(ToolHookHost, PluginActionHost, HistoryHost, TurnHookHost, PromptHookHost, Protocol):
    """Everything, for one session."""
