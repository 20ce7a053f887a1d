"""Agents as tools of an MCP server: each request is a turn, and a task for clients that support tasks.

Theory of operation
-------------------
A turn belongs to the runtime. A call waits for it; if the client disconnects, the turn continues, and the
same key finds it again. A client of 2026-07-28 that declares the extension `io.modelcontextprotocol/tasks`
(SEP-2663) gets a task immediately instead. The task is the turn: its id is the turn's and its state is read
from the store, so any process over that store can answer for it, even after a crash.

Rules
-----
1. A task is returned once its turn is stored.
2. Another tenant's task does not exist for the client.
3. A turn's approvals become `inputRequests`, one for each, if the client may decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp import MCPError
from mcp.server.mcpserver import require_client_extension

from standfast.errors import InvalidArgument, SessionExists, StandfastError
from standfast.mcp import questions
from standfast.mcp.callers import McpCaller, caller_of
from standfast.mcp.connection import STATELESS
from standfast.mcp.serving_results import failed_result, tool_result
from standfast.model.approval import Approval
from standfast.model.outcome import StopReason
from standfast.model.session import SessionHead, TurnRecord, TurnState
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.result import FinishedTurn, StoppedTurn, WaitingTurn
from standfast.runtime.turn import Turn

TASKS: Final = "io.modelcontextprotocol/tasks"
POLL_MS: Final = 1000


class TaskParams(types.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`."""

    input_responses: dict[str, Any]


class AgentTools:
    """The tools `ask_AGENT`, and their tasks."""

    def __init__(
        self, runtime: Runtime, agents: Sequence[AgentDefinition[Any, Any]], decide_with: str
    ) -> None:
        self._runtime = runtime
        self._decide_with = decide_with
        self._agents = {str(one.name): one for one in agents}
        self.names = {f"ask_{name.replace('-', '_')}": name for name in self._agents}
        self._followed: dict[str, asyncio.Task[None]] = {}

    def tools(self) -> list[types.Tool]:
        """Return a tool for each agent."""
        found = []
        for tool, name in self.names.items():
            about = self._agents[name].instructions
            words = f" Its instructions: {about[:500]}" if isinstance(about, str) and about else ""
            properties: dict[str, Any] = {
                "prompt": {"type": "string"},
                "session": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$", "default": f"mcp-{name}"},
                "key": {
                    "type": "string",
                    "description": "an idempotency key: the same key and prompt return the same turn",
                },
            }
            schema = {
                "type": "object",
                "properties": properties,
                "required": ["prompt"],
                "additionalProperties": False,
            }
            about_it = f"Ask the agent {name}.{words}"
            found.append(types.Tool(name=tool, description=about_it, input_schema=schema))
        return found

    async def ask(self, ctx: Any, tool: str, given: dict[str, Any], responses: Any) -> Any:
        """Run the turn that a client requests; return its result, a question, or a task."""
        caller, name = caller_of(ctx), self.names[tool]
        caller.require("run")
        session = await self._session(caller, name, given.get("session", f"mcp-{name}"))
        if responses:
            caller.require("approve")
            pending = await self._runtime.approvals(session=session.session_id, pending=True)
            await self._apply(ctx, caller, pending, questions.decisions(pending, responses))
            turn = await self._continued(caller, session)
        else:
            started = session.turn(given["prompt"], idempotency_key=given.get("key"))
            capabilities = ctx.session.client_capabilities
            declared = None if capabilities is None else capabilities.extensions
            if ctx.protocol_version >= STATELESS and TASKS in (declared or {}):
                return await self._as_task(caller, started)
            with caller.working():
                turn = await started.settled()
        while isinstance(turn, WaitingTurn):
            pending = await self._pending(turn.session_id, turn.turn_id)
            decided = await questions.ask(ctx, caller, pending)
            if isinstance(decided, types.InputRequiredResult):
                return decided
            if not decided:
                waits = [questions.how_to_decide(one, self._decide_with) for one in pending]
                then = "call this tool again with the same prompt and key"
                return tool_result({"status": "waiting", "waits_for": waits, "then": then})
            await self._apply(ctx, caller, pending, decided)
            turn = await self._continued(caller, session)
        return _result_of(turn)

    async def _session(self, caller: McpCaller, name: str, given: str) -> Session[Any]:
        stored = caller.own_id(given)
        head = await self._runtime.store.head(stored)
        if head is not None and (not caller.owns(head) or head.code is not None):
            raise SessionExists(given)
        metadata = caller.metadata if head is None else None
        return await self._runtime.session(stored, agent=self._agents[name], metadata=metadata)

    async def _continued(self, caller: McpCaller, session: Session[Any]) -> Any:
        """Resume a session's unfinished turn; return its result, or that of the last turn."""
        with caller.working():
            turn = await session.resume()
            if turn is None:
                turn = session.follow((await session.turns())[-1].turn_id)
            return await turn.settled()

    async def _pending(self, session_id: str, turn_id: str) -> list[Approval]:
        found = await self._runtime.approvals(session=session_id, pending=True)
        return [one for one in found if one.run_id == turn_id]

    async def _apply(
        self, ctx: Any, caller: McpCaller, pending: list[Approval], decided: dict[str, questions.Decision]
    ) -> None:
        by = caller.decided_by(questions.client_name(ctx))
        for approval in pending:
            if (answer := decided.get(approval.approval_id)) is None:
                continue
            approved, arguments, reason = answer
            if approved:
                await self._runtime.approve(approval.approval_id, arguments=arguments, decided_by=by)
            else:
                await self._runtime.deny(approval.approval_id, reason=reason, decided_by=by)
            caller.decided(approval)

    # Tasks

    async def _as_task(self, caller: McpCaller, started: Turn[Any]) -> dict[str, Any]:
        """Return the task of a turn once it is stored."""
        await started.begun()
        if started.done:
            await started.settled()  # raises the error that kept it from beginning
        self._follow(caller, started)
        record = await self._runtime.store.turn(started.turn_id)
        assert record is not None
        return {"resultType": "task", **_task(record, _status(record))}

    def _follow(self, caller: McpCaller, turn: Turn[Any]) -> None:
        """Follow a turn in this process, and count it, until it ends or waits."""

        async def until_settled() -> None:
            with suppress(StandfastError), caller.working():
                await turn.settled()

        if (running := self._followed.get(turn.turn_id)) is None or running.done():
            following = asyncio.ensure_future(until_settled())
            self._followed[turn.turn_id] = following
            following.add_done_callback(lambda _: self._followed.pop(turn.turn_id, None))

    async def get_task(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        """Handle `tasks/get`; take over a turn that no process runs any more."""
        record, head = await self._find(ctx, params, "read")
        session = await self._runtime.session(record.session_id, agent=self._agents[head.agent])
        if record.state is TurnState.RUNNING and caller_of(ctx).may("run"):
            self._follow(caller_of(ctx), session.follow(record.turn_id))
        task = _task(record, _status(record))
        if record.state is TurnState.ENDED:
            result = _result_of(await session.follow(record.turn_id).settled())
            if task["status"] == "completed":
                task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        elif record.state is TurnState.WAITING and not record.cancel_requested:
            pending = await self._pending(record.session_id, record.turn_id)
            if pending and questions.can_ask(ctx, caller_of(ctx)):
                task["status"] = "input_required"
                task["inputRequests"] = {
                    key: one.model_dump(by_alias=True, mode="json", exclude_none=True)
                    for key, one in questions.input_requests(pending).items()
                }
            else:
                waits = [questions.how_to_decide(one, self._decide_with) for one in pending]
                task["statusMessage"] = f"waiting for {msgspec.json.encode(waits).decode()}"
        return task

    async def update_task(self, ctx: Any, params: UpdateParams) -> dict[str, Any]:
        """Handle `tasks/update`: apply the decisions of the person at the client, and resume."""
        record, head = await self._find(ctx, params, "approve")
        answers = {}
        for key, value in params.input_responses.items():
            with suppress(ValueError):  # ignore malformed answers
                answers[key] = types.ElicitResult.model_validate(value)
        pending = await self._pending(record.session_id, record.turn_id)
        decided = questions.decisions(pending, answers)
        await self._apply(ctx, caller_of(ctx), pending, decided)
        if decided:
            session = await self._runtime.session(record.session_id, agent=self._agents[head.agent])
            self._follow(caller_of(ctx), session.follow(record.turn_id))
        return {}

    async def cancel_task(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        """Handle `tasks/cancel`."""
        record, head = await self._find(ctx, params, "run")
        if record.state is not TurnState.ENDED and await self._runtime.cancel(record.turn_id):
            session = await self._runtime.session(record.session_id, agent=self._agents[head.agent])
            self._follow(caller_of(ctx), session.follow(record.turn_id))  # a waiting turn has to end too
        return {}

    async def _find(self, ctx: Any, params: TaskParams, scope: str) -> tuple[TurnRecord, SessionHead]:
        """Return a task's turn and its session's head; raise `MCPError` if the caller has no such task."""
        if ctx.protocol_version < STATELESS:
            raise MCPError(types.METHOD_NOT_FOUND, f"{ctx.method} needs revision {STATELESS}")
        require_client_extension(ctx, TASKS)
        named = None if ctx.request is None else ctx.request.headers.get("mcp-name")
        if ctx.request is not None and named != params.task_id:
            raise MCPError(types.HEADER_MISMATCH, "Mcp-Name is not the id of the task")
        caller = caller_of(ctx)
        try:
            caller.require(scope)
        except StandfastError as error:
            raise MCPError(types.INVALID_REQUEST, error.message) from None
        record = await self._runtime.store.turn(params.task_id)
        head = None if record is None else await self._runtime.store.head(record.session_id)
        if record is None or head is None or not caller.owns(head) or head.agent not in self._agents:
            raise MCPError(types.INVALID_PARAMS, f"there is no task {params.task_id[:80]!r}")
        return record, head


def _status(record: TurnRecord) -> str:
    if record.state is not TurnState.ENDED:
        return "working"
    outcome = None if record.summary is None else record.summary.outcome
    return "cancelled" if getattr(outcome, "reason", None) == StopReason.CANCELLED else "completed"


def _task(record: TurnRecord, status: str) -> dict[str, Any]:
    return {
        "taskId": record.turn_id,
        "status": status,
        "createdAt": _time(record.created_at),
        "lastUpdatedAt": _time(record.ended_at or record.created_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _result_of(turn: Any) -> types.CallToolResult:
    """Return the tool result of a turn that has ended."""
    if isinstance(turn, FinishedTurn):
        return tool_result(turn.output if isinstance(turn.output, str) else msgspec.to_builtins(turn.output))
    if isinstance(turn, StoppedTurn):
        return failed_result(turn.error)
    if isinstance(turn, WaitingTurn):
        raise InvalidArgument(f"turn {turn.turn_id} waits")
    return tool_result({"status": "frame_switched"})
