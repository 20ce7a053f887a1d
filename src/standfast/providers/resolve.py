"""From a model's name, as agents and sessions have it, to the provider that serves it.

Rules
-----
1. The `model_id` of whatever is made here names it again: `resolve_model(model.model_id)` is the same model.
2. A provider's code is imported when one of its models is named, not before.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from standfast.errors import InvalidArgument
from standfast.ports.model_provider import ModelProvider
from standfast.providers.fallback import PREFIX, SEPARATOR, Fallback, fallback_name
from standfast.providers.scripted import ScriptedModel
from standfast.providers.vendors import VENDORS, base_url_of

DEMO: Final = "scripted:demo"
_FORM: Final = (
    "use 'anthropic:MODEL', 'openai:MODEL', 'google:MODEL', 'openai-compatible:MODEL@BASE_URL', "
    "'scripted:FILE' with a .json or .jsonl script, 'demo', or pass a model of your own"
)
_LIST: Final = "`standfast models` lists what there is"


def resolve_model(model: str | ModelProvider | Sequence[str | ModelProvider]) -> ModelProvider:
    """The provider of that name; what is a provider already is returned as it is.

    A list of models is a `Fallback` over them.
    """
    if isinstance(model, str):
        return _named(model)
    if isinstance(model, (list, tuple)):
        return Fallback(*(resolve_model(one) for one in model))
    if not callable(getattr(model, "stream", None)):
        raise InvalidArgument(f"a model is a name or has `stream`, not {type(model).__name__}", hint=_FORM)
    return cast(ModelProvider, model)


def _named(model: str) -> ModelProvider:
    if model.startswith(PREFIX):
        return Fallback(*(_named(one) for one in model.removeprefix(PREFIX).split(SEPARATOR)))
    provider, _, name = DEMO.partition(":") if model == "demo" else model.partition(":")
    opener = _OPENERS.get(provider)
    if opener is None or not name.strip():
        raise _unknown(model)
    return opener(name)


def one_of(models: Sequence[str | ModelProvider]) -> str | ModelProvider:
    """Several models as one that an agent can have: a name if all of them are names."""
    if not models:
        raise InvalidArgument("a list of models has at least one", hint=_FORM)
    if len(models) == 1:
        return models[0]
    names = [one for one in models if isinstance(one, str)]
    return fallback_name(names) if len(names) == len(models) else resolve_model(models)


def _scripted(name: str) -> ModelProvider:
    if name == "demo":
        return ScriptedModel.from_file(Path(__file__).with_name("demo.json"), name="demo")
    return ScriptedModel.from_file(name)


def _openai(name: str) -> ModelProvider:
    from standfast.providers.openai import OpenAIModel

    return OpenAIModel(name)


def _anthropic(name: str) -> ModelProvider:
    from standfast.providers.anthropic import AnthropicModel

    return AnthropicModel(name)


def _google(name: str) -> ModelProvider:
    from standfast.providers.google import GoogleModel

    return GoogleModel(name)


def _openai_compatible(name: str) -> ModelProvider:
    from standfast.providers.openai_compatible import OpenAICompatibleModel, split_name

    return OpenAICompatibleModel(*split_name(name))


def _by_short_name(provider: str) -> Callable[[str], ModelProvider]:
    """What is compatible and known by name needs no base URL."""

    def open_model(name: str) -> ModelProvider:
        from standfast.providers.openai_compatible import OpenAICompatibleModel

        return OpenAICompatibleModel(name, base_url_of(VENDORS[provider]), provider=provider)

    return open_model


_OPENERS: Final[dict[str, Callable[[str], ModelProvider]]] = {
    "scripted": _scripted,
    "openai": _openai,
    "anthropic": _anthropic,
    "google": _google,
    "openai-compatible": _openai_compatible,
    **{name: _by_short_name(name) for name, vendor in VENDORS.items() if vendor.speaks_chat},
}


def _unknown(model: str) -> InvalidArgument:
    close = _close_to(model)
    hint = f"did you mean {' or '.join(map(repr, close))}? {_LIST}" if close else f"{_FORM}; {_LIST}"
    return InvalidArgument(f"{model[:80]!r} names no model", hint=hint)


def _close_to(model: str) -> list[str]:
    """Names like this one: with a provider that is spelled almost so, or with the one that was left out."""
    provider, colon, name = model.partition(":")
    if not colon and provider:
        from standfast.providers.catalog import providers_of  # only whoever is in trouble needs it

        found = [f"{one}:{model}" for one in providers_of(model)]
        return found or [f"{one}:MODEL" for one in difflib.get_close_matches(model, _OPENERS, n=2)]
    return [f"{one}:{name or 'MODEL'}" for one in difflib.get_close_matches(provider, _OPENERS, n=2)]
