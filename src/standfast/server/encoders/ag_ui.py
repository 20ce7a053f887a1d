"""AG-UI 1.0: a run is a turn, or the rest of a turn after its interrupts were resolved.

Rules
-----
1. A thread is a session, by `tenants.foreign_session_id`. The session keeps the history; of a run's messages,
   only the user messages after the last assistant message are new.
2. A run's id is the turn's idempotency key: repeating a run replays the same turn from its beginning.
3. An approval is an interrupt, and `resume` carries the decision, which needs the scope `approve`.
4. The client's context and state are added to the turn's system prompt. Client-side tools are rejected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.approval import Approval
from standfast.model.canonical import Json, canonical_json
from standfast.model.outcome import Stopped, StopReason, Wait
from standfast.runtime.agent_session import Attachment, Prompt, Session
from standfast.runtime.http_values import Decide, Request, TurnView
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.encoders.conversations import (
    answer_waits,
    open_conversation,
    prompt_of,
    read_base64,
)
from standfast.server.encoders.turn_parts import (
    ApprovalShown,
    CallShown,
    ReasoningAdded,
    ReplyShown,
    ResultShown,
    TextAdded,
    TextVoided,
    TurnPart,
    TurnParts,
    TurnShown,
)
from standfast.server.sessions import stream
from standfast.server.streams import EventStream
from standfast.server.turns import start_turn

_encode: Final = msgspec.json.Encoder().encode
_KEY: Final = "standfast"
ForeignId = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
ROUTES: Final = Routes()


class AgUiMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a thread. Other fields are ignored."""

    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    id: str
    content: Json = None


class AgUiContext(msgspec.Struct, frozen=True, kw_only=True):
    """A fact for the model in this run."""

    description: str
    value: str


class AgUiAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to an interrupt. For an approval, `payload` matches the interrupt's `responseSchema`."""

    interrupt_id: ForeignId
    status: Literal["resolved", "cancelled"]
    payload: Json = None


class AgUiRun(Request, frozen=True, kw_only=True, rename="camel"):
    """A run: AG-UI's `RunAgentInput`."""

    thread_id: ForeignId
    run_id: ForeignId
    messages: list[AgUiMessage]
    protocol_version: str | None = None
    parent_run_id: str | None = None
    state: Json = None
    tools: Annotated[list[Json], msgspec.Meta(max_length=0)] = msgspec.field(default_factory=list)
    context: list[AgUiContext] = msgspec.field(default_factory=list)
    forwarded_props: Json = None
    resume: list[AgUiAnswer] = msgspec.field(default_factory=list)


class AgentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a new conversation, if the server has several."""

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None


@ROUTES.add("POST", "/ag-ui", Scope.RUN, body=AgUiRun, query=AgentQuery, streams=True)
async def run_ag_ui(call: Call) -> EventStream:
    """Run an agent and stream AG-UI events."""
    asked: AgUiRun = call.body
    session = await open_conversation(call, asked.thread_id, call.query.agent)
    if asked.resume:
        answers = {one.interrupt_id: _decision(one) for one in asked.resume}
        parts, after = await answer_waits(call, session, answers)
    else:
        after = await session.cursor()
        key = f"ag-ui:{asked.run_id}"
        turn = await start_turn(call, session, _prompt(asked.messages), key=key, system=_system(asked))
        parts = TurnParts(call, session, turn.turn_id)
    encoder = _RunEncoder(asked, session)

    async def chunks() -> AsyncIterator[bytes]:
        for event in encoder.start(parts.turn_id):
            yield _sse(event)
        async for part in parts.follow(after):
            for event in encoder.encode(part):
                yield _sse(event)

    return stream(call, chunks())


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(event)


def _prompt(messages: list[AgUiMessage]) -> Prompt:
    """Return the user messages after the last assistant message, as a prompt."""
    said: list[str | Attachment] = []
    for message in messages:
        if message.role == "assistant":
            said = []
        elif message.role == "user":
            said += _pieces(message.content)
    return prompt_of(said)


def _pieces(content: Json) -> Iterator[str | Attachment]:
    if isinstance(content, str):
        yield content
        return
    for part in content if isinstance(content, list) else []:
        match part:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"source": {"type": "data", "value": str(value), "mimeType": str(media_type)}}:
                yield read_base64(value, media_type)
            case _:
                raise InvalidArgument(
                    f"a part of a message is neither text nor data: {canonical_json(part)[:120]!r}",
                    hint="send media as a source of type data",
                )


def _system(asked: AgUiRun) -> list[str]:
    """Return the run's additions to the system prompt."""
    added = [
        one.content
        for one in asked.messages
        if one.role in ("system", "developer") and isinstance(one.content, str) and one.content.strip()
    ]
    added += [f"{one.description}: {one.value}" for one in asked.context]
    state = asked.state
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name != _KEY}
    if state:
        added.append(f"The state of the user's application: {_encode(state).decode()}")
    return added


def _decision(answer: AgUiAnswer) -> Decide:
    payload = answer.payload
    if answer.status == "cancelled":
        return Decide(approved=False, reason="cancelled by the user")
    match payload:
        case bool():
            return Decide(approved=payload)
        case {"approved": bool(approved)}:
            reason, edited = payload.get("reason"), payload.get("editedArgs")
            return Decide(
                approved=approved,
                reason=reason if isinstance(reason, str) else None,
                arguments=edited if isinstance(edited, dict) else None,
            )
        case dict():  # the answer to a question
            return Decide(approved=True, arguments=payload)
        case _:
            raise InvalidArgument(
                f"the answer to interrupt {answer.interrupt_id!r} is not a decision",
                hint='send {"approved": true} or {"approved": false} as payload',
            )


_DECISION: Final = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object"},
    },
    "required": ["approved"],
}


class _RunEncoder:
    """Encodes the parts of a turn as the events of one run."""

    def __init__(self, asked: AgUiRun, session: Session[Any]) -> None:
        self._asked = asked
        self._session_id = session.session_id
        self._step = ""
        self._open: tuple[str, str] | None = None
        """The kind and id of the message being streamed."""
        self._voided = 0
        self._interrupts: list[dict[str, Any]] = []

    def start(self, turn_id: str) -> Iterator[dict[str, Any]]:
        names = {"threadId": self._asked.thread_id, "runId": self._asked.run_id}
        yield {"type": "RUN_STARTED", **names, "protocolVersion": "1.0"}
        state = self._asked.state
        own = {"sessionId": self._session_id, "turnId": turn_id, "status": "running"}
        kept = state if isinstance(state, dict) else {}
        yield {"type": "STATE_SNAPSHOT", "snapshot": {**kept, _KEY: own}}

    def encode(self, part: TurnPart) -> Iterator[dict[str, Any]]:
        match part:
            case TextAdded():
                yield from self._piece("TEXT_MESSAGE", part.reply_id, part.text)
            case ReasoningAdded():
                yield from self._piece("REASONING_MESSAGE", part.reply_id, part.text)
            case TextVoided():
                message_id = self._open[1] if self._open else part.reply_id
                yield from self._close()
                yield {"type": "CUSTOM", "name": "text_retracted", "value": {"messageId": message_id}}
                self._voided += 1
            case ReplyShown():
                yield from self._begin_step(part.reply_id)
                yield from self._close()
            case CallShown():
                yield from self._call(part)
            case ResultShown():
                failed = None if part.error is None else {"error": msgspec.to_builtins(part.error)}
                content = part.value if failed is None else failed
                yield {
                    "type": "TOOL_CALL_RESULT",
                    "messageId": f"{part.call_id}-result",
                    "toolCallId": part.call_id,
                    "content": content if isinstance(content, str) else _encode(content).decode(),
                    "role": "tool",
                }
            case ApprovalShown():
                self._interrupts.append(_interrupt(part.call_id, part.approval))
            case TurnShown():
                yield from self._close()
                if self._step:
                    yield {"type": "STEP_FINISHED", "stepName": self._step}
                yield from self._end(part)

    def _piece(self, kind: str, reply_id: str, text: str) -> Iterator[dict[str, Any]]:
        yield from self._begin_step(reply_id)
        message_id = f"{reply_id}-{self._voided}" if self._voided else reply_id
        if kind == "REASONING_MESSAGE":
            message_id += "-reasoning"
        if self._open != (kind, message_id):
            yield from self._close()
            self._open = (kind, message_id)
            if kind == "REASONING_MESSAGE":
                yield {"type": "REASONING_START", "messageId": message_id}
            role = "assistant" if kind == "TEXT_MESSAGE" else "reasoning"
            yield {"type": f"{kind}_START", "messageId": message_id, "role": role}
        yield {"type": f"{kind}_CONTENT", "messageId": message_id, "delta": text}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            kind, message_id = self._open
            self._open = None
            yield {"type": f"{kind}_END", "messageId": message_id}
            if kind == "REASONING_MESSAGE":
                yield {"type": "REASONING_END", "messageId": message_id}

    def _begin_step(self, reply_id: str) -> Iterator[dict[str, Any]]:
        if reply_id != self._step:
            if self._step:
                yield {"type": "STEP_FINISHED", "stepName": self._step}
            self._step, self._voided = reply_id, 0
            yield {"type": "STEP_STARTED", "stepName": reply_id}

    def _call(self, part: CallShown) -> Iterator[dict[str, Any]]:
        message_id = f"{part.reply_id}-{self._voided}" if self._voided else part.reply_id
        named = {"toolCallId": part.call_id}
        arguments = part.arguments if isinstance(part.arguments, str) else _encode(part.arguments).decode()
        start = {"type": "TOOL_CALL_START", **named, "toolCallName": part.name}
        yield {**start, "parentMessageId": message_id}
        yield {"type": "TOOL_CALL_ARGS", **named, "delta": arguments}
        yield {"type": "TOOL_CALL_END", **named}

    def _end(self, part: TurnShown) -> Iterator[dict[str, Any]]:
        view = part.view
        status = "blocked" if part.blocked is not None else view.status
        yield {
            "type": "STATE_DELTA",
            "delta": [{"op": "replace", "path": f"/{_KEY}/status", "value": status}],
        }
        failure = part.blocked or view.error
        cancelled = isinstance(view.outcome, Stopped) and view.outcome.reason is StopReason.CANCELLED
        if failure is not None and not cancelled:
            yield {"type": "RUN_ERROR", "message": failure.message, "code": str(failure.code)}
            return
        finished: dict[str, Any] = {
            "type": "RUN_FINISHED",
            "threadId": self._asked.thread_id,
            "runId": self._asked.run_id,
        }
        if cancelled:
            finished["outcome"] = {"type": "cancelled"}
        elif view.status == "waiting":
            others = [_wait_interrupt(wait) for wait in view.waits if wait.kind != "approval"]
            finished["outcome"] = {"type": "interrupt", "interrupts": [*self._interrupts, *others]}
        else:
            finished["outcome"] = {"type": "success"}
        if view.output is not None:
            finished["result"] = view.output
        if not self._asked.resume:
            finished["usage"] = [_usage(view)]
        yield finished


def _interrupt(call_id: str, approval: Approval) -> dict[str, Any]:
    asks = isinstance(approval.answer_schema, dict)
    needs = f"{approval.capability} needs {'an answer' if asks else 'approval'}"
    return {
        "id": approval.approval_id,
        "reason": "input_required" if asks else "tool_call",
        "message": f"{needs}: {approval.reason}" if approval.reason else needs,
        "toolCallId": call_id,
        "responseSchema": approval.answer_schema if asks else _DECISION,
        "expiresAt": _iso(approval.expires_at),
        "metadata": {"toolName": approval.capability, "arguments": approval.arguments},
    }


def _wait_interrupt(wait: Wait) -> dict[str, Any]:
    """Return an interrupt that no answer from this client can resolve."""
    message = "waits for a time" if wait.kind == "timer" else "waits for an outside system"
    return {"id": wait.wait_id, "reason": wait.kind, "message": message, "expiresAt": _iso(wait.due_at)}


def _usage(view: TurnView) -> dict[str, int]:
    used = view.usage
    entered = used.input + used.cache_read + used.cache_write
    return {
        "inputTokens": entered,
        "outputTokens": used.output,
        "totalTokens": entered + used.output,
        "reasoningTokens": used.reasoning,
        "cachedInputTokens": used.cache_read,
        "cacheWriteInputTokens": used.cache_write,
    }


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
