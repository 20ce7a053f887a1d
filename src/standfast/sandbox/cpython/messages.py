"""What the guest may say, and how it is read. Whatever else it says breaks the protocol.

The guest is not trusted: every message is checked for its shape here, and for its place by whoever reads it.
A frame begins with the nonce of the run that it belongs to: a guest can write frames ahead, but it cannot
know the nonce of a run that has not begun.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Final, Literal

import msgspec

from standfast.errors import ValueTooLarge
from standfast.model.bounds import check_json_bounds
from standfast.model.canonical import Json, read_json

MAX_TEXT: Final = 20 << 20
"""The largest message without the bytes that come with it: JSON takes much more memory when it is read."""
_MAX_SHORT: Final = 1 << 20
_MAX_LONG: Final = {b"out": 4 << 20, b"call": MAX_TEXT, b"end": MAX_TEXT}
"""What messages of these types may take before anything in them is read; the others are short."""
_TYPE: Final = re.compile(rb'\{"t":"(\w{1,20})"')
NONCE_BYTES: Final = 16
NO_RUN: Final = bytes(NONCE_BYTES)
"""The nonce of what a process says before its first run."""
_LENGTH: Final = struct.Struct(">I")
_WITH_BYTES: Final = 0x23
_Text = Annotated[str, msgspec.Meta(max_length=100_000)]
_Name = Annotated[str, msgspec.Meta(max_length=1_000)]
_Span = tuple[int | None, int | None, int | None, int | None]


class GuestError(msgspec.Struct, frozen=True):
    """An exception that nothing caught. `text` is its message alone, `name` the name that was not defined."""

    kind: _Name
    message: _Text
    text: _Text = ""
    span: _Span | None = None
    name: _Name | None = None
    syntax: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="t"):
    """The process is shut in and waits for a run."""


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="t"):
    """The process could not be made ready."""

    message: _Text


class Loaded(msgspec.Struct, frozen=True, tag="loaded", tag_field="t"):
    """The session is loaded; the guest waits for leave to run the code."""


class Printed(msgspec.Struct, frozen=True, tag="out", tag_field="t"):
    stream: Literal["stdout", "stderr"]
    text: str


class Called(msgspec.Struct, frozen=True, tag="call", tag_field="t"):
    """A call. One that is not for `later` is waited for."""

    id: int
    name: _Name
    later: bool
    args: msgspec.Raw = msgspec.Raw(b"[]")
    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    problem: _Text | None = None
    too_large: bool = False


class Blocked(msgspec.Struct, frozen=True, tag="blocked", tag_field="t"):
    """Every task waits for an answer."""


class LoadName(msgspec.Struct, frozen=True, tag="load", tag_field="t"):
    name: _Name


class OutOfMemory(msgspec.Struct, frozen=True, tag="memory", tag_field="t"):
    """An allocation failed; the process is gone."""


class Ran(msgspec.Struct, frozen=True, tag="ran", tag_field="t"):
    """The code has ended; what it left is being packed. `peak` is the most memory that it used, in bytes."""

    peak: int


class Ended(msgspec.Struct, frozen=True, tag="end", tag_field="t"):
    """The run is over. `names` are those of the state that comes with it, null if nothing changed.

    `foreign` is what a result holds that is not JSON, `size` that of a result that is too large to be sent.
    """

    result: msgspec.Raw = msgspec.Raw(b"null")
    foreign: _Name | None = None
    size: int | None = None
    error: GuestError | None = None
    names: msgspec.Raw = msgspec.Raw(b"null")
    plain: bool = False
    notes: msgspec.Raw = msgspec.Raw(b"[]")
    threads: int = 0
    lost: GuestError | None = None
    too_large: int | None = None


Message = Ready | Failed | Loaded | Printed | Called | Blocked | LoadName | OutOfMemory | Ran | Ended
_decoder: Final = msgspec.json.Decoder(Message)
_names: Final[msgspec.json.Decoder[list[str] | None]] = msgspec.json.Decoder(list[_Name] | None)
_MAX_NAMES_BYTES: Final = 4 << 20


class Unreadable(Exception):
    """A frame that no honest guest sends."""


class OfAnotherRun(Unreadable):
    """A frame without the nonce of the run that reads it."""


def read_message(frame: bytes, nonce: bytes) -> tuple[Message, bytes]:
    """The message in a frame of the run that has this *nonce*, and the bytes that came with it."""
    if not frame.startswith(nonce):
        raise OfAnotherRun
    data, rest = memoryview(frame)[NONCE_BYTES:], b""
    if len(data) >= 5 and data[0] == _WITH_BYTES:
        end = 5 + _LENGTH.unpack(data[1:5])[0]
        data, rest = data[5:end], bytes(data[end:])
    found = _TYPE.match(data)
    if found is None or len(data) > _MAX_LONG.get(found[1], _MAX_SHORT):
        raise Unreadable("a message of no type, or too large for its type")
    try:
        return _decoder.decode(data), rest
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def read_names(raw: msgspec.Raw) -> list[str] | None:
    """Names in a message, or null. Raise `Unreadable` instead of reading too many."""
    try:
        check_json_bounds(raw, max_bytes=_MAX_NAMES_BYTES)
        return _names.decode(raw)
    except (msgspec.DecodeError, ValueError, ValueTooLarge) as error:
        raise Unreadable(str(error)) from None


def read_value(raw: msgspec.Raw) -> Json:
    """The JSON inside of a message."""
    try:
        return read_json(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def with_bytes(text: bytes, data: bytes) -> bytes:
    """A frame of JSON with bytes after it."""
    return b"#" + _LENGTH.pack(len(text)) + text + data
