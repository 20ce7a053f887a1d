"""Parts of messages that have the same form for every vendor."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.message import AttachmentPart, InputPart, ToolMessage

_TEXT_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-ndjson")
)


def result_text(message: ToolMessage) -> str:
    """Return the text of a tool's result for the model."""
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        return f"{message.error.code}: {message.error.message}"
    return message.value if isinstance(message.value, str) else json_text(message.value)


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def input_text(part: InputPart) -> str:
    """Describe an input that only code can read."""
    return f"[input {part.name}: {part.media_type}, {part.size} bytes]"


def schema_instruction(schema: dict[str, Any]) -> str:
    """Return an instruction that describes the JSON Schema of the answer in words."""
    text = json_text(schema)
    return f"Your final answer must be one JSON value that fits this JSON Schema, and nothing else:\n{text}"


def media_type(part: AttachmentPart) -> str:
    """Return the media type without its parameters, in lower case."""
    return part.media_type.partition(";")[0].strip().lower()


def is_text(media_type: str) -> bool:
    """Return whether content of this media type can be sent as text."""
    return (
        media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml"))
    )


def utf8_text(part: AttachmentPart, data: bytes) -> str:
    """Decode a text attachment; raise `InvalidArgument` if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"attachment {part.name or part.digest!r} is said to be {part.media_type}, but is not UTF-8"
        ) from None


def file_text(part: AttachmentPart, data: bytes) -> str:
    """Decode a text attachment, with its name as a heading; replace bytes that are not UTF-8."""
    text = data.decode("utf-8", errors="replace")
    return f"File {part.name}:\n{text}" if part.name else text


def base64_text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64_text(data)}"


def unique_id(wanted: str, taken: set[str], numbered: Callable[[str, int], str]) -> str:
    """Return *wanted*, or the first `numbered(wanted, n)` that is not in *taken*; add it to *taken*."""
    found, number = wanted, 2
    while found in taken:
        found, number = numbered(wanted, number), number + 1
    taken.add(found)
    return found
