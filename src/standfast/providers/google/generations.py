"""What the generations of Gemini do differently, told from a model's name.

Rules
-----
1. A name that tells no generation, such as `gemini-flash-latest`, is taken for one of the newest.
"""

from __future__ import annotations

import re
from typing import Any, Final

from standfast.providers.settings import Effort

_NUMBER: Final = re.compile(r"gemini-(\d+)")
_BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 512,
    "low": 1_024,
    "medium": 8_192,
    "high": 24_576,
}
_LEAST_OF_PRO: Final = 128


def thinking_config(model: str, reasoning: Effort | int) -> dict[str, Any]:
    """How much a model is to think: a level from the third generation on, a number of tokens before it.

    A Pro model always thinks; `none` asks it for as little as it can do.
    """
    shown = {"includeThoughts": True} if reasoning != "none" else {}
    if isinstance(reasoning, int):
        return {**shown, "thinkingBudget": reasoning}
    if _generation(model) >= 3:
        return {**shown, "thinkingLevel": _level(model, reasoning)}
    budget = _BUDGETS[reasoning]
    return {**shown, "thinkingBudget": max(budget, _LEAST_OF_PRO) if _is_pro(model) else budget}


def takes_schema_with_tools(model: str) -> bool:
    """Whether the model's answer can be bound to a schema while it has functions to call."""
    return _generation(model) >= 3 and not model.startswith("gemma")


def _level(model: str, reasoning: Effort) -> str:
    if reasoning in ("none", "minimal"):
        return "LOW" if _is_pro(model) else "MINIMAL"
    return reasoning.upper()


def _generation(model: str) -> int:
    found = _NUMBER.search(model)
    return 99 if found is None else int(found[1])


def _is_pro(model: str) -> bool:
    return "pro" in model.split("-")
