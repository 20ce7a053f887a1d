"""What a user says, as a string or as the parts that Chat Completions has.

Rules
-----
1. Words alone go as a string: many servers know nothing else.
2. What is text goes as text; images, audio and documents go inside a part, as base64.
3. What there is no part for is refused here, by its media type and name.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Final, assert_never

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.message import AttachmentPart, Content, InputPart, Part, TextPart
from standfast.providers.http.told import input_text, is_text, kind_of

_AUDIO: Final = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_DOCUMENTS: Final = {
    "application/pdf": ".pdf",
    "application/rtf": ".rtf",
    "application/msword": ".doc",
    "application/epub+zip": ".epub",
}


def content_of(content: Content, media: Mapping[str, bytes]) -> str | list[Json]:
    """What was said. Nothing, if it is empty."""
    if isinstance(content, str):
        return content
    parts = [made for part in content if (made := _part(part, media)) is not None]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Part, media: Mapping[str, bytes]) -> Json:
    match part:
        case TextPart():
            return _text(part.text) if part.text else None
        case InputPart():
            return _text(input_text(part))
        case AttachmentPart():
            return _attachment(part, media[part.digest])
        case _:
            assert_never(part)


def _attachment(part: AttachmentPart, data: bytes) -> Json:
    kind = kind_of(part)
    if is_text(kind):
        return _file_text(part, data)
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": _data_url(kind, data)}}
    if kind in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": _base64(data), "format": _AUDIO[kind]}}
    if kind in _DOCUMENTS or kind.startswith("application/vnd."):
        name = part.name or f"attachment{_DOCUMENTS.get(kind, '')}"
        return {"type": "file", "file": {"filename": name, "file_data": _data_url(kind, data)}}
    raise InvalidArgument(
        f"Chat Completions has no part for {kind!r}, which attachment {part.name or part.digest[:12]!r} is",
        hint="it has images, WAV and MP3, PDF and office documents, and text",
    )


def _file_text(part: AttachmentPart, data: bytes) -> Json:
    text = data.decode("utf-8", errors="replace")
    if part.name:
        return _text(f"File {part.name}:\n{text}")
    return _text(text) if text else None


def _text(text: str) -> dict[str, Json]:
    return {"type": "text", "text": text}


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{_base64(data)}"


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
