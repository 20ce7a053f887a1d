"""A2A 1.0 over JSON-RPC: an agent's card, its tasks and their streams.

Theory of operation
-------------------
A context is a session, and a task is one of its turns, under the turn's id. A message without a task starts a
turn; its `messageId` is the turn's idempotency key. A message to a task that waits for a person is the
decision; a message to a running task is injected. A turn's answer is the artifact `answer`: text is appended
to it as it is streamed, and it is sent whole when the turn ends.

Rules
-----
1. A client sees only the tasks of its tenant and of the agent in the path.
2. A card names the agent and its URL; it reveals nothing about instructions, tools or models.
3. The server fetches nothing for a client: a part with a URL is rejected.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from standfast import __version__
from standfast.errors import Code, InvalidArgument, RequestRefused, StandfastError, TurnNotFound
from standfast.model.approval import Approval
from standfast.model.canonical import Json
from standfast.model.events import (
    Gap,
    ModelCallStarted,
    NodeCommitted,
    TextRetracted,
    TextStreamed,
    TurnCommitted,
    TurnParked,
)
from standfast.model.message import AssistantMessage, Message, UserMessage, text_of
from standfast.model.outcome import Finished, Stopped, StopReason, Waiting
from standfast.model.session import SessionHead, TurnRecord, TurnState
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_session import Attachment, Session
from standfast.runtime.http_values import Decide
from standfast.runtime.sessions.observation import Cursor, messages_of_turn
from standfast.server.approvals import decide_approval
from standfast.server.calls import Call, Routes, whole_numbers
from standfast.server.credentials import Scope
from standfast.server.encoders.conversations import read_base64
from standfast.server.sessions import open_session, stream
from standfast.server.streams import EventStream
from standfast.server.tenants import foreign_session_id
from standfast.server.turns import start_turn, turn_record

_CONTEXT: Final = "a2a_context"
_NOT_FOUND, _NOT_CANCELABLE, _NO_PUSH, _UNSUPPORTED, _CONTENT, _NO_CARD = range(-32001, -32008, -1)[:6]
_VERSION: Final = -32009
_MAX_LISTED: Final = 1_000
_CANCEL_S: Final = 5.0
_INTERNAL: Final = -32603
_YES: Final = frozenset({"approve", "approved", "yes", "y", "ok", "allow"})
_NO: Final = frozenset({"deny", "denied", "no", "n", "reject", "refuse"})
_CARD = "/.well-known/agent-card.json"
ROUTES: Final = Routes()


class A2ARequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON-RPC 2.0 request, as A2A defines it."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Json] = msgspec.field(default_factory=dict)
    id: str | int | None = None


class A2AResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON-RPC 2.0 response: a result or an error."""

    jsonrpc: str
    id: str | int | None
    result: Json = None
    error: dict[str, Json] | None = None


class _A2AMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A client's message. Fields that this server does not use are ignored."""

    message_id: str
    parts: list[dict[str, Json]]
    context_id: str = ""
    task_id: str = ""


class _Configuration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    history_length: int | None = None
    return_immediately: bool = False


class _SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    message: _A2AMessage
    configuration: _Configuration = _Configuration()


class _OfTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    history_length: int | None = None


class _ListTasks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    context_id: str = ""
    status: str = ""
    page_size: int = 50
    page_token: str = ""
    history_length: int | None = 0
    include_artifacts: bool = False


class _A2AFailed(StandfastError):
    """A failure that A2A defines an error for."""

    def __init__(self, number: int, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivered:
    """A message that was delivered to its task.

    `after` is the cursor before it, None if the task had already ended; `decided` is the approval it decided.
    """

    session: Session[Any]
    turn_id: str
    after: Cursor | None
    decided: str = ""


@ROUTES.add("GET", _CARD, Scope.READ, answer=dict[str, Json], publishable=True)
async def agent_card(call: Call) -> dict[str, Json]:
    """Return the A2A card of this server's first agent."""
    return _card(call, next(iter(call.server.agents.values()), None))


@ROUTES.add("GET", f"/a2a/{{agent}}{_CARD}", Scope.READ, answer=dict[str, Json], publishable=True)
async def named_agent_card(call: Call) -> dict[str, Json]:
    """Return the A2A card of an agent."""
    return _card(call, call.server.agents.get(call.path["agent"]))


def _card(call: Call, agent: AgentDefinition[Any, Any] | None) -> dict[str, Json]:
    if agent is None:
        raise RequestRefused(404, Code.NOT_CONFIGURED, "there is no such agent")
    root = str(call.scope.get("root_path", ""))
    base = f"{call.scope['scheme']}://{call.headers['host']}{root}"
    name, modes = str(agent.name), ["text/plain", "application/json"]
    description = f"The agent {name} of a Standfast server."
    return {
        "name": name,
        "description": description,
        "version": __version__,
        "supportedInterfaces": [
            {"url": f"{base}/a2a/{name}", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "securitySchemes": {"token": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"token": {"list": []}}}],
        "defaultInputModes": [*modes, "application/octet-stream"],
        "defaultOutputModes": modes,
        "skills": [{"id": name, "name": name, "description": description, "tags": ["agent"]}],
    }


@ROUTES.add(
    "POST",
    "/a2a/{agent}",
    Scope.RUN,
    body=A2ARequest,
    answer=A2AResponse,
    streams=True,
    headers={"A2A-Version": "The version of A2A that the client speaks; 1.0 if it is not sent."},
)
async def a2a(call: Call) -> Any:
    """Handle an A2A request: messages, tasks, and streams of them.

    `SendStreamingMessage` and `SubscribeToTask` return an event stream.
    """
    asked: A2ARequest = call.body
    try:
        version = call.headers.get("a2a-version", "1.0")
        if version.partition(".")[0] != "1":
            raise _A2AFailed(_VERSION, f"version {version[:20]!r} is not supported", "send A2A-Version: 1.0")
        agent = call.server.agents.get(call.path["agent"])
        if agent is None:
            raise RequestRefused(404, Code.NOT_CONFIGURED, "there is no such agent")
        handler = _METHODS.get(asked.method)
        if handler is None:
            push = "PushNotification" in asked.method
            number, what = (_NO_PUSH, "push notifications") if push else (-32601, asked.method[:80])
            raise _A2AFailed(number, f"this server does not have {what}")
        result = await handler(call, agent, asked)
        return result if isinstance(result, EventStream) else _response(asked, result)
    except RequestRefused as error:
        if error.status in (401, 403, 404, 429, 503):
            raise
        return _failure(asked, error)
    except (StandfastError, msgspec.ValidationError) as error:
        return _failure(asked, error)


def _response(asked: A2ARequest, result: Json) -> A2AResponse:
    return A2AResponse(jsonrpc="2.0", id=asked.id, result=result)


def _failure(asked: A2ARequest, error: StandfastError | msgspec.ValidationError) -> A2AResponse:
    if isinstance(error, msgspec.ValidationError):
        error = InvalidArgument(f"params: {error}")
    code = str(error.code)
    number = _INTERNAL
    if isinstance(error, _A2AFailed):
        number = error.number
    elif isinstance(error, TurnNotFound):
        number = _NOT_FOUND
    elif code in (Code.WAITING_FOR_APPROVAL, Code.SESSION_BUSY, Code.APPROVAL_ALREADY_DECIDED):
        number = _UNSUPPORTED
    elif code in (Code.INVALID_ARGUMENT, Code.INVALID_SESSION_ID, Code.IDEMPOTENCY_CONFLICT):
        number = -32602
    details = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": code,
        "domain": "standfast",
        "metadata": {"hint": error.hint} if error.hint else {},
    }
    shown = {"code": number, "message": error.message, "data": [details]}
    return A2AResponse(jsonrpc="2.0", id=asked.id, error=shown)


# Methods


async def _send(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> Json:
    given = msgspec.convert(asked.params, _SendMessage)
    sent = await _deliver(call, agent, given.message)
    if not given.configuration.return_immediately and sent.after is not None:
        with suppress(StandfastError):  # the task's status reports how it ended
            waits = [sent.decided]
            while sent.decided in waits:  # until it ends, or waits for anything but what the message decided
                result = await sent.session.follow(sent.turn_id).settled()
                waits = [wait.wait_id for wait in getattr(result, "waits", ())]
    return {"task": await _task(call, sent.session, sent.turn_id, given.configuration.history_length)}


async def _send_streaming(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> EventStream:
    given = msgspec.convert(asked.params, _SendMessage)
    sent = await _deliver(call, agent, given.message)
    return _follow(call, asked, sent.session, sent.turn_id, sent.after)


async def _subscribe(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> EventStream:
    session, record = await _find(call, agent, msgspec.convert(asked.params, _OfTask).id)
    if record.state is TurnState.ENDED:
        raise _A2AFailed(_UNSUPPORTED, f"task {record.turn_id} has ended", "get it with GetTask")
    return _follow(call, asked, session, record.turn_id, await _place(call, session, record.turn_id))


async def _place(call: Call, session: Session[Any], turn_id: str) -> Cursor | None:
    """Return the cursor to follow a task from; None if it has ended or waits for a person."""
    after = Cursor(depth=(await session.head()).depth)  # read before the record, so as not to miss commits
    return None if await _has_stopped(call, session, turn_id) else after


async def _get(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> Json:
    given = msgspec.convert(asked.params, _OfTask)
    session, record = await _find(call, agent, given.id)
    return await _task(call, session, record.turn_id, given.history_length)


async def _cancel(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> Json:
    session, record = await _find(call, agent, msgspec.convert(asked.params, _OfTask).id)
    if record.state is TurnState.ENDED or not await call.runtime.cancel(record.turn_id):
        raise _A2AFailed(_NOT_CANCELABLE, f"task {record.turn_id} has ended")
    with suppress(StandfastError, TimeoutError):
        async with asyncio.timeout(_CANCEL_S):
            await session.follow(record.turn_id).settled()
    return await _task(call, session, record.turn_id, 0)


async def _list(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> Json:
    given = msgspec.convert(asked.params, _ListTasks)
    size, skipped = given.page_size or 50, given.page_token or "0"
    if not 1 <= size <= 100 or not (skipped.isascii() and skipped.isdigit() and len(skipped) < 10):
        raise InvalidArgument("pageSize must be 1 to 100, and pageToken one that was returned")
    heads = [head for head in await call.visible_heads() if head.agent == agent.name and head.code is None]
    if given.context_id:
        wanted = foreign_session_id(call.tenant, given.context_id)
        heads = [head for head in heads if head.session_id == wanted]
    found: list[TurnRecord] = []
    for head in heads[:_MAX_LISTED]:
        turns = reversed(await call.runtime.store.turns(head.session_id))
        found += [one for one in turns if given.status in ("", "TASK_STATE_UNSPECIFIED", _state(one))]
    found.sort(key=lambda one: one.ended_at or one.created_at, reverse=True)
    place = int(skipped)
    tasks = []
    for record in found[place : place + size]:
        session = call.runtime.session_handle(record.session_id)
        task = await _task(call, session, record.turn_id, given.history_length)
        if not given.include_artifacts:
            task.pop("artifacts", None)
        tasks.append(task)
    following = str(place + size) if place + size < len(found) else ""
    return {"tasks": tasks, "nextPageToken": following, "pageSize": size, "totalSize": len(found)}


async def _extended_card(call: Call, agent: AgentDefinition[Any, Any], asked: A2ARequest) -> Json:
    raise _A2AFailed(_NO_CARD, "this server has no extended card")


_METHODS: Final[dict[str, Callable[[Call, AgentDefinition[Any, Any], A2ARequest], Awaitable[Any]]]] = {
    "SendMessage": _send,
    "SendStreamingMessage": _send_streaming,
    "SubscribeToTask": _subscribe,
    "GetTask": _get,
    "ListTasks": _list,
    "CancelTask": _cancel,
    "GetExtendedAgentCard": _extended_card,
}


# Messages


async def _deliver(call: Call, agent: AgentDefinition[Any, Any], message: _A2AMessage) -> _Delivered:
    """Deliver a message to its task, or start a task."""
    if not message.message_id or not message.parts:
        raise InvalidArgument("a message needs messageId and parts")
    if not message.task_id:
        return await _start(call, agent, message)
    session, record = await _find(call, agent, message.task_id)
    after, decided = await session.cursor(), ""
    if record.state is TurnState.ENDED:
        hint = "send it without taskId, and with contextId, to start the next one"
        raise _A2AFailed(_UNSUPPORTED, f"task {record.turn_id} has ended", hint)
    if record.state is TurnState.WAITING:
        decided = await _decide(call, session, record, message)
    else:
        await session.inject(_prompt(message), id=f"{session.session_id}.a2a.{message.message_id[:64]}")
    return _Delivered(session=session, turn_id=record.turn_id, after=after, decided=decided)


async def _start(call: Call, agent: AgentDefinition[Any, Any], message: _A2AMessage) -> _Delivered:
    context_id = message.context_id or f"a2a-{secrets.token_hex(12)}"
    session_id = foreign_session_id(call.tenant, context_id)
    head = await call.runtime.store.head(session_id)
    if head is not None and head.agent != agent.name:
        raise InvalidArgument(f"contextId {context_id[:80]!r} is in use", hint="leave it out for a new one")
    metadata: dict[str, Json] | None = None if head else {_CONTEXT: context_id}
    session = await open_session(call, session_id, str(agent.name), metadata)
    after: Cursor | None = await session.cursor()
    began_at = call.runtime.now_ms()
    turn = await start_turn(call, session, _prompt(message), key=f"a2a:{message.message_id}"[:200])
    record = await turn_record(call, session.session_id, turn.turn_id)
    if record.created_at < began_at:  # the message is a retry
        after = await _place(call, session, turn.turn_id)
    return _Delivered(session=session, turn_id=turn.turn_id, after=after)


async def _find(
    call: Call, agent: AgentDefinition[Any, Any], task_id: str
) -> tuple[Session[Any], TurnRecord]:
    """Return the session and record of a task that the credential may see."""
    found = await call.turn(task_id)
    if found is None or found[1].agent != agent.name:
        raise TurnNotFound(task_id)
    record, head = found
    return await call.runtime.session(head.session_id, agent=agent), record


def _prompt(message: _A2AMessage) -> list[str | Attachment]:
    """Convert the parts of a message into a prompt."""
    parts: list[str | Attachment] = []
    for part in message.parts:
        text, raw = part.get("text"), part.get("raw")
        if isinstance(text, str):
            parts.append(text)
        elif isinstance(raw, str):
            kind, name = part.get("mediaType"), part.get("filename")
            parts.append(read_base64(raw, str(kind) if kind else None, str(name) if name else None))
        elif "data" in part:
            parts.append(json.dumps(part["data"], ensure_ascii=False))
        else:
            raise _A2AFailed(
                _CONTENT, "a part must have text, raw or data", "send the bytes of a file as raw"
            )
    if not any(part for part in parts if not isinstance(part, str) or part.strip()):
        raise InvalidArgument("the message is blank")
    return parts


# Decisions


async def _decide(call: Call, session: Session[Any], record: TurnRecord, message: _A2AMessage) -> str:
    """Treat a message as the decision that its task waits for; return the approval's id."""
    pending = [one for one in await session.approvals(pending=True) if one.run_id == record.turn_id]
    if not pending:
        raise _A2AFailed(_UNSUPPORTED, f"task {record.turn_id} does not wait for a person")
    approval, decision = _decision(pending, message)
    await decide_approval(call, approval.approval_id, decision)
    session.follow(record.turn_id).start()
    return approval.approval_id


def _decision(pending: list[Approval], message: _A2AMessage) -> tuple[Approval, Decide]:
    data = next((part["data"] for part in message.parts if isinstance(part.get("data"), dict)), None)
    if isinstance(data, dict):
        wanted = data.get("approvalId")
        known = {one.approval_id: one for one in pending}
        if wanted is None and len(pending) > 1:
            raise InvalidArgument("several calls wait; name one", hint=f"send approvalId: {', '.join(known)}")
        if wanted is not None and wanted not in known:
            raise InvalidArgument(f"the task does not wait for approval {str(wanted)[:80]!r}")
        approval = pending[0] if wanted is None else known[str(wanted)]
        if "approved" not in data and _asks(approval):
            answer = {key: value for key, value in data.items() if key != "approvalId"}
            return approval, Decide(approved=True, arguments=whole_numbers(answer))
        facts = {key: value for key, value in data.items() if key != "approvalId"}
        return approval, msgspec.convert(whole_numbers(facts), Decide)
    text = "\n".join(str(part["text"]) for part in message.parts if "text" in part).strip()
    if len(pending) > 1:
        raise InvalidArgument("several calls wait", hint="send a data part with approvalId and approved")
    return pending[0], _spoken(pending[0], text)


def _spoken(approval: Approval, text: str) -> Decide:
    """Parse a decision that a person wrote as text."""
    word, _, rest = text.partition(" ")
    said = word.strip(".,:;!").lower()
    if said in _NO:
        return Decide(approved=False, reason=rest.strip()[:2000] or None)
    if _asks(approval):
        properties = approval.answer_schema.get("properties", {})  # type: ignore[union-attr]
        if len(properties) == 1:
            return Decide(approved=True, arguments={next(iter(properties)): text})
    elif said in _YES and not rest.strip():
        return Decide(approved=True)
    raise InvalidArgument(
        f"{text[:80]!r} is not a decision",
        hint='send "approve" or "deny REASON", or a data part {"approved": true, "arguments": {...}}',
    )


def _asks(approval: Approval) -> bool:
    return approval.answer_schema is not msgspec.UNSET


# Tasks


async def _task(call: Call, session: Session[Any], turn_id: str, history: int | None) -> dict[str, Json]:
    """Return a turn as a task, with up to *history* of its messages, or all of them if it is None."""
    record = await turn_record(call, session.session_id, turn_id)
    head = await session.head()
    task: dict[str, Json] = {
        "id": turn_id,
        "contextId": context_of(head),
        "status": await _status(session, record, context_of(head)),
    }
    summary = record.summary
    if record.state is TurnState.ENDED and summary is not None and isinstance(summary.outcome, Finished):
        task["artifacts"] = [_artifact(summary.outcome)]
    if history != 0:
        said = await messages_of_turn(call.runtime.store, record)
        shown = [_message(one, f"{turn_id}.{number}", task) for number, one in enumerate(said)]
        kept = [one for one in shown if one is not None]
        task["history"] = kept if history is None else kept[-history:]
    return task


def context_of(head: SessionHead) -> str:
    """Return the context id of a session."""
    named = head.metadata.get(_CONTEXT)
    return named if isinstance(named, str) else head.session_id


def _state(record: TurnRecord) -> str:
    outcome = None if record.summary is None else record.summary.outcome
    if record.state is TurnState.WAITING and isinstance(outcome, Waiting):
        asks = any(wait.kind == "approval" for wait in outcome.waits)
        return "TASK_STATE_INPUT_REQUIRED" if asks else "TASK_STATE_WORKING"
    if record.state is not TurnState.ENDED:
        return "TASK_STATE_WORKING"
    if isinstance(outcome, Stopped):
        cancelled = outcome.reason is StopReason.CANCELLED
        return "TASK_STATE_CANCELED" if cancelled else "TASK_STATE_FAILED"
    return "TASK_STATE_COMPLETED"


async def _status(session: Session[Any], record: TurnRecord, context_id: str) -> dict[str, Json]:
    state = _state(record)
    at = datetime.fromtimestamp((record.ended_at or record.created_at) / 1000, UTC)
    status: dict[str, Json] = {"state": state, "timestamp": at.isoformat().replace("+00:00", "Z")}
    parts: list[Json] = []
    if state == "TASK_STATE_INPUT_REQUIRED":
        pending = [one for one in await session.approvals(pending=True) if one.run_id == record.turn_id]
        for one in pending:
            data: dict[str, Json] = {
                "approvalId": one.approval_id,
                "tool": one.capability,
                "arguments": one.arguments,
                "expiresAt": one.expires_at,
            }
            if _asks(one):
                data["answerSchema"] = one.answer_schema
            parts += [{"text": _question(one)}, {"data": data}]
    elif record.summary is not None and isinstance(record.summary.outcome, Stopped):
        error = record.summary.outcome.error
        parts = [{"text": error.message}, {"data": {"code": error.code, "hint": error.hint}}]
    if parts:
        status["message"] = {
            "messageId": f"{record.turn_id}.status",
            "role": "ROLE_AGENT",
            "taskId": record.turn_id,
            "contextId": context_id,
            "parts": parts,
        }
    return status


def _question(approval: Approval) -> str:
    about = f" {approval.reason}" if approval.reason else ""
    if _asks(approval):
        return f"{approval.capability} asks:{about}"
    arguments = json.dumps(approval.arguments, ensure_ascii=False)
    return f"{approval.capability}({arguments}) needs approval.{about} Reply approve, or deny and a reason."


def _artifact(outcome: Finished) -> dict[str, Json]:
    part: dict[str, Json] = {"text": outcome.text} if outcome.value is None else {"data": outcome.value}
    return {"artifactId": "answer", "name": "answer", "parts": [part]}


def _message(said: Message, message_id: str, task: dict[str, Json]) -> Json:
    """Return a message of the history; None unless it is text from the user or the agent."""
    match said:
        case UserMessage(content=content):
            role, text = "ROLE_USER", text_of(content)
        case AssistantMessage(text=text):
            role = "ROLE_AGENT"
        case _:
            return None
    ids = {"messageId": message_id, "taskId": task["id"], "contextId": task["contextId"]}
    return {**ids, "role": role, "parts": [{"text": text}]} if text else None


# Streams


def _follow(
    call: Call, asked: A2ARequest, session: Session[Any], turn_id: str, after: Cursor | None
) -> EventStream:
    """Return a task's stream: the task, its answer as it is streamed, its status when it ends or waits."""

    async def chunks() -> AsyncIterator[bytes]:
        task = await _task(call, session, turn_id, 0)
        ids: dict[str, Json] = {"taskId": turn_id, "contextId": task["contextId"]}
        yield _line(asked, {"task": task})
        if after is not None:
            async for chunk in _updates(call, session, turn_id, after):
                yield _line(asked, {"artifactUpdate": {**ids, **chunk}})
        record = await turn_record(call, session.session_id, turn_id)
        if record.summary is not None and isinstance(record.summary.outcome, Finished):
            whole = {"artifact": _artifact(record.summary.outcome), "lastChunk": True}
            yield _line(asked, {"artifactUpdate": {**ids, **whole}})
        status = await _status(session, record, str(task["contextId"]))
        yield _line(asked, {"statusUpdate": {**ids, "status": status}})

    return stream(call, chunks())


async def _updates(
    call: Call, session: Session[Any], turn_id: str, after: Cursor
) -> AsyncIterator[dict[str, Json]]:
    """Yield the answer as it is streamed, until the turn ends or waits for a person."""
    append = False
    async for observed in session.observe(after):
        event = observed.event
        if isinstance(event, (Gap, NodeCommitted)):  # the turn may have ended in another process
            if await _has_stopped(call, session, turn_id):
                return
        elif getattr(event, "turn_id", None) == turn_id:
            if isinstance(event, TextStreamed):
                part = {"artifactId": "answer", "parts": [{"text": event.text}]}
                yield {"artifact": part, "append": append, "lastChunk": False}
                append = True
            elif isinstance(event, (ModelCallStarted, TextRetracted)):
                append = False  # later text replaces the text so far
            elif isinstance(event, TurnCommitted | TurnParked) and await _has_stopped(call, session, turn_id):
                return


async def _has_stopped(call: Call, session: Session[Any], turn_id: str) -> bool:
    return _state(await turn_record(call, session.session_id, turn_id)) != "TASK_STATE_WORKING"


def _line(asked: A2ARequest, result: Json) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(_response(asked, result))
