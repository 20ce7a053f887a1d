"""One chunk of Gemini's stream, as far as a reply needs it; whatever else is in it is passed over."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.model.usage import Usage

_ABSENT: Final = msgspec.Raw()


def _is_there(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


class _Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read from the wire, where absent and null mean the same."""


class FunctionCall(_Wire, frozen=True):
    """A call, whole. Its arguments stay the text that came."""

    name: str | None = None
    id: str | None = None
    args: msgspec.Raw = _ABSENT
    will_continue: bool | None = None

    def arguments(self) -> str:
        return bytes(self.args).decode() if _is_there(self.args) else "{}"


class Part(_Wire, frozen=True):
    """A piece of text, of thought, or a call; the signature belongs to just this part."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    inline_data: msgspec.Raw = _ABSENT
    file_data: msgspec.Raw = _ABSENT
    executable_code: msgspec.Raw = _ABSENT
    code_execution_result: msgspec.Raw = _ABSENT
    tool_call: msgspec.Raw = _ABSENT
    tool_response: msgspec.Raw = _ABSENT

    def is_bare(self) -> bool:
        """Whether there is nothing in it that this side does not keep."""
        others = (self.inline_data, self.file_data, self.executable_code, self.code_execution_result)
        return not any(_is_there(other) for other in (*others, self.tool_call, self.tool_response))


class Content(_Wire, frozen=True):
    parts: tuple[Part, ...] | None = None


class Candidate(_Wire, frozen=True):
    """What is new of one answer."""

    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = None


class PromptFeedback(_Wire, frozen=True):
    block_reason: str | None = None
    block_reason_message: str | None = None


class UsageMetadata(_Wire, frozen=True):
    """Tokens of the reply up to and with this chunk."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None

    def usage(self) -> Usage:
        """In our buckets: the prompt's has the cached ones in it, the answer's lacks the thoughts."""
        cached, thoughts = self.cached_content_token_count or 0, self.thoughts_token_count or 0
        prompt = (self.prompt_token_count or 0) + (self.tool_use_prompt_token_count or 0)
        return Usage(
            input=max(0, prompt - cached),
            cache_read=cached,
            output=(self.candidates_token_count or 0) + thoughts,
            reasoning=thoughts,
            calls=1,
        )


class Chunk(_Wire, frozen=True):
    candidates: tuple[Candidate, ...] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageMetadata | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
