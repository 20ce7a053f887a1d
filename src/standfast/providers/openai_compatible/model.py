"""A model behind a Chat Completions endpoint.

Rules
-----
1. Once the model has said all, the reply is whole. The count of tokens is waited for, but not for long: a
   connection that breaks off or stays silent then costs the count and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import cast

from standfast.errors import InvalidArgument, ModelError
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel
from standfast.providers.openai_compatible.dialect import PROVIDER, ChatDialect
from standfast.providers.openai_compatible.hosts import ANY_HOST, host_of, key_for
from standfast.providers.openai_compatible.name import checked_base_url
from standfast.providers.openai_compatible.reply_reader import Finished


class OpenAICompatibleModel(HttpModel):
    """A model that some server has under *base_url*, such as `http://localhost:11434/v1`.

    The key is the one passed, that of the host (`OPENROUTER_API_KEY`, `GROQ_API_KEY`, ...), or
    `OPENAI_COMPATIBLE_API_KEY`; a server that nobody knows may need none. With a `provider` of its own, the
    model's id is `provider:model`, without the URL.
    """

    usage_within_s: float = 5.0
    """How long the count of tokens may take after the last word."""

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        provider: str = PROVIDER,
    ) -> None:
        if not model.strip():
            raise InvalidArgument("the model has no name")
        address = checked_base_url(base_url)
        host = host_of(address)
        super().__init__(
            ChatDialect(host, provider),
            model,
            base_url=address,
            api_key=key_for(address, api_key),
            deadlines=deadlines,
            model_id=f"{PROVIDER}:{model}@{address}" if provider == PROVIDER else None,
            key_hint=f"the key is that of {host.key_variable or ANY_HOST}, or passed as api_key",
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        async with aclosing(cast("AsyncGenerator[ModelDelta]", super().stream(request))) as deltas:
            async for delta in deltas:
                if type(delta) is Finished:
                    for last in await self._last(deltas, delta):
                        yield last
                    return
                yield delta

    async def _last(self, deltas: AsyncIterator[ModelDelta], finished: Finished) -> Sequence[ModelDelta]:
        """What is left of a reply that is finished."""
        left: list[ModelDelta] = []
        try:
            async with asyncio.timeout(self.usage_within_s):
                async for delta in deltas:
                    left.append(delta)
                    if type(delta) is ReplyEnded:
                        break
        except (TimeoutError, ModelError):
            return [*left, *finished.end()]
        return left
