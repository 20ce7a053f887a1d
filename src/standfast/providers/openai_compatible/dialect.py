"""Chat Completions, as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from standfast.providers.http.dialect import Asked, Complaint, HttpCall
from standfast.providers.openai_compatible.complaint import complaint_of
from standfast.providers.openai_compatible.hosts import Host
from standfast.providers.openai_compatible.reply_reader import ChatReader
from standfast.providers.openai_compatible.request_body import body_of

PROVIDER: Final = "openai-compatible"


class ChatDialect:
    """What is said to one host, and what it answers."""

    def __init__(self, host: Host, provider: str = PROVIDER) -> None:
        self.host = host
        self.provider = provider

    def call(self, asked: Asked, /) -> HttpCall:
        return HttpCall(path="/chat/completions", body=body_of(asked, self.host))

    def reader(self, asked: Asked, /) -> ChatReader:
        return ChatReader(asked)

    def authorize(self, key: str, /) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"}

    def complaint(self, status: int, body: bytes, /) -> Complaint:
        return complaint_of(status, body)
