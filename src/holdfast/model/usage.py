"""What model calls used, and what a turn may use."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.limits import U64


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Tokens in five buckets; `reasoning` is a part of `output`."""

    input: U64 = 0
    cache_read: U64 = 0
    cache_write: U64 = 0
    output: U64 = 0
    reasoning: U64 = 0
    calls: U64 = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            calls=self.calls + other.calls,
        )

    @property
    def total(self) -> int:
        """All tokens. Cached input is input as well; reasoning is output already."""
        return self.input + self.cache_read + self.cache_write + self.output


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the ledger: who asked, which model answered, and how much that took."""

    source: str
    model: str
    usage: Usage


def add_to_ledger(ledger: tuple[UsageEntry, ...], entries: tuple[UsageEntry, ...]) -> tuple[UsageEntry, ...]:
    """A ledger with *entries* added, one line for each source and model."""
    lines = {(line.source, line.model): line.usage for line in ledger}
    for entry in entries:
        key = (entry.source, entry.model)
        lines[key] = lines[key] + entry.usage if key in lines else entry.usage
    return tuple(UsageEntry(source=key[0], model=key[1], usage=usage) for key, usage in lines.items())


_MINIMA: Final = {"max_iterations": 1, "max_no_progress": 1, "max_attempts": 1, "max_output_retries": 0}


class UsageLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one turn may use. None means no limit.

    max_iterations: rounds of asking the model. max_no_progress: rounds in a row whose calls all failed or
    only repeated earlier ones. max_tokens: over all model calls. max_wall_ms: time the turn runs, waiting
    for people and timers not counted. max_attempts: tries of one model call. max_output_retries: times the
    model is told that its answer does not fit `output_type`.
    """

    max_iterations: int = 50
    max_no_progress: int = 4
    max_tokens: int | None = None
    max_wall_ms: int | None = None
    max_attempts: int = 3
    max_output_retries: int = 2

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, least = getattr(self, name), _MINIMA.get(name, 1)
            if value is None and name not in _MINIMA:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgument(f"{name} must be a whole number from {least}, not {value!r}")
