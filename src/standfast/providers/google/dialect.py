"""Gemini's dialect: `streamGenerateContent` with server-sent events.

Rules
-----
1. The key is in a header. The address, which ends up in logs, never has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from standfast.providers.google.complaint import complaint_of
from standfast.providers.google.reply_reader import GeminiReader
from standfast.providers.google.request_body import request_body
from standfast.providers.http.dialect import Asked, Complaint, HttpCall, ReplyReader


class GoogleDialect:
    """A `Dialect`."""

    provider = "google"

    def call(self, asked: Asked, /) -> HttpCall:
        name = quote(asked.model if "/" in asked.model else f"models/{asked.model}")
        return HttpCall(f"/v1beta/{name}:streamGenerateContent?alt=sse", request_body(asked))

    def reader(self, asked: Asked, /) -> ReplyReader:
        return GeminiReader(asked)

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"x-goog-api-key": key}

    def complaint(self, status: int, body: bytes, /) -> Complaint:
        return complaint_of(status, body)
