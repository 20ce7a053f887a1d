"""The outline of a reply: what came in which order, so that it goes back the same way.

Theory of operation
-------------------
A reply is a row of items: reasoning, messages, calls. A session keeps the words as one text and the calls as
a list, which says nothing of the row. The outline does: it is what `Reasoning.opaque` holds, one entry for
each item. The reasoning is in it whole, a message by its length, a call by its id.

Rules
-----
1. Words and calls are never taken from an outline: what the session has is what is sent.
2. Reasoning goes back only right before what it led to. If that is gone, so is the reasoning: the API
   refuses a thought that leads nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from standfast.model.canonical import Json
from standfast.model.message import Reasoning

SEPARATOR: Final = "\n\n"
"""What stands between the texts of two messages of one reply."""


class Thought(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """A reasoning item as the API wants it back."""

    id: str
    summary: list[Json]
    content: list[Json] | None = None
    encrypted_content: str | None = None

    def item(self) -> dict[str, Json]:
        """What is sent; nothing is stored at the vendor's, so an id alone would mean nothing there."""
        item: dict[str, Json] = {"type": "reasoning", "id": self.id, "summary": self.summary}
        if self.content:
            item["content"] = self.content
        if self.encrypted_content:
            item["encrypted_content"] = self.encrypted_content
        return item

    @property
    def goes_back(self) -> bool:
        return bool(self.content or self.encrypted_content)


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="message"):
    """A message of that many characters. `phase` tells a comment from an answer."""

    chars: int
    phase: str | None = None


class Called(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call, by the id that the vendor gave it."""

    call_id: str


class Other(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="other"):
    """An item that does not go back."""


Entry = Thought | Said | Called | Other
Outline = tuple[Entry, ...]


def worth_keeping(outline: Sequence[Entry]) -> bool:
    """Whether the outline says more than that words come before calls."""
    said = [entry for entry in outline if isinstance(entry, Said)]
    if len(said) > 1 or any(entry.phase for entry in said):
        return True
    if any(isinstance(entry, Thought) and entry.goes_back for entry in outline):
        return True
    return bool(said) and any(isinstance(entry, Called) for entry in outline[: outline.index(said[0])])


def written(outline: Sequence[Entry]) -> Json:
    """An outline as it is kept."""
    kept: Json = msgspec.to_builtins(outline)
    return kept


def outline_of(reasoning: Sequence[Reasoning], origin: str) -> Outline | None:
    """The outline among what a reply's reasoning keeps, if it is from there."""
    for each in reasoning:
        if each.origin == origin and each.opaque is not None:
            try:
                return msgspec.convert(each.opaque, Outline)
            except msgspec.ValidationError:
                continue
    return None


def texts_of(text: str, outline: Outline) -> list[str]:
    """The text of each message of the outline; the first has all of it if it was changed since."""
    sizes = [entry.chars for entry in outline if isinstance(entry, Said)]
    between = max(0, sum(map(bool, sizes)) - 1)
    if sum(sizes) + len(SEPARATOR) * between != len(text):
        return [text, *("" for _ in sizes[1:])]
    texts, at = [], 0
    for size in sizes:
        texts.append(text[at : at + size])
        at += size + (len(SEPARATOR) if size else 0)
    return texts
