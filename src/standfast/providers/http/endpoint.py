"""The server of a model, and its key.

Rule: no `repr`, `str` or format of a secret contains it, and it cannot be copied into a record or pickled.
Every text about a call passes through `Secret.scrub` before it leaves this package.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn
from urllib.parse import quote, quote_plus, urlsplit

from standfast.errors import InvalidArgument, ProviderUnconfigured
from standfast.providers.http.dialect import HttpCall

_SHOWN: Final = "[key]"
_MIN_SECRET_CHARS: Final = 8
"""A shorter key is a placeholder for a local server; scrubbing it would only mangle ordinary words."""
_MAX_TOLD_CHARS: Final = 16
"""Vendors identify a key by fewer characters than this. More of a key must not be shown."""
_AFTER_A_CUT: Final = 8
"""The number of characters that may follow a truncated text: an ellipsis, a quote, a bracket."""


class Secret:
    """An API key, or none. Only the code that sends it calls `reveal`."""

    __slots__ = ("_forms", "_key")

    def __init__(self, key: str | None) -> None:
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ProviderUnconfigured(
                "the API key contains invalid characters", hint="check that it was copied completely"
            )
        self._key = key
        self._forms: tuple[str, ...] = ()
        if len(key) >= _MIN_SECRET_CHARS:
            in_json = json.dumps(key)[1:-1]
            in_urls = (quote(key), quote(key, safe=""), quote_plus(key))
            escaped = (in_json, in_json.replace("/", "\\/"), html.escape(key), repr(key)[1:-1])
            self._forms = tuple({key, *in_urls, *escaped})

    def __bool__(self) -> bool:
        return bool(self._key)

    def __repr__(self) -> str:
        return f"Secret({_SHOWN if self._key else ''})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    __getstate__ = __reduce__

    def reveal(self) -> str:
        return self._key

    def scrub(self, text: str) -> str:
        """Replace the key in *text*, in any escaped form and case, complete or truncated with the text."""
        spans = []
        for form in self._forms:
            for found in re.finditer(re.escape(form[:_MAX_TOLD_CHARS]), text, re.IGNORECASE):
                start = found.start()
                pairs = enumerate(zip(form, text[start : start + len(form)], strict=False))
                shared = min(len(form), len(text) - start)
                length = next(
                    (place for place, (one, other) in pairs if one.lower() != other.lower()), shared
                )
                if length == len(form) or start + length >= len(text) - _AFTER_A_CUT:
                    spans.append((start, start + length))
        clean, done = [], 0
        for start, end in sorted(spans):
            if start >= done:
                clean += [text[done:start], _SHOWN]
            done = max(done, end)
        return "".join(clean) + text[done:]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The base URL of a server, the key for it, and the function that puts the key into headers."""

    base_url: str
    secret: Secret
    authorize: Callable[[str], Mapping[str, str]]

    def __post_init__(self) -> None:
        url = self.base_url
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            # The argument may be a key passed in the wrong place: show it only if it looks like a URL.
            is_url = any(sign in url for sign in ":/") and not any(sign in url for sign in "@?#")
            given = repr(url[:200]) if is_url else "the given value"
            raise InvalidArgument(f"{given} is not a base URL", hint="it begins with https:// or http://")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidArgument("a base URL has no user, query or fragment", hint="pass a key as `api_key`")

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}/{path.lstrip('/')}"

    def headers(self, call: HttpCall) -> dict[str, str]:
        key = self.authorize(self.secret.reveal()) if self.secret else {}
        return {"content-type": "application/json", **key, **call.headers}
