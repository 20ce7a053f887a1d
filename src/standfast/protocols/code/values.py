"""The values that code can read and not change: inputs by name, `attachments`, and `history`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, StandfastError
from standfast.model.message import InputPart, Message
from standfast.ports.code_engine import Touched
from standfast.protocols.code.cell_history import cells_of, history_value, placed
from standfast.protocols.code.following import SessionReading

ReadBlob = Callable[[str], Awaitable[bytes | None]]

HISTORY: Final = "history"
ATTACHMENTS: Final = "attachments"
RESERVED: Final = frozenset({HISTORY, ATTACHMENTS})
_TEXT_TYPES: Final = (
    "text/",
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
)


class ReadOnlyValues:
    """What code may read by name. Nothing of it is loaded before code touches it."""

    def __init__(
        self,
        messages: Sequence[Message],
        reading: SessionReading,
        inputs: Mapping[str, InputPart],
        read_blob: ReadBlob,
    ) -> None:
        reading.follow(messages)
        self.cells = reading.cells
        self.inputs = {**inputs, **reading.inputs} if reading.inputs else dict(inputs)
        self._attachments = dict(reading.attachments)
        self._messages = messages
        self._read_blob = read_blob

    def names(self) -> frozenset[str]:
        return RESERVED | self.inputs.keys()

    async def load_touched(self, touched: Touched) -> dict[str, Any]:
        """The values that code is known to read."""
        return {name: await self.load(name, keys) for name, keys in touched.names.items()}

    async def load(self, name: str, keys: frozenset[str] | None = None) -> Any:
        """One value; LookupError if there is none of this name. Of a collection, only *keys* are needed."""
        if (part := self.inputs.get(name)) is not None:
            return _value_of(part, await self._bytes(part.digest, f"input {name!r}"))
        if name == HISTORY:
            return await history_value(placed(cells_of(self._messages)), self._read_blob, keys)
        if name == ATTACHMENTS:
            wanted = [key for key in self._attachments if keys is None or key in keys]
            return {key: await self._attachment(key) for key in wanted}
        raise LookupError(name)

    async def _attachment(self, name: str) -> str | bytes:
        part = self._attachments[name]
        data = await self._bytes(part.digest, f"attachment {name!r}")
        return data.decode(errors="replace") if part.media_type.startswith(_TEXT_TYPES) else data

    async def _bytes(self, digest: str, what: str) -> bytes:
        data = await self._read_blob(digest)
        if data is None:
            raise InvalidArgument(f"{what} is not stored any more", hint="pass it again with the next turn")
        return data


def _value_of(part: InputPart, data: bytes) -> Any:
    try:
        return data.decode() if part.media_type.startswith("text/") else msgspec.json.decode(data)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UnreadableInput(f"input {part.name!r} cannot be read: {error}") from None


class UnreadableInput(StandfastError):
    """What is stored as an input is neither text nor JSON."""
