"""One call to an MCP server: its saved state, the server's questions during it, and the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.errors import McpServerFailed
from standfast.mcp.contracts import clean_text
from standfast.model.canonical import Json
from standfast.model.host_requests import DirectRequest
from standfast.model.message import AssistantMessage, Message, UserMessage
from standfast.tools.context import AskPerson, RunContext

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import MCPError

MAX_ROUNDS: Final = 10
"""The number of times a server may ask for input during one call."""

MAX_REPORTS: Final = 1000
MAX_QUESTION_CHARS: Final = 2000


class InputState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state, besides a person's answer, that the next execution of a call needs.

    For a server of 2026-07-28: the `keys` of its questions with their `defaults`, `responses` that are
    already known, and a `request_state`. `earlier` has the questions answered before, in order: a server of
    2025-11-25 asks them again, and so does one of 2026-07-28 that was restarted and lost its key.
    """

    question: str
    keys: tuple[str, ...] = ()
    defaults: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    request_state: str | None = None
    earlier: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    opens_page: bool = False
    """Whether the server refused the call until a person has opened a page; the answer is not sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A server's question to a person: a text, the JSON Schema of the answer, the state to continue with."""

    text: str
    schema: dict[str, Any]
    state: InputState


class AskedMidway(Exception):
    """A server tried to ask in the middle of a call, as in 2025-11-25; a 2026-07-28 connection cannot."""


Answer = dict[str, Any] | str
"""A person's answer to a question, or how it ended without one: `"decline"` or `"cancel"`."""

Ask = Callable[[AskPerson], Answer | None]
"""Asks a person who is present, on a thread that may block; None declines."""

AskNow = Callable[[AskPerson], Awaitable[Answer | None]]
"""Asks a person who is present, in the middle of a call."""


@dataclass(slots=True)
class Exchange:
    """One call in progress. `given` is the state it continues with, and the answer to its question.

    If `ask` is set, a person is present: it answers questions in the middle of the call.
    """

    context: RunContext[Any]
    task: asyncio.Task[Any]
    given: tuple[InputState, Answer] | None = None
    ask: AskNow | None = None
    asked: Asked | None = None
    """The question that ended the call."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    heard: list[tuple[str, Answer]] = field(default_factory=list)
    reports: int = 0

    def known(self) -> list[tuple[str, Answer]]:
        """Return the questions of earlier executions with their answers."""
        if self.given is None:
            return []
        state, answer = self.given
        return [*state.earlier, (state.question, answer)]

    def report(self, kind: str, body: dict[str, Json]) -> None:
        self.reports += 1
        if self.reports <= MAX_REPORTS:
            self.context.report(kind, body)


def question_text(params: types.ElicitRequestParams) -> str:
    """Return the server's question, with the URL if it asks the person to open a page."""
    text = clean_text(params.message, MAX_QUESTION_CHARS)
    return text if params.mode == "form" else f"{text} {clean_text(params.url, MAX_QUESTION_CHARS)}"


def answer_schema(params: types.ElicitRequestParams) -> dict[str, Any]:
    """Return the JSON Schema of the answer."""
    return params.requested_schema if params.mode == "form" else {"type": "object"}


def defaults_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the default of each field that has one."""
    fields = schema.get("properties", {})
    return {key: one["default"] for key, one in fields.items() if isinstance(one, dict) and "default" in one}


def elicited(answer: Answer, defaults: dict[str, Any] | None) -> types.ElicitResult:
    """Convert a person's answer, filling in *defaults*; if *defaults* is None, send no content."""
    import mcp_types as types

    if isinstance(answer, str):
        return types.ElicitResult.model_validate({"action": answer})
    content = None if defaults is None else {**defaults, **answer}
    return types.ElicitResult(action="accept", content=content)


def responses_to(
    given: tuple[InputState, Answer] | None,
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the responses for a server of 2026-07-28, and the state that it sent."""
    import mcp_types as types

    if given is None:
        return None, None
    state, answer = given
    responses: dict[str, Any] = {
        key: types.CreateMessageResult.model_validate(one) for key, one in state.responses.items()
    }
    for key in state.keys:
        own = answer if isinstance(answer, str) or len(state.keys) == 1 else answer[key]
        responses[key] = elicited(own, state.defaults.get(key, {}))
    return responses or None, state.request_state


async def sampled(
    exchange: Exchange, server: str, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    """Call the session's model for the server; the ledger charges it to `mcp:SERVER`."""
    import mcp_types as types

    messages: list[Message] = []
    for one in params.messages:
        parts: Sequence[Any] = one.content if isinstance(one.content, list) else [one.content]
        if not all(isinstance(part, types.TextContent) for part in parts):
            raise McpServerFailed(server, "asked the model for something other than text")
        text = "\n".join(part.text for part in parts)
        messages.append(AssistantMessage(text=text) if one.role == "assistant" else UserMessage(content=text))
    request = DirectRequest(
        prompt=tuple(messages),
        instructions=params.system_prompt or "",
        # A server that asks for few tokens leaves none for reasoning, which counts towards them.
        settings={
            "max_tokens": params.max_tokens,
            "stop": params.stop_sequences or [],
            "reasoning": None,
        },
    )
    reply = await exchange.context.host.direct_completion(request, f"mcp:{server}")
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text=reply.text), model="standfast"
    )


async def input_required(
    exchange: Exchange, server: str, result: types.InputRequiredResult, may_sample: bool
) -> Asked | dict[str, Any]:
    """Return the responses to the server's requests, or its questions to a person."""
    import mcp_types as types

    questions: dict[str, Any] = {}
    responses: dict[str, Any] = {}
    for key, request in (result.input_requests or {}).items():
        if isinstance(request, types.ElicitRequest):
            questions[key] = request.params
        elif isinstance(request, types.CreateMessageRequest) and may_sample:
            responses[key] = await sampled(exchange, server, request.params)
        else:
            raise McpServerFailed(server, f"asked for {request.method}, which is not allowed")
    if not questions:
        return responses
    _limit_questions(exchange, server)
    texts = [question_text(params) for params in questions.values()]
    schemas = {key: answer_schema(params) for key, params in questions.items()}
    schema = next(iter(schemas.values()))
    if len(schemas) > 1:
        schema = {"type": "object", "properties": schemas, "required": list(schemas)}
    state = InputState(
        question="\n".join(texts),
        keys=tuple(questions),
        defaults={key: found for key, one in schemas.items() if (found := defaults_of(one))},
        responses={
            key: one.model_dump(by_alias=True, mode="json", exclude_none=True)
            for key, one in responses.items()
        },
        request_state=result.request_state,
        earlier=tuple(exchange.known()),
    )
    return Asked(state.question, schema, state)


def pages_to_open(exchange: Exchange, server: str, error: MCPError) -> Asked:
    """Return the question that an error of 2025-11-25 asks: to open pages before the call is repeated."""
    from mcp import UrlElicitationRequiredError

    _limit_questions(exchange, server)
    try:
        pages = UrlElicitationRequiredError.from_error(error.error).elicitations
    except (ValueError, TypeError, AttributeError):
        raise error from None
    text = "\n".join(question_text(one) for one in pages) or clean_text(error.message, MAX_QUESTION_CHARS)
    state = InputState(question=text, opens_page=True, earlier=tuple(exchange.known()))
    return Asked(text, {"type": "object"}, state)


def _limit_questions(exchange: Exchange, server: str) -> None:
    if len(exchange.known()) >= MAX_ROUNDS:
        raise McpServerFailed(server, f"asked a person more than {MAX_ROUNDS} times in one call")
