"""What a model thinks: where servers put it, how it is kept, and how it goes back.

Theory of operation
-------------------
There are four places: `reasoning_content` (DeepSeek, vLLM), `reasoning` (OpenRouter, Groq, Ollama, vLLM),
thinking parts of the content (Mistral), and `reasoning_details` (OpenRouter), which hold signatures and
encrypted thoughts. `Reasoning.opaque` says which it was, and holds the details.

Rules
-----
1. What came as text goes back in the field that it came in, and only with a reply that called tools: there
   the server needs it, elsewhere it drops it or refuses it.
2. Details go back whole and in order, with every reply.
3. If one reply carries `reasoning_content`, every reply that called tools has it, empty if need be: DeepSeek
   refuses a conversation in which it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from standfast.model.canonical import Json
from standfast.model.message import AssistantMessage, Reasoning
from standfast.providers.openai_compatible.chunk import Delta

CONTENT: Final = "reasoning_content"
_PLAIN: Final = "reasoning"
_DETAILS: Final = "reasoning_details"
_THINKING: Final = "thinking"
_PIECES: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The kinds of details that arrive in pieces, and what of them adds up."""


class ReasoningArriving:
    """The reasoning of one reply."""

    __slots__ = ("_details", "_field", "_texts")

    def __init__(self) -> None:
        self._field = ""
        self._texts: list[str] = []
        self._details: list[dict[str, Json]] = []

    def take(self, delta: Delta) -> str:
        """The words that the delta brings. A server that says them in two fields says them once here."""
        if delta.reasoning_content is not None:
            self._field, text = CONTENT, delta.reasoning_content
        else:
            self._field, text = _PLAIN if delta.reasoning is not None else self._field, delta.reasoning or ""
        if delta.reasoning_details:
            said = "".join(map(self._detail, delta.reasoning_details))
            text = text or said
        if text:
            self._texts.append(text)
        return text

    def think(self, text: str) -> None:
        """Words in a thinking part of the content."""
        self._field = _THINKING
        self._texts.append(text)

    def ended(self, origin: str) -> tuple[Reasoning, ...]:
        """All of it, with what is needed to send it back."""
        if not self._field and not self._details:
            return ()
        opaque: Json = {_DETAILS: self._details} if self._details else {"field": self._field}
        return (Reasoning(origin=origin, text="".join(self._texts), opaque=opaque),)

    def _detail(self, detail: Json) -> str:
        """Keep a detail, joined to the one before if it goes on with it; its words."""
        if not isinstance(detail, dict):
            return ""
        field = _PIECES.get(str(detail.get("type")), "")
        said = detail.get(field)
        last = self._details[-1] if self._details else None
        if last is not None and field and _go_together(last, detail):
            known = {name: value for name, value in detail.items() if value is not None}
            last |= known | {field: f"{last.get(field) or ''}{said or ''}"}
        else:
            self._details.append(dict(detail))
        return said if isinstance(said, str) else ""


def _go_together(last: dict[str, Json], detail: dict[str, Json]) -> bool:
    return all(last.get(name) == detail.get(name) for name in ("type", "index")) and not last.get("signature")


def reasoning_sent(message: AssistantMessage, origin: str) -> dict[str, Json]:
    """The fields of an assistant's message that hold what it thought; `thinking` stands for a part of it."""
    found: dict[str, Any] = {}
    for reasoning in message.reasoning:
        opaque = reasoning.opaque
        if reasoning.origin != origin or not isinstance(opaque, dict):
            continue
        if details := opaque.get(_DETAILS):
            found[_DETAILS] = [*found.get(_DETAILS, ()), *details]
        elif message.tool_calls and opaque.get("field") in (CONTENT, _PLAIN, _THINKING):
            field = opaque["field"]
            found[field] = found.get(field, "") + reasoning.text
    return found


def thinking_part(text: str) -> Json:
    """Reasoning as a part of the content."""
    return {"type": _THINKING, _THINKING: [{"type": "text", "text": text}]}


def words_of_thinking(part: dict[str, Json]) -> str:
    """The words in a thinking part."""
    inner = part.get(_THINKING)
    if isinstance(inner, str):
        return inner
    parts: Sequence[Json] = inner if isinstance(inner, list) else ()
    return "".join(str(each.get("text") or "") for each in parts if isinstance(each, dict))
