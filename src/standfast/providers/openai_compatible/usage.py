"""A server's count of tokens in our five buckets."""

from __future__ import annotations

from standfast.model.usage import Usage
from standfast.providers.openai_compatible.chunk import InputDetails, OutputDetails, Tokens


def usage_of(tokens: Tokens | None) -> Usage:
    """One call's usage. A server that counts nothing has made a call all the same."""
    if tokens is None:
        return Usage(calls=1)
    details = tokens.prompt_tokens_details or InputDetails()
    asked = _count(tokens.prompt_tokens)
    read = min(asked, _count(details.cached_tokens) or _count(tokens.prompt_cache_hit_tokens))
    written = min(asked - read, _count(details.cache_write_tokens))
    thought = _count((tokens.completion_tokens_details or OutputDetails()).reasoning_tokens)
    return Usage(
        input=asked - read - written,
        cache_read=read,
        cache_write=written,
        output=_output(tokens, thought),
        reasoning=thought,
        calls=1,
    )


def _output(tokens: Tokens, thought: int) -> int:
    """All that was written. Some servers count what was thought beside it: then the total tells."""
    written = _count(tokens.completion_tokens)
    beside = _count(tokens.total_tokens) == _count(tokens.prompt_tokens) + written + thought
    return written + thought if beside or thought > written else written


def _count(number: int | None) -> int:
    return max(0, number or 0)
