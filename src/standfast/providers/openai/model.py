"""`openai:MODEL`: a model of OpenAI's, or of anybody who serves the Responses API."""

from __future__ import annotations

import os
from typing import Final

from standfast.errors import NotConfigured
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel
from standfast.providers.openai.dialect import ResponsesDialect

_BASE_URL: Final = "https://api.openai.com/v1"


class OpenAIModel(HttpModel):
    """Asks OpenAI. The key is `OPENAI_API_KEY` and the address `OPENAI_BASE_URL`, unless they are given."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        key = api_key or os.environ.get("OPENAI_API_KEY")
        if not key:
            raise NotConfigured(
                "OpenAI needs a key", hint="set OPENAI_API_KEY, or pass OpenAIModel(..., api_key=...)"
            )
        super().__init__(
            ResponsesDialect(),
            model,
            base_url=base_url or os.environ.get("OPENAI_BASE_URL") or _BASE_URL,
            api_key=key,
            deadlines=deadlines,
            key_hint="is OPENAI_API_KEY, or the key that was passed, right?",
        )
