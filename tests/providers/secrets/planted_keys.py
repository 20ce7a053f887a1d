"""Keys in every provider's format, their models, and a search for them in everything that was written.

Rule: a key is searched for in every form that it could take on its way: unchanged, escaped for URLs, JSON,
HTML and Python, in base64, in hexadecimal digits, in any case, and cut off after its first 20 characters.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus

from standfast import AnthropicModel, GoogleModel, OpenAICompatibleModel, OpenAIModel
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel
from standfast.testing.servers.anthropic_server import AnthropicServer
from standfast.testing.servers.chat_server import ChatServer
from standfast.testing.servers.google_server import GoogleServer
from standfast.testing.servers.http_server import ModelServer
from standfast.testing.servers.openai_server import OpenAIServer

JWT = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJwbGFudGVkIiwiaWF0IjoxNTE2MjM5MDIyfQ"
    ".SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
)
SPECIAL = r'k+y/with=.*?(all)[the]^$|{2}%2F\d"quoted"&<marks>~\'; -- 0123456789'.replace(" ", "_")


@dataclass(frozen=True)
class Planting:
    """A key, with its model and server. The model's name is in the form that agents use."""

    label: str
    key: str = field(repr=False)
    server: Callable[[Any], ModelServer]
    provider: str
    model: str
    key_variable: str
    url_variable: str = ""

    def by_parameter(self, base_url: str, deadlines: Deadlines | None = None) -> HttpModel:
        if self.provider == "openai-compatible":
            return OpenAICompatibleModel(self.model, base_url, api_key=self.key, deadlines=deadlines)
        kind = {"openai": OpenAIModel, "anthropic": AnthropicModel, "google": GoogleModel}[self.provider]
        return kind(self.model, api_key=self.key, base_url=base_url, deadlines=deadlines)

    def named(self, base_url: str) -> str:
        """Return the model's name, for users who have the key in the environment."""
        return f"{self.provider}:{self.model}" + ("" if self.url_variable else f"@{base_url}")

    def environment(self, base_url: str) -> dict[str, str]:
        found = {self.key_variable: self.key}
        return {**found, self.url_variable: base_url} if self.url_variable else found

    def error_event(self, message: str) -> bytes:
        """Return an error in the middle of a stream, in the vendor's format."""
        error = {"message": message, "type": "server_error", "code": "server_error"}
        event: dict[str, Any]
        match self.provider:
            case "openai":
                event = {"type": "error", "sequence_number": 0, **error, "param": None} | {"type": "error"}
            case "anthropic":
                event = {"type": "error", "error": {"type": "api_error", "message": message}}
            case "google":
                event = {"error": {"code": 500, "status": "INTERNAL", "message": message}}
            case _:
                event = {"error": error}
        return b"event: error\ndata: %s\n\n" % json.dumps(event).encode()


def _openai(label: str, key: str) -> Planting:
    return Planting(label, key, OpenAIServer, "openai", "gpt-5", "OPENAI_API_KEY", "OPENAI_BASE_URL")


def _anthropic(label: str, key: str) -> Planting:
    name = "claude-sonnet-4-5"
    return Planting(label, key, AnthropicServer, "anthropic", name, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")


def _google(label: str, key: str, variable: str = "GEMINI_API_KEY") -> Planting:
    name = "gemini-2.5-flash"
    return Planting(label, key, GoogleServer, "google", name, variable, "GOOGLE_GEMINI_BASE_URL")


def _compatible(label: str, key: str) -> Planting:
    return Planting(label, key, ChatServer, "openai-compatible", "llama3.2:3b", "OPENAI_COMPATIBLE_API_KEY")


PLANTINGS = [
    _openai("openai project key", "sk-proj-Pl4nt3d_" + "aB3-xY9_" * 16 + "T3BlbkFJ-end0"),
    _openai("openai key with special characters", SPECIAL),
    _anthropic("anthropic", "sk-ant-api03-Pl4nt3d-" + "Qw7_eR2-" * 10 + "AAA"),
    _anthropic("anthropic key with special characters", SPECIAL),
    _google("gemini", "AIzaSyPl4nt3d-0123456789_abcdefghijklmno"),
    _google("google key with special characters", SPECIAL, "GOOGLE_API_KEY"),
    _compatible("groq", "gsk_Pl4nt3d" + "Zx81" * 11),
    _compatible("openrouter", "sk-or-v1-" + "0badc0de" * 8),
    _compatible("bearer token", JWT),
    _compatible("compatible key with special characters", SPECIAL),
]


def forms_of(key: str) -> dict[str, str]:
    """Return the possible forms of the key, by name, in lower case."""
    plain = {
        "plain": key,
        "cut off": key[:20],
        "in a URL": quote(key, safe=""),
        "in a query": quote_plus(key),
        "in JSON": json.dumps(key)[1:-1],
        "in HTML": html.escape(key),
        "in Python": repr(key)[1:-1],
        "in bytes": repr(key.encode())[2:-1],
        "in hex": key.encode().hex(),
    }
    shifted = (base64.b64encode(b"\0" * shift + key.encode()).decode() for shift in range(3))
    coded = {f"in base64, {shift}": text[4:-4] for shift, text in enumerate(shifted)}
    return {name: form.lower() for name, form in {**plain, **coded}.items()}


def found_in(written: str | bytes, key: str) -> list[str]:
    """Return the forms in which the key occurs in the text."""
    text = written.decode("latin-1") if isinstance(written, bytes) else written
    text = text.lower()
    return [name for name, form in forms_of(key).items() if form in text]
