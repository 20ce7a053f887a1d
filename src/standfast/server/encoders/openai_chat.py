"""OpenAI's Chat Completions: a completion is a turn.

Rules
-----
1. `metadata.conversation` names the session; the server then has the history, and of the request's messages
   only the user messages after the last assistant message are new.
2. A call that waits for a person is a tool call whose id is the approval's. A tool message with that id and
   the content `{"approved": true}` decides, which needs the scope `approve`; the same turn answers.
3. Calls of the functions in `tools` are also tool calls; a tool message with such an id has the output.
4. Calls of the agent's own tools are in the field `standfast`, because a client would run the calls in
   `tool_calls`.
5. This protocol cannot retract text: if the model's reply is voided, the stream ends with an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import InvalidArgument, RequestRefused, TurnCode
from standfast.model.canonical import Json
from standfast.runtime.http_values import Decide, Request
from standfast.runtime.sessions.observation import Cursor
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.encoders.client_functions import (
    ClientFunction,
    function_names,
    is_token,
    offer_functions,
    turn_settings,
)
from standfast.server.encoders.conversations import answer_waits, is_approval_id, prompt_of
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
    failure_of,
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
from standfast.server.problems import openai_error
from standfast.server.sessions import stream
from standfast.server.turns import start_turn

_FINISH: Final = {"length": "length", "content_filter": "content_filter", "refusal": "content_filter"}
ROUTES: Final = Routes()


class ChatToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an earlier assistant message."""

    id: str
    function: CalledFunction


class ChatTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs."""

    function: ClientFunction
    type: Literal["function"] = "function"


class ChosenFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a function."""

    name: str


class ChatToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model must call."""

    function: ChosenFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat. Other fields are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Json = None
    tool_call_id: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the last chunk includes the usage."""

    include_usage: bool = False


class CreateCompletion(Request, frozen=True, kw_only=True):
    """A chat completion request. OpenAI fields that are not listed here are rejected."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    reasoning_effort: Effort | None = None
    metadata: Metadata | None = None
    user: str | None = None
    store: bool | None = None
    n: Literal[1] | None = None
    tools: Annotated[list[ChatTool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A completion. `standfast` has the session, the turn, and the calls of the agent's tools."""

    id: str
    created: int
    model: str
    choices: list[dict[str, Json]]
    usage: dict[str, Json]
    standfast: dict[str, Json]
    object: Literal["chat.completion"] = "chat.completion"


@ROUTES.add(
    "POST",
    "/openai/v1/chat/completions",
    Scope.RUN,
    body=CreateCompletion,
    answer=ChatCompletion,
    streams=True,
    headers={"Idempotency-Key": "The same key and message name the same completion."},
)
async def create_chat_completion(call: Call) -> Any:
    """Create a chat completion, or stream it in chunks with `stream`."""
    asked: CreateCompletion = call.body
    parts, after = await _begin(call, asked)
    encoder = _CompletionEncoder(asked, parts.turn_id, call.runtime.now_ms() // 1000)
    if asked.stream:

        async def chunks() -> AsyncIterator[bytes]:
            async for part in parts.follow(after):
                for chunk in encoder.encode(part):
                    yield b"data: %b\n\n" % encode(chunk)
            yield b"data: [DONE]\n\n"

        return stream(call, chunks())
    async for part in parts.follow(after):
        for _ in encoder.encode(part):
            pass
    if encoder.failure is not None:
        raise encoder.failure
    return encoder.whole()


async def _begin(call: Call, asked: CreateCompletion) -> tuple[TurnParts, Cursor | None]:
    functions = tuple(one.function for one in asked.tools or ())
    answers, outputs = _answers(asked.messages)
    if answers or outputs:
        return await answer_waits(call, None, answers, outputs, functions)
    said = RequestMessages(_said(one) for one in asked.messages)
    prompt = prompt_of(said.prompt)
    session = await open_turn_session(call, (asked.metadata or {}).get("conversation"), asked.model, said)
    await offer_functions(call, session, functions)
    chosen = asked.tool_choice
    choice = chosen.function.name if isinstance(chosen, ChatToolChoice) else chosen
    settings: dict[str, Json] = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_tokens": asked.max_completion_tokens or asked.max_tokens,
        "seed": asked.seed,
        "reasoning": asked.reasoning_effort,
        "stop": [asked.stop] if isinstance(asked.stop, str) else asked.stop,
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


def _said(message: ChatMessage) -> SaidMessage:
    calls = (msgspec.structs.replace(one.function, id=one.id) for one in message.tool_calls or ())
    return SaidMessage(
        role=message.role,
        pieces=list(read_content(message.content)),
        calls=tuple(calls),
        output_of=message.tool_call_id or "",
    )


def _answers(messages: list[ChatMessage]) -> tuple[dict[str, Decide], dict[str, Json]]:
    """Return the decisions and the function outputs in the tool messages that end a chat."""
    decisions: dict[str, Decide] = {}
    outputs: dict[str, Json] = {}
    for message in reversed(messages):
        if message.role != "tool":
            break
        content = "".join(one for one in read_content(message.content) if isinstance(one, str))
        given = message.tool_call_id or ""
        if is_token(given):
            outputs[given] = content
        elif is_approval_id(given):
            try:
                decisions[given] = msgspec.json.decode(content, type=Decide)
            except msgspec.DecodeError:
                raise InvalidArgument(
                    f"the tool message for {given!r} is not a decision",
                    hint='send the content {"approved": true} or {"approved": false}',
                ) from None
    return decisions, outputs


class _CompletionEncoder:
    """Encodes the parts of a turn as chunks, and collects them into one completion."""

    def __init__(self, asked: CreateCompletion, turn_id: str, created: int) -> None:
        self._asked = asked
        self._about = {"id": f"chatcmpl-{turn_id}", "created": created, "model": asked.model}
        self._text: list[str] = []
        self._reply_id = ""
        self._began = False
        self._calls: dict[str, dict[str, Json]] = {}
        self._waiting: list[dict[str, Json]] = []
        self._end: TurnShown | None = None
        self.failure: RequestRefused | None = None

    def encode(self, part: TurnPart) -> Iterator[dict[str, Any]]:
        if not self._began:
            self._began = True
            yield self._chunk({"role": "assistant", "content": ""})
        match part:
            case TextAdded(reply_id=reply_id, text=text):
                if self._text and reply_id != self._reply_id:
                    text = f"\n\n{text}"
                self._reply_id = reply_id
                self._text.append(text)
                yield self._chunk({"content": text})
            case ReasoningAdded(text=text):
                yield self._chunk({"reasoning_content": text})
            case TextVoided():
                self._text.clear()
                if self._asked.stream:
                    text = "the model's reply was cut off; send the request again with its Idempotency-Key"
                    yield _error(RequestRefused(502, TurnCode.PROVIDER_ERROR, text))
            case CallShown(call_id=call_id, name=name, arguments=arguments):
                self._calls[call_id] = {"id": call_id, "name": name, "arguments": arguments}
            case ResultShown(call_id=call_id, name=name, arguments=arguments, value=value, error=error):
                shown: dict[str, Json] = {"id": call_id, "name": name, "arguments": arguments}
                result = {"output": value} if error is None else {"error": msgspec.to_builtins(error)}
                self._calls[call_id] = {**shown, **result}
            case ApprovalShown(approval=approval):
                self._waiting.append(
                    {
                        "id": approval.approval_id,
                        "type": "function",
                        "function": {
                            "name": approval.capability,
                            "arguments": encode(approval.arguments).decode(),
                        },
                    }
                )
            case FunctionCallShown(token=token, name=name, arguments=arguments):
                written = arguments if isinstance(arguments, str) else encode(arguments).decode()
                function: dict[str, Json] = {"name": name, "arguments": written}
                self._waiting.append({"id": token, "type": "function", "function": function})
            case ReplyShown():
                pass
            case TurnShown():
                yield from self._finish(part)

    def _finish(self, part: TurnShown) -> Iterator[dict[str, Any]]:
        self._end = part
        if part.blocked is not None:
            self.failure = RequestRefused(503, str(part.blocked.code), part.blocked.message)
        elif part.view.error is not None:
            self.failure = failure_of(part.view)
        if self.failure is not None:
            yield _error(self.failure)
            return
        for index, waiting in enumerate(self._waiting):
            yield self._chunk({"tool_calls": [{"index": index, **waiting}]})
        yield self._chunk({}, self._finish_reason()) | {"standfast": self._standfast()}
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            yield {**self._chunk({}), "choices": [], "usage": self._usage()}

    def _chunk(self, delta: dict[str, Json], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return {**self._about, "object": "chat.completion.chunk", "choices": [choice]}

    def whole(self) -> ChatCompletion:
        """Return the collected completion."""
        message: dict[str, Json] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
        if self._waiting:
            message["tool_calls"] = list(self._waiting)
            message["content"] = message["content"] or None
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason(), "logprobs": None}
        return ChatCompletion(
            **self._about,  # type: ignore[arg-type]
            choices=[choice],
            usage=self._usage(),
            standfast=self._standfast(),
        )

    def _finish_reason(self) -> str:
        assert self._end is not None
        return "tool_calls" if self._waiting else _FINISH.get(self._end.stop_reason, "stop")

    def _standfast(self) -> dict[str, Json]:
        assert self._end is not None
        view = self._end.view
        return {
            "session_id": view.session_id,
            "turn_id": view.turn_id,
            "status": view.status,
            "calls": list(self._calls.values()),
        }

    def _usage(self) -> dict[str, Json]:
        assert self._end is not None
        used = self._end.view.usage
        return {
            "prompt_tokens": entered(used),
            "completion_tokens": used.output,
            "total_tokens": entered(used) + used.output,
            "prompt_tokens_details": {"cached_tokens": used.cache_read},
            "completion_tokens_details": {"reasoning_tokens": used.reasoning},
        }


def _error(failure: RequestRefused) -> dict[str, Any]:
    return {"error": msgspec.to_builtins(openai_error(failure))}
