"""What a vendor's wire format has to tell the layer that speaks HTTP.

Rules
-----
1. A dialect does no I/O: it makes a body of a request, and deltas of events. It keeps nothing between calls.
2. A reader yields exactly one `ReplyEnded`, for the vendor's own terminal event; whatever else ends the
   stream has cut it off.
3. What a reader cannot make sense of and needs is a `ModelError`; what it does not know and does not need, it
   passes over.
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
    """One event of a stream: its name, empty if it has none, and its data, several lines joined."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class HttpCall:
    """What is sent: below the base URL, as JSON. The headers hold no key; the layer adds that."""

    path: str
    body: dict[str, Json]
    headers: Mapping[str, str] = field(default_factory=dict)


class Complaint(NamedTuple):
    """What a vendor said was wrong. `retryable` is None where the status tells."""

    message: str
    code: str = TurnCode.PROVIDER_ERROR
    retryable: bool | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with everything that a dialect needs to write it down.

    `media` holds the bytes of every attachment by digest. `origin` is what reasoning must have come from to
    be sent back, and what the reader writes into the reasoning of the reply.
    """

    model: str
    request: ModelRequest
    settings: ModelSettings
    media: Mapping[str, bytes]
    origin: str


class ReplyReader(Protocol):
    """Makes deltas of one reply's events."""

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        """What the event brings; `ModelError` if it tells of a failure or makes no sense."""


class Dialect(Protocol):
    provider: str
    """As in `provider:model`."""

    def call(self, asked: Asked, /) -> HttpCall:
        """The request as this vendor wants it; `InvalidArgument` or `ModelError` if that cannot be."""

    def reader(self, asked: Asked, /) -> ReplyReader: ...

    def authorize(self, key: str, /) -> Mapping[str, str]:
        """The headers that a key is sent in."""

    def complaint(self, status: int, body: bytes, /) -> Complaint:
        """What a refusal says."""
