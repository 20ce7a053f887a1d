"""Claude, over Anthropic's Messages API."""

from __future__ import annotations

import os
from typing import Final

from standfast.errors import NotConfigured
from standfast.providers.anthropic.dialect import AnthropicDialect
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel

BASE_URL: Final = "https://api.anthropic.com"
KEY_VARIABLE: Final = "ANTHROPIC_API_KEY"
URL_VARIABLE: Final = "ANTHROPIC_BASE_URL"


class AnthropicModel(HttpModel):
    """A `ModelProvider` of the Messages API.

    The key is `api_key` or ANTHROPIC_API_KEY; the server `base_url`, ANTHROPIC_BASE_URL or the vendor's own.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        key = api_key or os.environ.get(KEY_VARIABLE)
        if not key:
            raise NotConfigured(
                f"anthropic:{model} needs a key, and {KEY_VARIABLE} is not set",
                hint=f"set {KEY_VARIABLE}, or pass api_key",
            )
        super().__init__(
            AnthropicDialect(),
            model,
            base_url=base_url or os.environ.get(URL_VARIABLE) or BASE_URL,
            api_key=key,
            deadlines=deadlines,
            key_hint=f"the key is api_key, or {KEY_VARIABLE}",
        )
