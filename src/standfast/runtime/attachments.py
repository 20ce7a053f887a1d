"""Images, files and inputs that go with a message. Their bytes are stored once, by content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import InvalidArgument, ValueTooLarge
from standfast.model.canonical import digest_bytes, encode_sorted, to_json
from standfast.model.message import AttachmentPart, Content, InputPart, Part, TextPart
from standfast.ports.session_store import Blob

if TYPE_CHECKING:
    from pathlib import Path

MAX_ATTACHMENT_BYTES: Final = 64 << 20
MAX_TEXT_BYTES: Final = 16 << 20
_RESERVED_NAMES: Final = frozenset({
    "attachments", "continue_as", "describe_tool", "finish", "history", "llm", "result", "run_code",
    "search_tools", "sleep",
})  # fmt: skip
"""What code has under these names must not be hidden by an input."""


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


def with_inputs(
    content: Content, blobs: tuple[Blob, ...], inputs: Mapping[str, Any] | None
) -> tuple[Content, tuple[Blob, ...]]:
    """A message that brings values for code to read, each under its name."""
    if not inputs:
        return content, blobs
    parts: list[Part] = [TextPart(text=content)] if isinstance(content, str) else list(content)
    stored = {blob.digest: blob for blob in blobs}
    for name, value in inputs.items():
        blob, media_type = _input_blob(_checked_input_name(name), value)
        stored[blob.digest] = blob
        parts.append(InputPart(name=name, digest=blob.digest, media_type=media_type, size=len(blob.data)))
    return tuple(parts), tuple(stored.values())


def _checked_input_name(name: object) -> str:
    import builtins
    import keyword

    fits = isinstance(name, str) and name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    if not fits or hasattr(builtins, str(name)) or name in _RESERVED_NAMES or str(name).startswith("__"):
        raise InvalidArgument(
            f"{str(name)[:80]!r} cannot be the name of an input",
            hint="use an ASCII Python identifier that is no keyword, no built-in, and none of "
            + ", ".join(sorted(_RESERVED_NAMES)),
        )
    return str(name)


def _input_blob(name: str, value: object) -> tuple[Blob, str]:
    """The bytes of an input and what they are: text as it is, anything else as JSON."""
    if isinstance(value, str):
        _refuse_long(f"input {name!r}", value, MAX_ATTACHMENT_BYTES)
        try:
            data, media_type = value.encode(), "text/plain"
        except UnicodeEncodeError:
            raise InvalidArgument(f"input {name!r} holds a lone surrogate") from None
    else:
        try:
            data, media_type = encode_sorted(to_json(value)[0]), "application/json"
        except ValueTooLarge as error:
            raise InvalidArgument(f"input {name!r} is too large: {error.limit}") from None
        except InvalidArgument as error:
            raise InvalidArgument(f"input {name!r} is {error.message}") from None
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidArgument(f"input {name!r} has {len(data)} bytes, the limit is {MAX_ATTACHMENT_BYTES}")
    return Blob(digest=digest_bytes(data), data=data), media_type


def _refuse_long(what: str, text: str, limit: int) -> None:
    """Raise before text is encoded that surely exceeds its limit: a character takes a byte at least."""
    if len(text) > limit:
        raise InvalidArgument(f"{what} has {len(text)} characters, the limit is {limit} bytes")


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(
            f"a prompt is text, not {type(text).__name__}",
            hint="pass a text, an Attachment, or a list of them",
        )
    _refuse_long("the prompt", text, MAX_TEXT_BYTES)
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
