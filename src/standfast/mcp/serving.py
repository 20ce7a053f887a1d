"""Standfast as an MCP server: the sandbox and agents as tools, sessions as resources.

Theory of operation
-------------------
Each tool works on the store, so a client that was disconnected finds its work again: a run by its session, a
turn by its key. If a run or a turn waits for a person, the client's person is asked (see `questions`).

Rules
-----
1. Every request is authorized by its caller: `read`, `run`, `approve`, and the sessions of its tenant.
2. An answer applies only to an approval of the session that the call names.
3. A tool's exception becomes a result with `isError`; the connection survives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server import Server
from mcp.server.context import ServerRequestContext

from standfast.errors import InvalidArgument, SessionExists, SessionNotFound, StandfastError
from standfast.mcp import questions
from standfast.mcp.callers import McpCaller, caller_of
from standfast.mcp.serving_agents import TASKS, AgentTools, TaskParams, UpdateParams
from standfast.mcp.serving_resources import AgentPrompts, SessionResources
from standfast.mcp.serving_results import failed_result, tool_result
from standfast.model.limits import require_allowed
from standfast.model.run import RunResult, RunStatus
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.sandbox import Sandbox
from standfast.tools.registered_tool import validate_answer

SNAPSHOT_OWNER: Final = "standfast.server"
"""The owner of the store's records of snapshot ownership, for HTTP and MCP."""

_TEXT: Final = {"type": "string"}
_SESSION: Final = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$", "default": "mcp"}
_READ_ONLY: Final = ("validate_code", "list_sessions")


class McpService:
    """The tools, resources and prompts that Standfast offers to MCP clients.

    *trace_file* is the file that the runtime's trace is written to, if there is one. *decide_with* is the
    command with which a person decides an approval. Without *sandbox*, there are only agents.
    """

    def __init__(
        self,
        sandbox: Sandbox | None,
        runtime: Runtime,
        agents: Sequence[AgentDefinition[Any, Any]],
        *,
        trace_file: str | None = None,
        decide_with: str = questions.DECIDE_WITH,
    ) -> None:
        self._sandbox = sandbox
        self._decide_with = decide_with
        self._runtime = runtime
        self._agents = AgentTools(runtime, agents, decide_with)
        self._resources = SessionResources(runtime, trace_file)
        self._prompts = AgentPrompts(agents)

    def server(self) -> Server[Any]:
        """Return an SDK server, which speaks both revisions."""
        from standfast import __version__

        made: Server[Any] = Server(
            "standfast",
            version=__version__,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._resources.list_resources,
            on_list_resource_templates=self._resources.templates,
            on_read_resource=self._resources.read,
            on_list_prompts=self._prompts.list_prompts,
            on_get_prompt=self._prompts.get,
        )
        made.extensions[TASKS] = {}
        made.add_request_handler("tasks/get", TaskParams, self._agents.get_task)
        made.add_request_handler("tasks/update", UpdateParams, self._agents.update_task)
        made.add_request_handler("tasks/cancel", TaskParams, self._agents.cancel_task)
        return made

    # Tools

    def tools(self, caller: McpCaller) -> list[types.Tool]:
        """Return the tools that *caller* may use: the sandbox's, and one for each agent."""
        found = [*self._sandbox_tools(), *self._agents.tools()]
        return [
            one for one in found if caller.may("run") or (one.name == "list_sessions" and caller.may("read"))
        ]

    def _sandbox_tools(self) -> list[types.Tool]:
        if self._sandbox is None:
            return []
        granted = ", ".join(one.name for one in self._sandbox.capabilities()) or "none"
        code = {"code": _TEXT, "session": _SESSION}
        return [
            _tool(
                "run_code",
                "Run code in a sandboxed session. Variables stay in the session. The result is the value of "
                f"`result`, or of the last expression. Functions that the code may call: {granted}.",
                {**code, "timeout_ms": {"type": "integer", "minimum": 1}},
                ("code",),
            ),
            _tool("resume_run", "Continue a run that was waiting for a person.", {"session": _SESSION}),
            _tool("validate_code", "Check code without running it.", code, ("code",)),
            _tool("list_sessions", "List the sessions of the sandbox.", {}),
            _tool(
                "delete_session", "Delete a session and its variables.", {"session": _SESSION}, ("session",)
            ),
            _tool(
                "snapshot_session", "Store a snapshot of a session; returns its id.", {"session": _SESSION}
            ),
            _tool(
                "restore_session",
                "Restore a session from a stored snapshot.",
                {"snapshot_id": _TEXT, "session": _SESSION},
                ("snapshot_id",),
            ),
        ]

    async def _list_tools(self, ctx: ServerRequestContext[Any], params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self.tools(caller_of(ctx)))

    async def _call_tool(self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Any:
        try:
            caller = caller_of(ctx)
            tool = next((one for one in self.tools(caller) if one.name == params.name), None)
            if tool is None:
                raise InvalidArgument(f"there is no tool {params.name[:80]!r}")
            given = params.arguments or {}
            validate_answer(tool.input_schema, given, params.name)
            if params.name in self._agents.names:
                return await self._agents.ask(ctx, params.name, given, params.input_responses)
            caller.require("read" if params.name == "list_sessions" else "run")
            result = await self._use_sandbox(ctx, caller, params.name, given, params.input_responses)
            return result if isinstance(result, types.InputRequiredResult) else tool_result(result)
        except StandfastError as error:
            return failed_result(error.error_object())

    # The sandbox

    async def _code_session(self, caller: McpCaller, given: dict[str, Any], *, exists: bool = False) -> str:
        """Return the stored id of the session that a call names; raise if it is not the caller's."""
        named = given.get("session", "mcp")
        stored = caller.own_id(named)
        head = await self._runtime.store.head(stored)
        if head is not None and (not caller.owns(head) or head.code is None):
            raise SessionNotFound(named) if exists else SessionExists(named)
        return stored

    async def _use_sandbox(
        self, ctx: Any, caller: McpCaller, tool: str, given: dict[str, Any], responses: Any
    ) -> Any:
        """Execute a call of one of the sandbox's tools; return its value or a question."""
        box, store = self._sandbox, self._runtime.store
        assert box is not None  # its tools are listed
        owned = f"snapshots:{caller.tenant}"
        match tool:
            case "run_code":
                session = await self._code_session(caller, given)
                if responses:  # the run is already waiting; these are the answers
                    return await self._decided_run(ctx, caller, session, None, responses)
                if "timeout_ms" in given and not caller.may("admin"):
                    require_allowed("timeout_ms", given["timeout_ms"], box.options.limits.wall_ms)
                options = {"timeout_ms": given["timeout_ms"]} if "timeout_ms" in given else {}
                with caller.working():
                    result = await box.run(given["code"], session=session, **options)
                return await self._decided_run(ctx, caller, session, result, None)
            case "resume_run":
                session = await self._code_session(caller, given, exists=True)
                resumed = None if responses else await box.resume(session)
                return await self._decided_run(ctx, caller, session, resumed, responses)
            case "validate_code":
                session = await self._code_session(caller, given)
                return msgspec.to_builtins(await box.validate(given["code"], session=session))
            case "list_sessions":
                found = [one for one in await box.sessions() if caller.owns_id(one.meta.id)]
                return {"sessions": msgspec.to_builtins(found)}
            case "delete_session":
                return {"deleted": await box.destroy(await self._code_session(caller, given, exists=True))}
            case "snapshot_session":
                session = await self._code_session(caller, given, exists=True)
                snapshot_id = await box.snapshot(session)
                if caller.tenant is not None:
                    now = self._runtime.now_ms()
                    await store.put_plugin_record(SNAPSHOT_OWNER, owned, snapshot_id, session.encode(), now)
                return {"snapshot_id": snapshot_id}
            case _:  # restore_session
                snapshot_id, target = given["snapshot_id"], None
                if caller.tenant is not None:
                    kept = await store.plugin_record(SNAPSHOT_OWNER, owned, snapshot_id)
                    if kept is None:
                        raise InvalidArgument(f"there is no snapshot {snapshot_id[:80]!r}")
                    target = kept.decode()
                if "session" in given:
                    target = await self._code_session(caller, given)
                return {"session": await box.restore(snapshot_id, session=target)}

    async def _decided_run(
        self, ctx: Any, caller: McpCaller, session: str, result: RunResult | None, responses: Any
    ) -> Any:
        """Return the result of a run once all its approvals are decided, or the questions for the client."""
        box = self._sandbox
        assert box is not None
        while result is None or result.status is RunStatus.WAITING_FOR_APPROVAL:
            pending = await box.approvals(session=session, pending=True)
            if responses:
                caller.require("approve")
                decided: Any = questions.decisions(pending, responses)
            else:
                decided = await questions.ask(ctx, caller, pending)
            if isinstance(decided, types.InputRequiredResult):
                return decided
            if not decided:
                break
            by = caller.decided_by(questions.client_name(ctx))
            for approval in pending:
                if (answer := decided.get(approval.approval_id)) is not None:
                    approved, kwargs, reason = answer
                    if approved:
                        result = await box.approve(approval.approval_id, kwargs=kwargs, decided_by=by)
                    else:
                        result = await box.deny(approval.approval_id, reason=reason, decided_by=by)
                    caller.decided(approval)
            responses = None
        if result is None:
            result = await box.resume(session)
        value = msgspec.to_builtins(result)
        if result.status is RunStatus.WAITING_FOR_APPROVAL:
            pending = await box.approvals(session=session, pending=True)
            value["waits_for"] = [questions.how_to_decide(one, self._decide_with) for one in pending]
            value["then"] = f'call resume_run with session "{session}"'
        return value


def _tool(
    name: str, description: str, properties: dict[str, Any], required: tuple[str, ...] = ()
) -> types.Tool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    hints = types.ToolAnnotations(read_only_hint=True) if name in _READ_ONLY else None
    return types.Tool(name=name, description=description, input_schema=schema, annotations=hints)
