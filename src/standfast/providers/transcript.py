"""A reply, written down while it streams, as a script has it.

Rule: what is written down is what came. Chunks that do not add up to the text are left out.
"""

from __future__ import annotations

import msgspec

from standfast.errors import StandfastError
from standfast.ports.model_provider import ReasoningArrived, ReplyEnded, RequestedCall, TextArrived
from standfast.providers.script import Reply, ScriptedCall, ScriptedFailure, ScriptedUsage


class Transcript:
    """Takes the deltas of one reply in; `ended` or `failed` makes a `Reply` of them."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._reasoning: list[str] = []

    def hear(self, delta: TextArrived | ReasoningArrived) -> None:
        heard = self._chunks if isinstance(delta, TextArrived) else self._reasoning
        heard.append(delta.text)

    def ended(self, end: ReplyEnded) -> Reply:
        """The whole reply."""
        chunks = tuple(self._chunks)
        return Reply(
            text=end.text,
            chunks=chunks if len(chunks) > 1 and "".join(chunks) == end.text else None,
            reasoning="".join(self._reasoning),
            reasoning_parts=end.reasoning,
            tool_calls=tuple(_call(call) for call in end.calls),
            usage=ScriptedUsage(**msgspec.structs.asdict(end.usage)),
            stop_reason=end.stop_reason,
            model=end.model,
            response_id=end.response_id,
        )

    def failed(self, error: Exception) -> Reply:
        """What came of a reply, and the failure that ended it."""
        return self._cut_off(_failure(error, len(self._chunks)))

    def broken_off(self) -> Reply:
        """What came of a reply that had no end."""
        message = "the model's reply broke off before its end"
        return self._cut_off(ScriptedFailure(message=message, retryable=True, after_chunks=len(self._chunks)))

    def _cut_off(self, failure: ScriptedFailure) -> Reply:
        return Reply(chunks=tuple(self._chunks) or None, reasoning="".join(self._reasoning), failure=failure)


def _call(call: RequestedCall) -> ScriptedCall:
    return ScriptedCall(name=call.name, arguments=call.arguments, id=call.provider_id)


def _failure(error: Exception, after_chunks: int) -> ScriptedFailure:
    """A failure as a script has it. What is no error of ours may say anything, so only its type is told."""
    if not isinstance(error, StandfastError):
        return ScriptedFailure(message=f"the model raised {type(error).__name__}", after_chunks=after_chunks)
    return ScriptedFailure(
        message=error.message,
        code=str(error.code),
        retryable=error.retryable,
        retry_after_ms=getattr(error, "retry_after_ms", None),
        after_chunks=after_chunks,
    )
