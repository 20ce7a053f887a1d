"""A model behind HTTP, in any dialect.

The dialect encodes the request and reads the events; `StreamClient` carries both. This module does what all
vendors have in common: it resolves settings and media, requires the vendor's terminal event, and raises every
failure as a `ModelError` without the key.

Rules
-----
1. A stream that ends before its `ReplyEnded` has failed. Nothing read after it can change the reply.
2. An error that a dialect raises is replaced by a scrubbed copy: vendors repeat keys in their errors, and
   neither the context nor the frames of the raised error may lead to the vendor's text.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import msgspec

from standfast.errors import InvalidArgument, ModelError, ProviderUnconfigured
from standfast.model.canonical import Json
from standfast.model.message import AttachmentPart, UserMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import Dialect, PreparedRequest
from standfast.providers.http.endpoint import Endpoint, Secret
from standfast.providers.http.event_stream import StreamClient
from standfast.providers.http.failures import response_error
from standfast.providers.settings import read_settings
from standfast.providers.vendors import VENDORS, base_url_of

_READ_ERRORS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The exceptions of a reply reader for data that it cannot read."""


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
            raise InvalidArgument(f'model name is empty; write "{dialect.provider}:MODEL"')
        self.model_id = model_id or f"{dialect.provider}:{model}"
        self.model = model
        self.base_url = base_url.rstrip("/")
        self._dialect = dialect
        self._key_hint = key_hint
        self._secret = Secret(api_key)
        self._origin = f"{dialect.provider} {self.base_url} {model}"
        endpoint = Endpoint(self.base_url, self._secret, dialect.authorize)
        self._client = StreamClient(endpoint, deadlines=deadlines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r}, base_url={self.base_url!r})"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        settings = read_settings(request.settings)
        media: dict[str, bytes] = {}
        for message in request.messages:
            if isinstance(message, UserMessage) and not isinstance(message.content, str):
                for part in message.content:
                    if isinstance(part, AttachmentPart) and part.digest not in media:
                        data = None if request.read_blob is None else await request.read_blob(part.digest)
                        if data is None:
                            name = part.name or part.digest[:12]
                            raise InvalidArgument(f"the attachment {name!r} is not stored")
                        media[part.digest] = data
        prepared = PreparedRequest(self.model, request, settings, media, self._origin)
        call = self._dialect.call(prepared)
        if settings.extra_body or settings.extra_headers:
            body, headers = merge_json(call.body, settings.extra_body), call.headers
            call = replace(call, body=body, headers={**headers, **settings.extra_headers})
        read = self._dialect.reader(prepared).feed
        failure, event = None, None
        async with self._client.post(call, self._response_error) as reply:
            try:
                while (events := await reply.more()) is not None:
                    for event in events:
                        for delta in read(event):
                            if type(delta) is ReplyEnded:
                                reply.mark_complete()
                                yield delta
                                return
                            yield delta
            except ModelError as error:
                failure = self._scrubbed(error)
            except _READ_ERRORS as error:
                problem = self._secret.scrub(str(error))
                failure = ModelError(f"{self.model_id} sent an invalid event: {problem}", retryable=True)
        event = events = None  # vendors repeat keys, and a traceback may be shown with its variables
        raise failure or ModelError(
            f"the reply of {self.model_id} was cut off",
            retryable=True,
            retry_after_ms=reply.retry_ms,
        )

    async def close(self) -> None:
        await self._client.close()

    def _response_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        clean = self._secret.scrub(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        return self._scrubbed(response_error(self._dialect, status, headers, clean, key_hint=self._key_hint))

    def _scrubbed(self, error: ModelError) -> ModelError:
        """Copy *error* without the key, its traceback and its context."""
        scrub = self._secret.scrub
        return ModelError(
            scrub(error.message),
            code=error.code,
            retryable=error.retryable,
            retry_after_ms=error.retry_after_ms,
            hint=None if error.hint is None else scrub(error.hint),
        )


class VendorModel(HttpModel):
    """A vendor's model. Key and base URL, unless passed, come from the variables that `VENDORS` names."""

    dialect: ClassVar[Dialect]
    name_prefix: ClassVar[str] = ""
    """A prefix that users may write before a model's name, and that is removed."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        model = model.removeprefix(self.name_prefix)
        vendor = VENDORS[self.dialect.provider]
        variables = " or ".join(vendor.key_variables)
        key = api_key or next(filter(None, map(os.environ.get, vendor.key_variables)), None)
        if not key:
            raise ProviderUnconfigured(
                f"{vendor.name}:{model} needs a key, and {variables} is not set",
                hint=f"set {variables}, or pass api_key",
            )
        super().__init__(
            self.dialect,
            model,
            base_url=base_url or base_url_of(vendor),
            api_key=key,
            deadlines=deadlines,
            key_hint=f"the key is api_key, or {variables}",
        )


def merge_json(body: dict[str, Json], extra: dict[str, Json]) -> dict[str, Json]:
    """Merge objects, concatenate lists, and let *extra* replace everything else."""
    merged = dict(body)
    for name, more in extra.items():
        there = merged.get(name)
        if isinstance(there, dict) and isinstance(more, dict):
            merged[name] = merge_json(there, more)
        elif isinstance(there, list) and isinstance(more, list):
            merged[name] = [*there, *more]
        else:
            merged[name] = more
    return merged
