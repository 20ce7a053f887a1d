"""How much the model is to think first, in the two forms that the vendor has for it.

Rules
-----
1. Models to 4.6 take a budget of tokens, later ones an effort in words; each refuses the other form.
2. What thinks by budget must go on from a turn that began with thinking. In the middle of tool calls that
   another model began, it does not think.
3. `max_tokens` covers the thinking and the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.providers.anthropic.generations import thinks_adaptively, usual_max_tokens
from standfast.providers.settings import ModelSettings

LEAST_BUDGET: Final = 1024
_BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_ROOM: Final = 24576
"""What an adaptive model may think at most, if nobody says `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the request says of thinking; `config` is None if it says nothing, `on` if it asks for it."""

    max_tokens: int
    config: dict[str, Json] | None = None
    effort: str | None = None
    on: bool = False


def thinking_of(model: str, settings: ModelSettings, *, may_think: bool) -> Thinking:
    """Read the settings for this model. `may_think` is false where the conversation forbids a budget."""
    asked, adaptive = settings.reasoning, thinks_adaptively(model)
    usual = settings.max_tokens or usual_max_tokens(model)
    if asked is None:
        return Thinking(usual)
    if asked == "none":
        return Thinking(usual, {"type": "disabled"} if adaptive else None)
    if adaptive:
        config: dict[str, Json] = {"type": "adaptive", "display": "summarized"}
        return Thinking(settings.max_tokens or usual + _ROOM, config, _effort(asked), on=True)
    if not may_think:
        return Thinking(usual)
    budget = _budget(asked, settings.max_tokens)
    config = {"type": "enabled", "budget_tokens": budget}
    return Thinking(settings.max_tokens or usual + budget, config, on=True)


def _effort(asked: str | int) -> str:
    """The effort in words; a number of tokens is the word whose budget it reaches."""
    if isinstance(asked, str):
        return _EFFORTS[asked]
    reached = [word for word, budget in _BUDGETS.items() if budget <= asked]
    return _EFFORTS[reached[-1] if reached else "minimal"]


def _budget(asked: str | int, max_tokens: int | None) -> int:
    """The budget in tokens, below `max_tokens`; a word gives way to it, a number does not."""
    budget = _BUDGETS[asked] if isinstance(asked, str) else max(asked, LEAST_BUDGET)
    if max_tokens is None or budget < max_tokens:
        return budget
    if isinstance(asked, str) and max_tokens > LEAST_BUDGET:
        return max(LEAST_BUDGET, max_tokens // 2)
    raise InvalidArgument(
        f"max_tokens={max_tokens} leaves no room for an answer after {budget} tokens of reasoning",
        hint="max_tokens counts the reasoning as well: raise it, or lower reasoning",
    )
