"""`MODEL@BASE_URL`: which model, and who serves it.

Rules
-----
1. The base URL starts at the last `@http`; whatever is before it is the model, `/`, `:` and `@` included.
2. A base URL holds no user, password, query or fragment: it is recorded, and paths are put behind it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

from standfast.errors import InvalidArgument

_FORM: Final = "use MODEL@BASE_URL, as in llama3.2:3b@http://localhost:11434/v1"
_ENDPOINT: Final = "/chat/completions"


def split_name(name: str) -> tuple[str, str]:
    """The model and the base URL in *name*."""
    at = name.rfind("@http")
    if at < 0:
        raise InvalidArgument(f"{name[:80]!r} does not say who serves the model", hint=_FORM)
    if not name[:at].strip():
        raise InvalidArgument(f"{name[:80]!r} does not say which model", hint=_FORM)
    return name[:at], checked_base_url(name[at + 1 :])


def checked_base_url(text: str) -> str:
    """The base URL as it is recorded: without a slash at its end, and without the path of the call itself."""
    parts = _parts_of(text)
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("a base URL holds no user and no password", hint="pass the key as api_key")
    if parts.query or parts.fragment:
        raise InvalidArgument("a base URL has no query and no fragment", hint=_FORM)
    return text.rstrip("/").removesuffix(_ENDPOINT).rstrip("/")


def _parts_of(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = None
    if not known or any(char.isspace() or not char.isprintable() for char in text):
        raise InvalidArgument("the base URL is not an http:// or https:// URL with a host", hint=_FORM)
    return parts
