"""Converts scripted replies to deltas, and deltas to scripted replies.

Rules
-----
1. `prepare_reply` prepares everything, so that a chunk costs one step of a generator.
2. A recorded reply is what arrived. Chunks that do not add up to the text are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from standfast.errors import StandfastError
from standfast.model.limits import Usage
from standfast.ports.model_provider import (
    ModelDelta,
    ReasoningArrived,
    ReplyEnded,
    RequestedCall,
    TextArrived,
)
from standfast.providers.script import Reply, ScriptedCall, ScriptedFailure, ScriptedUsage


@dataclass(frozen=True, slots=True, eq=False)
class PreparedReply:
    """A scripted reply with its deltas and its end."""

    deltas: tuple[ModelDelta, ...]
    ended: ReplyEnded
    reply: Reply


def prepare_reply(reply: Reply, number: int, model_id: str) -> PreparedReply:
    """Convert a scripted reply to the deltas of the call with that number."""
    text, pieces, usage = reply.whole_text(), reply.pieces(), reply.usage
    if reply.failure is not None:
        pieces = pieces[: reply.failure.after_chunks]
    deltas: list[ModelDelta] = [ReasoningArrived(reply.reasoning)] if reply.reasoning else []
    deltas += [TextArrived(piece) for piece in pieces]
    if usage is None:
        counted = Usage(input=1, output=max(1, len(text) // 4), calls=1)
    else:
        counted = Usage(**{**msgspec.structs.asdict(usage), "calls": 1})
    ended = ReplyEnded(
        text=text,
        calls=tuple(
            RequestedCall(
                name=call.name,
                arguments=call.arguments_text(),
                provider_id=call.id or f"call_{number}_{place}",
            )
            for place, call in enumerate(reply.tool_calls, 1)
        ),
        usage=counted,
        model=reply.model or model_id,
        stop_reason=reply.stop_reason or ("tool_calls" if reply.tool_calls else "end"),
        reasoning=reply.reasoning_parts,
        response_id=reply.response_id,
    )
    return PreparedReply(tuple(deltas), ended, reply)


class ReplyRecorder:
    """Collects the deltas of one reply; `ended`, `failed` or `broken_off` converts them to a `Reply`."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._reasoning: list[str] = []

    def add(self, delta: TextArrived | ReasoningArrived) -> None:
        (self._chunks if isinstance(delta, TextArrived) else self._reasoning).append(delta.text)

    def ended(self, end: ReplyEnded) -> Reply:
        chunks = tuple(self._chunks)
        return Reply(
            text=end.text,
            chunks=chunks if len(chunks) > 1 and "".join(chunks) == end.text else None,
            reasoning="".join(self._reasoning),
            reasoning_parts=end.reasoning,
            tool_calls=tuple(
                ScriptedCall(name=call.name, arguments=call.arguments, id=call.provider_id)
                for call in end.calls
            ),
            usage=ScriptedUsage(**msgspec.structs.asdict(end.usage)),
            stop_reason=end.stop_reason,
            model=end.model,
            response_id=end.response_id,
        )

    def failed(self, error: Exception) -> Reply:
        """Record a failure. Only the type of a foreign exception is recorded: its text may say anything."""
        if not isinstance(error, StandfastError):
            return self._cut_off(ScriptedFailure(message=f"the model raised {type(error).__name__}"))
        return self._cut_off(
            ScriptedFailure(
                message=error.message,
                code=str(error.code),
                retryable=error.retryable,
                retry_after_ms=getattr(error, "retry_after_ms", None),
            )
        )

    def broken_off(self) -> Reply:
        """Record a reply that had no end."""
        message = "the model's reply broke off before its end"
        return self._cut_off(ScriptedFailure(message=message, retryable=True))

    def _cut_off(self, failure: ScriptedFailure) -> Reply:
        failure = msgspec.structs.replace(failure, after_chunks=len(self._chunks))
        return Reply(chunks=tuple(self._chunks) or None, reasoning="".join(self._reasoning), failure=failure)
