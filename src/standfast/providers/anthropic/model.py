"""Claude, over Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from standfast.providers.anthropic.errors import read_error
from standfast.providers.anthropic.reply_reader import AnthropicReplyReader
from standfast.providers.anthropic.request import request_body
from standfast.providers.http.dialect import HttpCall, PreparedRequest
from standfast.providers.http.model import VendorModel

API_VERSION: Final = "2023-06-01"
"""Later versions of the API accept no temperature from any model."""


class AnthropicDialect:
    """The Messages API as a `Dialect`."""

    provider = "anthropic"

    def call(self, prepared: PreparedRequest, /) -> HttpCall:
        return HttpCall("/v1/messages", request_body(prepared), {"anthropic-version": API_VERSION})

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"x-api-key": key}

    reader = AnthropicReplyReader
    read_error = staticmethod(read_error)


class AnthropicModel(VendorModel):
    """Anthropic's Messages API: `api_key` or ANTHROPIC_API_KEY, `base_url` or ANTHROPIC_BASE_URL."""

    dialect = AnthropicDialect()
