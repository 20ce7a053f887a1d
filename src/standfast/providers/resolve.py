"""Lookup of a model's provider by name, imported on demand. `model_id` is such a name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from standfast.errors import InvalidArgument, ProviderUnavailable
from standfast.ports.model_provider import ModelProvider
from standfast.providers.fallback import PREFIX, SEPARATOR, Fallback, fallback_name
from standfast.providers.scripted import ScriptedModel
from standfast.providers.vendors import VENDORS, base_url_of

DEMO: Final = "scripted:demo"
_FORM: Final = (
    "use 'anthropic:MODEL', 'openai:MODEL', 'google:MODEL', 'openai-compatible:MODEL@BASE_URL', "
    "'scripted:FILE' with a .json or .jsonl script, 'demo', or pass a model of your own"
)
_LIST: Final = "list models with `standfast models`"
_CLASSES: Final = {"openai": "OpenAIModel", "anthropic": "AnthropicModel", "google": "GoogleModel"}


def resolve_model(model: str | ModelProvider | Sequence[str | ModelProvider]) -> ModelProvider:
    """Return the provider of a name, a provider unchanged, or a `Fallback` over a list of models."""
    if isinstance(model, str):
        return _named(model)
    if isinstance(model, (list, tuple)):
        return Fallback(*(resolve_model(one) for one in model))
    if not callable(getattr(model, "stream", None)):
        raise InvalidArgument(
            f"a model must be a name or have a method `stream`, got {type(model).__name__}", hint=_FORM
        )
    return cast(ModelProvider, model)


def _named(model: str) -> ModelProvider:
    if model.startswith(PREFIX):
        return Fallback(*(_named(one) for one in model.removeprefix(PREFIX).split(SEPARATOR)))
    provider, _, name = DEMO.partition(":") if model == "demo" else model.partition(":")
    if not name.strip():
        raise _unknown(model)
    if provider == "scripted" and name == "demo":
        return ScriptedModel.from_file(Path(__file__).with_name("demo.json"), name="demo")
    if provider == "scripted":
        return ScriptedModel.from_file(name)
    if provider in _CLASSES:
        opened: ModelProvider = getattr(import_module(f"standfast.providers.{provider}"), _CLASSES[provider])(
            name
        )
        return opened
    vendor = VENDORS.get(provider)
    if vendor is None:
        raise _unknown(model)
    from standfast.providers.openai_compatible import OpenAICompatibleModel, split_name

    if vendor.speaks_chat:
        return OpenAICompatibleModel(name, base_url_of(vendor), provider=provider)
    return OpenAICompatibleModel(*split_name(name))


def one_of(models: Sequence[str | ModelProvider]) -> str | ModelProvider:
    """Combine several models into one: a name if all of them are names."""
    if not models:
        raise InvalidArgument("the list of models is empty", hint=_FORM)
    if len(models) == 1:
        return models[0]
    names = [one for one in models if isinstance(one, str)]
    return fallback_name(names) if len(names) == len(models) else resolve_model(models)


def _unknown(model: str) -> InvalidArgument | ProviderUnavailable:
    """Return an error that suggests similar names, or the name with its missing provider."""
    provider, colon, name = model.partition(":")
    close: list[str] = []
    if not colon and provider:
        from standfast.providers.catalog import providers_of  # needed for this error only

        close = [f"{one}:{model}" for one in providers_of(model)]
    if not close:
        similar = difflib.get_close_matches(provider, ("scripted", *VENDORS), n=2)
        close = [f"{one}:{name or 'MODEL'}" for one in similar]
    hint = f"did you mean {' or '.join(map(repr, close))}? {_LIST}" if close else f"{_FORM}; {_LIST}"
    message = f"{model[:80]!r} is not the name of a model"
    if provider and name and provider not in ("scripted", *VENDORS):
        return ProviderUnavailable(provider[:80], message, hint=hint)
    return InvalidArgument(message, hint=hint)
