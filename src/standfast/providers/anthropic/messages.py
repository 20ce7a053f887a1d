"""A conversation as the Messages API has it: turns of the user and of the assistant, each a list of blocks.

Theory of operation
-------------------
Messages are folded into turns. Whatever the user and the tools say between two replies is one turn of the
user, the results before everything else, because the vendor wants every call answered at once.

Rules
-----
1. Turns alternate, and the first and the last are the user's. Where a conversation has none there, a word is
   put in.
2. Thinking goes back as it came, before what followed from it, and only to where it came from.
3. A call has the same id in its result, and no two calls have the same one.
4. A block without words is never sent; the vendor refuses it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Part,
    Reasoning,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.providers.http.dialect import Asked
from standfast.providers.http.told import kind_of, result_text

Block = dict[str, Json]
GOES_ON: Final = "(The conversation goes on.)"
THINKING_TYPES: Final = ("thinking", "redacted_thinking")
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NOT_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_ID: Final = 64


class Turn(NamedTuple):
    """What one side says. `results` come before `blocks`; only the user has any."""

    role: str
    blocks: list[Block]
    results: list[Block]

    def written(self) -> dict[str, Json]:
        return {"role": self.role, "content": [*self.results, *self.blocks]}


def turns_of(asked: Asked) -> list[Turn]:
    """The conversation of a request."""
    fold = _Fold(asked.media, asked.origin)
    for message in asked.request.messages:
        match message:
            case UserMessage():
                fold.user(message)
            case AssistantMessage():
                fold.assistant(message)
            case ToolMessage():
                fold.result(message)
    return fold.finished()


def may_think(turns: list[Turn]) -> bool:
    """Whether a model that thinks by budget may: not amid calls whose thinking it does not have."""
    if len(turns) < 2 or not turns[-1].results:
        return True
    began = turns[-2].blocks
    return bool(began) and began[0]["type"] in THINKING_TYPES


class _Fold:
    """Folds messages into turns, one after the other."""

    def __init__(self, media: Mapping[str, bytes], origin: str) -> None:
        self._media = media
        self._origin = origin
        self._turns: list[Turn] = []
        self._ids: set[str] = set()
        self._open: dict[int, str] = {}

    def user(self, message: UserMessage) -> None:
        content = message.content
        parts: tuple[Part, ...] = (TextPart(text=content),) if isinstance(content, str) else content
        if blocks := [block for part in parts if (block := _block_of(part, self._media)) is not None]:
            self._turn("user").blocks.extend(blocks)

    def assistant(self, message: AssistantMessage) -> None:
        blocks = [block for thought in message.reasoning if (block := self._thought(thought)) is not None]
        if message.text.strip():
            blocks.append(_text(message.text))
        if message.tool_calls:
            self._open = {call.call_id: self._new_id(call) for call in message.tool_calls}
        blocks += [_tool_use(call, self._open[call.call_id]) for call in message.tool_calls]
        if any(block["type"] not in THINKING_TYPES for block in blocks):
            self._turn("assistant").blocks.extend(blocks)

    def result(self, message: ToolMessage) -> None:
        call = self._open.get(message.call_id) or _clean(message.provider_id) or f"call_{message.call_id}"
        self._turn("user").results.append(_tool_result(message, call))

    def finished(self) -> list[Turn]:
        turns = self._turns
        if not turns or turns[0].role != "user":
            turns.insert(0, Turn("user", [_text(GOES_ON)], []))
        if turns[-1].role != "user":
            turns.append(Turn("user", [_text(GOES_ON)], []))
        return turns

    def _turn(self, role: str) -> Turn:
        """The turn that is being filled; a new one if the other side spoke last."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(Turn(role, [], []))
        return self._turns[-1]

    def _thought(self, thought: Reasoning) -> Block | None:
        if thought.origin != self._origin or not isinstance(thought.opaque, dict):
            return None
        if thought.opaque.get("type") == "thinking":
            return {"type": "thinking", "thinking": thought.text, **thought.opaque}
        return thought.opaque

    def _new_id(self, call: ToolCall) -> str:
        """The provider's own id, or one that is made up; told apart from those that came before."""
        wanted = _clean(call.provider_id) or f"call_{call.call_id}"
        found, number = wanted, 1
        while found in self._ids:
            number += 1
            found = f"{wanted}_{number}"
        self._ids.add(found)
        return found


def _clean(name: str) -> str:
    """An id or a name in the vendor's letters."""
    return _NOT_IN_IDS.sub("_", name)[:_MAX_ID]


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _tool_use(call: ToolCall, wire_id: str) -> Block:
    """A call. Arguments that are no JSON object go as the text they came as."""
    given = {"raw": call.raw or ""} if call.arguments is None else call.arguments
    return {"type": "tool_use", "id": wire_id, "name": _clean(call.name) or "unnamed", "input": given}


def _tool_result(message: ToolMessage, wire_id: str) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": wire_id}
    text = result_text(message)
    if text.strip():
        block["content"] = text
    if message.error is not None:
        block["is_error"] = True
    return block


def _block_of(part: Part, media: Mapping[str, bytes]) -> Block | None:
    match part:
        case TextPart():
            return _text(part.text) if part.text.strip() else None
        case AttachmentPart():
            return _attachment(part, media)
        case InputPart():
            return _text(f"[{part.name}: {part.media_type}, {part.size} bytes]")


def _attachment(part: AttachmentPart, media: Mapping[str, bytes]) -> Block:
    kind = kind_of(part)
    if kind in _IMAGES:
        return {"type": "image", "source": _base64(kind, _bytes_of(part, media))}
    if kind == "application/pdf":
        return _document(part, _base64(kind, _bytes_of(part, media)))
    if kind.startswith("text/") or kind == "application/json":
        source = {"type": "text", "media_type": "text/plain", "data": _plain(part, _bytes_of(part, media))}
        return _document(part, source)
    raise InvalidArgument(
        f"anthropic takes no attachment of type {part.media_type!r}",
        hint=f"it takes {', '.join(_IMAGES)}, application/pdf and text",
    )


def _document(part: AttachmentPart, source: Block) -> Block:
    block: Block = {"type": "document", "source": source}
    if part.name:
        block["title"] = part.name
    return block


def _base64(media_type: str, data: bytes) -> Block:
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}


def _bytes_of(part: AttachmentPart, media: Mapping[str, bytes]) -> bytes:
    if part.digest not in media:
        raise InvalidArgument(f"the bytes of attachment {part.name or part.digest} are not to be had")
    return media[part.digest]


def _plain(part: AttachmentPart, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"attachment {part.name or part.digest} is said to be {part.media_type}, but is not UTF-8"
        ) from None
