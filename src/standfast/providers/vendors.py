"""The model vendors: their URLs and variables. Keys are only checked for presence, never shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec


@dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor, by the name before the colon of a model's id."""

    name: str
    base_url: str
    key_variables: tuple[str, ...] = ()
    url_variable: str = ""
    needs_key: bool = True
    speaks_chat: bool = False
    """Whether it is a short name for an `openai-compatible` server."""


class VendorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a vendor. `key` names the variable that holds the key, or is None."""

    name: str
    configured: bool
    key: str | None
    key_variables: tuple[str, ...]
    base_url: str
    base_url_from: str | None


VENDORS: Final = {
    vendor.name: vendor
    for vendor in (
        Vendor("openai", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL"),
        Vendor("anthropic", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL"),
        Vendor(
            "google",
            "https://generativelanguage.googleapis.com",
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            "GOOGLE_GEMINI_BASE_URL",
        ),
        Vendor("groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), speaks_chat=True),
        Vendor("openrouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), speaks_chat=True),
        Vendor("deepseek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), speaks_chat=True),
        Vendor("mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), speaks_chat=True),
        Vendor("ollama", "http://localhost:11434/v1", (), "OLLAMA_BASE_URL", False, speaks_chat=True),
        Vendor("openai-compatible", "", ("OPENAI_COMPATIBLE_API_KEY",), needs_key=False),
    )
}


def base_url_of(vendor: Vendor, environment: Mapping[str, str] = os.environ) -> str:
    """Return the vendor's base URL, from its variable if that is set."""
    return environment.get(vendor.url_variable) or vendor.base_url


def status_of(vendor: Vendor, environment: Mapping[str, str] = os.environ) -> VendorStatus:
    """Return the configuration of a vendor; its URL without user, password and query."""
    key = next((name for name in vendor.key_variables if environment.get(name)), None)
    try:
        parts = urlsplit(base_url_of(vendor, environment))
        url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        url = "(not a URL)"
    return VendorStatus(
        name=vendor.name,
        configured=key is not None or not vendor.needs_key,
        key=key,
        key_variables=vendor.key_variables,
        base_url=url,
        base_url_from=vendor.url_variable if environment.get(vendor.url_variable) else None,
    )
