"""The events of a streamed response, as far as they are read.

Most of what an event carries is not: a response comes whole with the first, the second and the last of them.
What is not named here is passed over while decoding. The items of a response are read when their type is
known, since the fields of one type may have another meaning in the next.
"""

from __future__ import annotations

import msgspec

from standfast.model.canonical import Json
from standfast.model.usage import Usage


class Kind(msgspec.Struct, frozen=True):
    """What something is."""

    type: str = ""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a text, of arguments or of reasoning."""

    delta: str
    output_index: int
    sequence_number: int = 0
    summary_index: int = 0


class ItemEvent(msgspec.Struct, frozen=True):
    """An item begins or is done."""

    output_index: int
    item: msgspec.Raw
    sequence_number: int = 0


class Piece(msgspec.Struct, frozen=True):
    """A part of a message: text, or a refusal."""

    type: str = ""
    text: str = ""
    refusal: str = ""


class MessageItem(msgspec.Struct, frozen=True):
    content: list[Piece] | None = None
    phase: str | None = None

    def words(self) -> str:
        return "".join(piece.text or piece.refusal for piece in self.content or ())

    def refuses(self) -> bool:
        return any(piece.type == "refusal" for piece in self.content or ())


class CallItem(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: str = ""
    status: str | None = None


class ReasoningItem(msgspec.Struct, frozen=True):
    id: str = ""
    summary: list[dict[str, Json]] | None = None
    content: list[dict[str, Json]] | None = None
    encrypted_content: str | None = None

    def words(self) -> str:
        parts = [*(self.summary or ()), *(self.content or ())]
        return "\n\n".join(str(part.get("text") or "") for part in parts)


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class Used(msgspec.Struct, frozen=True):
    """Tokens as OpenAI counts them: those of the cache are among the input."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None

    def usage(self) -> Usage:
        of_input = self.input_tokens_details or InputDetails()
        of_output = self.output_tokens_details or OutputDetails()
        read, write = of_input.cached_tokens or 0, of_input.cache_write_tokens or 0
        return Usage(
            input=max(0, self.input_tokens - read - write),
            cache_read=read,
            cache_write=write,
            output=self.output_tokens,
            reasoning=of_output.reasoning_tokens or 0,
            calls=1,
        )


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str | None = None


class Response(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: Used | None = None
    incomplete_details: IncompleteDetails | None = None
    error: Json = None


class ResponseEvent(msgspec.Struct, frozen=True):
    response: Response
