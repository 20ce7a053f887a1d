"""The models of Google's Gemini API."""

from __future__ import annotations

import os
from typing import Final

from standfast.errors import NotConfigured
from standfast.providers.google.dialect import GoogleDialect
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel

BASE_URL: Final = "https://generativelanguage.googleapis.com"
_KEY_HINT: Final = "set GEMINI_API_KEY (or GOOGLE_API_KEY), or pass api_key"


class GoogleModel(HttpModel):
    """A model by its name, such as `gemini-3-flash-preview`.

    The key is passed, or in `GEMINI_API_KEY` or `GOOGLE_API_KEY`; the base URL is passed, in
    `GOOGLE_GEMINI_BASE_URL`, or Google's own. It has no version in it.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        super().__init__(
            GoogleDialect(),
            model.removeprefix("models/"),
            base_url=base_url or os.environ.get("GOOGLE_GEMINI_BASE_URL") or BASE_URL,
            api_key=api_key or _key_around(),
            deadlines=deadlines,
            key_hint=_KEY_HINT,
        )


def _key_around() -> str:
    key = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
    if not key:
        raise NotConfigured("there is no GEMINI_API_KEY for Google's models", hint=_KEY_HINT)
    return key
