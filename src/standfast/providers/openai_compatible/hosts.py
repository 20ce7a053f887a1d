"""Who serves Chat Completions, by their host: where the key is, and what they want otherwise.

Rules
-----
1. A key of one host is never sent to another, nor in the clear.
2. A host that is not in the table is taken for a local server: it gets what most of them take.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from standfast.errors import InvalidArgument, NotConfigured

ANY_HOST: Final = "OPENAI_COMPATIBLE_API_KEY"


@dataclass(frozen=True, slots=True)
class Host:
    """One who serves models.

    asks_usage: takes `stream_options`. json_schema: takes `response_format` with a schema. schema_with_tools:
    takes it beside tools; most others refuse that, or never call a tool again. nine_letter_ids: a call's id
    is nine letters or digits. reasoning_object: takes `reasoning`, which may be a number of tokens.
    """

    domain: str = ""
    key_variable: str = ""
    max_tokens: str = "max_tokens"
    seed: str = "seed"
    asks_usage: bool = True
    json_schema: bool = True
    schema_with_tools: bool = False
    cache_key: bool = False
    top_k: bool = True
    nine_letter_ids: bool = False
    reasoning_object: bool = False


_HOSTS: Final = (
    Host(
        domain="api.openai.com",
        key_variable="OPENAI_API_KEY",
        max_tokens="max_completion_tokens",
        schema_with_tools=True,
        cache_key=True,
        top_k=False,
    ),
    Host(
        domain="openrouter.ai",
        key_variable="OPENROUTER_API_KEY",
        schema_with_tools=True,
        reasoning_object=True,
    ),
    Host(domain="api.groq.com", key_variable="GROQ_API_KEY", top_k=False),
    Host(domain="api.deepseek.com", key_variable="DEEPSEEK_API_KEY", json_schema=False, top_k=False),
    Host(
        domain="api.mistral.ai",
        key_variable="MISTRAL_API_KEY",
        seed="random_seed",
        asks_usage=False,
        top_k=False,
        nine_letter_ids=True,
    ),
    Host(domain="api.together.xyz", key_variable="TOGETHER_API_KEY"),
    Host(domain="api.together.ai", key_variable="TOGETHER_API_KEY"),
    Host(domain="api.fireworks.ai", key_variable="FIREWORKS_API_KEY"),
)
_LOCAL: Final = Host()


def host_of(base_url: str) -> Host:
    """What is known of who serves the URL. A subdomain of a host is that host."""
    name = (urlsplit(base_url).hostname or "").rstrip(".").lower()
    for host in _HOSTS:
        if name == host.domain or name.endswith(f".{host.domain}"):
            return host
    return _LOCAL


def key_for(base_url: str, given: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key to send there: the one given, the host's own, the one for any host, or none."""
    host = host_of(base_url)
    if host.domain and not base_url.lower().startswith("https:"):
        raise InvalidArgument(f"{host.domain} is only asked over https, so that nobody reads the key")
    key = given or environment.get(host.key_variable) or environment.get(ANY_HOST)
    if not key and host.domain:
        raise NotConfigured(
            f"there is no key for {host.domain}", hint=f"set {host.key_variable}, or pass api_key"
        )
    return key or None
