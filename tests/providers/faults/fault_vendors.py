"""The vendors on which faults are tried: their server, their model, and one reply with every kind of content.

Rules
-----
1. The reply has reasoning, text in pieces and two calls of a tool with an effect, their arguments in pieces
   where the vendor sends pieces.
2. Faults that a wire format cannot reveal are listed here: `slips` names, for each disorder of events, the
   damage that is known to go unnoticed. Any other damage fails the test.

    text, thought   pieces have no numbers: one that is lost, repeated or swapped cannot be noticed
    arguments       the same for pieces of arguments, if the result happens to be valid JSON
    call missing    Gemini sends whole calls: one may be lost or come after the finish reason
    call twice      Gemini before 3 assigns no ids to calls: a repeated call looks like a second one
    refused later   signed content is sent back with its signature, and the vendor sees that it does not match
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from standfast.model.message import UserMessage
from standfast.ports.model_provider import ModelRequest
from standfast.providers.anthropic import AnthropicModel
from standfast.providers.google import GoogleModel
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel
from standfast.providers.openai import OpenAIModel
from standfast.providers.openai_compatible import OpenAICompatibleModel
from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers.anthropic_server import AnthropicServer
from standfast.testing.servers.chat_server import ChatServer
from standfast.testing.servers.google_server import GoogleServer
from standfast.testing.servers.http_server import ModelServer, SeenRequest
from standfast.testing.servers.openai_server import OpenAIServer

TEXT: Final = "I write two lines. "
THOUGHT: Final = "Two lines?"
DONE: Final = "Both are written."
LINES: Final = (("the first line of all", 1), ('second {"a": 1}', 22))
"""The lines that the two calls write, each with its number."""

REPLY: Final = Reply(
    text=TEXT,
    chunk_size=6,
    reasoning=THOUGHT,
    tool_calls=tuple(
        ScriptedCall(name="write", arguments={"line": line, "number": number}) for line, number in LINES
    ),
)
SETTINGS: Final[Mapping[str, Any]] = {"reasoning": "low"}
ASKED: Final = ModelRequest(messages=[UserMessage(content="Write!")], settings=dict(SETTINGS))

SMALL: Final = Reply(
    text="I write two.",
    chunk_size=8,
    reasoning="Two?",
    tool_calls=(
        ScriptedCall(name="write", arguments={"line": "a", "number": 1}),
        ScriptedCall(name="write", arguments={"line": "b", "number": 2}),
    ),
)
"""The same in few bytes."""

_UNREAD: Final = frozenset(
    (
        *("annotations", "content_index", "created", "created_at", "error", "incomplete_details"),
        *("input_tokens_details", "instructions", "item_id", "logprobs", "max_output_tokens", "metadata"),
        *("object", "obfuscation", "output_tokens_details", "parallel_tool_calls", "previous_response_id"),
        *("promptTokensDetails", "reasoning", "refusal", "stop_details", "stop_sequence", "store"),
        *("system_fingerprint", "temperature", "text", "tool_choice", "tools", "top_p", "totalTokenCount"),
        *("total_tokens", "truncation", "usageMetadata"),
    )
)
"""Fields that our readers ignore, or read only if not empty; they make up most of a stream's bytes."""

_UNREAD_EVENTS: Final = (
    *(b"response.in_progress", b"content_part", b"summary_part", b"text.done", b"arguments.done"),
    b'"type":"ping"',
)


@dataclass(frozen=True)
class Vendor:
    """One column of the matrix.

    `last`: the block, counted from the end, that completes a reply. `error_event`: an error in the
    middle of a stream. `wait_body`: a refusal whose body says how many seconds to wait, where the vendor does
    so. `slips`: see the rules.
    """

    name: str
    server: type[ModelServer]
    model: Callable[[str, str, Deadlines | None], HttpModel]
    key: str
    error_event: Callable[[str], bytes]
    last: int = 1
    wait_body: Callable[[int], dict[str, Any]] | None = None
    slips: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def open(self, server: ModelServer, deadlines: Deadlines | None = None) -> HttpModel:
        return self.model(server.base_url, self.key, deadlines)

    def blocks(self, reply: Reply = REPLY, request: SeenRequest | None = None) -> list[bytes]:
        """Return the reply as events, as the server would send them to the first request."""
        server = self.server([])
        asked = request or self._request()
        server.requests.append(asked)
        return server.events(asked, reply)

    def _request(self) -> SeenRequest:
        body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
        thoughts = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
        path = "/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"
        return SeenRequest("POST", path, {}, {**body, **thoughts})


def lean(blocks: list[bytes]) -> list[bytes]:
    """Return a stream without the parts that our reader ignores: short enough to be cut at every byte."""
    return [_lean(block) for block in blocks if not any(name in block for name in _UNREAD_EVENTS)]


def _lean(block: bytes) -> bytes:
    head, mark, data = block.partition(b"data: ")
    if data.startswith(b"["):
        return block
    end = data[len(data.rstrip()) :]
    return head + mark + json.dumps(_leaner(json.loads(data)), separators=(",", ":")).encode() + end


def _leaner(value: Any) -> Any:
    if isinstance(value, list):
        return [_leaner(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _leaner(one) for name, one in value.items() if _is_read(name, one)}


def _is_read(name: str, value: Any) -> bool:
    return value is not None and (name not in _UNREAD or (name == "text" and isinstance(value, str)))


def _data(event: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()


OPENAI: Final = Vendor(
    name="openai",
    server=OpenAIServer,
    model=lambda url, key, deadlines: OpenAIModel("gpt-5", api_key=key, base_url=url, deadlines=deadlines),
    key="sk-proj-planted/0123456789+abcdefghij",
    error_event=lambda words: _data(
        {"type": "error", "code": "server_error", "message": words, "param": None}, "error"
    ),
    wait_body=lambda seconds: {
        "error": {
            "message": f"Rate limit reached. Please try again in {seconds}s.",
            "type": "tokens",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    },
)
CHAT: Final = Vendor(
    name="openai-compatible",
    server=ChatServer,
    model=lambda url, key, deadlines: OpenAICompatibleModel("m", url, api_key=key, deadlines=deadlines),
    key="gsk_planted0123456789abcdefghij",
    error_event=lambda words: _data({"error": {"message": words, "type": "server_error", "code": None}}),
    last=3,
    slips={
        "duplicate": frozenset({"text", "thought", "arguments"}),
        "swap": frozenset({"text", "thought", "arguments"}),
        "drop": frozenset({"text", "thought", "arguments"}),
    },
)
ANTHROPIC: Final = Vendor(
    name="anthropic",
    server=AnthropicServer,
    model=lambda url, key, deadlines: AnthropicModel(
        "claude-opus-5", api_key=key, base_url=url, deadlines=deadlines
    ),
    key="sk-ant-api03-planted-0123456789_abcdefghij",
    error_event=lambda words: _data(
        {"type": "error", "error": {"type": "overloaded_error", "message": words}}, "error"
    ),
    slips={
        "duplicate": frozenset({"text", "thought", "arguments", "refused later"}),
        "swap": frozenset({"text", "thought", "arguments", "refused later"}),
        "drop": frozenset({"text", "thought", "arguments", "refused later"}),
    },
)
GOOGLE: Final = Vendor(
    name="google",
    server=GoogleServer,
    model=lambda url, key, deadlines: GoogleModel(
        "gemini-3-flash-preview", api_key=key, base_url=url, deadlines=deadlines
    ),
    key="AIzaSyPlanted0123456789-abcdefghijklmno",
    error_event=lambda words: _data({"error": {"code": 503, "message": words, "status": "UNAVAILABLE"}}),
    wait_body=lambda seconds: {
        "error": {
            "code": 429,
            "message": "Resource has been exhausted.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds}s"}],
        }
    },
    slips={
        "duplicate": frozenset({"text", "thought"}),
        "swap": frozenset({"text", "thought", "call missing", "refused later"}),
        "drop": frozenset({"text", "thought", "call missing", "refused later"}),
    },
)
OLDER_GOOGLE: Final = replace(
    GOOGLE,
    name="google-2.5",
    model=lambda url, key, deadlines: GoogleModel(
        "gemini-2.5-flash", api_key=key, base_url=url, deadlines=deadlines
    ),
    slips={
        "duplicate": frozenset({"text", "thought", "call twice"}),
        "swap": frozenset({"text", "thought", "call missing"}),
        "drop": frozenset({"text", "thought", "call missing"}),
    },
)
VENDORS: Final = (OPENAI, CHAT, ANTHROPIC, GOOGLE)
