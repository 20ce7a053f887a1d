"""A server of the Gemini API that answers from a script.

Every reply is a list of chunks: thoughts, text, calls, and a last one with the finish reason and, in newer
models, a signature on an empty part. Without a stream it is one object of the same parts. The server stores
the signatures that it sends, and checks those that it receives.

As with Gemini, thoughts are sent only if the request asks for them. A model of generation 3 signs its calls
and its last text, and requires the signatures of the current turn back; an older one signs a call only if it
has thought. The server rejects what Gemini rejects, in its words. Fields may be spelled `likeThis` or
`like_this`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers.http_server import ModelServer, SeenRequest, Served, usage_of

_PATH: Final = re.compile(
    r"/v1(?:beta)?/(?:models|tunedModels)/([^:]+):(streamGenerateContent|generateContent)(\?.*)?"
)
_STATUSES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_REASONS: Final = {
    None: "STOP", "end": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY",
}  # fmt: skip
_CAMEL: Final = re.compile(r"_([a-z])")
_FREE: Final = frozenset({"args", "response", "parameters", "parametersJsonSchema", "responseJsonSchema"})
_SKIPPED: Final = "skip_thought_signature_validator"

Part = dict[str, Any]


class GoogleServer(ModelServer):
    """Serves `models/*:streamGenerateContent` (with `alt=sse`) and `:generateContent`."""

    def __init__(self, replies: Iterable[Served] = ()) -> None:
        super().__init__(replies)
        self._signed: dict[str, Part] = {}

    def streams(self, request: SeenRequest) -> bool:
        return ":streamGenerateContent" in request.path

    def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
        chunks = [*_ReplyWriter(request, reply, len(self.requests)).chunks()]
        self._note(chunks)
        return [b"data: %s\r\n\r\n" % msgspec.json.encode(chunk) for chunk in chunks]

    def whole(self, request: SeenRequest, reply: Reply) -> dict[str, Any]:
        whole = _ReplyWriter(request, reply, len(self.requests)).whole()
        self._note([whole])
        return whole

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}}

    def checked(self, request: SeenRequest) -> str | None:
        if _PATH.fullmatch(request.path) is None or request.method != "POST":
            return f"{request.method} {request.path} was not found."
        if not request.headers.get("x-goog-api-key"):
            return "Method doesn't allow unregistered callers (callers without established identity)."
        if self.streams(request) and "alt=sse" not in request.path:
            return "This server streams with alt=sse only."
        if not isinstance(request.body, dict):
            return "Invalid JSON payload received."
        return next(_problems(_model_of(request), _in_camel_case(request.body), self._signed), None)

    def _note(self, responses: list[dict[str, Any]]) -> None:
        """Store the signatures that are sent."""
        candidates = [one for response in responses for one in response.get("candidates", ())]
        for part in (part for candidate in candidates for part in candidate["content"]["parts"]):
            if signature := part.get("thoughtSignature"):
                self._signed[_plain(signature)] = _unsigned(part)


class _ReplyWriter:
    """Encodes a reply as Gemini does."""

    def __init__(self, request: SeenRequest, reply: Reply, number: int) -> None:
        self._model, self._reply, self._number = _model_of(request), reply, number
        thinking = _in_camel_case(request.body).get("generationConfig", {}).get("thinkingConfig", {})
        self._thoughts = reply.reasoning if thinking.get("includeThoughts") else ""
        self._newer = _generation(self._model) >= 3
        self._unreadable = next((call for call in reply.tool_calls if _arguments(call) is None), None)

    def chunks(self) -> Iterator[dict[str, Any]]:
        if self._reply.stop_reason == "refusal":
            yield self._response({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
            return
        half = len(self._thoughts) // 2
        for piece in filter(None, (self._thoughts[:half], self._thoughts[half:])):
            yield self._chunk([{"text": piece, "thought": True}])
        for piece in filter(None, self._reply.pieces()):
            yield self._chunk([{"text": piece}])
        calls = self._calls()
        for parts in (calls[:1], calls[1:]):  # the first alone, the others together
            if parts:
                yield self._chunk(parts)
        yield self._chunk([self._last_part()], **self._ending())

    def whole(self) -> dict[str, Any]:
        if self._reply.stop_reason == "refusal":
            return self._response({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
        text = self._reply.whole_text()
        thoughts: list[Part] = [{"text": self._thoughts, "thought": True}] if self._thoughts else []
        words: list[Part] = [{**self._last_part(), "text": text}] if text else []
        return self._chunk([*thoughts, *words, *self._calls()], **self._ending())

    def _calls(self) -> list[Part]:
        """Return the calls, the first one signed; a newer model gives them ids."""
        if self._unreadable is not None:
            return []
        parts: list[Part] = []
        for place, call in enumerate(self._reply.tool_calls, 1):
            made: Part = {"name": call.name, "args": _arguments(call)}
            if call_id := call.id or (f"fc-{self._number}-{place}" if self._newer else ""):
                made["id"] = call_id
            parts.append({"functionCall": made})
        if parts and (self._newer or self._reply.reasoning):
            parts[0]["thoughtSignature"] = _signature(f"call {self._number}")
        return parts

    def _last_part(self) -> Part:
        if self._newer and not self._reply.tool_calls:
            return {"text": "", "thoughtSignature": _signature(f"text {self._number}")}
        return {"text": ""}

    def _ending(self) -> dict[str, Any]:
        if self._unreadable is not None:
            said = f"Malformed function call: {self._unreadable.name}({self._unreadable.arguments})"
            return {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": said}
        reason = self._reply.stop_reason
        return {"finishReason": _REASONS.get(reason, str(reason).upper())}

    def _chunk(self, parts: list[Part], **ending: Any) -> dict[str, Any]:
        candidate = {"content": {"parts": parts, "role": "model"}, **ending, "index": 0}
        return self._response({"candidates": [candidate]})

    def _response(self, said: dict[str, Any]) -> dict[str, Any]:
        used = usage_of(self._reply)
        prompt = used.input + used.cache_read + used.cache_write
        usage = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": used.output - used.reasoning,
            "totalTokenCount": prompt + used.output,
            "cachedContentTokenCount": used.cache_read,
            "thoughtsTokenCount": used.reasoning,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}] if prompt else [],
        }
        return {
            **said,
            "usageMetadata": {name: count for name, count in usage.items() if count},
            "modelVersion": self._model,
            "responseId": f"response-{self._number}",
        }


def _arguments(call: ScriptedCall) -> dict[str, Any] | None:
    """Return the arguments as an object, None if they are not one."""
    given: Any = call.arguments
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            return None
    return given if isinstance(given, dict) else None


def _model_of(request: SeenRequest) -> str:
    found = _PATH.fullmatch(request.path)
    return "" if found is None else unquote(found[1])


def _generation(model: str) -> int:
    found = re.match(r"gemini-(\d+)", model)
    return 3 if found is None else int(found[1])


def _signature(words: str) -> str:
    return base64.b64encode(f"signed: {words}".encode()).decode()


def _plain(signature: str) -> str:
    """Return a signature in the standard alphabet."""
    return signature.replace("-", "+").replace("_", "/").rstrip("=")


def _unsigned(part: Part) -> Part:
    return {key: value for key, value in part.items() if key != "thoughtSignature"}


def _in_camel_case(given: Any) -> Any:
    """Rename fields to the spelling of Gemini's answers; values are unchanged."""
    if isinstance(given, list):
        return [_in_camel_case(entry) for entry in given]
    if not isinstance(given, dict):
        return given
    named = {_CAMEL.sub(lambda found: found[1].upper(), name): value for name, value in given.items()}
    return {name: value if name in _FREE else _in_camel_case(value) for name, value in named.items()}


# What is refused

_FIELDS: Final = {
    "": "contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent labels",
    "generation_config": (
        "temperature topP topK maxOutputTokens stopSequences seed responseMimeType responseSchema "
        "responseJsonSchema thinkingConfig candidateCount presencePenalty frequencyPenalty "
        "responseModalities mediaResolution responseLogprobs logprobs speechConfig imageConfig"
    ),
    "generation_config.thinking_config": "includeThoughts thinkingBudget thinkingLevel",
    "tool_config": "functionCallingConfig retrievalConfig",
    "tool_config.function_calling_config": "mode allowedFunctionNames",
    "contents": "role parts",
    "contents.parts": (
        "text inlineData fileData functionCall functionResponse executableCode codeExecutionResult thought "
        "thoughtSignature videoMetadata mediaResolution partMetadata"
    ),
    "contents.parts.function_call": "id name args",
    "contents.parts.function_response": "id name response parts willContinue scheduling",
    "contents.parts.inline_data": "mimeType data displayName",
    "tools.function_declarations": (
        "name description parameters parametersJsonSchema response responseJsonSchema behavior"
    ),
}
_DATA: Final = (
    "text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode",
    "codeExecutionResult",
)  # fmt: skip
_FUNCTIONS: Final = (
    ("functionCall", "function_call", "args"),
    ("functionResponse", "function_response", "response"),
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")


def _problems(model: str, body: dict[str, Any], signed: dict[str, Part]) -> Iterator[str]:
    """Yield Gemini's errors about the request, in its words."""
    yield from _unknown(body, "")
    contents = body.get("contents")
    if not contents:
        yield "* GenerateContentRequest.contents: contents is not specified"
        return
    for number, content in enumerate(contents):
        yield from _unknown(content, "contents")
        if content.get("role", "user") not in ("user", "model"):
            yield "Please use a valid role: user, model."
        where = f"GenerateContentRequest.contents[{number}].parts"
        if not content.get("parts"):
            yield f"* {where}: contents.parts must not be empty."
        for part in content.get("parts", ()):
            yield from _part_problems(part, where)
    yield from _turn_problems(contents)
    yield from _signature_problems(model, contents, signed)
    declared = [entry for tool in body.get("tools", ()) for entry in tool.get("functionDeclarations", ())]
    yield from _tool_problems(declared, body.get("toolConfig", {}))
    yield from _config_problems(model, body.get("generationConfig", {}), bool(declared))


def _unknown(given: dict[str, Any], where: str) -> Iterator[str]:
    for name in given:
        if name not in _FIELDS[where].split():
            at = f" at '{where}'" if where else ""
            yield f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'


def _part_problems(part: Part, where: str) -> Iterator[str]:
    yield from _unknown(part, "contents.parts")
    if len([name for name in _DATA if name in part]) != 1:
        yield f"* {where}: required oneof field 'data' must have one initialized field"
    if part.get("text") == "" and "thoughtSignature" not in part:
        yield f"* {where}: contents.parts must not be empty."
    for name, inner, body in _FUNCTIONS:
        if name in part:
            yield from _unknown(part[name], f"contents.parts.{inner}")
            if not part[name].get("name"):
                yield f"* GenerateContentRequest.contents.parts.{inner}.name: Name cannot be empty."
            if not isinstance(part[name].get(body, {}), dict):
                kind = "type.googleapis.com/google.protobuf.Struct"
                yield f"Invalid value at 'contents.parts.{inner}' ({kind})"
    if (media := part.get("inlineData")) is not None:
        yield from _unknown(media, "contents.parts.inline_data")
        try:
            base64.b64decode(_plain(media["data"]) + "==", validate=False)
        except (KeyError, ValueError):
            yield "Invalid value at 'contents.parts.inline_data.data' (TYPE_BYTES), Base64 decoding failed"
        if not re.match(r"(image|audio|video|text)/|application/pdf$", media.get("mimeType", "")):
            yield f"Unsupported MIME type: {media.get('mimeType')}"


def _turn_problems(contents: list[dict[str, Any]]) -> Iterator[str]:
    """Check that a call follows the user, and that its results follow it."""
    before: dict[str, Any] = {"role": "model", "parts": ()}
    for content in [*contents, {"role": "user", "parts": ()}]:
        calls, results = _functions(before, "functionCall"), _functions(content, "functionResponse")
        if _functions(content, "functionCall") and before.get("role", "user") != "user":
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a "
                "function response turn."
            )
        if len(calls) != len(results):
            yield (
                "Please ensure that the number of function response parts is equal to the number of function "
                "call parts of the function call turn."
            )
        if [call["name"] for call in calls] != [result["name"] for result in results]:
            yield "Please ensure that function response names match the function calls."
        if any(call.get("id") != result.get("id") for call, result in zip(calls, results, strict=False)):
            yield "Please ensure that function response ids match the function calls."
        before = content


def _functions(content: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part[kind] for part in content.get("parts", ()) if kind in part]


def _signature_problems(model: str, contents: list[dict[str, Any]], signed: dict[str, Part]) -> Iterator[str]:
    start = 0  # the start of the current turn: the user's last content that is not only results
    for number, content in enumerate(contents):
        parts = content.get("parts", ())
        for part in parts:
            signature = part.get("thoughtSignature", _SKIPPED)
            if signature != _SKIPPED and signed.get(_plain(signature)) != _unsigned(part):
                yield "Thought signature is not valid."
        if content.get("role", "user") == "user" and any("functionResponse" not in part for part in parts):
            start = number
    for content in contents[start:] if _generation(model) >= 3 else ():
        calls = [part for part in content.get("parts", ()) if "functionCall" in part]
        if calls and "thoughtSignature" not in calls[0]:
            yield "Function call is missing a thought_signature in functionCall parts."


def _tool_problems(declared: list[dict[str, Any]], config: dict[str, Any]) -> Iterator[str]:
    names = [entry.get("name", "") for entry in declared]
    for entry in declared:
        yield from _unknown(entry, "tools.function_declarations")
        if not _NAME.fullmatch(entry.get("name", "")):
            yield f"Invalid function name {entry.get('name')!r}."
        if "parameters" in entry and "parametersJsonSchema" in entry:
            yield "parameters and parameters_json_schema are mutually exclusive."
        schema = entry.get("parametersJsonSchema")
        if schema is not None and schema.get("type") != "object":
            yield "parameters_json_schema must describe an object."
        yield from _schema_problems(schema)
    if len(set(names)) < len(names):
        yield "Duplicate function declaration found."
    yield from _unknown(config, "tool_config")
    calling = config.get("functionCallingConfig", {})
    yield from _unknown(calling, "tool_config.function_calling_config")
    if calling.get("mode") == "ANY" and not declared:
        yield "Function calling mode is set to ANY but no function_declarations are provided."
    if set(calling.get("allowedFunctionNames", ())) - set(names):
        yield "allowed_function_names must be names of function_declarations."


def _schema_problems(schema: Any) -> Iterator[str]:
    refers = isinstance(schema, dict) and isinstance(schema.get("$ref"), str)
    if refers and any(not key.startswith("$") for key in schema):
        yield "If $ref is set on a sub-schema, no other properties may be set."
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for value in inner:
        yield from _schema_problems(value)


def _config_problems(model: str, config: dict[str, Any], has_tools: bool) -> Iterator[str]:
    yield from _unknown(config, "generation_config")
    is_json = config.get("responseMimeType") == "application/json"
    if ("responseSchema" in config or "responseJsonSchema" in config) and not is_json:
        yield "Response schema is only supported with response mime type application/json."
    if is_json and has_tools and _generation(model) < 3:
        yield "Function calling with a response mime type: 'application/json' is unsupported"
    if len(config.get("stopSequences", ())) > 5:
        yield "The number of stop sequences must be at most 5."
    yield from _schema_problems(config.get("responseJsonSchema"))
    thinking = config.get("thinkingConfig", {})
    yield from _unknown(thinking, "generation_config.thinking_config")
    if "thinkingBudget" in thinking and "thinkingLevel" in thinking:
        yield "You can only set one of thinking budget and thinking level."
    if "thinkingLevel" in thinking and _generation(model) < 3:
        yield "Thinking level is not supported for this model."
    if thinking.get("thinkingBudget") == 0 and "pro" in model.split("-"):
        yield "Budget 0 is invalid. This model only works in thinking mode."
