"""A model behind a Chat Completions endpoint.

Rules
-----
1. In `MODEL@BASE_URL` the base URL starts at the last `@http`; the model may contain `/`, `:` and `@`.
2. A base URL has no user, password, query or fragment: it is recorded, and paths are appended to it.
3. The key of one host is never sent to another, nor without TLS.
4. Once the model has finished, the reply is complete. The token count is awaited only briefly: if the
   connection breaks or stays silent, the reply lacks the count and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final, cast
from urllib.parse import urlsplit

from standfast.errors import InvalidArgument, ModelError, ProviderUnconfigured
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import HttpCall, PreparedRequest
from standfast.providers.http.model import HttpModel
from standfast.providers.openai_compatible.errors import read_error
from standfast.providers.openai_compatible.reply_reader import OpenAICompatibleReplyReader, ReplyFinished
from standfast.providers.openai_compatible.request import ChatHost, host_of, request_body

PROVIDER: Final = "openai-compatible"
_PATH: Final = "/chat/completions"
_ANY_HOST_KEY: Final = "OPENAI_COMPATIBLE_API_KEY"
_FORM: Final = "use MODEL@BASE_URL, as in llama3.2:3b@http://localhost:11434/v1"


class OpenAICompatibleDialect:
    """Chat Completions of one host as a `Dialect`."""

    def __init__(self, host: ChatHost, provider: str = PROVIDER) -> None:
        self.host = host
        self.provider = provider

    def call(self, prepared: PreparedRequest, /) -> HttpCall:
        return HttpCall(_PATH, request_body(prepared, self.host))

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"}

    reader = OpenAICompatibleReplyReader
    read_error = staticmethod(read_error)


class OpenAICompatibleModel(HttpModel):
    """A model that a server provides under *base_url*, such as `http://localhost:11434/v1`.

    The key is `api_key`, that of the host (`OPENROUTER_API_KEY`, `GROQ_API_KEY`, ...), or
    `OPENAI_COMPATIBLE_API_KEY`; an unknown server may need none. With a `provider` of its own, the model's id
    is `provider:model`, without the URL.
    """

    usage_within_s: float = 5.0
    """The time limit for the token count after the end of the text."""

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        provider: str = PROVIDER,
    ) -> None:
        if not model.strip():
            raise InvalidArgument("the model has no name", hint=_FORM)
        base_url = checked_base_url(base_url)
        host = host_of(base_url)
        super().__init__(
            OpenAICompatibleDialect(host, provider),
            model,
            base_url=base_url,
            api_key=key_for(base_url, api_key),
            deadlines=deadlines,
            model_id=f"{PROVIDER}:{model}@{base_url}" if provider == PROVIDER else None,
            key_hint=f"the key is that of {host.key_variable or _ANY_HOST_KEY}, or passed as api_key",
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        async with aclosing(cast("AsyncGenerator[ModelDelta]", super().stream(request))) as deltas:
            async for delta in deltas:
                if type(delta) is not ReplyFinished:
                    yield delta
                    continue
                rest: list[ModelDelta] = []
                try:
                    async with asyncio.timeout(self.usage_within_s):
                        async for last in deltas:
                            rest.append(last)
                            if type(last) is ReplyEnded:
                                break
                except (TimeoutError, ModelError):
                    rest += delta.end()
                for last in rest:
                    yield last
                return


def split_name(name: str) -> tuple[str, str]:
    """Split `MODEL@BASE_URL`."""
    at = name.rfind("@http")
    if at < 0:
        raise InvalidArgument(f"{name[:80]!r} has no base URL", hint=_FORM)
    if not name[:at].strip():
        raise InvalidArgument(f"{name[:80]!r} has no model name", hint=_FORM)
    return name[:at], checked_base_url(name[at + 1 :])


def checked_base_url(text: str) -> str:
    """Return the base URL in its recorded form: without a trailing slash and without the path of the call."""
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = None
    if not known or any(char.isspace() or not char.isprintable() for char in text):
        raise InvalidArgument("the base URL is not an http:// or https:// URL with a host", hint=_FORM)
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(
            "a base URL must not contain a user or a password", hint="pass the key as api_key"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument("a base URL must not have a query or a fragment", hint=_FORM)
    return text.rstrip("/").removesuffix(_PATH).rstrip("/")


def key_for(base_url: str, given: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the key to send: *given*, the host's own, the one for any host, or None."""
    host = host_of(base_url)
    if host.domain and not base_url.lower().startswith("https:"):
        raise InvalidArgument(f"{host.domain} is only called over https, which protects the key")
    key = given or environment.get(host.key_variable) or environment.get(_ANY_HOST_KEY)
    if not key and host.domain:
        raise ProviderUnconfigured(
            f"there is no key for {host.domain}", hint=f"set {host.key_variable}, or pass api_key"
        )
    return key or None
