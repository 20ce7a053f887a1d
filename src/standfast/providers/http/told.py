"""What every vendor's model reads of the same thing: results of calls, and attachments that are text."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.message import AttachmentPart, InputPart, ToolMessage

_TEXTS: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-ndjson")
)


def result_text(message: ToolMessage) -> str:
    """What a model reads of a result."""
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        return f"{message.error.code}: {message.error.message}"
    return message.value if isinstance(message.value, str) else msgspec.json.encode(message.value).decode()


def input_text(part: InputPart) -> str:
    """What a model reads of a value that only code sees."""
    return f"[input {part.name}: {part.media_type}, {part.size} bytes]"


def kind_of(part: AttachmentPart) -> str:
    """The media type without its parameters."""
    return part.media_type.partition(";")[0].strip().lower()


def is_text(kind: str) -> bool:
    """Whether what is of this media type can be read as it is."""
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))
