"""`openai:MODEL`: a model of OpenAI, or of another server with the Responses API."""

from __future__ import annotations

from collections.abc import Mapping

from standfast.providers.http.dialect import HttpCall, PreparedRequest
from standfast.providers.http.model import VendorModel
from standfast.providers.openai.errors import read_error
from standfast.providers.openai.reply_reader import OpenAIReplyReader
from standfast.providers.openai.request import request_body


class OpenAIDialect:
    """The Responses API as a `Dialect`."""

    provider = "openai"

    def call(self, prepared: PreparedRequest, /) -> HttpCall:
        return HttpCall("/responses", request_body(prepared))

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"}

    reader = OpenAIReplyReader
    read_error = staticmethod(read_error)


class OpenAIModel(VendorModel):
    """OpenAI's Responses API: `api_key` or OPENAI_API_KEY, `base_url` or OPENAI_BASE_URL."""

    dialect = OpenAIDialect()
