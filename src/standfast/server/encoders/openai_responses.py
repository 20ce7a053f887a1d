"""OpenAI's Responses, and the model list: a response is a turn, or the rest of one after a decision.

Rules
-----
1. `conversation` names the session by `tenants.foreign_session_id`, `previous_response_id` by one of its
   turns. A response that does not follow the session's last turn is created in a fork.
2. The agent's tools run on the server, so their calls are `mcp_call` items. A call that waits for a person is
   an `mcp_approval_request`; an `mcp_approval_response` decides, which needs the scope `approve`.
3. Calls of the functions in `tools` are `function_call` items; a `function_call_output` completes one.
4. A response can be retrieved by its id, which is the only way to get a `background` response.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import Code, InvalidArgument, RequestRefused
from standfast.model.canonical import Json, digest_bytes
from standfast.model.outcome import Stopped, StopReason
from standfast.model.session import TurnRecord
from standfast.runtime.agent_session import Session
from standfast.runtime.http_values import Decide, Request
from standfast.runtime.sessions.observation import Cursor
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.encoders.client_functions import (
    TOKEN_PREFIX,
    ClientFunction,
    function_names,
    is_token,
    offer_functions,
    turn_settings,
)
from standfast.server.encoders.conversations import answer_waits, prompt_of
from standfast.server.encoders.openai_common import (
    CalledFunction,
    Count,
    Effort,
    Metadata,
    RequestMessages,
    SaidMessage,
    Share,
    Temperature,
    TextFormat,
    ToolChoice,
    encode,
    entered,
    open_turn_session,
    read_content,
)
from standfast.server.encoders.turn_parts import (
    ApprovalShown,
    CallShown,
    FunctionCallShown,
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
from standfast.server.tenants import new_session_id
from standfast.server.turns import start_turn

_PREFIX: Final = "resp_"
_ROOT: Final = "/openai/v1"
ROUTES: Final = Routes()


class ResponseItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a function call, a function output, or the answer to an approval request.

    Other fields are ignored.
    """

    type: Literal["message", "function_call", "function_call_output", "mcp_approval_response"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: Json = None
    approval_request_id: str = ""
    approve: bool = False
    reason: str | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: Json = None


class FunctionTool(ClientFunction, frozen=True, kw_only=True):
    """A function that the client runs."""

    type: Literal["function"] = "function"


class FunctionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model must call."""

    name: str
    type: Literal["function"] = "function"


class ReasoningEffort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much reasoning the model does before it replies."""

    effort: Effort | None = None


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to a conversation by id."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class TextConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of the answer."""

    format: TextFormat | None = None


class CreateResponse(Request, frozen=True, kw_only=True):
    """A response request. OpenAI fields that are not listed here are rejected."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    input: str | list[ResponseItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    stream: bool | None = None
    background: bool | None = None
    store: Literal[True] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    max_output_tokens: Count | None = None
    reasoning: ReasoningEffort | None = None
    metadata: Metadata | None = None
    user: str | None = None
    truncation: Literal["disabled"] | None = None
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of this server, presented as a model."""

    id: str
    created: int = 0
    object: Literal["model"] = "model"
    owned_by: str = "standfast"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class NewConversation(Request, frozen=True, kw_only=True):
    """A conversation to create. Its first response creates its session."""

    metadata: Metadata | None = None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    metadata: Metadata
    object: Literal["conversation"] = "conversation"


@ROUTES.add("GET", f"{_ROOT}/models", Scope.READ, answer=ModelList)
async def list_models(call: Call) -> ModelList:
    """List the agents of this server as models."""
    return ModelList(data=[ModelCard(id=name) for name in call.server.agents])


@ROUTES.add("POST", f"{_ROOT}/conversations", Scope.RUN, body=NewConversation, answer=Conversation)
async def create_conversation(call: Call) -> Conversation:
    """Return a new conversation id. Clients may also choose their own ids."""
    now, asked = call.runtime.now_ms() // 1000, call.body
    return Conversation(id=f"conv_{secrets.token_hex(12)}", created_at=now, metadata=asked.metadata or {})


@ROUTES.add(
    "POST",
    f"{_ROOT}/responses",
    Scope.RUN,
    body=CreateResponse,
    answer=dict[str, Json],
    streams=True,
    headers={"Idempotency-Key": "The same key and input name the same response."},
)
async def create_response(call: Call) -> Any:
    """Create a response, or stream its events with `stream`."""
    asked: CreateResponse = call.body
    if asked.stream and asked.background:
        raise InvalidArgument("a background response is not streamed", hint="read it by its id")
    answers, outputs = _answers(asked)
    if answers or outputs:
        parts, after = await answer_waits(call, None, answers, outputs, asked.tools or ())
        named = digest_bytes(encode(sorted({**answers, **outputs})))
        response_id = f"{_PREFIX}{parts.turn_id}-{named[:8]}"
    else:
        parts, after = await _begin(call, asked)
        response_id = f"{_PREFIX}{parts.turn_id}"
    encoder = _ResponseEncoder(asked, response_id, call.runtime.now_ms() // 1000)
    if asked.background:
        return encoder.response
    if asked.stream:

        async def chunks() -> AsyncIterator[bytes]:
            for event in encoder.start():
                yield _sse(event)
            async for part in parts.follow(after):
                for event in encoder.encode(part):
                    yield _sse(event)
            yield b"data: [DONE]\n\n"

        return stream(call, chunks())
    return await _whole(encoder, parts, after)


@ROUTES.add("GET", f"{_ROOT}/responses/{{response_id}}", Scope.READ, answer=dict[str, Json])
async def read_response(call: Call) -> dict[str, Json]:
    """Retrieve a response: its whole turn so far."""
    record, session = await _turn_of(call, call.path["response_id"])
    asked = CreateResponse(model=record.agent, input="")
    encoder = _ResponseEncoder(asked, call.path["response_id"], record.created_at // 1000)
    parts = TurnParts(call, session, record.turn_id, function_names(call, session.session_id))
    return await _whole(encoder, parts, None) if record.summary is not None else encoder.response


@ROUTES.add("POST", f"{_ROOT}/responses/{{response_id}}/cancel", Scope.RUN, answer=dict[str, Json])
async def cancel_response(call: Call) -> dict[str, Json]:
    """Cancel a response that is in progress."""
    record, _ = await _turn_of(call, call.path["response_id"])
    await call.runtime.cancel(record.turn_id)
    return await read_response(call)


async def _whole(encoder: _ResponseEncoder, parts: TurnParts, after: Cursor | None) -> dict[str, Json]:
    async for part in parts.follow(after):
        for _ in encoder.encode(part):
            pass
    return encoder.response


def _sse(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))


async def _begin(call: Call, asked: CreateResponse) -> tuple[TurnParts, Cursor]:
    items = [ResponseItem(content=asked.input)] if isinstance(asked.input, str) else asked.input
    said, functions = RequestMessages(_said(one) for one in items), tuple(asked.tools or ())
    if asked.instructions:
        said.system.append(asked.instructions)
    prompt = prompt_of(said.prompt)
    given = asked.conversation
    if asked.previous_response_id is not None:
        if given is not None:
            raise InvalidArgument("previous_response_id and conversation cannot be combined")
        session = await _session_after(call, asked.previous_response_id)
    else:
        name = given.id if isinstance(given, ConversationRef) else given
        session = await open_turn_session(call, name, asked.model, said)
    await offer_functions(call, session, functions)
    choice = asked.tool_choice.name if isinstance(asked.tool_choice, FunctionChoice) else asked.tool_choice
    settings: dict[str, Json] = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_tokens": asked.max_output_tokens,
        "reasoning": None if asked.reasoning is None else asked.reasoning.effort,
    }
    after = await session.cursor()
    turn = await start_turn(
        call,
        session,
        prompt,
        key=call.headers.get("idempotency-key") or None,
        system=said.system,
        settings=turn_settings(settings, choice, functions, asked.parallel_tool_calls),
    )
    return TurnParts(call, session, turn.turn_id, function_names(call, session.session_id)), after


def _said(item: ResponseItem) -> SaidMessage:
    match item.type:
        case "function_call":
            called = CalledFunction(name=item.name, arguments=item.arguments, id=item.call_id)
            return SaidMessage(role="assistant", pieces=[], calls=(called,))
        case "function_call_output":
            return SaidMessage(role="tool", pieces=list(read_content(item.output)), output_of=item.call_id)
        case _:
            return SaidMessage(role=item.role, pieces=list(read_content(item.content)))


async def _session_after(call: Call, response_id: str) -> Session[Any]:
    """Return the session of a response, or a fork of it if other turns followed."""
    record, session = await _turn_of(call, response_id)
    session_id = session.session_id
    if (await session.turns())[-1].turn_id != record.turn_id:
        leaf = (await session.head()).leaf
        path = () if leaf is None else await call.runtime.store.path(leaf)
        at = next((one.leaf for one in path if one.segment_id == record.turn_id), None)
        if at is None:
            raise _no_response(response_id)
        session_id = new_session_id(call.tenant, f"openai-{secrets.token_hex(10)}")
        await call.runtime.fork(session.session_id, session_id, at=at)
    return await call.runtime.session(session_id, agent=call.server.agents.get(record.agent))


async def _turn_of(call: Call, response_id: str) -> tuple[TurnRecord, Session[Any]]:
    turn_id = response_id.removeprefix(_PREFIX).partition("-")[0]
    found = await call.turn(turn_id)
    if found is None:
        raise _no_response(response_id)
    return found[0], call.runtime.session_handle(found[0].session_id)


def _no_response(response_id: str) -> RequestRefused:
    return RequestRefused(404, Code.TURN_NOT_FOUND, f"there is no response {response_id[:80]!r}")


def _answers(asked: CreateResponse) -> tuple[dict[str, Decide], dict[str, Json]]:
    """Return a request's decisions, and the function outputs at its end."""
    items = asked.input if isinstance(asked.input, list) else []
    decisions = {
        item.approval_request_id: Decide(approved=item.approve, reason=item.reason)
        for item in items
        if item.type == "mcp_approval_response"
    }
    outputs: dict[str, Json] = {}
    for item in reversed(items):
        if item.type == "function_call_output" and is_token(item.call_id):
            outputs[item.call_id] = "".join(one for one in read_content(item.output) if isinstance(one, str))
        elif item.type != "mcp_approval_response":
            break
    return decisions, outputs


class _ResponseEncoder:
    """Encodes the parts of a turn as response events, and keeps the response object up to date."""

    def __init__(self, asked: CreateResponse, response_id: str, created_at: int) -> None:
        self._number = 0
        self._label = asked.model
        self._asks = False
        """Whether the response ends with a decision or a call for the client."""
        self._output: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        """The items' positions in the output, by the id of their reply or call."""
        self.response: dict[str, Any] = _response(asked, response_id, created_at)
        self.response["output"] = self._output

    def start(self) -> Iterator[dict[str, Any]]:
        yield self._event("response.created", response=self._copy())
        yield self._event("response.in_progress", response=self._copy())

    def encode(self, part: TurnPart) -> Iterator[dict[str, Any]]:
        match part:
            case TextAdded(reply_id=reply_id, text=text):
                if reply_id not in self._places:
                    yield from self._open_message(reply_id)
                place = self._places[reply_id]
                self._output[place]["content"][0]["text"] += text
                yield self._in_text("response.output_text.delta", place, delta=text, logprobs=[])
            case TextVoided(reply_id=reply_id):
                if reply_id in self._places:
                    self._output[self._places[reply_id]]["content"] = []
                    yield from self._leave(self._places.pop(reply_id))
            case ReplyShown(reply_id=reply_id):
                if reply_id in self._places:
                    yield from self._close_message(self._places[reply_id])
            case CallShown(call_id=call_id, name=name, arguments=arguments):
                yield from self._open_call(call_id, name, arguments)
            case ResultShown():
                yield from self._close_call(part)
            case ApprovalShown():
                yield from self._ask(part)
            case FunctionCallShown():
                yield from self._call_function(part)
            case ReasoningAdded():
                pass
            case TurnShown():
                yield self._finish(part)

    def _open_message(self, reply_id: str) -> Iterator[dict[str, Any]]:
        place = self._places[reply_id] = len(self._output)
        item = {"id": f"msg_{reply_id}-{place}", "type": "message", "role": "assistant", "content": []}
        self._output.append({**item, "status": "in_progress"})
        yield self._item_event("response.output_item.added", place)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._output[place]["content"].append(part)
        yield self._in_text("response.content_part.added", place, part=dict(part))

    def _close_message(self, place: int) -> Iterator[dict[str, Any]]:
        part = self._output[place]["content"][0]
        yield self._in_text("response.output_text.done", place, text=part["text"], logprobs=[])
        yield self._in_text("response.content_part.done", place, part=dict(part))
        self._output[place]["status"] = "completed"
        yield self._item_event("response.output_item.done", place)

    def _leave(self, place: int) -> Iterator[dict[str, Any]]:
        self._output[place]["status"] = "incomplete"
        yield self._item_event("response.output_item.done", place)

    def _open_call(self, call_id: str, name: str, arguments: Json) -> Iterator[dict[str, Any]]:
        place = self._places[call_id] = len(self._output)
        written = arguments if isinstance(arguments, str) else encode(arguments).decode()
        item: dict[str, Any] = {"id": f"mcp_{call_id}", "type": "mcp_call", "server_label": self._label}
        item |= {"name": name, "arguments": written, "output": None, "error": None}
        self._output.append({**item, "status": "in_progress"})
        yield self._item_event("response.output_item.added", place)
        yield self._of_item("response.mcp_call.in_progress", place)
        yield self._of_item("response.mcp_call_arguments.done", place, arguments=written)

    def _close_call(self, part: ResultShown) -> Iterator[dict[str, Any]]:
        if part.call_id not in self._places:
            yield from self._open_call(part.call_id, part.name, part.arguments)
        place = self._places[part.call_id]
        item, failed = self._output[place], part.error is not None
        item["status"] = "failed" if failed else "completed"
        if part.error is not None:
            item["error"] = {"type": "mcp_tool_execution_error", "content": part.error.message}
        else:
            item["output"] = part.value if isinstance(part.value, str) else encode(part.value).decode()
        yield self._of_item(f"response.mcp_call.{item['status']}", place)
        yield self._item_event("response.output_item.done", place)

    def _call_function(self, part: FunctionCallShown) -> Iterator[dict[str, Any]]:
        """Append a call that the client runs; its arguments are sent whole."""
        self._asks, place = True, len(self._output)
        arguments = part.arguments if isinstance(part.arguments, str) else encode(part.arguments).decode()
        item = {"id": f"fc_{part.token.removeprefix(TOKEN_PREFIX)}", "type": "function_call"}
        item |= {"call_id": part.token, "name": part.name, "arguments": "", "status": "in_progress"}
        self._output.append(item)
        yield self._item_event("response.output_item.added", place)
        yield self._of_item("response.function_call_arguments.delta", place, delta=arguments)
        named = {"name": part.name, "arguments": arguments}
        yield self._of_item("response.function_call_arguments.done", place, **named)
        item |= {"arguments": arguments, "status": "completed"}
        yield self._item_event("response.output_item.done", place)

    def _ask(self, part: ApprovalShown) -> Iterator[dict[str, Any]]:
        """Append the approval request after its call, which is left incomplete."""
        self._asks, approval = True, part.approval
        if part.call_id in self._places:
            yield from self._leave(self._places[part.call_id])
        place = len(self._output)
        item = {"id": approval.approval_id, "type": "mcp_approval_request", "server_label": self._label}
        written = encode(approval.arguments).decode()
        self._output.append({**item, "name": approval.capability, "arguments": written})
        yield self._item_event("response.output_item.added", place)
        yield self._item_event("response.output_item.done", place)

    def _finish(self, part: TurnShown) -> dict[str, Any]:
        view, response, used = part.view, self.response, part.view.usage
        failure = part.blocked or view.error
        status = "completed"
        if failure is not None:
            stopped = isinstance(view.outcome, Stopped) and view.outcome.reason is StopReason.CANCELLED
            status = "cancelled" if stopped else "failed"
            response["error"] = {"code": str(failure.code), "message": failure.message}
        elif part.stop_reason == "length":
            status, response["incomplete_details"] = "incomplete", {"reason": "max_output_tokens"}
        elif view.status == "running" or (view.waits and not self._asks):
            status, response["incomplete_details"] = "incomplete", {"reason": "waiting"}
        response["status"] = status
        response["completed_at"] = response["created_at"] if status == "completed" else None
        response["usage"] = {
            "input_tokens": entered(used),
            "output_tokens": used.output,
            "total_tokens": entered(used) + used.output,
            "input_tokens_details": {"cached_tokens": used.cache_read},
            "output_tokens_details": {"reasoning_tokens": used.reasoning},
        }
        response["standfast"] = {
            "session_id": view.session_id,
            "turn_id": view.turn_id,
            "status": view.status,
        }
        kind = {"completed": "completed", "incomplete": "incomplete"}.get(status, "failed")
        return self._event(f"response.{kind}", response=self._copy())

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _copy(self) -> dict[str, Any]:
        return {**self.response, "output": [dict(item) for item in self._output]}

    def _item_event(self, kind: str, place: int) -> dict[str, Any]:
        item = dict(self._output[place])
        if "content" in item:
            item["content"] = [dict(one) for one in item["content"]]
        return self._event(kind, output_index=place, item=item)

    def _of_item(self, kind: str, place: int, **fields: Any) -> dict[str, Any]:
        return self._event(kind, output_index=place, item_id=self._output[place]["id"], **fields)

    def _in_text(self, kind: str, place: int, **fields: Any) -> dict[str, Any]:
        return self._of_item(kind, place, content_index=0, **fields)


def _response(asked: CreateResponse, response_id: str, created_at: int) -> dict[str, Any]:
    effort = None if asked.reasoning is None else asked.reasoning.effort
    given = asked.conversation
    name = given.id if isinstance(given, ConversationRef) else given
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "model": asked.model,
        "previous_response_id": asked.previous_response_id,
        "conversation": None if name is None else {"id": name},
        "instructions": asked.instructions,
        "error": None,
        "tools": [msgspec.to_builtins(one) for one in asked.tools or ()],
        "tool_choice": msgspec.to_builtins(asked.tool_choice or "auto"),
        "truncation": "disabled",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "reasoning": {"effort": effort, "summary": None},
        "usage": None,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "store": True,
        "background": bool(asked.background),
        "service_tier": "default",
        "metadata": asked.metadata or {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }
