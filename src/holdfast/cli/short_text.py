"""Texts, values and errors in a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.errors import ErrorObject

_SHORT: Final = 160


def shortened(text: str, limit: int = _SHORT) -> str:
    """Text on one line that is not too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def short_json(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def error_text(error: ErrorObject) -> str:
    return f"{error.code}: {shortened(error.message)}"
