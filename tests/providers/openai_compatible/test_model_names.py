"""Names of models, and which key is sent where."""

from __future__ import annotations

import pytest

from standfast.errors import InvalidArgument, ProviderUnconfigured
from standfast.providers.openai_compatible import OpenAICompatibleModel, split_name
from standfast.providers.openai_compatible.model import key_for
from standfast.providers.openai_compatible.request import host_of

KEYS = {
    "OPENAI_API_KEY": "key-openai",
    "OPENROUTER_API_KEY": "key-openrouter",
    "GROQ_API_KEY": "key-groq",
    "DEEPSEEK_API_KEY": "key-deepseek",
    "MISTRAL_API_KEY": "key-mistral",
    "TOGETHER_API_KEY": "key-together",
    "FIREWORKS_API_KEY": "key-fireworks",
}


@pytest.mark.parametrize(
    ("name", "model", "base_url"),
    [
        ("llama3.2:3b@http://localhost:11434/v1", "llama3.2:3b", "http://localhost:11434/v1"),
        (
            "meta-llama/Llama-3:free@https://openrouter.ai/api/v1/",
            "meta-llama/Llama-3:free",
            "https://openrouter.ai/api/v1",
        ),
        ("publisher/model@001@https://h.example/v1", "publisher/model@001", "https://h.example/v1"),
        ("odd@http://model@http://h:1/v1", "odd@http://model", "http://h:1/v1"),
        ("m@http://h/v1/chat/completions", "m", "http://h/v1"),
        ("m@http://[::1]:8080", "m", "http://[::1]:8080"),
    ],
)
def test_a_name_is_split_at_the_last_at_before_a_url(name: str, model: str, base_url: str) -> None:
    """Ours: model names contain paths, tags and versions."""
    assert split_name(name) == (model, base_url)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "llama",
        "llama@localhost:11434",
        "@http://localhost",
        "  @http://localhost",
        "m@http://",
        "m@httpx://h",
        "m@http://h:port",
        "m@http://user:pass@h/v1",
        "m@https://h/v1?key=1",
        "m@https://h/v1#x",
        "m@https://h/v 1",
    ],
)
def test_an_incomplete_name_is_refused(name: str) -> None:
    """Ours: the error shows the expected form, and repeats no password."""
    with pytest.raises(InvalidArgument) as caught:
        split_name(name)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        ("https://api.openai.com/v1", "key-openai"),
        ("https://eu.api.openai.com/v1", "key-openai"),
        ("https://openrouter.ai/api/v1", "key-openrouter"),
        ("https://API.GROQ.com/openai/v1", "key-groq"),
        ("https://api.deepseek.com", "key-deepseek"),
        ("https://api.mistral.ai/v1", "key-mistral"),
        ("https://api.together.xyz/v1", "key-together"),
        ("https://api.fireworks.ai/inference/v1", "key-fireworks"),
        ("http://localhost:11434/v1", None),
        ("https://api.openai.com.evil.example/v1", None),
        ("https://evilopenrouter.ai/v1", None),
        ("https://evil.example/api.openai.com", None),
    ],
)
def test_a_key_is_sent_only_to_its_own_host(base_url: str, key: str | None) -> None:
    """Ours: a key for one host is never sent to another."""
    assert key_for(base_url, None, KEYS) == key


def test_a_key_argument_comes_first_and_the_key_for_any_host_last() -> None:
    """Ours: keys are looked up in this order."""
    any_host = {"OPENAI_COMPATIBLE_API_KEY": "key-any"}
    assert key_for("https://api.groq.com/openai/v1", "mine", KEYS | any_host) == "mine"
    assert key_for("https://api.groq.com/openai/v1", None, KEYS | any_host) == "key-groq"
    assert key_for("http://localhost:8000/v1", None, KEYS | any_host) == "key-any"
    assert key_for("http://localhost:8000/v1", "", {}) is None


def test_a_known_host_without_a_key_names_the_variable() -> None:
    """Ours: a missing key is an error before the first call."""
    with pytest.raises(ProviderUnconfigured, match="GROQ_API_KEY"):
        key_for("https://api.groq.com/openai/v1", None, {})


def test_a_known_host_is_not_called_over_plain_http() -> None:
    """Ours: a typing mistake must not send a key unencrypted."""
    with pytest.raises(InvalidArgument, match="https"):
        key_for("http://api.openai.com/v1", "sk-secret", {})


def test_the_model_id_contains_the_url_but_no_key() -> None:
    """Ours: sessions record `openai-compatible:MODEL@BASE_URL`, or the name of a known provider."""
    model = OpenAICompatibleModel("qwen3:8b", "http://localhost:11434/v1/", api_key="sk-very-secret-1")
    assert model.model_id == "openai-compatible:qwen3:8b@http://localhost:11434/v1"
    assert "sk-very-secret-1" not in repr(model) + repr(vars(model))
    named = OpenAICompatibleModel("m", "https://api.groq.com/openai/v1", api_key="k", provider="groq")
    assert named.model_id == "groq:m"
    with pytest.raises(InvalidArgument):
        OpenAICompatibleModel(" ", "http://localhost")


def test_an_unknown_host_gets_the_most_common_settings() -> None:
    """Ours: local servers need no configuration."""
    host = host_of("http://192.168.1.7:8000/v1")
    assert (host.max_tokens, host.asks_usage, host.cache_key, host.key_variable) == (
        "max_tokens",
        True,
        False,
        "",
    )
