"""The interface between the HTTP layer and a vendor's wire format.

Rules
-----
1. A dialect does no I/O and keeps no state between calls: it turns a request into a body, and events into
   deltas.
2. A reply reader yields exactly one `ReplyEnded`, for the vendor's own terminal event. A stream that ends
   without it was cut off.
3. A reader raises `ModelError` for data that it needs and cannot read; it skips unknown data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from standfast.errors import TurnCode
from standfast.model.canonical import Json
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.providers.settings import ModelSettings


class ServerEvent(NamedTuple):
    """One server-sent event: its name, or "", and its data lines joined with LF."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A POST of a JSON body to a path below the base URL. The HTTP layer adds the key to the headers."""

    path: str
    body: dict[str, Json]
    headers: Mapping[str, str] = field(default_factory=dict)


class ErrorReport(NamedTuple):
    """An error in the vendor's own words. `retryable` is None if the HTTP status decides."""

    message: str
    code: str = TurnCode.PROVIDER_ERROR
    retryable: bool | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request with everything that a dialect needs to write it.

    `media` holds the bytes of every attachment by digest. Only reasoning with the same `origin` is sent back;
    the reader stores `origin` in the reasoning of the reply.
    """

    model: str
    request: ModelRequest
    settings: ModelSettings
    media: Mapping[str, bytes]
    origin: str


class ReplyReader(Protocol):
    """Converts the events of one reply into deltas."""

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        """Return the deltas of *event*; raise `ModelError` if it reports a failure or cannot be read."""


class Dialect(Protocol):
    provider: str
    """The part of a model's id before the colon."""

    def call(self, prepared: PreparedRequest, /) -> HttpCall:
        """Encode the request; raise `InvalidArgument` if the vendor has no form for it."""

    def reader(self, prepared: PreparedRequest, /) -> ReplyReader: ...

    def authorize(self, key: str, /) -> Mapping[str, str]:
        """Return the headers that carry *key*."""

    def read_error(self, status: int, body: bytes, /) -> ErrorReport:
        """Parse the body of an error response."""
