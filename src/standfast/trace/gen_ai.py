"""Conversion of records to OpenTelemetry's semantic conventions for generative AI.

A turn is `invoke_agent`, a model call `chat`, a tool call and a cell `execute_tool`; attributes that the
conventions lack have names under `standfast.`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.canonical import Json
from standfast.model.trace_record import TraceRecord

Attribute = str | int | float | bool | list[str]
_PLAIN: Final = (str, int, float, bool)

_OPERATIONS: Final = {
    "turn": "invoke_agent",
    "model_call": "chat",
    "tool_call": "execute_tool",
    "cell": "execute_tool",
}

_PROVIDERS: Final = {"google": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
"""The conventions' names of providers, where they differ from ours."""

_FINISH: Final = {"end": "stop", "tool_calls": "tool_calls", "length": "length"}


def name_of(record: TraceRecord) -> str:
    """Return the name of a record's span, such as `chat gpt-5` or `hook before_turn`."""
    operation = _OPERATIONS.get(record.kind)
    if operation is None:
        return record.name if record.kind in ("event", "usage") else f"{record.kind} {record.name}"
    name = _model_of(record.name)[1] if record.kind == "model_call" else record.name
    return f"{operation} {name}".strip()


def attributes_of(record: TraceRecord) -> dict[str, Attribute]:
    """Return the attributes of a record's span."""
    body = record.body if isinstance(record.body, dict) else {}
    found: dict[str, Attribute] = {"standfast.kind": record.kind}
    if record.session_id:
        found["gen_ai.conversation.id"] = record.session_id
    if record.turn_id:
        found["standfast.turn.id"] = record.turn_id
    if record.plugin_id:
        found["standfast.plugin.id"] = record.plugin_id
    if (operation := _OPERATIONS.get(record.kind)) is not None:
        found["gen_ai.operation.name"] = operation
    if record.status not in ("", "ok"):
        found["error.type"] = _text(body, "error") or record.status
    match record.kind:
        case "turn":
            if record.name:
                found["gen_ai.agent.name"] = record.name
            return found | _of_model(body, "turn", ("outcome", "reason", "model_calls", "parent_turn_id"))
        case "model_call":
            if served := _text(body, "served"):
                found["gen_ai.response.model"] = _model_of(served)[1]
            if response_id := _text(body, "response_id"):
                found["gen_ai.response.id"] = response_id
            if reason := _text(body, "stop_reason"):
                found["gen_ai.response.finish_reasons"] = [_FINISH.get(reason, reason)]
            return found | _of_model(body, "model_call", ("number", "attempt"))
        case "tool_call" | "cell":
            return found | _of_call(record, body)
        case _ if isinstance(record.body, dict):
            for key, value in record.body.items():
                if value is not None:
                    found[f"standfast.{key}"] = value if isinstance(value, _PLAIN) else _json(value)
            return found
        case _:
            return found if record.body is None else found | {"standfast.body": _json(record.body)}


def exception_of(record: TraceRecord) -> dict[str, Attribute]:
    """Return the attributes of the span event `exception`, {} if the tool raised none."""
    body = record.body if isinstance(record.body, dict) else {}
    raised, content = body.get("exception"), body.get("content")
    if not isinstance(raised, dict):
        return {}
    found: dict[str, Attribute] = {
        "exception.type": _text(raised, "type"), "exception.stacktrace": _text(raised, "stack")
    }  # fmt: skip
    if isinstance(content, dict) and (whole := _text(content, "traceback")):
        found |= {"exception.stacktrace": whole, "exception.message": _text(content, "error")}
    return found


def _of_call(record: TraceRecord, body: dict[str, Json]) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {"gen_ai.tool.name": record.name, "gen_ai.tool.type": "function"}
    call_id = _text(body, "provider_id") or str(body.get("call_id", ""))
    if call_id:
        found["gen_ai.tool.call.id"] = call_id
    if effect := _text(body, "side_effect"):
        found["standfast.tool.side_effect"] = effect
    content = body.get("content")
    given = content if isinstance(content, dict) else {}
    for key in ("arguments", "result"):
        if given.get(key) is not None:
            found[f"gen_ai.tool.call.{key}"] = _json(given[key])
    return found


def _of_model(body: dict[str, Json], kind: str, keys: tuple[str, ...]) -> dict[str, Attribute]:
    """Return the model, usage and contents of a turn or a model call, and its fields *keys*."""
    found = _of_usage(body.get("usage"))
    if model := _text(body, "model"):
        found["gen_ai.provider.name"], found["gen_ai.request.model"] = _model_of(model)
    for key in keys:
        if isinstance(value := body.get(key), _PLAIN):
            found[f"standfast.{kind}.{key}"] = value
    content = body.get("content")
    given = content if isinstance(content, dict) else {}
    for key in ("input", "output"):
        if given.get(key) is not None:
            message: dict[str, Json] = {"role": "user" if key == "input" else "assistant"}
            message["parts"] = [{"type": "text", "content": given[key]}]
            if key == "output":
                message["finish_reason"] = "stop"
            found[f"gen_ai.{key}.messages"] = _json([message])
    return found


def _of_usage(usage: Json) -> dict[str, Attribute]:
    """Count tokens by the conventions, which include cached input in the input."""
    if not isinstance(usage, dict) or not usage:
        return {}
    fresh, read, write = (_count(usage, key) for key in ("input", "cache_read", "cache_write"))
    found: dict[str, Attribute] = {
        "gen_ai.usage.input_tokens": fresh + read + write,
        "gen_ai.usage.output_tokens": _count(usage, "output"),
    }
    for name, count in (
        ("gen_ai.usage.cache_read.input_tokens", read),
        ("gen_ai.usage.cache_creation.input_tokens", write),
        ("gen_ai.usage.reasoning.output_tokens", _count(usage, "reasoning")),
    ):
        if count:
            found[name] = count
    if _count(usage, "priced"):
        found["standfast.usage.cost_usd"] = _count(usage, "cost_nano_usd") / 1e9
    return found


def _model_of(model_id: str) -> tuple[str, str]:
    """Split `provider:model`, with the provider's name in the conventions."""
    provider, colon, name = model_id.partition(":")
    return (_PROVIDERS.get(provider, provider), name) if colon else ("", model_id)


def _text(body: dict[str, Json], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _count(usage: dict[str, Json], key: str) -> int:
    value = usage.get(key, 0)
    return value if isinstance(value, int) else 0


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
