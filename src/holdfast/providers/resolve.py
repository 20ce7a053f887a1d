"""From a model's name, as agents and sessions have it, to the provider that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.errors import InvalidArgument, NotConfigured
from holdfast.ports.model_provider import ModelProvider
from holdfast.providers.scripted import ScriptedModel

_FORM: Final = "use 'scripted:FILE' with a .json or .jsonl script, 'demo', or pass a model of your own"
_ABSENT: Final = ("openai", "anthropic", "google", "openai-compatible")


def resolve_model(model: str | ModelProvider) -> ModelProvider:
    """The provider of that name; what is a provider already is returned as it is."""
    if not isinstance(model, str):
        if not callable(getattr(model, "stream", None)):
            raise InvalidArgument(
                f"a model is a name or has `stream`, not {type(model).__name__}", hint=_FORM
            )
        return model
    provider, colon, name = model.partition(":")
    if model == "demo" or (provider == "scripted" and name == "demo"):
        return ScriptedModel.from_file(Path(__file__).with_name("demo.json"), name="demo")
    if provider == "scripted" and name:
        return ScriptedModel.from_file(name)
    if colon and provider in _ABSENT:
        raise NotConfigured(f"provider {provider!r} is not part of this release", hint=_FORM)
    raise InvalidArgument(f"{model[:80]!r} names no model", hint=_FORM)
