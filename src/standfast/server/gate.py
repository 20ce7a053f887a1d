"""Checks that precede authentication: Host, Origin, and the browser's fetch metadata.

Rules
-----
1. Host must be a name of this server. This prevents DNS rebinding.
2. An Origin must be the server's own, or one that the operator allowed (`--allow-origin`).
3. A browser's request without Origin must be marked as same-origin (`Sec-Fetch-Site`, or `Referer` where
   browsers do not send it). A missing Origin never exempts it.
4. A state-changing request with a cookie must have the header `Standfast-Request`, which another site's form
   cannot send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from standfast.errors import Code, RequestRefused
from standfast.server.problems import forbidden

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER: Final = "standfast-request"
_ALLOWED_HEADERS: Final = (
    "a2a-version, authorization, content-type, idempotency-key, last-event-id, prefer, standfast-request"
)


class OriginGate:
    """The host names of this server and the origins that may use it."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def check(self, method: str, headers: Mapping[str, str], scheme: str, *, navigable: bool = False) -> None:
        """Raise `RequestRefused` unless the request is for this server and from an allowed origin.

        Other sites may link to a *navigable* page.
        """
        host = headers.get("host", "")
        if host_name(host) not in self._hosts and host.lower() not in self._hosts:
            raise RequestRefused(
                421,
                Code.PERMISSION_DENIED,
                f"{host[:100]!r} is not a name of this server",
                hint="the operator adds names with --allow-host",
            )
        origin = headers.get("origin")
        if origin is not None:
            if not self._is_allowed(origin.lower(), scheme, host):
                raise forbidden(
                    f"origin {origin[:100]!r} is not allowed", "the operator adds origins with --allow-origin"
                )
        elif _from_browser(headers) and not self._is_same_origin(method, headers, scheme, navigable):
            raise forbidden("a browser's request must come from a page of this server", "send Origin")

    def check_cookie(
        self, method: str, headers: Mapping[str, str], scheme: str, *, navigable: bool = False
    ) -> None:
        """Raise `RequestRefused` if another site may have made this request with our cookie.

        Other sites may link to a *navigable* page: it changes nothing, and they cannot read it.
        """
        if method not in SAFE_METHODS and CSRF_HEADER not in headers:
            raise forbidden(
                "a request with a cookie needs the header Standfast-Request", "send Standfast-Request: 1"
            )
        if navigable and not _from_browser(headers):
            return  # without fetch metadata, SameSite=Lax has already decided
        if "origin" not in headers and not self._is_same_origin(method, headers, scheme, navigable):
            raise forbidden("a browser's request must come from a page of this server", "send Origin")

    def cors_headers(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        """Return the headers that let a page of an allowed other origin read the response."""
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"location, retry-after"),
            (b"vary", b"origin"),
        ]

    def preflight_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that answer an allowed origin's preflight request."""
        return {
            "access-control-allow-methods": "GET, POST, PUT, DELETE",
            "access-control-allow-headers": _ALLOWED_HEADERS,
            "access-control-max-age": "600",
        }

    def _is_allowed(self, origin: str, scheme: str, host: str) -> bool:
        return origin == f"{scheme}://{host.lower()}" or origin in self._origins

    def _is_same_origin(self, method: str, headers: Mapping[str, str], scheme: str, navigable: bool) -> bool:
        site = headers.get("sec-fetch-site")
        if site is not None:
            if navigable and headers.get("sec-fetch-mode") == "navigate" and method in SAFE_METHODS:
                return True
            return method in SAFE_METHODS and site in ("same-origin", "none")
        try:
            referer = urlsplit(headers.get("referer", ""))
        except ValueError:
            return False
        return bool(referer.netloc) and self._is_allowed(
            f"{referer.scheme}://{referer.netloc}".lower(), scheme, headers.get("host", "")
        )


def host_name(host: str) -> str:
    """Return a Host header without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _from_browser(headers: Mapping[str, str]) -> bool:
    return "sec-fetch-site" in headers  # Node's fetch sends `Sec-Fetch-Mode` alone, browsers send both
