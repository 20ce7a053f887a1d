"""Several models in order of preference: after a failed call, the next attempt goes to the next model.

The attempt number selects the model, so a turn that another process takes over resumes with the right one.
Each switch is a failed attempt like any other: journaled, counted, its streamed text retracted.

Rules
-----
1. A failure of any model but the last is retryable immediately. The last model's failure is passed on; if it
   is retryable, the first model is next.
2. A context overflow is passed on. The turn can shorten its context, which helps every model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from standfast.errors import InvalidArgument, ModelError, StandfastError, TurnCode
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded, open_stream

PREFIX: Final = "fallback:"
SEPARATOR: Final = "|"


class Fallback:
    """The first of *models* that answers. As names: `Agent(model=["a:b", "c:d"])`."""

    def __init__(self, *models: ModelProvider) -> None:
        members: list[ModelProvider] = []
        for model in models:
            if isinstance(model, str) or not callable(getattr(model, "stream", None)):
                raise InvalidArgument(
                    f"a fallback consists of models, got {type(model).__name__}",
                    hint='for names: resolve_model(["a:b", "c:d"]), or Agent(model=["a:b", "c:d"])',
                )
            members += model.models if isinstance(model, Fallback) else (model,)
        if not members:
            raise InvalidArgument("a fallback needs at least one model")
        self.models: tuple[ModelProvider, ...] = tuple(members)
        self.model_id = fallback_name([model.model_id for model in self.models])

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        place = (request.attempt - 1) % len(self.models)
        model = self.models[place]
        provider = model.model_id.partition(":")[0]
        try:
            async with open_stream(model, request) as deltas:
                async for delta in deltas:
                    if isinstance(delta, ReplyEnded) and not delta.model.startswith(f"{provider}:"):
                        served = f"{provider}:{delta.model}" if delta.model else model.model_id
                        yield msgspec.structs.replace(delta, model=served)
                    else:
                        yield delta
        except Exception as error:
            problem = error
            if not isinstance(problem, StandfastError):
                problem = ModelError(f"{type(error).__name__}: {error}")
            elif problem.code == TurnCode.CONTEXT_OVERFLOW:
                raise
            has_successor = place + 1 < len(self.models)
            raise ModelError(
                f"{model.model_id}: {problem.message}",
                code=problem.code,
                retryable=has_successor or problem.retryable,
                retry_after_ms=0 if has_successor else getattr(problem, "retry_after_ms", None),
                hint=problem.hint,
            ) from error

    async def close(self) -> None:
        """Close all models, then raise the first error."""
        errors = []
        for model in self.models:
            try:
                await model.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        return f"<Fallback {self.model_id}>"


def fallback_name(names: list[str]) -> str:
    """Return the combined name of several models, which `resolve_model` parses."""
    for name in names:
        if SEPARATOR in name:
            raise InvalidArgument(
                f"{name[:80]!r} cannot be one of several models: it has {SEPARATOR!r} in it"
            )
    return PREFIX + SEPARATOR.join(names)
