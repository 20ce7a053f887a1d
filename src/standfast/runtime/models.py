"""The models that a runtime has opened, what they cost, and the limits that its sessions share."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from standfast.ports.clock import Clock
from standfast.ports.model_provider import ModelProvider

if TYPE_CHECKING:
    from standfast.providers.prices import Prices, PriceTable
    from standfast.providers.rate_limit import RateLimit


class OpenModels:
    """Opens models by name. Models in *shared*, if it is given, are used and never closed."""

    def __init__(
        self, shared: dict[str, ModelProvider] | None, limited: Callable[[ModelProvider], ModelProvider]
    ) -> None:
        self._shared = shared
        self._opened: dict[str, ModelProvider] = {}
        self.limited = limited

    def named(self, name: str) -> ModelProvider:
        """The model of this name, opened once."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = self.limited(self._resolve(name))
        return found

    def _resolve(self, name: str) -> ModelProvider:
        from standfast.providers.resolve import resolve_model

        if self._shared is None:
            return resolve_model(name)
        if name not in self._shared:
            self._shared[name] = resolve_model(name)
        return self._shared[name]

    async def close(self) -> None:
        """Close what was opened here; raise the first error when all are closed."""
        opened, self._opened = {} if self._shared is not None else self._opened, {}
        errors = []
        for model in opened.values():
            try:
                await model.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def open_prices(given: Prices | PriceTable | str | os.PathLike[str] | None) -> Prices:
    """The prices of a table or of a file, or as they are."""
    from standfast.providers.prices import Prices

    return given if isinstance(given, Prices) else Prices(given)


def shared_limits(
    limits: Mapping[str, RateLimit] | None, clock: Clock, sleep: Callable[[float], Awaitable[None]]
) -> Callable[[ModelProvider], ModelProvider]:
    """Return what puts models behind the limits that all sessions share."""
    if not limits:
        return lambda model: model
    from standfast.providers.rate_limit import SharedLimits

    return SharedLimits(limits, clock=clock, sleep=sleep).around
