"""From names to models, and back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from standfast import Agent, Runtime
from standfast.errors import InvalidArgument, ProviderMismatch, ProviderUnavailable, ProviderUnconfigured
from standfast.ports.model_provider import ModelProvider
from standfast.providers.fallback import Fallback
from standfast.providers.http.model import HttpModel
from standfast.providers.resolve import resolve_model
from standfast.providers.vendors import VENDORS, status_of

KEY = "sk-test-0123456789abcdef"
NAMES = [
    "openai:gpt-5",
    "anthropic:claude-sonnet-4-5",
    "google:gemini-2.5-pro",
    "groq:openai/gpt-oss-120b",
    "openrouter:anthropic/claude-sonnet-4.5:beta",
    "deepseek:deepseek-chat",
    "mistral:mistral-large-latest",
    "ollama:llama3.2:3b",
    "openai-compatible:llama3.2:3b@http://localhost:8000/v1",
    "scripted:demo",
    "fallback:anthropic:claude-sonnet-4-5|openai-compatible:m@http://localhost:8000/v1",
]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in VENDORS.values():
        for name in (*vendor.key_variables, vendor.url_variable):
            if name:
                monkeypatch.delenv(name, raising=False)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a key for every provider."""
    for vendor in VENDORS.values():
        for name in vendor.key_variables:
            monkeypatch.setenv(name, KEY)


def close(model: ModelProvider) -> None:
    asyncio.run(model.close())


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("name", NAMES)
def test_the_name_recorded_in_a_session_resolves_to_the_same_model(name: str) -> None:
    """Ours: another process resumes a session with only the name."""
    model = resolve_model(name)
    again = resolve_model(model.model_id)
    assert model.model_id == again.model_id == name
    assert type(model) is type(again)
    assert KEY not in repr(model) + repr(vars(model))
    if isinstance(model, HttpModel):
        assert isinstance(again, HttpModel)
        assert (model.base_url, model.model) == (again.base_url, again.model)
    close(model)
    close(again)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "vendor", [one for one in VENDORS.values() if one.base_url], ids=lambda one: one.name
)
def test_the_table_of_vendors_shows_base_urls_and_keys(
    vendor: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: `standfast models` shows the effective base URLs and keys."""
    name = getattr(vendor, "name")  # noqa: B009
    model = resolve_model(f"{name}:m")
    assert isinstance(model, HttpModel)
    assert model.base_url == status_of(VENDORS[name]).base_url
    if VENDORS[name].url_variable:
        monkeypatch.setenv(VENDORS[name].url_variable, "http://127.0.0.1:9/v1")
        moved = resolve_model(f"{name}:m")
        assert isinstance(moved, HttpModel)
        assert moved.base_url == "http://127.0.0.1:9/v1"
        assert status_of(VENDORS[name]).base_url_from == VENDORS[name].url_variable


@pytest.mark.parametrize(
    "vendor", [one for one in VENDORS.values() if one.needs_key], ids=lambda one: one.name
)
def test_a_model_without_its_key_names_the_missing_variable(vendor: object) -> None:
    """Ours: the hint names the variable."""
    name = getattr(vendor, "name")  # noqa: B009
    with pytest.raises(ProviderUnconfigured) as raised:
        resolve_model(f"{name}:m")
    assert VENDORS[name].key_variables[0] in str(raised.value)


@pytest.mark.parametrize("name", ["", "gpt", "mine:model", ":", "fallback:", "anthropic: "])
def test_a_malformed_name_is_refused_with_the_expected_form(name: str) -> None:
    """Ours: the error shows the right form."""
    with pytest.raises(
        (InvalidArgument, ProviderUnavailable),
        match=r"is not the name of a model.*(scripted:FILE|did you mean)",
    ):
        resolve_model(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("antropic:claude-opus-5", "'anthropic:claude-opus-5'"),
        ("openai", "'openai:MODEL'"),
        ("scripted:", "'scripted:MODEL'"),
        ("gpt-5", "'openai:gpt-5'"),
        ("claude-sonnet-4-5", "'anthropic:claude-sonnet-4-5'"),
        ("gemini-2.5-pro", "'google:gemini-2.5-pro'"),
        ("openai-compatable:m@http://localhost/v1", "'openai-compatible:m@http://localhost/v1'"),
    ],
)
def test_a_name_that_is_almost_right_gets_a_suggestion(name: str, meant: str) -> None:
    """Ours: the user made a typing mistake, or left out the provider."""
    with pytest.raises((InvalidArgument, ProviderUnavailable)) as raised:
        resolve_model(name)
    assert f"did you mean {meant}" in (raised.value.hint or "")


@pytest.mark.parametrize("name", ["openai-compatible:m", "openai-compatible:@http://localhost/v1"])
def test_a_compatible_model_must_name_its_server(name: str) -> None:
    """Ours: an unknown server has no default."""
    with pytest.raises(InvalidArgument, match="MODEL@BASE_URL"):
        resolve_model(name)


def test_a_list_is_a_fallback_over_its_models() -> None:
    """Ours: names and models may be mixed."""
    model = resolve_model("scripted:demo")
    several = resolve_model([model, "ollama:llama3.2"])
    assert isinstance(several, Fallback)
    assert several.models[0] is model
    assert several.model_id == "fallback:scripted:demo|ollama:llama3.2"


def test_a_session_continues_under_its_short_name_but_not_with_another_provider(tmp_path: Path) -> None:
    """Seed: ProviderMismatch. Ours: the name before the colon is compared."""

    async def main() -> None:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = await runtime.session("s", agent=Agent("scripted:demo"))
            await session.turn("hello")
        async with Runtime(tmp_path / "standfast.db") as runtime:
            with pytest.raises(ProviderMismatch):
                await runtime.session("s", agent=Agent("ollama:llama3.2"))
            await runtime.session("s", agent=Agent("scripted:demo"))

    asyncio.run(main())


@pytest.mark.slow
def test_a_providers_code_is_imported_only_when_it_is_named() -> None:
    """Ours: importing all providers would take seconds."""
    program = (
        "import sys, standfast; from standfast import Agent, Runtime, Recorded, Cached, Fallback, Limited;"
        "from standfast.providers.resolve import resolve_model; resolve_model('demo'); Agent(['a:b', 'c:d']);"
        "bad = [m for m in sys.modules if m.startswith(('httpx2', 'standfast.providers.openai',"
        "'standfast.providers.anthropic', 'standfast.providers.google', 'standfast.providers.http'))];"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
