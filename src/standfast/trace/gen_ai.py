"""Converts records to OpenTelemetry's semantic conventions for generative AI.

A turn is `invoke_agent`, a model call `chat`, a tool call and a cell `execute_tool`; attributes that the
conventions lack have names under `standfast.`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from standfast.model.canonical import Json
from standfast.model.trace_record import TraceRecord

Attribute = str | int | float | bool | list[str]
_Write = Callable[[str, Json], Attribute]

_OPERATIONS: Final = {
    "turn": "invoke_agent",
    "model_call": "chat",
    "tool_call": "execute_tool",
    "cell": "execute_tool",
}

_PROVIDERS: Final = {"google": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
"""Our names of providers, and those of the conventions where they differ."""

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
            return found | _of_turn(record, body)
        case "model_call":
            return found | _of_model_call(body)
        case "tool_call" | "cell":
            return found | _of_call(record, body)
        case _:
            return found | _others(record.body)


def exception_of(record: TraceRecord) -> dict[str, Attribute]:
    """Return the attributes of the span event `exception`; empty if the tool raised none."""
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


def _of_turn(record: TraceRecord, body: dict[str, Json]) -> dict[str, Attribute]:
    found = _of_model(body) | _of_usage(body.get("usage"))
    if record.name:
        found["gen_ai.agent.name"] = record.name
    for key in ("outcome", "reason", "model_calls", "parent_turn_id"):
        if (value := _plain(body.get(key))) is not None:
            found[f"standfast.turn.{key}"] = value
    return found | _contents(
        body, {"input": "gen_ai.input.messages", "output": "gen_ai.output.messages"}, _as_messages
    )


def _of_model_call(body: dict[str, Json]) -> dict[str, Attribute]:
    found = _of_model(body) | _of_usage(body.get("usage"))
    if served := _text(body, "served"):
        found["gen_ai.response.model"] = _model_of(served)[1]
    if response_id := _text(body, "response_id"):
        found["gen_ai.response.id"] = response_id
    if reason := _text(body, "stop_reason"):
        found["gen_ai.response.finish_reasons"] = [_FINISH.get(reason, reason)]
    for key in ("number", "attempt"):
        if (value := _plain(body.get(key))) is not None:
            found[f"standfast.model_call.{key}"] = value
    return found | _contents(body, {"output": "gen_ai.output.messages"}, _as_messages)


def _of_call(record: TraceRecord, body: dict[str, Json]) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {"gen_ai.tool.name": record.name, "gen_ai.tool.type": "function"}
    call_id = _text(body, "provider_id") or str(body.get("call_id", ""))
    if call_id:
        found["gen_ai.tool.call.id"] = call_id
    if effect := _text(body, "side_effect"):
        found["standfast.tool.side_effect"] = effect
    names = {"arguments": "gen_ai.tool.call.arguments", "result": "gen_ai.tool.call.result"}
    return found | _contents(body, names, lambda key, value: _json(value))


def _of_model(body: dict[str, Json]) -> dict[str, Attribute]:
    model = _text(body, "model")
    if not model:
        return {}
    provider, name = _model_of(model)
    return {"gen_ai.provider.name": provider, "gen_ai.request.model": name}


def _of_usage(usage: Json) -> dict[str, Attribute]:
    """Count tokens by the conventions: cached input is input as well."""
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


def _contents(body: dict[str, Json], names: dict[str, str], write: _Write) -> dict[str, Attribute]:
    """Return the contents of messages and calls, if the record has them."""
    content = body.get("content")
    if not isinstance(content, dict):
        return {}
    return {name: write(key, content[key]) for key, name in names.items() if content.get(key) is not None}


def _as_messages(key: str, value: Json) -> str:
    """Write a text as a message of the conventions."""
    parts: Json = [{"type": "text", "content": value}]
    if key == "input":
        return _json([{"role": "user", "parts": parts}])
    return _json([{"role": "assistant", "parts": parts, "finish_reason": "stop"}])


def _others(body: Json) -> dict[str, Attribute]:
    """Return the other fields of a body: plain values unchanged, others as JSON."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        return {"standfast.body": _json(body)}
    return {
        f"standfast.{key}": _json(value) if (plain := _plain(value)) is None else plain
        for key, value in body.items()
        if value is not None
    }


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


def _plain(value: Json) -> str | int | float | bool | None:
    return value if isinstance(value, (str, int, float, bool)) else None


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
