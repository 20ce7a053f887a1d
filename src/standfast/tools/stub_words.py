"""Words about tools, for stubs in any language. Each is one line of printable text."""

from __future__ import annotations

import re
from typing import Any, Final

from standfast.model.capability import Capability

MAX_COMMENT_CHARS: Final = 120
_MAX_PARAGRAPH_CHARS: Final = 600
_MAX_PARAMETER_CHARS: Final = 240


def summary(capability: Capability) -> str:
    """The description's first paragraph, and whether a person is asked."""
    first = plain(_first_paragraph(capability.description), _MAX_PARAGRAPH_CHARS)
    policies = {"none": "", "manual": "A person is asked first."}
    asks = policies.get(str(capability.approval_policy), "May ask a person first.")
    return " ".join(part for part in (first, asks) if part)


def parameter_words(capability: Capability) -> dict[str, str]:
    """What is said of each parameter of which something is said."""
    properties = (capability.input_schema.get("properties") or {}).items()
    words = {name: plain(description(part), _MAX_PARAMETER_CHARS) for name, part in properties}
    return {plain(name, _MAX_PARAMETER_CHARS): text for name, text in words.items() if text}


def type_words(schema: dict[str, Any]) -> str:
    """What is said of a type, in short."""
    return plain(_first_paragraph(schema.get("description")), MAX_COMMENT_CHARS)


def description(schema: Any) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return text if isinstance(text, str) else ""


def plain(text: str, max_chars: int) -> str:
    """One line of printable text."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * max_chars])
    line = " ".join(printable.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1].rstrip()}…"


def camel(name: str) -> str:
    """A name such as `order_lines` as `OrderLines`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    return "".join(word[0].upper() + word[1:] for word in words)


def _first_paragraph(text: Any) -> str:
    return re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0] if isinstance(text, str) else ""
