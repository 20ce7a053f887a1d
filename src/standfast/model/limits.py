"""The usage and the limits of model calls, runs and turns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from standfast.errors.caller import InvalidArgument

if TYPE_CHECKING:
    from decimal import Decimal

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Positive16 = Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]
Positive32 = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


SANDBOX_TIMEOUT_MS: Final = 5_000
"""The timeout of a call from a sandbox without a model, if the contract has none."""
AGENT_TIMEOUT_MS: Final = 60_000
"""The timeout of a call from an agent, if the contract has none."""


MAX_DURATION_S: Final = 100 * 365 * 86_400


def milliseconds(name: str, seconds: float, *, least: float = 0) -> int:
    """Return the setting *name* in milliseconds; raise `InvalidArgument` if it is no possible duration."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not least <= seconds <= MAX_DURATION_S:  # NaN as well
        raise InvalidArgument(
            f"{name} must be a number of seconds from {least} to {MAX_DURATION_S} (100 years), "
            f"got {seconds!r:.80}"
        )
    return int(seconds * 1000)


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a run. `wall_ms` includes host calls; `cpu_ms` counts only guest computation."""

    memory_mb: Positive32 = 64
    cpu_ms: Positive32 = 2_000
    wall_ms: Positive32 = 5_000
    max_stdout_bytes: U32 = 65_536
    max_external_calls: U32 = 32
    max_stack_depth: Positive16 = 256

    def __post_init__(self) -> None:
        values = msgspec.structs.astuple(self)  # fast path: every run decodes these
        if set(map(type, values)) != _INTEGERS or min(values) < 1 or max(values) >= 2**32:
            require_unsigned(self, "memory_mb", "cpu_ms", "wall_ms", "max_stack_depth")
        if self.max_stack_depth >= 2**16:
            raise InvalidArgument(f"max_stack_depth must be at most {2**16 - 1}")


_INTEGERS: Final = {int}

L = TypeVar("L", bound=msgspec.Struct)


def lowered(asked: L, allowed: L) -> L:
    """Return the limits that a client asked for, none of them above those that are *allowed*.

    A field that has its default is lowered, because the client may not have set it; any other field above the
    allowed value raises `InvalidArgument`. None means no limit.
    """
    changed: dict[str, Any] = {}
    for each in msgspec.structs.fields(asked):
        value, most = getattr(asked, each.name), getattr(allowed, each.name)
        if most is None or (value is not None and value <= most):
            continue
        if value != each.default:
            require_allowed(each.name, value, most)
        changed[each.name] = most
    return msgspec.structs.replace(asked, **changed)


def require_allowed(name: str, value: float, most: float) -> None:
    """Raise `InvalidArgument` if a client asks for a limit above the one that the operator has set."""
    if value > most:
        raise InvalidArgument(
            f"{name} may be at most {most:,} here, got {value:,}",
            hint="only a token with the scope admin may exceed the limits of the server's agents and sandbox",
        )


class CapabilityLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one capability, all enforced by the host.

    Without `timeout_ms`, a call may take 5 s from a sandbox without a model and 60 s from an agent.
    """

    timeout_ms: Positive32 | None = None
    max_request_bytes: U32 = 1_048_576
    max_response_bytes: U32 = 1_048_576
    concurrency: Positive32 = 16
    rate_per_min: U32 | None = None

    def __post_init__(self) -> None:
        require_unsigned(self, "timeout_ms", "concurrency")


def default_limits(struct: msgspec.Struct, defaults: msgspec.Struct) -> None:
    """Set the default limits of a struct that was created with `limits=None`."""
    if getattr(struct, "limits", defaults) is None:
        msgspec.structs.force_setattr(struct, "limits", defaults)


def require_unsigned(struct: msgspec.Struct, *positive: str) -> None:
    """Raise `InvalidArgument` unless each limit is an integer >= 0, or >= 1 if *positive*, as in decoding."""
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
            raise InvalidArgument(f"{name} must be a whole number from 0 to 4294967295, not {value!r}")
    for name in positive:
        if getattr(struct, name) == 0:
            raise InvalidArgument(f"{name} must be at least 1")


NANO: Final = 10**9
"""Costs are counted in billionths of a dollar."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Tokens in five buckets; `reasoning` is part of `output`.

    `cost_nano_usd` is the cost of `priced` of the `calls`, in 1e-9 dollars. The cost of the others is
    unknown: as long as there are any, the cost is a lower bound.
    """

    input: U64 = 0
    cache_read: U64 = 0
    cache_write: U64 = 0
    output: U64 = 0
    reasoning: U64 = 0
    calls: U64 = 0
    cost_nano_usd: U64 = 0
    priced: U64 = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            calls=self.calls + other.calls,
            cost_nano_usd=self.cost_nano_usd + other.cost_nano_usd,
            priced=self.priced + other.priced,
        )

    @property
    def total(self) -> int:
        """All tokens. Cached input counts as input; output already includes reasoning."""
        return self.input + self.cache_read + self.cache_write + self.output

    @property
    def cost_usd(self) -> Decimal:
        """The cost of the priced calls, in dollars."""
        from decimal import Decimal

        return Decimal(self.cost_nano_usd) / NANO

    @property
    def cost_is_known(self) -> bool:
        """Whether every call is priced."""
        return self.priced >= self.calls


NO_USAGE: Final = Usage()


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the ledger: the source, the model that answered, and the usage."""

    source: str
    model: str
    usage: Usage


def add_to_ledger(ledger: tuple[UsageEntry, ...], entries: tuple[UsageEntry, ...]) -> tuple[UsageEntry, ...]:
    """Return *ledger* with *entries* added, one line for each source and model."""
    lines = {(line.source, line.model): line for line in ledger}
    for entry in entries:
        key = (entry.source, entry.model)
        if (known := lines.get(key)) is not None:
            entry = UsageEntry(source=entry.source, model=entry.model, usage=known.usage + entry.usage)
        lines[key] = entry
    return tuple(lines.values())


def dollars(nano_usd: int) -> str:
    """Format an amount: `$0.0021`, `$1,200.00`."""
    whole, rest = divmod(nano_usd, NANO)
    return f"${whole:,}.{f'{rest:09d}'.rstrip('0'):0<2}"


_MINIMA: Final = {
    "max_iterations": 1, "max_no_progress": 1, "max_attempts": 1, "max_output_retries": 0,
    "max_retry_wait_ms": 0,
}  # fmt: skip


class UsageLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one turn. None means no limit.

    max_iterations: model iterations. max_no_progress: consecutive iterations whose calls all failed or only
    repeated earlier ones. max_tokens: over all model calls. max_calls: model calls, including failed ones and
    those of plugins, tools and code. max_cost_usd: the cost of the model calls; it needs a price for the
    model. max_wall_ms: the time the turn runs, not counting waits for people and timers. max_attempts:
    attempts of one model call. max_retry_wait_ms: the total time between the attempts of one model call.
    max_output_retries: times the model may correct an answer that does not match `output_type`.
    """

    max_iterations: PositiveInt = 50
    max_no_progress: PositiveInt = 4
    max_tokens: PositiveInt | None = None
    max_wall_ms: PositiveInt | None = None
    max_attempts: PositiveInt = 3
    max_output_retries: U64 = 2
    max_calls: PositiveInt | None = None
    max_cost_usd: Annotated[float, msgspec.Meta(ge=1e-9)] | None = None
    max_retry_wait_ms: U64 = 120_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, least = getattr(self, name), _MINIMA.get(name, 1)
            if value is None and name not in _MINIMA:
                continue
            if name == "max_cost_usd":
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not is_number or not math.isfinite(value) or value * NANO < 1:
                    raise InvalidArgument(
                        f"max_cost_usd must be an amount in dollars, more than 0, not {value!r}"
                    )
            elif not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgument(f"{name} must be a whole number from {least}, not {value!r}")

    @property
    def max_cost_nano_usd(self) -> int | None:
        return None if self.max_cost_usd is None else round(self.max_cost_usd * NANO)

    def left(self, used: Usage, wall_ms: int) -> dict[str, float]:
        """Return the remaining tokens, calls, time and money, as far as they are limited."""
        spent = {"max_tokens": used.total, "max_calls": used.calls, "max_wall_ms": wall_ms}
        left = {name: getattr(self, name) - spent[name] for name in spent if getattr(self, name) is not None}
        if self.max_cost_nano_usd is not None:
            left["max_cost_usd"] = (self.max_cost_nano_usd - used.cost_nano_usd) / NANO
        return left
