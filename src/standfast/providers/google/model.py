"""The models of Google's Gemini API."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from standfast.providers.google.errors import read_error
from standfast.providers.google.reply_reader import GoogleReplyReader
from standfast.providers.google.request import request_body
from standfast.providers.http.dialect import HttpCall, PreparedRequest
from standfast.providers.http.model import VendorModel


class GoogleDialect:
    """`streamGenerateContent` with server-sent events. The key is in a header: URLs end up in logs."""

    provider = "google"

    def call(self, prepared: PreparedRequest, /) -> HttpCall:
        name = quote(prepared.model if "/" in prepared.model else f"models/{prepared.model}")
        return HttpCall(f"/v1beta/{name}:streamGenerateContent?alt=sse", request_body(prepared))

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"x-goog-api-key": key}

    reader = GoogleReplyReader
    read_error = staticmethod(read_error)


class GoogleModel(VendorModel):
    """Gemini: `api_key`, GEMINI_API_KEY or GOOGLE_API_KEY; `base_url` or GOOGLE_GEMINI_BASE_URL."""

    dialect = GoogleDialect()
    name_prefix = "models/"
