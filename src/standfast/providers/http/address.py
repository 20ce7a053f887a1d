"""Where a model is served, and the key that opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from standfast.errors import InvalidArgument
from standfast.providers.http.dialect import HttpCall
from standfast.providers.http.secret import Secret


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is served, and what is shown to get in."""

    base_url: str
    secret: Secret
    authorize: Callable[[str], Mapping[str, str]]

    def __post_init__(self) -> None:
        parts = _parts_of(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _no_base_url(self.base_url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidArgument(
                "a base URL has no user, query or fragment", hint="a key is passed as `api_key`"
            )

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}/{path.lstrip('/')}"

    def headers(self, call: HttpCall) -> dict[str, str]:
        key = self.authorize(self.secret.reveal()) if self.secret else {}
        return {"content-type": "application/json", **key, **call.headers}


def _parts_of(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _no_base_url(url) from None


def _no_base_url(url: str) -> InvalidArgument:
    """What was given is shown if it looks like an address: it may be a key that went astray."""
    looks_so = any(sign in url for sign in ":/") and not any(sign in url for sign in "@?#")
    given = repr(url[:200]) if looks_so else "what was given"
    return InvalidArgument(f"{given} is no base URL", hint="it begins with https:// or http://")
