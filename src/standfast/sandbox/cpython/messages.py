"""Messages between the host and the guest: what each may send, and how the host reads and writes them.

The guest is not trusted. Each message is checked for its shape here, and for its place by its reader. A frame
begins with the nonce of its run: a guest can write frames ahead, but cannot know the nonce of a later run.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from standfast.errors import InvalidArgument, ValueTooLarge
from standfast.model.canonical import Json, check_bounds, check_json_bounds, encode_json, read_json

MAX_TEXT: Final = 20 << 20
"""The largest message without its binary part: decoded JSON takes much more memory than its text."""
_MAX_SHORT: Final = 1 << 20
_MAX_LONG: Final = {b"out": 4 << 20, b"call": MAX_TEXT, b"end": MAX_TEXT}
"""Size limits by type, checked before anything is decoded; every other type is short."""
_MAX_NAMES_BYTES: Final = 4 << 20
_TYPE: Final = re.compile(rb'\{"t":"(\w{1,20})"')
NONCE_BYTES: Final = 16
NO_RUN: Final = bytes(NONCE_BYTES)
"""The nonce of messages sent before the first run."""
_LENGTH: Final = struct.Struct(">I")
_WITH_BYTES: Final = 0x23
_MAX_DEPTH: Final = 200
_SEQUENCES: Final = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_Text = Annotated[str, msgspec.Meta(max_length=100_000)]
_Name = Annotated[str, msgspec.Meta(max_length=1_000)]
_Line = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
Decoded = TypeVar("Decoded")
_NULL: Final = msgspec.Raw(b"null")


class GuestError(msgspec.Struct, frozen=True):
    """An uncaught exception. `text` is its message without the type, `name` the name that was not defined."""

    kind: _Name
    message: _Text
    text: _Text = ""
    span: tuple[int | None, int | None, int | None, int | None] | None = None
    name: _Name | None = None
    syntax: bool = False


class GuestReady(msgspec.Struct, frozen=True, tag="ready", tag_field="t"):
    """The process is confined and waits for a run."""


class GuestUnready(msgspec.Struct, frozen=True, tag="failed", tag_field="t"):
    """The process could not be confined or initialized."""

    message: _Text


class SessionLoaded(msgspec.Struct, frozen=True, tag="loaded", tag_field="t"):
    """The session is loaded; the guest waits for permission to run the code."""


class GuestPrinted(msgspec.Struct, frozen=True, tag="out", tag_field="t"):
    stream: Literal["stdout", "stderr"]
    text: str


class GuestCalled(msgspec.Struct, frozen=True, tag="call", tag_field="t"):
    """A call. Unless it is for `later`, the code waits for its answer. `line` is 0 for other code."""

    id: int
    name: _Name
    later: bool
    args: msgspec.Raw = msgspec.Raw(b"[]")
    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    problem: _Text | None = None
    too_large: bool = False
    line: _Line | None = None


class GuestBlocked(msgspec.Struct, frozen=True, tag="blocked", tag_field="t"):
    """Every task waits for an answer."""


class ValueRequested(msgspec.Struct, frozen=True, tag="load", tag_field="t"):
    name: _Name


class OutOfMemory(msgspec.Struct, frozen=True, tag="memory", tag_field="t"):
    """An allocation failed, and the process exits."""


class CodeEnded(msgspec.Struct, frozen=True, tag="ran", tag_field="t"):
    """The code has ended, and the session is being packed. `peak` is the code's memory peak in bytes."""

    peak: int


class RunEnded(msgspec.Struct, frozen=True, tag="end", tag_field="t"):
    """The run has ended. `names` are those of the state in the binary part, null if nothing changed.

    `foreign` is the part of the result that is not JSON, `size` that of a result too large to send, `lost`
    why the session could not be loaded. Errors stay undecoded until their size is checked (`read_error`).
    """

    result: msgspec.Raw = _NULL
    foreign: _Name | None = None
    size: int | None = None
    error: msgspec.Raw = _NULL
    names: msgspec.Raw = _NULL
    plain: bool = False
    notes: msgspec.Raw = msgspec.Raw(b"[]")
    threads: int = 0
    lost: msgspec.Raw = _NULL
    too_large: int | None = None


Message = (
    GuestReady | GuestUnready | SessionLoaded | GuestPrinted | GuestCalled | GuestBlocked | ValueRequested
    | OutOfMemory | CodeEnded | RunEnded
)  # fmt: skip
_messages: Final = msgspec.json.Decoder(Message)
_errors: Final[msgspec.json.Decoder[GuestError | None]] = msgspec.json.Decoder(GuestError | None)
_names: Final[msgspec.json.Decoder[list[str] | None]] = msgspec.json.Decoder(list[_Name] | None)


class UnreadableMessage(Exception):
    """A frame that an unmodified guest never sends."""


class OfAnotherRun(UnreadableMessage):
    """A frame without the nonce of the current run."""


def read_message(frame: bytes, nonce: bytes) -> tuple[Message, bytes]:
    """Return the message in a frame of the run that has this *nonce*, and its binary part."""
    if not frame.startswith(nonce):
        raise OfAnotherRun
    data, rest = memoryview(frame)[NONCE_BYTES:], b""
    if len(data) >= 5 and data[0] == _WITH_BYTES:
        end = 5 + _LENGTH.unpack(data[1:5])[0]
        data, rest = data[5:end], bytes(data[end:])
    found = _TYPE.match(data)
    if found is None or len(data) > _MAX_LONG.get(found[1], _MAX_SHORT):
        raise UnreadableMessage("a message of an unknown type, or too large for its type")
    return _decoded(_messages.decode, data), rest


def read_error(raw: msgspec.Raw) -> GuestError | None:
    """Decode an error in a message, or null; raise `UnreadableMessage` if it is too large to decode."""
    if len(memoryview(raw)) > _MAX_SHORT:
        raise UnreadableMessage("an error that is too large")
    return _decoded(_errors.decode, raw)


def read_names(raw: msgspec.Raw) -> list[str] | None:
    """Decode names in a message, or null; raise `UnreadableMessage` if there are too many."""
    try:
        check_json_bounds(raw, max_bytes=_MAX_NAMES_BYTES)
    except (msgspec.DecodeError, ValueError, ValueTooLarge) as error:
        raise UnreadableMessage(str(error)) from None
    return _decoded(_names.decode, raw)


def read_value(raw: msgspec.Raw) -> Json:
    """Decode a JSON value in a message."""
    return _decoded(read_json, raw)


def _decoded(decode: Callable[[Any], Decoded], data: object) -> Decoded:
    try:
        return decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnreadableMessage(str(error)) from None


def with_bytes(text: bytes, data: bytes) -> bytes:
    """Return a frame of JSON with a binary part."""
    return b"#" + _LENGTH.pack(len(text)) + text + data


def encode_tagged(value: Any) -> bytes:
    """Encode a value for the guest; raise `ValueTooLarge` before reading a value that exceeds a limit.

    Lists become `[tag, content]`, so that tuples, sets, bytes and infinite floats can be told from them
    (`guest.values.untag` decodes). Raise `InvalidArgument` if a part has no such form.
    """
    check_bounds(value)
    return encode_json(_tagged(value, 0))


def _tagged(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", str(value)]
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidArgument("a string holds a lone surrogate") from None
        return value
    if depth > _MAX_DEPTH:
        raise InvalidArgument("the value is nested too deeply")
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, dict):
        items = value.items()
        return ["dict", [[_tagged(key, depth + 1), _tagged(item, depth + 1)] for key, item in items]]
    for kind, tag in _SEQUENCES.items():
        if isinstance(value, kind):
            return [tag, [_tagged(item, depth + 1) for item in value]]
    raise InvalidArgument(f"a {type(value).__name__} cannot be passed to guest code")
