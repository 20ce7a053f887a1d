"""A model behind HTTP, whatever dialect it speaks.

Theory of operation
-------------------
The dialect writes the request down and reads the events; the wire carries both. What is left is what all
vendors have in common: settings and media are looked up, the stream must end with the vendor's own last word,
and whatever fails is a `ModelError` that names no key.

Rules
-----
1. A stream that ends before its `ReplyEnded` has failed. After it nothing is read that could change it.
2. What a dialect raises passes through here and is made anew, scrubbed: vendors repeat keys in their errors,
   and nothing that is raised leads to what they sent, be it by its context or by the variables of its frames.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from standfast.errors import InvalidArgument, ModelError
from standfast.model.canonical import Json
from standfast.model.message import AttachmentPart, UserMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.providers.http.address import Address
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import Asked, Dialect, HttpCall
from standfast.providers.http.failures import explained
from standfast.providers.http.secret import Secret
from standfast.providers.http.wire import Answer, Wire
from standfast.providers.settings import ModelSettings, read_settings

__all__ = ["HttpModel", "explained"]

_FAILURES: Final = (ModelError, msgspec.MsgspecError, UnicodeError, RecursionError)
"""What a reader may raise: what the vendor tells of, and what cannot be read."""


class HttpModel:
    """A `ModelProvider` over a dialect. `key_hint` says where its key comes from."""

    def __init__(
        self,
        dialect: Dialect,
        model: str,
        *,
        base_url: str,
        api_key: str | None,
        deadlines: Deadlines | None = None,
        model_id: str | None = None,
        key_hint: str = "",
    ) -> None:
        if not model:
            raise InvalidArgument(f"a model of {dialect.provider} has a name")
        self.model_id = model_id or f"{dialect.provider}:{model}"
        self.model = model
        self.base_url = base_url.rstrip("/")
        self._dialect = dialect
        self._key_hint = key_hint
        self._secret = Secret(api_key)
        self._origin = f"{dialect.provider} {self.base_url} {model}"
        self._wire = Wire(Address(self.base_url, self._secret, dialect.authorize), deadlines=deadlines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r}, base_url={self.base_url!r})"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        asked = await self._asked(request)
        call = _with_extras(self._dialect.call(asked), asked.settings)
        read = self._dialect.reader(asked).feed
        failure, event = None, None
        async with self._wire.post(call, self._explained) as answer:
            try:
                while (events := await answer.more()) is not None:
                    for event in events:
                        for delta in read(event):
                            if type(delta) is ReplyEnded:
                                answer.heard_all()
                                yield delta
                                return
                            yield delta
            except _FAILURES as error:
                failure = self._failed(error)
        event = events = None  # vendors repeat keys, and a traceback may be shown with its variables
        raise failure or self._broken_off(answer)

    async def close(self) -> None:
        await self._wire.close()

    async def _asked(self, request: ModelRequest) -> Asked:
        return Asked(
            model=self.model,
            request=request,
            settings=read_settings(request.settings),
            media=await _media_of(request),
            origin=self._origin,
        )

    def _explained(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        clean = self._secret.scrub(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        return self._scrubbed(explained(self._dialect, status, headers, clean, key_hint=self._key_hint))

    def _failed(self, error: Exception) -> ModelError:
        """The failure as it may be told."""
        if isinstance(error, ModelError):
            return self._scrubbed(error)
        said = self._secret.scrub(str(error))
        return ModelError(f"{self.model_id} sent an event that makes no sense: {said}", retryable=True)

    def _scrubbed(self, error: ModelError) -> ModelError:
        """The error anew. The old one may lead to what the vendor sent: by its traceback, by its context."""
        scrub = self._secret.scrub
        return ModelError(
            scrub(error.message),
            code=error.code,
            retryable=error.retryable,
            retry_after_ms=error.retry_after_ms,
            hint=None if error.hint is None else scrub(error.hint),
        )

    def _broken_off(self, answer: Answer) -> ModelError:
        return ModelError(
            f"the reply of {self.model_id} broke off before its end",
            retryable=True,
            retry_after_ms=answer.retry_ms,
        )


def _with_extras(call: HttpCall, settings: ModelSettings) -> HttpCall:
    """The call with what the user adds to it as it is."""
    if not settings.extra_body and not settings.extra_headers:
        return call
    return replace(
        call,
        body=_merged(call.body, settings.extra_body),
        headers={**call.headers, **settings.extra_headers},
    )


def _merged(body: dict[str, Json], extra: dict[str, Json]) -> dict[str, Json]:
    """Both: objects are merged, lists joined, anything else is replaced."""
    merged = dict(body)
    for name, more in extra.items():
        there = merged.get(name)
        if isinstance(there, dict) and isinstance(more, dict):
            merged[name] = _merged(there, more)
        elif isinstance(there, list) and isinstance(more, list):
            merged[name] = [*there, *more]
        else:
            merged[name] = more
    return merged


async def _media_of(request: ModelRequest) -> dict[str, bytes]:
    """The bytes of every attachment, by digest."""
    media: dict[str, bytes] = {}
    for message in request.messages:
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            for part in message.content:
                if isinstance(part, AttachmentPart) and part.digest not in media:
                    media[part.digest] = await _bytes_of(part, request)
    return media


async def _bytes_of(part: AttachmentPart, request: ModelRequest) -> bytes:
    data = None if request.read_blob is None else await request.read_blob(part.digest)
    if data is None:
        raise InvalidArgument(f"the attachment {part.name or part.digest[:12]!r} is not stored")
    return data
