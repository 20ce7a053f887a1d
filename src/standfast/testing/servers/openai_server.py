"""A server that speaks OpenAI's Responses API from a script.

Rule: `checked` is as strict as the vendor, as far as known, and uses the vendor's wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers.http_server import ModelServer, SeenRequest, cut_text, event_block, usage_of

Item = dict[str, Any]

_PARAMETERS: Final = frozenset((
    "background", "conversation", "include", "input", "instructions", "max_output_tokens", "max_tool_calls",
    "metadata", "model", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key",
    "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream",
    "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
    "user",
))  # fmt: skip
_PARTS: Final = frozenset(("input_text", "input_image", "input_file"))
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DATA_URL: Final = re.compile(r"data:[a-z]+/[-+.a-z0-9]+;base64,[A-Za-z0-9+/=]+")
_THINKS: Final = re.compile(r"o\d|gpt-5(?!.*-chat)")
_CUTS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_SEALED: Final = "gAAAAAB"
_KINDS: Final = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    429: ("tokens", "rate_limit_exceeded"),
}


class OpenAIServer(ModelServer):
    """Serves replies as responses: reasoning first, then the text, then the calls."""

    prefix = "/v1"

    def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
        found = _Response(request.body, reply, len(self.requests)).events()
        return [event_block({**event, "sequence_number": number}) for number, event in enumerate(found)]

    def whole(self, request: SeenRequest, reply: Reply) -> dict[str, Any]:
        return _Response(request.body, reply, len(self.requests)).ended()

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind, code = _KINDS.get(status, ("server_error", None))
        if "context window" in message:
            code = "context_length_exceeded"
        if "quota" in message:
            kind = code = "insufficient_quota"
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def checked(self, request: SeenRequest) -> str | None:
        if request.path != "/v1/responses" or request.method != "POST":
            return f"Invalid URL ({request.method} {request.path})"
        if not isinstance(request.body, dict):
            return "We could not parse the JSON body of your request."
        return next(_problems(request.body), None)


class _Response:
    """One response, as events and as an object."""

    def __init__(self, body: dict[str, Any], reply: Reply, number: int) -> None:
        self._body = body
        self._reply = reply
        self._number = number
        self._cut = _CUTS.get(reply.stop_reason or "")
        self._output: list[Item] = []

    def events(self) -> Iterator[Item]:
        yield {"type": "response.created", "response": self._object("in_progress")}
        yield {"type": "response.in_progress", "response": self._object("in_progress")}
        if self._reply.reasoning:
            yield from self._thought(self._reply.reasoning)
        if self._reply.pieces() or not self._reply.tool_calls:
            yield from self._message()
        for place, call in enumerate(self._reply.tool_calls, 1):
            yield from self._call(call, place)
        ended = self._object("completed" if self._cut is None else "incomplete")
        if self._cut is not None:
            ended["incomplete_details"] = {"reason": self._cut}
        yield {"type": f"response.{ended['status']}", "response": ended}

    def ended(self) -> Item:
        """Return the object that the events end with."""
        *_, last = self.events()
        response: Item = last["response"]
        return response

    def _object(self, status: str) -> Item:
        body, used = self._body, usage_of(self._reply)
        before = used.input + used.cache_read + used.cache_write
        details = {"cached_tokens": used.cache_read, "cache_write_tokens": used.cache_write}
        usage = {
            "input_tokens": before,
            "input_tokens_details": details,
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": used.reasoning},
            "total_tokens": before + used.output,
        }
        return {
            "id": f"resp_{self._number}",
            "object": "response",
            "created_at": 1_767_225_600,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": {},
            "model": f"{body['model']}-2026-01-01",
            "output": list(self._output),
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **body.get("reasoning", {})},
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": body.get("text", {"format": {"type": "text"}}),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": body.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": usage if status != "in_progress" else None,
        }

    def _thought(self, text: str) -> Iterator[Item]:
        item: Item = {"id": f"rs_{self._number}", "type": "reasoning", "summary": []}
        part = {"type": "summary_text", "text": text}
        at = {"item_id": item["id"], "output_index": len(self._output), "summary_index": 0}
        yield self._added(item)
        empty = {**part, "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **at, "part": empty}
        yield {"type": "response.reasoning_summary_text.delta", **at, "delta": text, "obfuscation": "x"}
        yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
        yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
        seals = "reasoning.encrypted_content" in self._body.get("include", ())
        sealed = {"encrypted_content": f"{_SEALED}{text.encode().hex()}"} if seals else {}
        yield self._done({**item, "summary": [part], **sealed})

    def _message(self) -> Iterator[Item]:
        refuses = self._reply.stop_reason == "refusal"
        kind, field = ("refusal", "refusal") if refuses else ("output_text", "text")
        text = self._reply.whole_text()
        more: Item = {} if refuses else {"annotations": [], "logprobs": []}
        part = {"type": kind, field: text, **more}
        item: Item = {"id": f"msg_{self._number}", "type": "message", "role": "assistant"}
        at = {"item_id": item["id"], "output_index": len(self._output), "content_index": 0}
        yield self._added({**item, "status": "in_progress", "content": []})
        yield {"type": "response.content_part.added", **at, "part": {**part, field: ""}}
        scores: Item = {} if refuses else {"logprobs": []}
        for piece in self._reply.pieces():
            yield {"type": f"response.{kind}.delta", **at, "delta": piece, **scores, "obfuscation": "x"}
        yield {"type": f"response.{kind}.done", **at, field: text, **scores}
        yield {"type": "response.content_part.done", **at, "part": part}
        status = "incomplete" if self._cut and not self._reply.tool_calls else "completed"
        yield self._done({**item, "status": status, "content": [part]})

    def _call(self, call: ScriptedCall, place: int) -> Iterator[Item]:
        """Yield the events of a call; the last call of a truncated reply is incomplete."""
        arguments = call.arguments_text()
        item: Item = {
            "id": f"fc_{self._number}_{place}",
            "type": "function_call",
            "call_id": call.id or f"call_{self._number}_{place}",
            "name": call.name,
        }
        at = {"item_id": item["id"], "output_index": len(self._output)}
        yield self._added({**item, "status": "in_progress", "arguments": ""})
        for piece in cut_text(arguments, max(1, -(-len(arguments) // 3))):
            yield {"type": "response.function_call_arguments.delta", **at, "delta": piece, "obfuscation": "x"}
        cut = self._cut is not None and place == len(self._reply.tool_calls)
        if not cut:
            yield {"type": "response.function_call_arguments.done", **at, "arguments": arguments}
        status = "in_progress" if cut else "completed"
        yield self._done({**item, "status": status, "arguments": arguments})

    def _added(self, item: Item) -> Item:
        return {"type": "response.output_item.added", "output_index": len(self._output), "item": item}

    def _done(self, item: Item) -> Item:
        self._output.append(item)
        return {"type": "response.output_item.done", "output_index": len(self._output) - 1, "item": item}


def _problems(body: dict[str, Any]) -> Iterator[str]:
    """Yield the vendor's errors about the request, in its order."""
    if unknown := sorted(body.keys() - _PARAMETERS):
        yield f"Unknown parameter: '{unknown[0]}'."
    if not isinstance(body.get("model"), str):
        yield "Missing required parameter: 'model'."
    if not body.get("input"):
        yield "Missing required parameter: 'input'."
    if body.get("max_output_tokens", 16) < 16:
        yield "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16."
    if body.get("include") and not _THINKS.match(str(body.get("model"))):
        yield "Encrypted content is not supported with this model."
    yield from _tool_problems(body)
    wanted = body.get("text", {}).get("format", {"type": "text"})
    if wanted.get("type") == "json_schema":
        if not _NAME.fullmatch(wanted.get("name", "")):
            yield "Missing required parameter: 'text.format.name'."
        if problem := _schema_problem(wanted.get("schema"), strict=wanted.get("strict", False)):
            yield f"Invalid schema for response_format '{wanted.get('name')}': {problem}"
    items = body["input"] if isinstance(body.get("input"), list) else []
    for at, item in enumerate(items):
        yield from _item_problems(item, f"input[{at}]", items[at + 1 :])
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    results = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    if len(set(calls)) != len(calls):
        yield "Duplicate call ids in 'input'."
    for call_id in calls:
        if call_id not in results:
            yield f"No tool output found for function call {call_id}."
    for call_id in results:
        if call_id not in calls:
            yield f"No tool call found for function call output with call_id {call_id}."


def _tool_problems(body: dict[str, Any]) -> Iterator[str]:
    tools = body.get("tools", [])
    names = {tool.get("name") for tool in tools}
    for tool in tools:
        if tool.get("type") != "function" or not _NAME.fullmatch(tool.get("name", "")):
            yield "Invalid 'tools': expected functions with names that match '^[a-zA-Z0-9_-]+$'."
        if problem := _schema_problem(tool.get("parameters"), strict=tool.get("strict", True)):
            yield f"Invalid schema for function '{tool.get('name')}': {problem}"
    choice = body.get("tool_choice")
    if choice is not None and not tools:
        yield "Tool choice is only allowed when 'tools' are specified."
    if isinstance(choice, dict) and choice.get("name") not in names:
        yield f"Tool choice '{choice.get('name')}' not found in 'tools' parameter."


def _schema_problem(schema: Any, *, strict: bool) -> str | None:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        kind = schema.get("type") if isinstance(schema, dict) else None
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    return _strict_problem(schema) if strict else None


def _strict_problem(schema: Any) -> str | None:
    """Return the first part of a schema that strict mode does not accept."""
    if not isinstance(schema, dict):
        return next(filter(None, map(_strict_problem, schema)), None) if isinstance(schema, list) else None
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(schema.get("properties", {})):
            return "'required' is required to be supplied and to be an array including every key."
    if "default" in schema and not isinstance(schema["default"], dict):
        return "'default' is not permitted."
    return next(filter(None, map(_strict_problem, schema.values())), None)


def _item_problems(item: Item, where: str, after: list[Item]) -> Iterator[str]:
    match item.get("type", "message"):
        case "message":
            if item.get("role") not in ("user", "assistant", "system", "developer"):
                yield f"Invalid value for '{where}.role'."
            content = item.get("content")
            if not content:
                yield f"Invalid '{where}.content': empty."
            allowed = _PARTS if item.get("role") != "assistant" else ("output_text", "refusal")
            for part in content if isinstance(content, list) else ():
                kind, url = part.get("type"), str(part.get("image_url") or part.get("file_data"))
                if kind not in allowed:
                    yield f"Invalid value: '{kind}' in '{where}.content'."
                if kind == "input_text" and not part.get("text"):
                    yield f"Invalid '{where}.content': empty text."
                if kind == "input_image" and not _DATA_URL.fullmatch(url):
                    yield f"Invalid '{where}.content.image_url'. Expected a base64-encoded data URL."
                if kind == "input_file" and not (part.get("filename") and _DATA_URL.fullmatch(url)):
                    yield f"Invalid '{where}.content.file_data'. Expected a base64-encoded data URL."
        case "reasoning":
            if not str(item.get("encrypted_content", "")).startswith(_SEALED):
                yield f"Item with id '{item.get('id')}' not found. Items are not persisted."
            following = after[0].get("type") if after else None
            if following not in ("message", "function_call", "reasoning"):
                yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its following item."
        case "function_call":
            if not isinstance(item.get("arguments"), str) or not _NAME.fullmatch(item.get("name", "")):
                yield f"Invalid '{where}': a call has a name and arguments."
            if not 0 < len(item.get("call_id", "")) <= 64:
                yield f"Invalid '{where}.call_id': string too long. Expected a string with maximum length 64."
        case "function_call_output":
            if not isinstance(item.get("output"), (str, list)):
                yield f"Missing required parameter: '{where}.output'."
        case other:
            yield f"Invalid value: '{other}'. Supported values are: 'message', 'function_call', …"
