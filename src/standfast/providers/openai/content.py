"""What a user says, as the parts of a message that OpenAI takes.

Rules
-----
1. An image or a document goes as it is, in a data URL. What is text anyway goes as text.
2. What the vendor cannot read is refused here, by its media type and name.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Final, assert_never

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.message import AttachmentPart, Content, InputPart, Part, TextPart
from standfast.providers.http.told import input_text, is_text, kind_of

_IMAGES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_OPEN: Final = "application/vnd.oasis.opendocument."
_DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "application/rtf": "rtf",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.ms-powerpoint": "ppt",
    f"{_OFFICE}wordprocessingml.document": "docx",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}presentationml.presentation": "pptx",
    f"{_OPEN}text": "odt",
}


def content_parts(content: Content, media: Mapping[str, bytes]) -> list[Json]:
    """The parts of what was said, empty text left out."""
    if isinstance(content, str):
        return [_text(content)] if content else []
    parts = (_part(part, media) for part in content)
    return [part for part in parts if part is not None]


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
    if kind in _IMAGES:
        return {"type": "input_image", "detail": "auto", "image_url": _data_url(kind, data)}
    if kind in _DOCUMENTS:
        name = part.name or f"attachment.{_DOCUMENTS[kind]}"
        return {"type": "input_file", "filename": name, "file_data": _data_url(kind, data)}
    if is_text(kind):
        return _file_text(part, data)
    raise InvalidArgument(
        f"OpenAI cannot read {kind!r}, which attachment {part.name or part.digest[:12]!r} is",
        hint="it takes PNG, JPEG, GIF and WebP images, PDF and office documents, and text",
    )


def _file_text(part: AttachmentPart, data: bytes) -> Json:
    text = data.decode("utf-8", errors="replace")
    if part.name:
        return _text(f"File {part.name}:\n{text}")
    return _text(text) if text else None


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{b64encode(data).decode('ascii')}"
