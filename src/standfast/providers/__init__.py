"""Model providers, and what a model of your own needs. A name is loaded when it is first used.

`resolve` finds a provider by its name. `openai`, `openai_compatible`, `anthropic` and `google` are vendors,
in folders with the same four files (`request`, `reply_reader`, `errors`, `model`) over `http`. `scripted`
replays a script. `recorded`, `cached`, `fallback` and `rate_limit` are models around other models. `catalog`
says what a model can do, `vendors` where the vendors are and which variables hold their keys.
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
