"""Images and files that go with a message. Their bytes are stored once, by content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.model.canonical import digest_bytes
from holdfast.model.message import AttachmentPart, Content, Part, TextPart
from holdfast.ports.session_store import Blob

if TYPE_CHECKING:
    from pathlib import Path

MAX_ATTACHMENT_BYTES: Final = 64 << 20
MAX_TEXT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Attachment:
    """Bytes with a media type."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str | None = None

    @classmethod
    def from_path(cls, path: str | Path, media_type: str | None = None) -> Attachment:
        """Read a file; its media type is guessed from its name unless given."""
        import mimetypes  # reads the system's tables
        from pathlib import Path  # slow to import, and few agents read files

        file = Path(path)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InvalidArgument(f"cannot read {file}: {error.strerror or error}") from None
        guessed = media_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return cls(data, guessed, file.name)


Prompt = str | Attachment | Sequence[str | Attachment]
"""What a user says: words, attachments, or some of both."""


def read_prompt(prompt: Prompt) -> tuple[Content, tuple[Blob, ...]]:
    """A prompt as a message has it, and the bytes to store beside it."""
    if isinstance(prompt, str):
        return _checked_text(prompt), ()
    pieces = list(prompt) if isinstance(prompt, (list, tuple)) else [prompt]
    if not pieces:
        raise InvalidArgument("the prompt is empty", hint="pass a text, an Attachment, or a list of them")
    blobs: dict[str, Blob] = {}
    parts: list[Part] = []
    for piece in pieces:
        if isinstance(piece, Attachment):
            blob = _blob(piece)
            blobs[blob.digest] = blob
            parts.append(_part(piece, blob.digest))
        else:
            parts.append(TextPart(text=_checked_text(piece)))
    return tuple(parts), tuple(blobs.values())


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(
            f"a prompt is text, not {type(text).__name__}",
            hint="pass a text, an Attachment, or a list of them",
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("the prompt holds a lone surrogate") from None
    if size > MAX_TEXT_BYTES:
        raise InvalidArgument(f"the prompt has {size} bytes, the limit is {MAX_TEXT_BYTES}")
    return text


def _blob(attachment: Attachment) -> Blob:
    if not isinstance(attachment.data, bytes):
        raise InvalidArgument(f"an attachment's data is bytes, not {type(attachment.data).__name__}")
    if len(attachment.data) > MAX_ATTACHMENT_BYTES:
        raise InvalidArgument(
            f"an attachment has {len(attachment.data)} bytes, the limit is {MAX_ATTACHMENT_BYTES}"
        )
    return Blob(digest=digest_bytes(attachment.data), data=attachment.data)


def _part(attachment: Attachment, digest: str) -> AttachmentPart:
    return AttachmentPart(
        digest=digest, media_type=attachment.media_type, size=len(attachment.data), name=attachment.name
    )
