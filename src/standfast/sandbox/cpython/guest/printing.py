"""What code prints, on its way to the host.

The first lines are sent immediately, so that they are known if the run is killed; later ones are gathered a
little. Text far past the cap is not sent at all: the host has ended the run by then.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from .channel import HostChannel, encode

_AT_ONCE: Final = 64
_GATHER_BYTES: Final = 8 << 10
_GATHER_S: Final = 0.01
_PIECE: Final = 256 << 10
_FLOOD_FACTOR: Final = 16
_real_monotonic: Final = time.monotonic
"""The real clock: code cannot see what it decides."""


class Printer:
    """Both streams of a run, under one cap."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self.begin(0)

    def begin(self, cap: int) -> None:
        """Start a run; *cap* is how many bytes of its output are kept."""
        self._room = _FLOOD_FACTOR * cap + 1
        self._at_once = _AT_ONCE
        self._parts: list[tuple[str, str]] = []
        self._bytes = 0
        self._sent_at = 0.0

    def take(self, stream: str, text: str) -> None:
        if not text or self._room <= 0:
            return
        text = text[: self._room]
        self._room -= len(text)
        self._parts.append((stream, text))
        self._bytes += len(text)
        much = self._bytes > _GATHER_BYTES or self._room <= 0
        if not much and "\n" not in text:
            return
        now = _real_monotonic()
        if self._at_once > 0 or much or now - self._sent_at > _GATHER_S:
            self._at_once -= 1
            self._sent_at = now
            self.post()
            self._channel.flush()

    @property
    def holds(self) -> bool:
        return bool(self._parts)

    def post(self) -> None:
        """Hand what was gathered to the channel."""
        parts, self._parts, self._bytes = self._parts, [], 0
        for stream, same in groupby(parts, key=lambda part: part[0]):
            text = "".join(part[1] for part in same).encode("utf-8", "backslashreplace").decode()
            for start in range(0, len(text), _PIECE):
                piece = encode(text[start : start + _PIECE])
                self._channel.post(f'{{"t":"out","stream":"{stream}","text":{piece}}}')


class Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of guest code."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, name: str, printer: Printer) -> None:
        self.name = f"<{name}>"
        self._stream = name
        self._printer = printer
        self.buffer = _Bytes(self)

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._printer.take(self._stream, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: text is not held back for long."""


class _Bytes(io.RawIOBase):
    """The stream for code that writes bytes."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        text = bytes(data)  # type: ignore[call-overload]
        self._stream.write(text.decode("utf-8", "replace"))
        return len(text)
