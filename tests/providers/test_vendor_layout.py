"""Every vendor's folder has the same layout, so that a contributor who knows one knows all."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import standfast.providers
from standfast.providers.http.dialect import ReplyReader
from standfast.providers.http.model import HttpModel
from standfast.providers.vendors import VENDORS

FOLDERS = [found.name for found in pkgutil.iter_modules(standfast.providers.__path__) if found.ispkg]
CLASS_NAMES = {
    "anthropic": "Anthropic",
    "google": "Google",
    "openai": "OpenAI",
    "openai_compatible": "OpenAICompatible",
}


def test_every_folder_but_the_shared_one_is_a_vendor() -> None:
    """Ours: a new vendor must be added here, so that the tests below check its layout."""
    assert sorted(FOLDERS) == sorted([*CLASS_NAMES, "http"])
    assert {name.replace("_", "-") for name in CLASS_NAMES} <= VENDORS.keys()


@pytest.mark.parametrize("folder", CLASS_NAMES)
def test_a_vendor_folder_has_the_same_four_files(folder: str) -> None:
    """Ours: one file writes requests, one reads replies, one reads errors, one is the model."""
    package = importlib.import_module(f"standfast.providers.{folder}")
    assert [found.name for found in pkgutil.iter_modules(package.__path__)] == [
        "errors",
        "model",
        "reply_reader",
        "request",
    ]


@pytest.mark.parametrize(("folder", "name"), CLASS_NAMES.items())
def test_the_same_function_has_the_same_name_in_every_vendor_folder(folder: str, name: str) -> None:
    """Ours: a reader of one vendor's code finds the counterpart in another's by its name."""
    modules = {
        part: importlib.import_module(f"standfast.providers.{folder}.{part}")
        for part in ("errors", "model", "reply_reader", "request")
    }
    assert next(iter(inspect.signature(modules["request"].request_body).parameters)) == "prepared"
    assert list(inspect.signature(modules["errors"].read_error).parameters) == ["status", "body"]
    assert callable(modules["errors"].stream_error)
    reader = getattr(modules["reply_reader"], f"{name}ReplyReader")
    assert list(inspect.signature(reader).parameters) == ["prepared"]
    assert (
        inspect.signature(reader.feed).parameters.keys()
        == inspect.signature(ReplyReader.feed).parameters.keys()
    )
    assert {"call", "reader", "authorize", "read_error"} <= vars(
        getattr(modules["model"], f"{name}Dialect")
    ).keys()
    model = getattr(modules["model"], f"{name}Model")
    assert issubclass(model, HttpModel)
    package = importlib.import_module(f"standfast.providers.{folder}")
    assert getattr(package, model.__name__) is model
