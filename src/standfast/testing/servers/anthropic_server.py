"""A server that speaks Anthropic's Messages API from a script.

It rejects what the vendor rejects: calls without results, misplaced results, empty text, changed thinking,
and parameters that the model or the API version does not accept. Thinking is signed with a digest of its
text, so that a change is detected when it comes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from standfast.model.canonical import digest_bytes
from standfast.providers.anthropic.request import thinks_adaptively
from standfast.providers.script import Reply
from standfast.testing.servers.http_server import (
    ModelServer,
    PreparedResponse,
    SeenRequest,
    cut_text,
    event_block,
    usage_of,
)

Object = dict[str, Any]

_VERSIONS: Final = ("2023-06-01", "2026-10-21")
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_FIELDS: Final = frozenset(
    (
        *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "stop_sequences"),
        *("thinking", "output_config", "metadata", "service_tier", "cache_control", *_SAMPLING),
    )
)
_STOPS: Final = {"end": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS: Final = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
_MEDIA: Final = {
    "image": ("image/jpeg", "image/png", "image/gif", "image/webp"),
    "document": ("application/pdf", "text/plain"),
}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_THINKING: Final = ("thinking", "redacted_thinking")
_USER_BLOCKS: Final = ("text", "image", "document", "tool_result")
_PIECES: Final = 4
_MAX_BREAKPOINTS: Final = 4


class AnthropicServer(ModelServer):
    """Serves a script in Anthropic's format."""

    def answer(self, request: SeenRequest) -> PreparedResponse:
        if "x-api-key" not in request.headers and "authorization" not in request.headers:
            return self._error(401, "x-api-key header is required")
        return super().answer(request)

    def checked(self, request: SeenRequest) -> str | None:
        return next(_problems(request), None)

    def error_body(self, status: int, message: str) -> Object:
        error = {"type": _ERRORS.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error, "request_id": f"req_{len(self.requests):04}"}

    def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
        whole = self.whole(request, reply)
        usage = whole["usage"]
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        ended = {name: whole[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        events: tuple[Object, ...] = (
            {"type": "message_start", "message": begun},
            {"type": "ping"},
            *_block_events(whole["content"], reply),
            {"type": "message_delta", "delta": ended, "usage": usage},
            {"type": "message_stop"},
        )
        return [event_block(event) for event in events]

    def whole(self, request: SeenRequest, reply: Reply) -> Object:
        number, reason, used = len(self.requests), reply.stop_reason, usage_of(reply)
        content: list[Object] = []
        if words := reply.reasoning:
            content.append({"type": "thinking", "thinking": words, "signature": signature_of(words)})
        if text := reply.whole_text():
            content.append({"type": "text", "text": text})
        for place, call in enumerate(reply.tool_calls, 1):
            wire_id, arguments = call.id or f"toolu_{number:04}_{place}", call.arguments
            if isinstance(arguments, str):
                try:
                    arguments = msgspec.json.decode(arguments, type=dict[str, Any])
                except msgspec.DecodeError:
                    arguments = {}
            content.append({"type": "tool_use", "id": wire_id, "name": call.name, "input": arguments})
        usual = "tool_use" if reply.tool_calls else "end_turn"
        return {
            "id": f"msg_{number:04}",
            "type": "message",
            "role": "assistant",
            "model": request.body["model"],
            "content": content,
            "stop_reason": usual if reason is None else _STOPS.get(reason, reason),
            "stop_sequence": None,
            "stop_details": {"type": "refusal", "category": None} if reason == "refusal" else None,
            "usage": {
                "input_tokens": used.input,
                "cache_read_input_tokens": used.cache_read,
                "cache_creation_input_tokens": used.cache_write,
                "output_tokens": used.output,
                "output_tokens_details": {"thinking_tokens": used.reasoning},
            },
        }


def signature_of(words: str) -> str:
    """Return the signature that this server gives to thinking."""
    return digest_bytes(words.encode())


def _block_events(content: list[Object], reply: Reply) -> Iterator[Object]:
    calls = iter(reply.tool_calls)
    empty: Object
    for index, block in enumerate(content):
        match block["type"]:
            case "text":
                empty, deltas = {"text": ""}, [("text_delta", "text", piece) for piece in reply.pieces()]
            case "thinking":
                pieces = _cut(block["thinking"], reply.chunk_size)
                deltas = [("thinking_delta", "thinking", piece) for piece in pieces]
                deltas.append(("signature_delta", "signature", block["signature"]))
                empty = {"thinking": "", "signature": ""}
            case _:
                # The arguments follow an empty piece; a call without arguments has only that piece.
                call = next(calls)
                pieces = ["", *_cut(call.arguments_text() if call.arguments else "", reply.chunk_size)]
                deltas = [("input_json_delta", "partial_json", piece) for piece in pieces]
                empty = {"input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for kind, field, piece in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: piece}}
        yield {"type": "content_block_stop", "index": index}


def _cut(text: str, size: int | None) -> list[str]:
    return cut_text(text, size or max(1, -(-len(text) // _PIECES)))


def _problems(request: SeenRequest) -> Iterator[str]:
    """Yield the vendor's errors about the request, in its words and order."""
    body = request.body
    if request.method != "POST" or request.path.partition("?")[0] != "/v1/messages":
        yield f"{request.method} {request.path}: Not found"
    if request.headers.get("anthropic-version") not in _VERSIONS:
        yield "anthropic-version: a valid version is required"
    if not isinstance(body, dict):
        yield "The request body is not valid JSON"
    if unknown := sorted(body.keys() - _FIELDS):
        yield f"{unknown[0]}: Extra inputs are not permitted"
    removed = next((name for name in _SAMPLING if name in body), None)
    if request.headers["anthropic-version"] != _VERSIONS[0] and removed:
        yield f"{removed}: Extra inputs are not permitted"
    tokens = body.get("max_tokens")
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: Field required"
    if not isinstance(tokens, int) or tokens < 1:
        yield "max_tokens: Field required"
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        yield "messages: at least one message is required"
    yield from _tool_problems(body)
    yield from _message_problems(body)
    yield from _thinking_problems(body)
    parts = [*_listed(body.get("system", [])), *body.get("tools", [])]
    parts += [block for message in body["messages"] for block in _listed(message["content"])]
    marked = [part for part in parts if "cache_control" in part]
    if any(part.get("type") in _THINKING for part in marked):
        yield "cache_control: Extra inputs are not permitted"
    if len(marked) > _MAX_BREAKPOINTS:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
    form = body.get("output_config", {}).get("format")
    if form is not None:
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            yield "output_config.format.schema: Field required"
        if _has_open_object(form["schema"]):
            yield "output_config.format.schema: For 'object' type, 'additionalProperties' must be false"


def _tool_problems(body: Object) -> Iterator[str]:
    names = [tool.get("name") for tool in body.get("tools", [])]
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."
    for number, tool in enumerate(body.get("tools", [])):
        if not _NAME.fullmatch(str(tool.get("name", ""))):
            yield f"tools.{number}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if not isinstance(schema := tool.get("input_schema"), dict) or schema.get("type") != "object":
            yield f"tools.{number}.custom.input_schema.type: Input should be 'object'"
    choice = body.get("tool_choice")
    if choice is not None:
        if not names:
            yield "tool_choice may only be specified while providing tools"
        if choice.get("type") not in ("auto", "any", "tool", "none"):
            yield "tool_choice.type: Input tag does not match any of the expected tags"
        if choice["type"] == "tool" and choice.get("name") not in names:
            yield f"tool_choice: Tool '{choice.get('name')}' not found in provided tools"


def _message_problems(body: Object) -> Iterator[str]:
    """Check roles and blocks; every call must be answered at the beginning of the next message."""
    roles = [message.get("role") for message in body["messages"]]
    if set(roles) - {"user", "assistant"}:
        yield "messages: Unexpected role"
    if roles[0] != "user":
        yield "messages: first message must use the user role"
    if roles[-1] == "assistant" and thinks_adaptively(body["model"]):
        yield "This model does not support assistant message prefill."
    if any(not block["text"].strip() for block in _listed(body.get("system", []))):
        yield "system: text content blocks must be non-empty"
    turns = [_listed(message["content"]) for message in body["messages"]]
    for number, (role, blocks) in enumerate(zip(roles, turns, strict=True)):
        if not blocks:
            yield f"messages.{number}: all messages must have non-empty content"
        for place, block in enumerate(blocks):
            for problem in _block_problems(block, role):
                yield f"messages.{number}.content.{place}: {problem}"
    seen: set[str] = set()
    for number, (turn, after) in enumerate(zip([[], *turns], [*turns, []], strict=True)):
        calls = [block["id"] for block in turn if block["type"] == "tool_use"]
        if len(set(calls)) < len(calls) or seen & set(calls):
            yield f"messages.{number}: `tool_use` ids must be unique"
        seen |= set(calls)
        results = [block["tool_use_id"] for block in after if block["type"] == "tool_result"]
        if any(block["type"] != "tool_result" for block in after[: len(results)]) and calls:
            yield f"messages.{number}: `tool_result` blocks must come first"
        if missing := sorted(set(calls) - set(results)):
            yield f"`tool_use` ids were found without `tool_result` blocks immediately after: {missing}"
        if sorted(results) != sorted(calls):
            yield f"messages.{number}: unexpected `tool_use_id` found in `tool_result` blocks"


def _block_problems(block: Object, role: str) -> Iterator[str]:
    kind = block.get("type")
    allowed = _USER_BLOCKS if role == "user" else ("text", "tool_use", *_THINKING)
    if kind not in allowed:
        yield f"`{kind}` blocks are not permitted in {role} messages"
    match kind:
        case "text" if not block["text"].strip():
            yield "text content blocks must be non-empty"
        case "image" | "document" if block["source"]["media_type"] not in _MEDIA[kind]:
            yield f"{kind}.source.media_type: Input should be one of {_MEDIA[kind]}"
        case "tool_use" if not isinstance(block["input"], dict) or not _NAME.fullmatch(block["id"]):
            yield "tool_use: Input should be a valid dictionary, and the id match '^[a-zA-Z0-9_-]+$'"
        case "thinking" if block.get("signature") != signature_of(block["thinking"]):
            yield "Invalid `signature` in `thinking` block"


def _thinking_problems(body: Object) -> Iterator[str]:
    config, adaptive = body.get("thinking"), thinks_adaptively(body["model"])
    if config is None or config["type"] == "disabled":
        return
    if config["type"] != ("adaptive" if adaptive else "enabled"):
        yield f'"thinking.type.{config["type"]}" is not supported for this model'
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    if body.get("temperature", 1) != 1 or "top_k" in body or body.get("top_p", 1) < 0.95:
        yield "`temperature` may only be set to 1 when thinking is enabled, `top_p` to 0.95 or more"
    if adaptive:
        return
    budget = config.get("budget_tokens")
    if not isinstance(budget, int) or budget < 1024:
        yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    if budget >= body["max_tokens"]:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`"
    turns = [_listed(message["content"]) for message in body["messages"]]
    if turns[-1][0]["type"] == "tool_result" and turns[-2][0]["type"] not in _THINKING:
        yield "Expected `thinking` or `redacted_thinking` first in the final assistant turn"


def _has_open_object(schema: Any) -> bool:
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    is_object = isinstance(schema, dict) and schema.get("type") == "object"
    return (is_object and schema.get("additionalProperties") is not False) or any(
        map(_has_open_object, inner)
    )


def _listed(content: Any) -> list[Object]:
    """Return the blocks of some content; a string is one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
