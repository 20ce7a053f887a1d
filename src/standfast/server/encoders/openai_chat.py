"""OpenAI's Chat Completions: a completion is a turn.

Rules
-----
1. `metadata.conversation` names the session; the server then has the history, and of the messages only the
   user's after the last of the assistant are new.
2. A call that waits for a person is a tool call whose id is the approval's. A tool message with that id and
   the content `{"approved": true}` decides, which needs the scope `approve`; the same turn answers.
3. Calls of the agent's own tools are in the field `standfast`, because a client would run what is in
   `tool_calls`.
4. Text cannot be taken back in this protocol: if the model's reply is void, the stream ends with an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import InvalidArgument, RequestRefused, TurnCode
from standfast.model.canonical import Json
from standfast.runtime.http_values import Decide, Request
from standfast.runtime.sessions.observation import Cursor
from standfast.server.calls import Call, Route
from standfast.server.credentials import Scope
from standfast.server.encoders.conversations import answer_approvals, prompt_of
from standfast.server.encoders.openai_common import (
    Count,
    Effort,
    Empty,
    Metadata,
    RequestMessages,
    Share,
    Temperature,
    TextFormat,
    encode,
    entered,
    failure_of,
    open_turn_session,
    read_content,
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
from standfast.server.problems import openai_error
from standfast.server.sessions import stream
from standfast.server.turns import start_turn

_FINISH: Final = {"length": "length", "content_filter": "content_filter", "refusal": "content_filter"}


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat. Its other fields are not read."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Json = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the last chunk has the usage."""

    include_usage: bool = False


class CreateCompletion(Request, frozen=True, kw_only=True):
    """A request for a chat completion. Fields of OpenAI's that are not here are refused."""

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
    tools: Empty | None = None
    response_format: TextFormat | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A completion. `standfast` names the session and the turn, and has the calls of the agent's tools."""

    id: str
    created: int
    model: str
    choices: list[dict[str, Json]]
    usage: dict[str, Json]
    standfast: dict[str, Json]
    object: Literal["chat.completion"] = "chat.completion"


async def create_chat_completion(call: Call) -> Any:
    """Answer a chat, as one completion or, with `stream`, as a stream of chunks."""
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
    answers = dict(_answers(asked.messages))
    if answers:
        return await answer_approvals(call, None, answers)
    said = RequestMessages(
        (one.role, list(read_content(one.content))) for one in asked.messages if one.role != "tool"
    )
    prompt = prompt_of(said.prompt)
    session = await open_turn_session(call, (asked.metadata or {}).get("conversation"), asked.model, said)
    after = await session.cursor()
    turn = await start_turn(
        call,
        session,
        prompt,
        key=call.headers.get("idempotency-key") or None,
        system=said.system,
        settings=_settings(asked),
    )
    return TurnParts(call, session, turn.turn_id), after


def _settings(asked: CreateCompletion) -> dict[str, Json]:
    given: dict[str, Json] = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_tokens": asked.max_completion_tokens or asked.max_tokens,
        "seed": asked.seed,
        "reasoning": asked.reasoning_effort,
        "stop": [asked.stop] if isinstance(asked.stop, str) else asked.stop,
    }
    return {name: value for name, value in given.items() if value is not None}


def _answers(messages: list[ChatMessage]) -> Iterator[tuple[str, Decide]]:
    """Yield the decisions in the tool messages that end a chat."""
    for message in reversed(messages):
        if message.role != "tool":
            return
        content = "".join(one for one in read_content(message.content) if isinstance(one, str))
        try:
            yield message.tool_call_id or "", msgspec.json.decode(content, type=Decide)
        except msgspec.DecodeError:
            raise InvalidArgument(
                f"the tool message for {message.tool_call_id!r} is no decision",
                hint='send the content {"approved": true} or {"approved": false}',
            ) from None


class _CompletionEncoder:
    """Encodes the parts of a turn as chunks, and collects them for one completion."""

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
                    text = "the model's reply broke off; send the request again with its Idempotency-Key"
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
        """Return the completion."""
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


ROUTES = (
    Route(
        method="POST",
        path="/openai/v1/chat/completions",
        scope=Scope.RUN,
        handler=create_chat_completion,
        body=CreateCompletion,
        answer=ChatCompletion,
        streams=True,
        headers={"Idempotency-Key": "The same key and message name the same completion."},
    ),
)
