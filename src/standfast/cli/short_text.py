"""Texts, values and errors in a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from standfast.errors import ErrorObject
    from standfast.model.usage import Usage

_SHORT: Final = 160


def shortened(text: str, limit: int = _SHORT) -> str:
    """Text on one line that is not too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def short_json(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def error_text(error: ErrorObject) -> str:
    return f"{error.code}: {shortened(error.message)}"


def cost_text(usage: Usage) -> str:
    """What was paid, as far as it is known."""
    from standfast.model.usage import dollars

    if not usage.priced and usage.calls:
        return "unknown"
    return f"{'' if usage.cost_is_known else 'at least '}{dollars(usage.cost_nano_usd)}"
