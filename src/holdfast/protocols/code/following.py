"""What is made of a session's messages, message by message, and not made again as they grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Generic, TypeVar

from holdfast.model.message import AttachmentPart, InputPart, Message, ToolMessage, UserMessage
from holdfast.protocols.code.cell_history import RUN_CODE

T = TypeVar("T")


class Following(Generic[T]):
    """One thing for each message."""

    def __init__(self, make: Callable[[Message], T]) -> None:
        self._make = make
        self._known: list[Message] = []
        self._made: list[T] = []

    def of(self, messages: Sequence[Message]) -> list[T]:
        """What is made of *messages*; of those that are known from before, what was made then."""
        start = _same(self._known, messages)
        if start < len(self._known):
            del self._known[start:], self._made[start:]
        self._known += messages[start:]
        self._made += [self._make(message) for message in messages[start:]]
        return self._made[:]


class SessionReading:
    """How many cells have run, and what users have sent: the latest of each name counts."""

    def __init__(self) -> None:
        self._forget()

    def follow(self, messages: Sequence[Message]) -> None:
        """Take in what is new since the last time."""
        start = _same(self._known, messages)
        if start < len(self._known):
            self._forget()
            start = 0
        self._known += messages[start:]
        for message in messages[start:]:
            self._take(message)

    def _forget(self) -> None:
        self._known: list[Message] = []
        self.cells = 0
        self.inputs: dict[str, InputPart] = {}
        self.attachments: dict[str, AttachmentPart] = {}

    def _take(self, message: Message) -> None:
        if isinstance(message, ToolMessage):
            self.cells += message.name == RUN_CODE
        elif isinstance(message, UserMessage) and not isinstance(message.content, str):
            for part in message.content:
                if isinstance(part, InputPart):
                    self.inputs[part.name] = part
                elif isinstance(part, AttachmentPart):
                    self.attachments[part.name or f"attachment_{len(self.attachments) + 1}"] = part


def _same(known: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many of the first messages are the very same ones."""
    if len(known) <= len(messages) and all(map(is_, known, messages)):
        return len(known)
    for place, (one, other) in enumerate(zip(known, messages, strict=False)):
        if one is not other:
            return place
    return min(len(known), len(messages))
