"""A model behind a rate limit, alone or shared with others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from standfast.errors import InvalidArgument, ModelError
from standfast.ports.clock import Clock
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.providers.fallback import Fallback
from standfast.providers.rate_limit import Limiter, RateLimit, Sleep
from standfast.providers.request_digest import estimated_tokens
from standfast.providers.resolve import resolve_model
from standfast.providers.wrapper import ModelWrapper, open_stream

__all__ = ["Limited", "RateLimit", "SharedLimits"]


class Limited(ModelWrapper):
    """A model behind a rate limit: `Limited("openai:gpt-5", RateLimit(concurrency=4))`.

    Several models share a limit if they get the same `Limiter`. If the provider asks for a pause, all models
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
    """The limits of a runtime, by a provider's name or a model's id."""

    def __init__(
        self,
        limits: Mapping[str, RateLimit],
        *,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
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
        f"a limit is a RateLimit, not {type(limit).__name__}", hint="use RateLimit(requests_per_minute=60)"
    )
