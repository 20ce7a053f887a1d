"""The values that code can read and not change: inputs by name, `attachments`, and `history`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, StandfastError
from standfast.model.cell import RUN_CODE
from standfast.model.message import AttachmentPart, InputPart, Message, ToolMessage, UserMessage
from standfast.ports.code_engine import Touched
from standfast.protocols.code.cell_history import cells_of, history_value, place_of, placed

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


class SessionReading:
    """The index of the next cell, and the inputs and attachments of users; the latest of a name counts."""

    def __init__(self) -> None:
        self._known: list[Message] = []
        self.cells = 0
        self.inputs: dict[str, InputPart] = {}
        self.attachments: dict[str, AttachmentPart] = {}

    def follow(self, messages: Sequence[Message]) -> None:
        """Take in the messages that are new since the last call."""
        if not is_followed_by(self._known, messages):
            self._known, self.cells, self.inputs, self.attachments = [], 0, {}, {}
        new = messages[len(self._known) :]
        self._known += new
        for message in new:
            if isinstance(message, ToolMessage):
                if message.name == RUN_CODE:
                    self.cells = place_of(message.value, self.cells) + 1
            elif isinstance(message, UserMessage) and not isinstance(message.content, str):
                for part in message.content:
                    if isinstance(part, InputPart):
                        self.inputs[part.name] = part
                    elif isinstance(part, AttachmentPart):
                        self.attachments[part.name or f"attachment_{len(self.attachments) + 1}"] = part


def is_followed_by(known: list[Message], messages: Sequence[Message]) -> bool:
    """Return whether *messages* begin with *known*."""
    return len(known) <= len(messages) and known == messages[: len(known)]


class ReadOnlyValues:
    """The values that code may read by name, loaded when code touches them."""

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
        """Return the values that code is known to read."""
        return {name: await self.load(name, keys) for name, keys in touched.names.items()}

    async def load(self, name: str, keys: frozenset[str] | None = None) -> Any:
        """Return one value, of a collection only *keys*; LookupError if there is no such name."""
        if (part := self.inputs.get(name)) is not None:
            data = await self._bytes(part.digest, f"input {name!r}")
            try:
                return data.decode() if part.media_type.startswith("text/") else msgspec.json.decode(data)
            except (UnicodeDecodeError, msgspec.DecodeError) as error:
                raise UnreadableInput(f"input {name!r} cannot be read: {error}") from None
        if name == HISTORY:
            return await history_value(placed(cells_of(self._messages)), self._read_blob, keys)
        if name == ATTACHMENTS:
            found: dict[str, str | bytes] = {}
            for key, sent in self._attachments.items():
                if keys is None or key in keys:
                    data = await self._bytes(sent.digest, f"attachment {key!r}")
                    is_text = sent.media_type.startswith(_TEXT_TYPES)
                    found[key] = data.decode(errors="replace") if is_text else data
            return found
        raise LookupError(name)

    async def _bytes(self, digest: str, what: str) -> bytes:
        data = await self._read_blob(digest)
        if data is None:
            raise InvalidArgument(f"{what} is not stored any more", hint="pass it again with the next turn")
        return data


class UnreadableInput(StandfastError):
    """An input is stored as neither text nor JSON."""
