"""A server of Chat Completions, as OpenAI and compatible vendors provide it.

The stream is OpenAI's: the role, the text, each call with its name before its arguments, the `finish_reason`,
the token count if the request asks for it, and `[DONE]`. The server rejects what OpenAI rejects, in its
words: a call without a result, a result without a call, arguments that are not a string, a schema without a
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers.http_server import ModelServer, SeenRequest, Served, cut_text, usage_of

_CREATED: Final = 1_750_000_000
_PIECE_CHARS: Final = 7
_ROLES: Final = frozenset(("system", "developer", "user", "assistant", "tool"))
_PARTS: Final = frozenset(("text", "image_url", "input_audio", "file", "refusal", "thinking"))
_REASONS: Final = {"end": "stop", "stop_sequence": "stop", "refusal": "stop"}
_NO_OBJECT: Final = "schema must be a JSON Schema of 'type: \"object\"'."
_KINDS: Final = {
    400: "invalid_request_error", 401: "invalid_request_error", 403: "permission_error",
    404: "invalid_request_error", 429: "rate_limit_error",
}  # fmt: skip


class ChatServer(ModelServer):
    """Serves `/v1/chat/completions`. `reasoning_field` is the field for the model's reasoning."""

    prefix = "/v1"

    def __init__(self, replies: Iterable[Served] = (), *, reasoning_field: str = "reasoning_content") -> None:
        super().__init__(replies)
        self._reasoning_field = reasoning_field

    def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
        text_field = "refusal" if reply.stop_reason == "refusal" else "content"
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
        deltas += [{self._reasoning_field: piece} for piece in _pieces(reply.reasoning)]
        deltas += [{text_field: piece} for piece in reply.pieces()]
        for number, call in enumerate(reply.tool_calls):
            function = {"name": call.name, "arguments": ""}
            start = {"id": self._call_id(number, call), "type": "function", "function": function}
            texts = _pieces(call.arguments_text())
            pieces: list[dict[str, Any]] = [start, *({"function": {"arguments": text}} for text in texts)]
            deltas += [{"tool_calls": [{"index": number, **piece}]} for piece in pieces]
        chunks = [self._chunk(request, delta, None) for delta in deltas]
        chunks.append(self._chunk(request, {}, _finish_reason(reply)))
        if (request.body.get("stream_options") or {}).get("include_usage") is True:
            chunks = [{**chunk, "usage": None} for chunk in chunks]
            head = self._head(request, "chat.completion.chunk")
            chunks.append({**head, "choices": [], "usage": _usage(reply)})
        return [*(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]

    def whole(self, request: SeenRequest, reply: Reply) -> dict[str, Any]:
        refused = reply.stop_reason == "refusal"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if refused else reply.whole_text() or None,
            "refusal": reply.whole_text() if refused else None,
        }
        if reply.reasoning:
            message[self._reasoning_field] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(number, call),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_text()},
                }
                for number, call in enumerate(reply.tool_calls)
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        return {**self._head(request, "chat.completion"), "choices": [choice], "usage": _usage(reply)}

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = _KINDS.get(status, "server_error")
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def checked(self, request: SeenRequest) -> str | None:
        if request.path != "/v1/chat/completions" or request.method != "POST":
            return f"Invalid URL ({request.method} {request.path})"
        return next(_problems(request.body), None)

    def _head(self, request: SeenRequest, kind: str) -> dict[str, Any]:
        number = len(self.requests)
        return {
            "id": f"chatcmpl-{number}",
            "object": kind,
            "created": _CREATED + number,
            "model": request.body["model"],
            "system_fingerprint": None,
        }

    def _chunk(self, request: SeenRequest, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head(request, "chat.completion.chunk"), "choices": [choice]}

    def _call_id(self, number: int, call: ScriptedCall) -> str:
        return call.id or f"call_{len(self.requests)}_{number}"


def _pieces(text: str) -> list[str]:
    """Split a text into small pieces, or a long one into a few dozen."""
    return cut_text(text, max(_PIECE_CHARS, len(text) // 64))


def _finish_reason(reply: Reply) -> str:
    reason = reply.stop_reason or ("tool_calls" if reply.tool_calls else "end")
    return _REASONS.get(reason, reason)


def _usage(reply: Reply) -> dict[str, Any]:
    used = usage_of(reply)
    asked = used.input + used.cache_read + used.cache_write
    return {
        "prompt_tokens": asked,
        "completion_tokens": used.output,
        "total_tokens": asked + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cache_read, "cache_write_tokens": used.cache_write},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }


def _problems(body: Any) -> Iterator[str]:
    """Yield OpenAI's errors about the request, in its words and order."""
    if not isinstance(body, dict):
        yield "We could not parse the JSON body of your request."
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "you must provide a model parameter"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "Invalid 'messages': empty array. Expected an array with minimum length 1."
    if "stream_options" in body and body.get("stream") is not True:
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    for number, message in enumerate(messages):
        yield from _message_problems(message, f"messages[{number}]")
    yield from _order_problems(messages)
    yield from _tool_problems(body)
    wanted = body.get("response_format")
    if wanted is not None and wanted.get("type") not in ("text", "json_object"):
        named = wanted.get("json_schema")
        if wanted.get("type") != "json_schema" or not isinstance(named, dict):
            yield "Missing required parameter: 'response_format.json_schema'."
        if not named.get("name"):
            yield "Missing required parameter: 'response_format.json_schema.name'."
        if named.get("schema", {}).get("type") != "object":
            yield f"Invalid schema for response_format 'answer': {_NO_OBJECT}"


def _message_problems(message: Any, where: str) -> Iterator[str]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        yield f"Invalid value: '{where}.role'. Supported values are: {sorted(_ROLES)}."
    calls = message.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not calls):
        yield f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1."
    for at, call in enumerate(calls or ()):
        function = call.get("function") or {}
        if call.get("type") != "function" or not isinstance(call.get("id"), str):
            yield f"Missing required parameter: '{where}.tool_calls[{at}].id' or '.type'."
        if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), str):
            yield f"Invalid type for '{where}.tool_calls[{at}].function': name and arguments are strings."
    content = message.get("content")
    if content is None and not (message["role"] == "assistant" and (calls or message.get("refusal"))):
        yield f"Invalid value for 'content': expected a string, got null. ({where})"
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        yield f"Invalid type for '{where}.content': expected a string or an array of objects."
    for at, part in enumerate(content):
        kind = part.get("type")
        if kind not in _PARTS or not part.get(kind):
            yield f"Invalid value: '{where}.content[{at}]' is not a part of a known type."
        if kind == "image_url" and not str(part["image_url"].get("url")).startswith(("data:image/", "http")):
            yield f"Invalid '{where}.content[{at}].image_url.url'. Expected a valid URL."
        if kind == "file" and not {"file_data", "file_id"} & part["file"].keys():
            yield f"Missing required parameter: '{where}.content[{at}].file.file_data'."
        if kind == "input_audio" and part["input_audio"].get("format") not in ("wav", "mp3"):
            yield f"Invalid value: '{where}.content[{at}].input_audio.format'."


def _order_problems(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Check that every call is answered immediately, and nothing else is."""
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_ids:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
                    f"with 'tool_calls'. (messages[{number}])"
                )
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            break
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_ids)) < len(open_ids):
            yield f"Duplicate value for 'tool_call_id' in messages[{number}]"
    if open_ids:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(open_ids)
        )


def _tool_problems(body: dict[str, Any]) -> Iterator[str]:
    tools = body.get("tools")
    if tools is None:
        alone = [name for name in ("tool_choice", "parallel_tool_calls") if name in body]
        if alone:
            yield f"Invalid value for '{alone[0]}': only allowed when 'tools' are specified."
        return
    if not isinstance(tools, list) or not tools:
        yield "Invalid 'tools': empty array. Expected an array with minimum length 1."
    for at, tool in enumerate(tools):
        function = tool.get("function") or {}
        if tool.get("type") != "function" or not function.get("name"):
            yield f"Missing required parameter: 'tools[{at}].function'."
        schema = function.get("parameters", {"type": "object"})
        if schema.get("type") != "object":
            yield f"Invalid schema for function '{function['name']}': {_NO_OBJECT}"
