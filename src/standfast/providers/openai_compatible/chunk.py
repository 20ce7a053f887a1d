"""The chunks of a streamed chat completion, as far as they are read.

Rules
-----
1. Every field may be missing or null: no two servers send the same.
2. What is not read is not named here, so that its type cannot matter.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.canonical import Json


class FunctionDelta(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | dict[str, Json] | None = None


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a tool call, or a whole one."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a chunk adds to the message."""

    content: str | list[Json] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Json] | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    delta: Delta | None = None
    finish_reason: str | None = None
    index: int = 0
    stop_reason: str | int | None = None


class InputDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class Tokens(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class GroqExtra(msgspec.Struct, frozen=True, gc=False):
    usage: Tokens | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Tokens | None = None
    error: Json = None
    object: str | None = None
    x_groq: GroqExtra | None = None


decode_chunk: Final = msgspec.json.Decoder(Chunk).decode
