"""`standfast models`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from standfast.providers.vendors import VENDORS
from standfast.testing.servers.chat_server import ChatServer

KEY = "sk-planted-0123456789"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODELS", raising=False)
    for vendor in VENDORS.values():
        for name in (*vendor.key_variables, vendor.url_variable):
            if name:
                monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_the_list_shows_configured_providers_and_never_a_key(
    standfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the variable is named, its value is not; nor is a password in a URL."""
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://user:{KEY}@localhost:8000/v1?key={KEY}")
    document = standfast("models", "--json").document
    found = {one["name"]: one for one in document["providers"]}
    assert (found["google"]["configured"], found["google"]["key"]) == (True, "GOOGLE_API_KEY")
    assert (found["anthropic"]["configured"], found["anthropic"]["key"]) == (False, None)
    assert found["anthropic"]["base_url"] == "http://localhost:8000/v1"
    assert found["anthropic"]["base_url_from"] == "ANTHROPIC_BASE_URL"
    assert found["ollama"]["configured"]
    ran = standfast("models")
    assert ran.status == 0
    assert "from GOOGLE_API_KEY" in ran.stdout
    assert "not set: OPENAI_API_KEY" in ran.stdout
    assert KEY not in ran.stdout + json.dumps(document) + standfast("doctor").stdout


def test_a_model_is_described_with_its_provider(standfast: Any) -> None:
    """Ours: the context window, tools and reasoning are shown, and what is missing to use the model."""
    document = standfast("models", "anthropic:claude-sonnet-4-5", "--json").document
    assert (document["info"]["window"], document["info"]["tools"]) == (200_000, True)
    assert document["provider"]["configured"] is False
    shown = standfast("models", "anthropic:claude-sonnet-4-5").stdout
    assert "200,000" in shown
    assert "not set: ANTHROPIC_API_KEY" in shown


def test_a_provider_is_shown_with_its_models(standfast: Any) -> None:
    """Ours: the list can be restricted to a provider."""
    document = standfast("models", "google", "--json").document
    assert [one["name"] for one in document["providers"]] == ["google"]
    assert all(one["name"].startswith("google:") for one in document["models"])


def test_an_unknown_model_is_an_error_with_close_names(standfast: Any) -> None:
    """Ours: the hint says that the model may still work."""
    ran = standfast("models", "gpt-5", "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
    assert "openai:gpt-5" in ran.document["error"]["hint"]
    ran = standfast("models", "anthropic:claude-sonet-4-5")
    assert ran.status == 1
    assert "did you mean anthropic:claude-sonnet-4" in ran.stderr


@pytest.mark.slow
def test_a_custom_catalog_is_used(standfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: `--catalog` or the variable names it; an invalid file is a usage error; the doctor reports it."""
    path = tmp_path / "models.json"
    path.write_text('{"models": [{"name": "mine:*", "window": 4096}]}')
    words = ("models", "mine:model", "--json")
    assert standfast(*words, "--catalog", str(path)).document["info"] == {"name": "mine:*", "window": 4096}
    assert standfast(*words).status == 1
    monkeypatch.setenv("STANDFAST_MODELS", str(path))
    assert standfast(*words).document["provider"] is None
    assert _models_of(standfast)[-1]["detail"] == f"catalog {path} from STANDFAST_MODELS"
    path.write_text("{")
    assert standfast(*words, "--catalog", str(path)).status == 2
    assert standfast(*words).status == 1
    ran = standfast("doctor", "--json")
    assert (ran.status, [one["name"] for one in ran.document["checks"] if not one["ok"]]) == (1, ["models"])


@pytest.mark.slow
def test_the_doctor_has_a_line_for_each_provider_with_a_key(
    standfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a provider without a key is not an error."""
    details = [one["detail"] for one in _models_of(standfast)]
    assert details == ["no provider has a key; scripted models need none"]
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    details = [one["detail"] for one in _models_of(standfast)]
    assert details == [
        "openai: key from OPENAI_API_KEY, https://api.openai.com/v1",
        "openai-compatible: key from OPENAI_COMPATIBLE_API_KEY",
    ]


def _models_of(standfast: Any) -> list[dict[str, Any]]:
    checks = standfast("doctor", "--json").document["checks"]
    return [check for check in checks if check["name"] == "models"]


def test_a_chat_with_a_model_without_a_key_is_a_usage_error(standfast: Any) -> None:
    """Ours: the error names the variable, and no session is created."""
    ran = standfast("chat", "--model", "anthropic:claude-sonnet-4-5", "Hi")
    assert ran.status == 2
    assert "ANTHROPIC_API_KEY" in ran.stderr


@contextmanager
def serving(*replies: str) -> Iterator[ChatServer]:
    """Start a server on its own thread, because commands have their own event loops."""
    begun, ended, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    server = ChatServer(replies)

    async def serve() -> None:
        async with server:
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(10)
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


@pytest.mark.slow
def test_a_chat_with_a_compatible_server_continues_from_its_session_alone(standfast: Any) -> None:
    """Ours: the session remembers the model's name, base URL included."""
    with serving("Hello.", "Good bye.") as server:
        name = f"openai-compatible:llama3.2:3b@{server.base_url}"
        first = standfast("chat", "--model", name, "--session", "s", "Hi")
        assert (first.status, first.stdout.strip()) == (0, "Hello.")
        second = standfast("chat", "--session", "s", "Bye")
        assert (second.status, second.stdout.strip()) == (0, "Good bye.")
        assert [len(request.body["messages"]) for request in server.requests] == [1, 3]
        assert name in standfast("sessions", "show", "s", "--json").stdout
