"""OpenAI's Responses API, told to the layer that speaks HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from standfast.providers.http.dialect import Asked, Complaint, HttpCall
from standfast.providers.openai.complaints import refusal
from standfast.providers.openai.reply_reader import ResponseReader
from standfast.providers.openai.request_body import request_body


class ResponsesDialect:
    """How OpenAI is asked, and how its answers are read."""

    provider = "openai"

    def call(self, asked: Asked) -> HttpCall:
        return HttpCall("/responses", request_body(asked))

    def reader(self, asked: Asked) -> ResponseReader:
        return ResponseReader(origin=asked.origin, model=asked.model)

    def authorize(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def complaint(self, status: int, body: bytes) -> Complaint:
        return refusal(body)
