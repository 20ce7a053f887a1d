"""A scripted reply that is ready to be streamed.

Rule: everything that can be prepared is prepared here, so that a chunk costs one step of a generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from standfast.errors import ModelError
from standfast.model.usage import Usage
from standfast.ports.model_provider import (
    ModelDelta,
    ReasoningArrived,
    ReplyEnded,
    RequestedCall,
    TextArrived,
)
from standfast.providers.script import Reply, ScriptedCall, ScriptedFailure, ScriptedUsage


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The deltas of a reply, how it ends, and the reply itself."""

    deltas: tuple[ModelDelta, ...]
    ended: ReplyEnded
    reply: Reply


def planned(reply: Reply, number: int, model_id: str) -> Plan:
    """Prepare a reply for the call of that number."""
    text, pieces = reply.whole_text(), reply.pieces()
    if reply.failure is not None:
        pieces = pieces[: reply.failure.after_chunks]
    deltas: list[ModelDelta] = [ReasoningArrived(reply.reasoning)] if reply.reasoning else []
    deltas += [TextArrived(piece) for piece in pieces]
    ended = ReplyEnded(
        text=text,
        calls=tuple(_requested(call, number, place) for place, call in enumerate(reply.tool_calls, 1)),
        usage=_usage_of(reply.usage, text),
        model=reply.model or model_id,
        stop_reason=reply.stop_reason or ("tool_calls" if reply.tool_calls else "end"),
        reasoning=reply.reasoning_parts,
        response_id=reply.response_id,
    )
    return Plan(tuple(deltas), ended, reply)


def error_of(failure: ScriptedFailure) -> ModelError:
    """The error that a script raises."""
    return ModelError(
        failure.message,
        code=failure.code,
        retryable=failure.retryable,
        retry_after_ms=failure.retry_after_ms,
    )


def _requested(call: ScriptedCall, number: int, place: int) -> RequestedCall:
    given = call.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return RequestedCall(name=call.name, arguments=arguments, provider_id=call.id or f"call_{number}_{place}")


def _usage_of(given: ScriptedUsage | None, text: str) -> Usage:
    if given is None:
        return Usage(input=1, output=max(1, len(text) // 4), calls=1)
    return Usage(**{**msgspec.structs.asdict(given), "calls": 1})
