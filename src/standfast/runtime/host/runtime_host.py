"""The implementation of all services of a session's host. Hooks and tools get views of it by role."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from standfast.errors import InvalidArgument, ServiceUnavailable, StaleBranch, StandfastError, TaskNotFound
from standfast.graph.history import messages_of
from standfast.model import host_requests
from standfast.model.canonical import Json, to_json
from standfast.model.capability import ToolAvailability, ToolState
from standfast.model.limits import UsageEntry
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.monitor import MonitorSnapshot, MonitorSpec, MonitorUpdateBatch
from standfast.model.plugin_state import PluginSessionSnapshot, decode_state, encode_state
from standfast.model.session import SessionHead, SessionPolicy, node_id, split_node_id
from standfast.model.task import TaskRecord, TaskSpec, TaskState
from standfast.plugins.turn_hooks import charged_reply
from standfast.ports.host import DirectLlmCompletion, SessionTask, TaskCancel
from standfast.ports.model_provider import ModelProvider, ModelRequest, ReplyEnded
from standfast.ports.session_store import SessionStore
from standfast.runtime.host.service import HostService
from standfast.runtime.host.sessions import LifecycleService
from standfast.runtime.host.tasks import Tasks
from standfast.runtime.host.turns import TurnService
from standfast.runtime.sessions.materialize import durable_state
from standfast.runtime.sessions.session_plugins import SessionTools, append_nodes
from standfast.runtime.turn import RUNNING_TURN
from standfast.tools.no_host import SERVICES

if TYPE_CHECKING:
    from standfast.runtime.monitors.monitors import Monitors


class CompletionService(HostService):
    """The `DirectCompletionHost` of a session."""

    __slots__ = ()

    async def direct_completion(
        self, request: host_requests.DirectRequest, usage_source: str
    ) -> host_requests.DirectCompletion:
        """Request text from the session's model, or from the model that the request names."""
        method = "direct_completion"
        if not request.prompt and not isinstance(request.prompt, str):
            raise InvalidArgument("a direct completion has no prompt", hint="pass text or messages")
        prompt = request.prompt
        head = await self._head(method, self.session_id)
        policy = await self._policy(head)
        model = self._model(method, head, request.model, policy)
        settings = policy.settings if policy is not None and not request.model else {}
        asked = ModelRequest(
            messages=[UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt),
            instructions=request.instructions,
            output_schema=request.output_schema,
            settings={**settings, **request.settings},
        )
        reply, entry = await self._ask(head, asked, usage_source, model, own=not request.model)
        return host_requests.DirectCompletion(text=reply.text, usage=entry.usage)

    async def direct_llm_completion(self, request: ModelRequest, usage_source: str) -> DirectLlmCompletion:
        """Send the caller's request to the session's model, with call number and idempotency key set here."""
        method = "direct_llm_completion"
        head = await self._head(method, self.session_id)
        model = self._model(method, head, None, await self._policy(head))
        reply, entry = await self._ask(head, request, usage_source, model, own=True)
        return DirectLlmCompletion(response=reply, usage=entry.usage)

    async def _policy(self, head: SessionHead) -> SessionPolicy | None:
        """Return the session's settings, if its agent is known here."""
        live = await self._directory.at_work(head)
        return None if live is None else (await live.current()).policy

    def _model(
        self, method: str, head: SessionHead, wanted: str | None, policy: SessionPolicy | None
    ) -> ModelProvider:
        live = self._directory.live(self.session_id)
        name = wanted or (policy.model if policy is not None else "")
        if not name:
            raise ServiceUnavailable(
                SERVICES[method], f"no model is known here for session {head.session_id!r}"
            )
        if live.prepared is not None and name == live.prepared.agent.model_id:
            return live.prepared.model
        self._require_open(method)
        return self.services.models.named(name, self.session_id)

    async def _ask(
        self, head: SessionHead, request: ModelRequest, source: str, model: ModelProvider, *, own: bool
    ) -> tuple[ReplyEnded, UsageEntry]:
        """Return the whole reply and its usage, charged to the session or to the running turn."""
        if not source or not isinstance(source, str):
            raise InvalidArgument(
                "a direct completion has no usage source",
                hint="pass usage_source=, the name this call is charged to",
            )
        here = RUNNING_TURN.get()
        turn = here if here is not None and here.session_id == self.session_id else None
        if turn is not None and not turn.account.is_over:
            reply, entry = await turn.account.ask(request, source, None if own else model)
            if turn.account.is_over:
                await self._charge(entry)
        else:
            self._require_open("direct_completion")
            numbered = msgspec.structs.replace(
                request,
                session_id=self.session_id,
                turn_id="",
                call_number=head.model_calls + 1,
                idempotency_key=f"{self.session_id}.direct.{os.urandom(8).hex()}",
                read_blob=request.read_blob or self.services.store.blob,
            )
            cost_of = self.services.cost_of(model.model_id)
            reply, entry = await charged_reply(model, numbered, source, cost_of)
            await self._charge(entry)
        if self.is_open:
            body = {"source": entry.source, "model": entry.model, "tokens": entry.usage.total}
            turn_id = "" if turn is None else turn.turn_id
            self.services.record(self.session_id, turn_id, "", "direct_completion", body)
        return reply, entry

    async def _charge(self, entry: UsageEntry) -> None:
        await self._directory.store.add_usage(self.session_id, (entry,), 1, self._directory.now_ms())


async def snapshot_of(store: SessionStore, head: SessionHead) -> host_requests.SessionSnapshot:
    """Return a snapshot of a session, with the messages before its unfinished turn."""
    messages = [] if head.leaf is None else messages_of(await store.frame(head.leaf))
    copied = decode_state(encode_state(await durable_state(store, head)))  # a copy that the caller may change
    plugins = PluginSessionSnapshot(plugins=dict(copied.plugins.plugins))
    state = msgspec.structs.replace(copied, plugins=plugins)
    return host_requests.SessionSnapshot(head=head, messages=tuple(messages), state=state)


class TaskService(HostService):
    """The `TaskHost` of a session."""

    __slots__ = ()

    async def inject_turn_input(self, session_id: str, input: InjectedTurnInput) -> str:
        """Send a message to the running or next turn of a session, which may be above this one."""
        await self._head("inject_turn_input", session_id, upward=True)
        return await self._directory.put_input(session_id, "inject", input.message, input.id)

    async def spawn_hidden_task(self, session_id: str, label: str, task: SessionTask) -> None:
        """Run *task* without a record. It is awaited before the runtime closes."""
        await self._head("spawn_hidden_task", session_id)
        self._background.tasks.hidden.spawn(session_id, label, task)

    async def await_hidden_tasks(self, session_id: str) -> None:
        if self.is_open:
            await self._background.tasks.hidden.wait(session_id)

    async def spawn_managed_task(self, session_id: str, spec: TaskSpec, task: SessionTask) -> TaskRecord:
        """Run *task* with a record, which stores its result or error."""
        tasks = await self._tasks("spawn_managed_task", session_id)
        return await tasks.spawn(session_id, spec, task)

    async def cancel_managed_task(self, session_id: str, task_id: str) -> None:
        await (await self._tasks("cancel_managed_task", session_id)).cancel(session_id, task_id)

    async def register_background_task(
        self, session_id: str, spec: TaskSpec, cancel: TaskCancel | None = None
    ) -> TaskRecord:
        """Record a task that the caller runs; the runtime calls *cancel* to end it."""
        tasks = await self._tasks("register_background_task", session_id)
        return await tasks.register(session_id, spec, cancel)

    async def unregister_background_task(self, session_id: str, task_id: str) -> None:
        if self.is_open:
            tasks = await self._tasks("unregister_background_task", session_id)
            await tasks.unregister(session_id, task_id)

    async def complete_background_task(self, session_id: str, task_id: str, state: TaskState) -> None:
        if self.is_open:
            tasks = await self._tasks("complete_background_task", session_id)
            await tasks.complete(session_id, task_id, state)

    async def transition_background_task_live_state(
        self, session_id: str, task_id: str, state: TaskState
    ) -> None:
        if self.is_open:
            tasks = await self._tasks("transition_background_task_live_state", session_id)
            await tasks.transition(session_id, task_id, state)

    async def list_background_tasks(self, session_id: str) -> list[TaskRecord]:
        """Return the session's tasks, oldest first, including those that have ended."""
        await self._tasks("list_background_tasks", session_id)
        return await self._directory.store.tasks(session_id=session_id)

    async def cancel_background_task(self, session_id: str, task_id: str) -> TaskRecord:
        """Cancel a task: end a monitor's processes, a subagent's sessions, or the task's coroutine."""
        return await (await self._tasks("cancel_background_task", session_id)).cancel(session_id, task_id)

    async def cancel_all_background_tasks(self, session_id: str) -> list[TaskRecord]:
        return await (await self._tasks("cancel_all_background_tasks", session_id)).cancel_all(session_id)

    async def validate_async_handles_visible(self, session_id: str, handle_ids: Sequence[str]) -> None:
        """Raise `TaskNotFound` for the first id that is not a task of the session."""
        await self._tasks("validate_async_handles_visible", session_id)
        for task_id in handle_ids:
            if await self._directory.store.task(session_id, task_id) is None:
                raise TaskNotFound(session_id, task_id)

    async def transfer_async_handles(
        self, from_session_id: str, to_session_id: str, handle_ids: Sequence[str]
    ) -> None:
        """Move tasks to another session, which may be above this one: all of them or none."""
        tasks = await self._tasks("transfer_async_handles", from_session_id)
        await self._head("transfer_async_handles", to_session_id, upward=True)
        await tasks.transfer(from_session_id, to_session_id, handle_ids)

    async def cancel_unreferenced_async_handles(
        self, session_id: str, keep_handle_ids: Sequence[str]
    ) -> list[TaskRecord]:
        """Cancel the live tasks of a session except those in *keep_handle_ids*."""
        tasks = await self._tasks("cancel_unreferenced_async_handles", session_id)
        return await tasks.cancel_all(session_id, keep_handle_ids)

    async def _tasks(self, method: str, session_id: str) -> Tasks:
        await self._head(method, session_id)
        return self._background.tasks


_MAX_NAME = 128


class RuntimeHost(LifecycleService, TurnService, TaskService, CompletionService):
    """The `RuntimeSessionHost` of a session, which adds snapshots, tools, monitors, history and trace."""

    __slots__ = ()

    async def snapshot_current(self) -> host_requests.SessionSnapshot:
        head = await self._head("snapshot_current", self.session_id)
        return await snapshot_of(self._directory.store, head)

    async def snapshot_session(self, session_id: str) -> host_requests.SessionSnapshot:
        head = await self._head("snapshot_session", session_id)
        return await snapshot_of(self._directory.store, head)

    async def tool_catalog(self, session_id: str) -> list[dict[str, Any]]:
        """Return the tools as the model sees them; the caller may change the list."""
        return await (await self._tools("tool_catalog", session_id)).catalog()

    async def tool_state(self, session_id: str) -> ToolState:
        return await (await self._tools("tool_state", session_id)).state()

    async def apply_tool_state(self, session_id: str, snapshot: ToolState) -> int:
        """Apply a tool state; raise `GenerationMismatch` if it is not of the current generation."""
        return await (await self._tools("apply_tool_state", session_id)).apply_state(snapshot)

    async def set_tools_availability(
        self, session_id: str, tool_names: Sequence[str], availability: ToolAvailability | None
    ) -> int:
        """Set the availability of all these tools.

        Raise `UnknownTool`, and change none, if one is unknown.
        """
        tools = await self._tools("set_tools_availability", session_id)
        return await tools.set_availability(list(tool_names), availability)

    async def set_tool_availability(
        self, session_id: str, tool_name: str, availability: ToolAvailability | None
    ) -> int:
        tools = await self._tools("set_tool_availability", session_id)
        return await tools.set_availability(tool_name, availability)

    async def _tools(self, method: str, session_id: str) -> SessionTools:
        live = await self._live(method, session_id)
        return SessionTools(live, self.services)

    async def append_session_nodes(
        self, session_id: str, request: host_requests.AppendSessionNodesRequest
    ) -> host_requests.AppendSessionNodesResult:
        """Append all nodes to the leaf, or return the current leaf if the session has moved."""
        await self._head("append_session_nodes", session_id)
        live = self._directory.live(session_id)
        try:
            head = await append_nodes(live, self.services, request.nodes, request.requires_ancestor_node_id)
        except StaleBranch as stale:
            return host_requests.BranchIsStale(current_leaf_node_id=stale.current_leaf_node_id)
        if not request.nodes:
            return host_requests.Appended(node_ids=(), leaf_node_id=head.leaf or "")
        assert head.leaf is not None
        segment = split_node_id(head.leaf)[0]
        ids = tuple(node_id(segment, place) for place in range(len(request.nodes)))
        return host_requests.Appended(node_ids=ids, leaf_node_id=head.leaf)

    async def monitor_snapshot(self, session_id: str) -> MonitorSnapshot:
        return await (await self._monitors("monitor_snapshot", session_id)).snapshot(session_id)

    async def take_monitor_updates(self, session_id: str) -> MonitorUpdateBatch:
        """Take the updates of the session's monitors, once."""
        return await (await self._monitors("take_monitor_updates", session_id)).take_updates(session_id)

    async def start_monitor(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot:
        return await (await self._monitors("start_monitor", session_id)).start(session_id, spec)

    async def stop_monitor(self, session_id: str, monitor_id: str) -> MonitorSnapshot:
        return await (await self._monitors("stop_monitor", session_id)).stop(session_id, monitor_id)

    async def _monitors(self, method: str, session_id: str) -> Monitors:
        await self._head(method, session_id)
        return self._background.monitors

    async def emit_trace_event(self, name: str, body: Json = None) -> None:
        """Add a record to the trace. Never raises: a body that is not JSON is left out."""
        here = RUNNING_TURN.get()
        if not self.is_open:
            return
        try:
            clean, _ = to_json(body)
        except StandfastError:
            clean = None
        turn_id = here.turn_id if here is not None and here.session_id == self.session_id else ""
        self.services.record(self.session_id, turn_id, "", str(name)[:_MAX_NAME], clean)

    def __repr__(self) -> str:
        return f"<RuntimeHost of {self.session_id}>"
