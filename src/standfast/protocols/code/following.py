"""What is read off a session's messages, and not read again as they grow."""

from __future__ import annotations

from collections.abc import Sequence

from standfast.model.cell import RUN_CODE
from standfast.model.message import AttachmentPart, InputPart, Message, ToolMessage, UserMessage
from standfast.protocols.code.cell_history import place_of


class SessionReading:
    """The place of the next cell, and what users have sent: the latest of each name counts."""

    def __init__(self) -> None:
        self._forget()

    def follow(self, messages: Sequence[Message]) -> None:
        """Take in what is new since the last time."""
        if not is_followed_by(self._known, messages):
            self._forget()
        new = messages[len(self._known) :]
        self._known += new
        for message in new:
            self._take(message)

    def _forget(self) -> None:
        self._known: list[Message] = []
        self.cells = 0
        self.inputs: dict[str, InputPart] = {}
        self.attachments: dict[str, AttachmentPart] = {}

    def _take(self, message: Message) -> None:
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
    """Whether *messages* begin with *known*."""
    return len(known) <= len(messages) and known == messages[: len(known)]
