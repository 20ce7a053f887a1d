"""The catalogue of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standfast.errors import InvalidArgument
from standfast.providers.catalog import ModelInfo, describe, load_catalog, providers_of


@pytest.fixture(autouse=True)
def _no_user_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODELS", raising=False)


def written(path: Path, *models: dict[str, object]) -> Path:
    path.write_text(json.dumps({"models": models}))
    return path


@pytest.mark.parametrize(
    ("model", "entry"),
    [
        ("anthropic:claude-sonnet-4-5-20250929", "anthropic:claude-sonnet-4-5*"),
        ("anthropic:claude-sonnet-4-20250514", "anthropic:claude-sonnet-4*"),
        ("openai:gpt-5-mini", "openai:gpt-5*"),
        ("openai:gpt-5.4-mini-2026-03-17", "openai:gpt-5.4-mini*"),
        ("google:gemini-2.5-pro", "google:gemini-2.5-pro*"),
        ("openrouter:anthropic/claude-sonnet-4.5", "anthropic:claude-sonnet-4-5*"),
        ("openrouter:openai/gpt-5.4", "openai:gpt-5.4*"),
        ("groq:meta-llama/Llama-4-scout-17b-16e-instruct", "llama-4*"),
        ("ollama:llama3.2:3b", "llama3.2*"),
        ("openai-compatible:openai/gpt-oss-120b@http://localhost:8000/v1", "gpt-oss*"),
    ],
)
def test_a_model_is_found_by_its_family_whichever_host_serves_it(model: str, entry: str) -> None:
    """Ours: the longest matching name is the most specific."""
    found = describe(model)
    assert found is not None
    assert found.name == entry
    assert found.window is not None


@pytest.mark.parametrize(
    "model", ["scripted:demo", "openai:llama-3.3", "gpt-5", "", "mine:model", "fallback:a|b"]
)
def test_an_unknown_model_has_no_entry(model: str) -> None:
    """Ours: nothing is guessed, and a vendor's own provider has only its own models."""
    assert describe(model) is None


def test_the_catalog_has_a_date_and_every_entry_has_a_context_window() -> None:
    """Ours: outdated data must show its age."""
    catalog = load_catalog()
    assert catalog.as_of == "2026-11"
    assert all(entry.window for entry in catalog.entries.values())
    assert {name.partition(":")[0] for name in catalog.entries} >= {"openai", "anthropic", "google"}


def test_a_users_file_adds_and_overrides_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: unset fields stay unchanged."""
    path = written(
        tmp_path / "models.json",
        {"name": "mine:model*", "window": 4096, "tools": False},
        {"name": "openai:gpt-5*", "window": 1},
    )
    assert describe("mine:model-2", catalog=path) == ModelInfo(name="mine:model*", window=4096, tools=False)
    monkeypatch.setenv("STANDFAST_MODELS", str(path))
    changed = describe("openai:gpt-5-mini")
    assert changed is not None
    assert (changed.window, changed.max_output, changed.tools) == (1, 128_000, True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file"),
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"models": [{"window": 5}]}', "name"),
        ('{"models": [{"name": "a:b", "windw": 5}]}', "windw"),
        ('{"models": [{"name": "a:b", "window": "5"}]}', "window"),
        (b"\xff", "catalog"),
    ],
)
def test_an_invalid_catalog_file_is_refused_with_its_path_and_the_problem(
    tmp_path: Path, content: str | bytes | None, complaint: str
) -> None:
    """Ours: the error shows the user where the mistake is."""
    path = tmp_path / "models.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidArgument, match=complaint) as raised:
        load_catalog(path)
    assert str(path) in raised.value.message


def test_a_bare_name_resolves_to_its_vendor() -> None:
    """Ours: hints suggest the full name."""
    assert providers_of("gpt-5") == ["openai"]
    assert providers_of("claude-opus-5") == ["anthropic"]
    assert providers_of("llama-3.3-70b") == []
