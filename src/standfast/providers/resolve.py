"""Finds the provider of a model by the model's name.

Rules
-----
1. `resolve_model(model.model_id)` is the same model.
2. A provider's code is imported when one of its models is named, not before.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib import import_module
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
    """Return the provider of a name, a provider unchanged, and a `Fallback` over a list of models."""
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
    """Return several models as one: as a name if all of them are names."""
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


def _vendor_model(folder: str, class_name: str) -> Callable[[str], ModelProvider]:
    def open_model(name: str) -> ModelProvider:
        model: ModelProvider = getattr(import_module(f"standfast.providers.{folder}"), class_name)(name)
        return model

    return open_model


def _openai_compatible(name: str) -> ModelProvider:
    from standfast.providers.openai_compatible import OpenAICompatibleModel, split_name

    return OpenAICompatibleModel(*split_name(name))


def _by_short_name(provider: str) -> Callable[[str], ModelProvider]:
    def open_model(name: str) -> ModelProvider:
        from standfast.providers.openai_compatible import OpenAICompatibleModel

        return OpenAICompatibleModel(name, base_url_of(VENDORS[provider]), provider=provider)

    return open_model


_OPENERS: Final[dict[str, Callable[[str], ModelProvider]]] = {
    "scripted": _scripted,
    "openai": _vendor_model("openai", "OpenAIModel"),
    "anthropic": _vendor_model("anthropic", "AnthropicModel"),
    "google": _vendor_model("google", "GoogleModel"),
    "openai-compatible": _openai_compatible,
    **{name: _by_short_name(name) for name, vendor in VENDORS.items() if vendor.speaks_chat},
}


def _unknown(model: str) -> InvalidArgument:
    """Return an error that suggests names with a similar provider, or with the one that was left out."""
    provider, colon, name = model.partition(":")
    close: list[str] = []
    if not colon and provider:
        from standfast.providers.catalog import providers_of  # needed for this error only

        close = [f"{one}:{model}" for one in providers_of(model)]
    if not close:
        similar = difflib.get_close_matches(provider, _OPENERS, n=2)
        close = [f"{one}:{name or 'MODEL'}" for one in similar]
    hint = f"did you mean {' or '.join(map(repr, close))}? {_LIST}" if close else f"{_FORM}; {_LIST}"
    return InvalidArgument(f"{model[:80]!r} names no model", hint=hint)
