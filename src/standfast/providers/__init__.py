"""Model providers, and the parts for writing your own. A name is loaded on first use.

`resolve` finds a provider by its name. `openai`, `openai_compatible`, `anthropic` and `google` are vendors,
in folders with the same four files (`request`, `reply_reader`, `errors`, `model`) over `http`. `scripted`
replays a script. `recorded`, `cached`, `fallback` and `rate_limit` wrap other models. `catalog` describes the
capabilities of models; `vendors` has the vendors' URLs and the variables that hold their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.ports.model_provider": (
            "ModelDelta ModelProvider ModelRequest ReasoningArrived ReplyEnded TextArrived"
        ),
        "standfast.providers.catalog": "describe",
        "standfast.providers.http.deadlines": "Deadlines",
        "standfast.providers.settings": "ModelSettings",
    },
)

if TYPE_CHECKING:
    from standfast.ports.model_provider import ModelDelta as ModelDelta
    from standfast.ports.model_provider import ModelProvider as ModelProvider
    from standfast.ports.model_provider import ModelRequest as ModelRequest
    from standfast.ports.model_provider import ReasoningArrived as ReasoningArrived
    from standfast.ports.model_provider import ReplyEnded as ReplyEnded
    from standfast.ports.model_provider import TextArrived as TextArrived
    from standfast.providers.catalog import describe as describe
    from standfast.providers.http.deadlines import Deadlines as Deadlines
    from standfast.providers.settings import ModelSettings as ModelSettings
