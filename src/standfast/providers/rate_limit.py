"""Rate limits: concurrent calls, and calls and tokens per minute.

Calls queue. The first one waits for another call to end, or until enough of the last minute has passed. It
knows that time and sleeps until then; only a call that ends, perhaps with fewer tokens than estimated, wakes
it earlier.

Rules
-----
1. First in, first out. A call that exceeds the limit by itself waits until the minute is empty.
2. No sixty seconds contain more requests than allowed. Tokens are an estimate until a call has ended.
3. A cancelled call leaves the queue without counting towards a limit.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import InvalidArgument, ModelError
from standfast.ports.clock import Clock, SystemClock
from standfast.ports.model_provider import (
    ModelDelta,
    ModelProvider,
    ModelRequest,
    ModelWrapper,
    ReplyEnded,
    open_stream,
)
from standfast.providers.fallback import Fallback
from standfast.providers.request_digest import estimated_tokens
from standfast.providers.resolve import resolve_model

_WINDOW_S: Final = 60.0
_LONGEST_HOLD_MS: Final = 60_000

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """The limits of a provider or a model. None means no limit; all tokens count, cached ones too."""

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidArgument(f"{name} must be a whole number of at least 1, got {value!r}")


@dataclass(slots=True, eq=False)
class Admission:
    """A call admitted at a time for a number of tokens."""

    at: float
    tokens: int
    is_recent: bool = True


class Limiter:
    """One limit for all models that share it. It serves one event loop at a time."""

    def __init__(self, limit: RateLimit, *, clock: Clock | None = None, sleep: Sleep = asyncio.sleep) -> None:
        self.limit = limit
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._recent: deque[Admission] = deque()
        self._tokens = 0
        self._running = 0
        self._not_before = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line = asyncio.Lock()
        self._changed = asyncio.Event()

    async def admit(self, tokens: int = 0) -> Admission:
        """Wait until a call may start. The caller must release the admission."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # locks belong to a loop, and a limiter may outlive one
            self._loop, self._line, self._changed = loop, asyncio.Lock(), asyncio.Event()
        async with self._line:
            while pause := self._pause_s(tokens):
                self._changed.clear()
                waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._changed.wait())]
                if pause < math.inf:
                    waits.append(asyncio.ensure_future(self._sleep(pause)))
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in waits:
                        one.cancel()
            admission = Admission(self._clock.monotonic(), tokens)
            self._recent.append(admission)
            self._tokens += tokens
            self._running += 1
        return admission

    def release(self, admission: Admission, used: int | None = None) -> None:
        """End a call; *used* is the number of tokens it used, if known."""
        self._running -= 1
        if used is not None and admission.is_recent:
            self._tokens += used - admission.tokens
            admission.tokens = used
        self._changed.set()

    def hold(self, milliseconds: int) -> None:
        """Admit no calls for this long, as the provider requested."""
        until = self._clock.monotonic() + min(milliseconds, _LONGEST_HOLD_MS) / 1000
        self._not_before = max(self._not_before, until)

    def _pause_s(self, tokens: int) -> float:
        """Return the seconds that a call must wait: 0, a number, or infinity until another call ends."""
        limit = self.limit
        if limit.concurrency is not None and self._running >= limit.concurrency:
            return math.inf
        now = self._clock.monotonic()
        while self._recent and self._recent[0].at <= now - _WINDOW_S:
            oldest = self._recent.popleft()
            oldest.is_recent = False
            self._tokens -= oldest.tokens
        free_at = self._not_before
        if limit.tokens_per_minute is not None:
            used = self._tokens
            for one in self._recent:
                if used + tokens <= limit.tokens_per_minute:
                    break
                used -= one.tokens
                free_at = max(free_at, one.at + _WINDOW_S)
        allowed = limit.requests_per_minute
        if allowed is not None and len(self._recent) >= allowed:
            free_at = max(free_at, self._recent[-allowed].at + _WINDOW_S)
        return math.ceil((free_at - now) * 1000) / 1000 if free_at > now else 0.0


class Limited(ModelWrapper):
    """A model behind a rate limit: `Limited("openai:gpt-5", RateLimit(concurrency=4))`.

    Several models share a limit if they get the same `Limiter`. If the provider requests a pause, all models
    that share the limit pause.
    """

    def __init__(
        self, model: str | ModelProvider, limit: RateLimit | Limiter, *, clock: Clock | None = None
    ) -> None:
        super().__init__(resolve_model(model))
        self._limiter = limit if isinstance(limit, Limiter) else Limiter(_checked(limit), clock=clock)
        self._counts_tokens = self._limiter.limit.tokens_per_minute is not None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        used = None
        admission = await self._limiter.admit(estimated_tokens(request) if self._counts_tokens else 0)
        try:
            async with open_stream(self._model, request) as deltas:
                async for delta in deltas:
                    if isinstance(delta, ReplyEnded):
                        used = delta.usage.total
                    yield delta
        except ModelError as error:
            if error.retryable and error.retry_after_ms:
                self._limiter.hold(error.retry_after_ms)
            raise
        finally:
            self._limiter.release(admission, used)


class SharedLimits:
    """The limits of a runtime, by provider name or model id."""

    def __init__(
        self, limits: Mapping[str, RateLimit], *, clock: Clock | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._limiters = {
            key: Limiter(_checked(limit), clock=clock, sleep=sleep) for key, limit in limits.items()
        }

    def around(self, model: ModelProvider) -> ModelProvider:
        """Wrap *model* in its own limit and its provider's; wrap each member of a fallback separately."""
        if isinstance(model, Fallback):
            return Fallback(*(self.around(one) for one in model.models))
        name = model.model_id
        for key in (name.partition(":")[0], name):
            if key in self._limiters:
                model = Limited(model, self._limiters[key])
        return model


def _checked(limit: object) -> RateLimit:
    if isinstance(limit, RateLimit):
        return limit
    raise InvalidArgument(
        f"a limit must be a RateLimit, got {type(limit).__name__}",
        hint="use RateLimit(requests_per_minute=60)",
    )
