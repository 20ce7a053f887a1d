"""How Anthropic's Messages API is spoken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from standfast.providers.anthropic.complaints import answered
from standfast.providers.anthropic.reply_reader import MessagesReader
from standfast.providers.anthropic.request_body import body_of
from standfast.providers.http.dialect import Asked, Complaint, HttpCall, ReplyReader

VERSION: Final = "2023-06-01"
"""The version of the API. Later ones take no temperature from any model."""


class AnthropicDialect:
    """A `Dialect`: requests, replies and complaints of the Messages API."""

    provider = "anthropic"

    def call(self, asked: Asked, /) -> HttpCall:
        return HttpCall("/v1/messages", body_of(asked), {"anthropic-version": VERSION})

    def reader(self, asked: Asked, /) -> ReplyReader:
        return MessagesReader(asked.origin)

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"x-api-key": key}

    def complaint(self, status: int, body: bytes, /) -> Complaint:
        return answered(status, body)
