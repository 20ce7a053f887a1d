"""An agent for editors: the Agent Client Protocol, version 1, over JSON-RPC.

Theory of operation
------------------- An ACP session is a session of the runtime, and a prompt is one of its turns. The editor
sees the turn's events as updates; a call that needs approval is a permission request. A prompt first
completes the session's unfinished turn, so a session left by another process is simply loaded and continued.

Rules
-----
1. The id of an ACP session becomes a session id by `session_id_from`, as in every other protocol.
2. An unanswered permission request decides nothing: the turn waits, and the request is repeated.
3. The turn belongs to its session: if the editor disconnects, the next process resumes the turn.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from standfast import __version__
from standfast.errors import InvalidArgument, OutsideError, SessionNotFound, StandfastError
from standfast.model.approval import Approval
from standfast.model.canonical import Json
from standfast.model.events import (
    Event,
    Gap,
    ModelCallStarted,
    NodeCommitted,
    ReasoningStreamed,
    ReplyReceived,
    TextRetracted,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    ToolReported,
    TurnBlocked,
    TurnCommitted,
    TurnParked,
)
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage, text_of
from standfast.model.outcome import Outcome, Stopped, StopReason
from standfast.model.session import TurnRecord, TurnState, session_id_from
from standfast.rpc.json_rpc import Read, RpcPeer, Write, converted, no_method
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Attachment, Session
from standfast.runtime.turn import Turn

_LOOK_S: Final = 0.2
_MAX_FORMS: Final = 5
"""The number of times a question is asked if its answers do not match the schema."""
_CWD: Final = "acp_cwd"
_KINDS: Final = {"read": "read", "write": "edit", "network": "fetch", "none": "think"}
_OPTIONS: Final = [
    {"optionId": "allow", "name": "Allow this call", "kind": "allow_once"},
    {"optionId": "reject", "name": "Refuse this call", "kind": "reject_once"},
]
_STOPPED: Final = {
    StopReason.CANCELLED: "cancelled",
    StopReason.TURN_BUDGET: "max_turn_requests",
    StopReason.NO_PROGRESS: "max_turn_requests",
    StopReason.CONTEXT_OVERFLOW: "max_tokens",
}


class _Camel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """ACP parameters. Fields that this agent does not use are ignored, as the protocol requires."""


class _Initialize(_Camel, frozen=True, kw_only=True):
    protocol_version: int
    client_capabilities: dict[str, Json] = msgspec.field(default_factory=dict)


class _OfDirectory(_Camel, frozen=True, kw_only=True):
    cwd: str = ""


class _OfEditorSession(_Camel, frozen=True, kw_only=True):
    editor_session: str = msgspec.field(name="sessionId")
    cwd: str = ""


class _Prompt(_Camel, frozen=True, kw_only=True):
    editor_session: str = msgspec.field(name="sessionId")
    prompt: list[dict[str, Any]]


_PARAMETERS: Final[dict[str, Any]] = {
    "initialize": _Initialize,
    "authenticate": _Camel,
    "session/new": _OfDirectory,
    "session/load": _OfEditorSession,
    "session/resume": _OfEditorSession,
    "session/fork": _OfEditorSession,
    "session/list": _OfDirectory,
    "session/close": _OfEditorSession,
    "session/delete": _OfEditorSession,
    "session/cancel": _OfEditorSession,
    "session/prompt": _Prompt,
}


def _command(*words: str) -> str:
    return shlex.join(("standfast", *words))


class AcpAgent:
    """One agent for one editor.

    *command* returns a command line, for copying, that uses the same data as *runtime*.
    """

    def __init__(
        self,
        runtime: Runtime,
        agent: AgentDefinition[Any, Any],
        user: str,
        *,
        command: Callable[..., str] = _command,
    ) -> None:
        self._runtime = runtime
        self._command = command
        self._agent = agent
        self._user = user
        self._peer: RpcPeer | None = None
        self._asks_forms = False
        self._effects = {one.name: str(one.side_effect) for one in agent.registry.capabilities()}

    async def serve(self, read: Read, write: Write) -> None:
        """Serve the editor until its input ends."""
        self._peer = RpcPeer(read, write, self._handle)
        await self._peer.serve()

    async def _handle(self, method: str, params: Any) -> Any:
        if method not in _PARAMETERS:
            raise no_method(method)
        asked = converted(params, _PARAMETERS[method])
        match method:
            case "initialize":
                return self._initialize(asked)
            case "authenticate":
                return {}
            case "session/new":
                session_id = f"acp-{secrets.token_hex(8)}"
                await self._runtime.session(session_id, agent=self._agent, metadata={_CWD: asked.cwd})
                return {"sessionId": session_id}
            case "session/list":
                return await self._list(asked)
            case "session/prompt":
                return await self._prompt(asked)
        session = await self._session(asked.editor_session)
        match method:
            case "session/load":
                for update in (update for said in await session.messages() for update in _history(said)):
                    await self.update(asked.editor_session, update)
            case "session/fork":
                return {"sessionId": (await session.fork(f"acp-{secrets.token_hex(8)}")).session_id}
            case "session/close" | "session/cancel":
                await session.cancel()
            case "session/delete":
                await self._runtime.delete(session.session_id)
        return {}

    def _initialize(self, asked: _Initialize) -> Json:
        elicitation = asked.client_capabilities.get("elicitation")
        self._asks_forms = isinstance(elicitation, dict) and elicitation.get("form") is not None
        return {
            "protocolVersion": 1,
            "agentInfo": {"name": str(self._agent.name), "version": __version__},
            "authMethods": [],
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}, "fork": {}, "close": {}, "delete": {}},
            },
        }

    # Sessions

    async def _list(self, asked: _OfDirectory) -> Json:
        heads = [head for head in await self._runtime.sessions() if head.agent == self._agent.name]
        lines = [
            {
                "sessionId": head.session_id,
                "cwd": str(head.metadata.get(_CWD, "")),
                "updatedAt": datetime.fromtimestamp(head.updated_at / 1000, UTC).isoformat(),
            }
            for head in heads
        ]
        return {"sessions": [line for line in lines if asked.cwd in ("", line["cwd"])][:1000]}

    async def _session(self, given: str) -> Session[Any]:
        session_id = session_id_from(given)
        head = await self._runtime.store.head(session_id)
        if head is None:
            raise SessionNotFound(given)
        if head.agent != self._agent.name:
            raise InvalidArgument(f"session {given[:80]!r} belongs to the agent {head.agent!r}")
        return await self._runtime.session(session_id, agent=self._agent)

    # Prompts

    async def _prompt(self, asked: _Prompt) -> Json:
        session = await self._session(asked.editor_session)
        following = _Following(self, session, asked.editor_session)
        unfinished = await session.unfinished()
        if unfinished is not None:
            await following.see_through(session.follow(unfinished.turn_id))
        outcome = await following.see_through(session.turn([_content(one) for one in asked.prompt]))
        if not isinstance(outcome, Stopped):
            return {"stopReason": "end_turn"}
        if outcome.reason in _STOPPED:
            return {"stopReason": _STOPPED[outcome.reason]}
        failure = StandfastError(outcome.error.message, hint=outcome.error.hint)
        failure.code = outcome.error.code
        raise failure

    async def update(self, given: str, update: dict[str, Json]) -> None:
        assert self._peer is not None
        await self._peer.notify("session/update", {"sessionId": given, "update": update})

    def kind_of(self, tool: str) -> str:
        return _KINDS.get(self._effects.get(tool, ""), "other")

    async def decide(self, given: str, approval: Approval, call: dict[str, Json]) -> bool:
        """Ask the editor's user about a call; return whether it was decided."""
        assert self._peer is not None
        runtime, by = self._runtime, self._user
        try:
            if approval.answer_schema is not msgspec.UNSET:
                return await self._ask_form(given, approval)
            asked = {"sessionId": given, "toolCall": call, "options": _OPTIONS}
            answer = await self._peer.request("session/request_permission", asked)
        except OutsideError:
            return False
        outcome = answer.get("outcome", {}) if isinstance(answer, dict) else {}
        if outcome.get("outcome") != "selected":
            return False
        if outcome.get("optionId") == "allow":
            await runtime.approve(approval.approval_id, decided_by=by)
        else:
            await runtime.deny(approval.approval_id, decided_by=by)
        return True

    async def _ask_form(self, given: str, approval: Approval) -> bool:
        """Ask a tool's question; tell an editor without forms how to answer it."""
        assert self._peer is not None
        message = approval.reason or f"{approval.capability} asks"
        if not self._asks_forms:
            how = self._command("approvals", "approve", approval.approval_id, "--arguments", "{...}")
            await self.update(given, _text(f"{message}\n\nAnswer it with `{how}`, then send a prompt."))
            return False
        problem = ""
        for _ in range(_MAX_FORMS):
            form = {"sessionId": given, "mode": "form", "message": f"{message}{problem}"}
            answer = await self._peer.request(
                "elicitation/create", {**form, "requestedSchema": approval.answer_schema}
            )
            action = answer.get("action") if isinstance(answer, dict) else None
            if action == "decline":
                await self._runtime.deny(approval.approval_id, decided_by=self._user)
                return True
            if action != "accept":
                return False
            said = answer.get("content") or {}
            try:
                await self._runtime.approve(approval.approval_id, arguments=said, decided_by=self._user)
                return True
            except InvalidArgument as error:
                problem = f" ({error.message})"
        return False


class _Following:
    """Shows the turns of one prompt to the editor, until the last one ends."""

    def __init__(self, acp: AcpAgent, session: Session[Any], given: str) -> None:
        self._acp = acp
        self._session = session
        self._given = given
        self._streamed = False
        self._shown: set[str] = set()

    async def see_through(self, turn: Turn[Any]) -> Outcome:
        """Run a turn, showing its events and asking about its calls; return its outcome."""
        after = await self._session.cursor()
        if turn.request is None and (await self._record(turn.turn_id)).state is TurnState.WAITING:
            if not await self._ask(turn.turn_id):
                return await self._left_waiting(turn.turn_id)
        else:
            await turn.begun()
            if turn.done:
                await turn.settled()  # raises the error that kept it from beginning
        async for observed in self._session.observe(after):
            event = observed.event
            await self._show(event)
            if isinstance(event, TurnBlocked) and event.turn_id == turn.turn_id:
                raise StandfastError(event.error.message, hint=event.error.hint)
            if isinstance(event, TurnParked) and event.turn_id == turn.turn_id:
                if not await self._ask(turn.turn_id):
                    return await self._left_waiting(turn.turn_id)
            elif isinstance(event, (TurnCommitted, Gap, NodeCommitted)):
                record = await self._record(turn.turn_id)
                if record.state is TurnState.ENDED and record.summary is not None:
                    return record.summary.outcome
        raise AssertionError  # an observation never ends

    async def _record(self, turn_id: str) -> TurnRecord:
        return next(one for one in reversed(await self._session.turns()) if one.turn_id == turn_id)

    async def _ask(self, turn_id: str) -> bool:
        """Ask about the calls that a turn waits for; return False if one is left undecided."""
        pending = [one for one in await self._session.approvals(pending=True) if one.run_id == turn_id]
        for approval in pending:
            arguments = approval.kwargs or {"args": list(approval.args)}
            call = ToolCall(call_id=approval.call_id, name=approval.capability, arguments=arguments)
            await self._show_call(turn_id, call, "pending")
            if not await self._acp.decide(self._given, approval, self._call(turn_id, call, "pending")):
                return False
        if pending:
            self._session.follow(turn_id).start()
        return True  # the runtime resumes turns that wait for a timer or an external system

    async def _left_waiting(self, turn_id: str) -> Outcome:
        """Return the outcome of a turn that the editor cancels instead of answering; raise if it does not."""
        for _ in range(10):
            record = await self._record(turn_id)
            if record.state is TurnState.ENDED and record.summary is not None:
                return record.summary.outcome
            await asyncio.sleep(_LOOK_S)
        raise InvalidArgument(
            f"turn {turn_id} waits for a decision", hint="send a prompt to be asked again, or cancel"
        )

    async def _show(self, event: Event) -> None:
        match event:
            case ModelCallStarted():
                self._streamed = False
            case TextStreamed(text=text):
                self._streamed = True
                await self._send(_text(text))
            case ReasoningStreamed(text=text):
                await self._send(_text(text, "agent_thought_chunk"))
            case TextRetracted() if self._streamed:
                self._streamed = False
                await self._send(_text("\n\n(The reply failed and is started again.)\n\n"))
            case ReplyReceived(text=text) if text and not self._streamed:
                await self._send(_text(text))
            case ToolCallStarted(turn_id=turn_id, call=call):
                await self._show_call(turn_id, call, "in_progress")
            case ToolReported(turn_id=turn_id, call_id=call_id, kind="edit", body=body):
                if isinstance(body, dict) and "path" in body and "new_text" in body:
                    edit = _diff(body["path"], body.get("old_text"), body["new_text"])
                    await self._change(turn_id, call_id, {"kind": "edit", "content": [edit]})
            case ToolCallSettled(turn_id=turn_id, call_id=call_id, value=value, error=error):
                status = "completed" if error is None else "failed"
                shown = value if error is None else error.message
                change: dict[str, Json] = {"status": status, "rawOutput": shown}
                if shown is not None:
                    change["content"] = [_shown(shown)]
                await self._change(turn_id, call_id, change)

    async def _show_call(self, turn_id: str, call: ToolCall, status: str) -> None:
        shown = self._call(turn_id, call, status)
        known = str(shown["toolCallId"])
        if known in self._shown:
            await self._change(turn_id, call.call_id, {"status": status, "rawInput": shown["rawInput"]})
            return
        self._shown.add(known)
        await self._send({"sessionUpdate": "tool_call", **shown})

    def _call(self, turn_id: str, call: ToolCall, status: str) -> dict[str, Json]:
        given: Any = call.arguments if call.arguments is not None else {"args": list(call.args)}
        words = json.dumps(given, ensure_ascii=False)
        shown: dict[str, Json] = {
            "toolCallId": f"{turn_id}.{call.call_id}",
            "title": f"{call.name}({words[1:-1][:200]})",
            "kind": self._acp.kind_of(call.name),
            "status": status,
            "rawInput": given,
        }
        if call.name == "write_text" and isinstance(given, dict) and {"path", "text"} <= given.keys():
            shown["content"] = [_diff(given["path"], None, given["text"])]
            shown["locations"] = [{"path": str(given["path"])}]
        return shown

    async def _change(self, turn_id: str, call_id: int, change: dict[str, Json]) -> None:
        known = f"{turn_id}.{call_id}"
        if known in self._shown:
            await self._send({"sessionUpdate": "tool_call_update", "toolCallId": known, **change})

    async def _send(self, update: dict[str, Json]) -> None:
        await self._acp.update(self._given, update)


def _text(text: str, kind: str = "agent_message_chunk") -> dict[str, Json]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def _diff(path: Json, old: Json, new: Json) -> dict[str, Json]:
    before = None if old is None else str(old)
    return {"type": "diff", "path": str(path), "oldText": before, "newText": str(new)}


def _shown(value: Json) -> dict[str, Json]:
    """Convert the result of a call into content for the editor."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "content", "content": {"type": "text", "text": text}}


def _history(said: Message) -> list[dict[str, Json]]:
    """Convert a message of the history into updates."""
    match said:
        case UserMessage(content=content):
            return [_text(text_of(content), "user_message_chunk")]
        case AssistantMessage(text=text):
            return [_text(text)] if text else []
        case ToolMessage(call_id=call_id, name=name, value=value, error=error):
            call: dict[str, Json] = {
                "sessionUpdate": "tool_call",
                "toolCallId": f"history.{call_id}.{secrets.token_hex(4)}",
                "title": name,
                "status": "completed" if error is None else "failed",
                "content": [_shown(value if error is None else error.message)],
            }
            return [call]
        case _:
            return []


def _content(block: dict[str, Any]) -> str | Attachment:
    """Convert a block of a prompt for `Session.turn`; raise `InvalidArgument` if it is invalid."""
    try:
        match block.get("type"):
            case "text":
                return str(block["text"])
            case "image" | "audio":
                return Attachment(base64.b64decode(block["data"], validate=True), str(block["mimeType"]))
            case "resource_link":
                return f"[{block.get('name', '')}]({block['uri']})"
            case "resource":
                resource = block["resource"]
                if "blob" not in resource:
                    return f"{resource['uri']}:\n\n{resource['text']}"
                kind = str(resource.get("mimeType") or "application/octet-stream")
                return Attachment(
                    base64.b64decode(resource["blob"], validate=True), kind, str(resource["uri"])
                )
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidArgument(f"prompt: {error}") from None
    raise InvalidArgument(f"a block of type {str(block.get('type'))[:80]!r} is not supported")
