"""Whether a turn gets anywhere.

A round of calls makes no progress if each of its calls failed, or did again what was done before in this turn
with the same result. A few such rounds in a row are a loop: a model that asks again and again for what was
denied, for instance.
"""

from __future__ import annotations

from collections.abc import Sequence

from standfast.model.canonical import Json, digest_bytes, encode_sorted
from standfast.model.message import ToolCall, ToolMessage


class Progress:
    """Counts the rounds in a row that made none. Nothing is counted before somebody asks."""

    def __init__(self) -> None:
        self._idle_rounds = 0
        self._uncounted: list[Sequence[tuple[ToolCall, ToolMessage]]] = []
        self._seen: set[str] = set()

    def round_over(self, calls: Sequence[tuple[ToolCall, ToolMessage]]) -> None:
        """Take a finished round into account."""
        self._uncounted.append(calls)

    @property
    def idle_rounds(self) -> int:
        rounds, self._uncounted = self._uncounted, []
        for calls in rounds:
            new = [self._is_new(call, result) for call, result in calls]
            self._idle_rounds = 0 if any(new) else self._idle_rounds + 1
        return self._idle_rounds

    def _is_new(self, call: ToolCall, result: ToolMessage) -> bool:
        if result.error is not None:
            return False
        mark = _mark(call, result)
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True


def _mark(call: ToolCall, result: ToolMessage) -> str:
    """What a call was and what came of it. Dispatch has made the digests already, except of a cell."""
    record = result.record
    if record is not None and record.response_digest is not None:
        return f"{record.request_digest}:{record.response_digest}"
    return digest_bytes(encode_sorted([call.name, call.arguments, _outcome(result.value)]))


def _outcome(value: Json) -> Json:
    """What came of a cell, without the numbers by which one like it would be told from it."""
    if not isinstance(value, dict) or "index" not in value:
        return value
    calls = value.get("calls")
    made = [_unnumbered(call) for call in calls] if isinstance(calls, list) else calls
    return {**value, "index": None, "calls": made}


def _unnumbered(call: Json) -> Json:
    return {**call, "call_id": None} if isinstance(call, dict) else call
