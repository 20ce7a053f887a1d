"""The tools `fetch_text` and `fetch_json`, which send GET requests to an allow-list of hosts.

Each hop of a fetch takes the same steps: the URL is parsed strictly, its host and port are looked up in the
allow-list, the name is resolved once, every resolved address is checked, and the connection is made to a
checked address, with the name only in the Host header and in TLS. A redirect starts again from the top.

The checked address is the one connected to, so a name that resolves differently a moment later has no effect.
If one of the addresses is not allowed, the whole request is refused. The environment is ignored: there is no
proxy, no netrc, and no cookies between hops.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

import msgspec

from standfast.errors import AccessDenied, Code, InvalidArgument, ToolError
from standfast.model.limits import CapabilityLimits
from standfast.tools.decorator import built_in, tool
from standfast.tools.registered_tool import RegisteredTool

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS: Final = 5
MAX_URL_CHARS: Final = 8192
_TIMEOUT_MS: Final = 10_000
DEFAULT_LIMITS: Final = CapabilityLimits(timeout_ms=_TIMEOUT_MS)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host and port, as text."""

_DEFAULT_PORT: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_BAD_IN_URL: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")
_CHARSET: Final = re.compile(
    r"utf-?8|utf-16(le|be)?|us-ascii|iso-8859-\d{1,2}|windows-125\d|shift_jis|euc-(jp|kr)|gb(k|2312|18030)|big5",
    re.IGNORECASE,
)
"""The charsets used on the web. Python supports more, some of which take quadratic time."""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NEVER_GLOBAL: Final = tuple(
    ipaddress.IPv4Network(text) for text in ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24")
)


def http_tools(
    allow_hosts: Sequence[str],
    *,
    allow_private: bool = False,
    resolve: Resolve | None = None,
    limits: CapabilityLimits = DEFAULT_LIMITS,
) -> list[RegisteredTool]:
    """Return `fetch_text` and `fetch_json` for the hosts of an allow-list.

    Args:
        allow_hosts: `example.com` for one host, `*.example.com` for its subdomains; with `:port` for that
            port, otherwise for the scheme's default. An address such as `127.0.0.1:8080` may be private.
        allow_private: whether allowed names may resolve to private addresses.
        resolve: a replacement for the system's resolver.
        limits: the limits of each of the two tools.
    """
    if isinstance(allow_hosts, str):
        raise InvalidArgument("allow_hosts must be a list of hosts, got a str", hint=f"use [{allow_hosts!r}]")
    grants = tuple(_read_grant(entry) for entry in allow_hosts)
    gate = _Gate(grants, allow_private, resolve or system_addresses)

    @tool(side_effect="network", idempotent=True, limits=limits)
    def fetch_text(url: str) -> str:
        """Fetch a URL with GET and return the text of the response.

        Args:
            url: http or https URL of an allowed host.
        """
        body = _fetch(gate, url, limits)
        return body.data.decode(body.charset, "replace")

    @tool(side_effect="network", idempotent=True, limits=limits)
    def fetch_json(url: str) -> Any:
        """Fetch a URL with GET and return the JSON value of the response.

        Args:
            url: http or https URL of an allowed host.
        """
        body = _fetch(gate, url, limits)
        try:
            return msgspec.json.decode(body.data.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolError("HTTP_ERROR", f"the response of {body.host} is not JSON: {error}") from None

    return built_in(fetch_text, fetch_json)


@dataclass(frozen=True, slots=True)
class _Grant:
    """One entry of the allow-list. With an `address`, it allows only that address."""

    host: str
    subdomains: bool
    port: int | None
    address: Address | None

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ("*." if self.subdomains else "") + host + (f":{self.port}" if self.port else "")

    def covers(self, target: _Target) -> bool:
        if target.port != (self.port or _DEFAULT_PORT[target.scheme]):
            return False
        if self.subdomains:
            return target.address is None and target.host.endswith("." + self.host)
        return target.host == self.host


@dataclass(frozen=True, slots=True)
class _Target:
    """A strictly parsed URL. `address` is set if the host is an IP address."""

    scheme: str
    host: str
    port: int
    address: Address | None
    path: str
    url: str

    def netloc(self, host: str) -> str:
        """Return *host* as in a URL, with the port unless it is the scheme's default."""
        shown = f"[{host}]" if ":" in host else host
        return shown if self.port == _DEFAULT_PORT[self.scheme] else f"{shown}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Body:
    host: str
    data: bytes
    charset: str


@dataclass(frozen=True, slots=True)
class _Gate:
    """Decides where a fetch may go."""

    grants: tuple[_Grant, ...]
    allow_private: bool
    resolve: Resolve

    def admit(self, url: str) -> tuple[_Target, list[Address]]:
        """Return the target of *url* and its addresses; raise `AccessDenied` unless all are allowed."""
        target = _read_url(url)
        if not any(grant.covers(target) for grant in self.grants):
            shown = ", ".join(grant.shown for grant in self.grants) or "none"
            raise AccessDenied(
                f"{target.host} port {target.port} is not an allowed host", hint=f"allowed hosts: {shown}"
            )
        addresses = [target.address] if target.address is not None else self._look_up(target)
        for address in addresses:
            named = replace(target, host=str(address), address=address)
            granted = any(grant.address == address and grant.covers(named) for grant in self.grants)
            public = self.allow_private or is_public(address)
            if getattr(address, "scope_id", None) or not (public or granted):
                raise AccessDenied(f"{target.host} leads to the private address {address}")
        return target, addresses

    def _look_up(self, target: _Target) -> list[Address]:
        try:
            found = [ipaddress.ip_address(text) for text in self.resolve(target.host, target.port)]
        except OSError as error:
            raise ToolError("HTTP_ERROR", f"{target.host} cannot be resolved: {error}") from None
        except ValueError:
            raise AccessDenied(f"{target.host} does not resolve to a valid address") from None
        if not found:
            raise ToolError("HTTP_ERROR", f"{target.host} has no address")
        return list(dict.fromkeys(found))


def is_public(address: Address) -> bool:
    """Return whether an address, and an IPv4 address embedded in it, is on the public internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return (
            address.is_global
            and not (address.is_multicast or address.is_reserved)
            and not any(address in network for network in _NEVER_GLOBAL)
        )
    known = (address.ipv4_mapped, address.sixtofour, *(address.teredo or ()))
    embedded = [inner for inner in known if inner is not None]
    if address in _NAT64:
        embedded = [ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)]
    if not all(is_public(inner) for inner in embedded):
        return False
    if embedded and (address.ipv4_mapped or address in _NAT64):
        return True
    return address in _GLOBAL_UNICAST and address.is_global and not address.is_multicast


def _fetch(gate: _Gate, url: str, limits: CapabilityLimits) -> _Body:
    import httpx2

    deadline = time.monotonic() + (limits.timeout_ms or _TIMEOUT_MS) / 1000
    for _ in range(MAX_REDIRECTS + 1):
        target, addresses = gate.admit(url)
        try:
            # A client per hop: no cookies pass from one to the next.
            with (
                httpx2.Client(trust_env=False, follow_redirects=False) as client,
                contextlib.closing(_send(client, target, addresses, deadline)) as response,
            ):
                if response.status_code not in _REDIRECTS or "location" not in response.headers:
                    return _read_body(target, response, limits.max_response_bytes, deadline)
                location = response.headers["location"]
            url = urljoin(target.url, location)
        except httpx2.TimeoutException:
            raise _too_slow(target) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ToolError("HTTP_ERROR", f"{target.host} cannot be fetched from: {error}") from None
        except ValueError:
            raise AccessDenied(f"{target.host} redirects to an invalid URL") from None
    raise ToolError("HTTP_ERROR", f"{target.host} redirected more than {MAX_REDIRECTS} times")


def _send(
    client: httpx2.Client, target: _Target, addresses: list[Address], deadline: float
) -> httpx2.Response:
    """Send the GET request to the first address that accepts a connection."""
    import httpx2

    for position, address in enumerate(addresses):
        request = client.build_request(
            "GET",
            f"{target.scheme}://{target.netloc(str(address))}{target.path}",
            headers={
                "Host": target.netloc(target.host),
                "Accept-Encoding": "identity",
                "User-Agent": "standfast",
            },
            extensions={"sni_hostname": target.host},
            timeout=_remaining(target, deadline),
        )
        try:
            return client.send(request, stream=True)
        except httpx2.ConnectError:
            if position == len(addresses) - 1:
                raise
    raise AssertionError("a target has at least one address")


def _read_body(target: _Target, response: httpx2.Response, max_bytes: int, deadline: float) -> _Body:
    if response.status_code >= 400:
        raise ToolError("HTTP_ERROR", f"{target.url} answered {response.status_code}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ToolError("HTTP_ERROR", f"{target.host} answered in an encoding that was not asked for")
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > max_bytes:
            raise ToolError(
                Code.RESPONSE_TOO_LARGE, f"{target.url} answered with more than {max_bytes} bytes"
            )
        _remaining(target, deadline)
    charset = response.charset_encoding or "utf-8"
    return _Body(target.host, bytes(data), charset if _CHARSET.fullmatch(charset) else "utf-8")


def _remaining(target: _Target, deadline: float) -> float:
    if (seconds := deadline - time.monotonic()) <= 0:
        raise _too_slow(target)
    return seconds


def _too_slow(target: _Target) -> ToolError:
    return ToolError(Code.TIMEOUT_TOOL, f"{target.host} did not answer in time")


def system_addresses(host: str, port: int) -> list[str]:
    """Resolve a host by the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _read_url(url: str) -> _Target:
    if len(url) > MAX_URL_CHARS:
        raise AccessDenied(f"a URL of {len(url)} characters is too long, the limit is {MAX_URL_CHARS}")
    if _BAD_IN_URL.search(url):
        raise AccessDenied(f"URL {url[:80]!r} contains a space, a backslash or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AccessDenied(f"URL {url[:80]!r} cannot be read: {error}") from None
    if parts.scheme not in _DEFAULT_PORT or not parts.hostname or port == 0:
        raise AccessDenied(f"URL {url[:80]!r} is not an http or https URL of a host")
    if "@" in parts.netloc:
        raise AccessDenied(f"a URL with credentials is refused (host {parts.hostname})")
    host, address = _read_host(parts.hostname)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = parts._replace(fragment="").geturl()
    return _Target(parts.scheme, host, port or _DEFAULT_PORT[parts.scheme], address, path, shown)


def _read_host(text: str) -> tuple[str, Address | None]:
    """Return a host in its normal form; raise `AccessDenied` if it could be read in two ways."""
    if ":" in text:
        return _read_address(text)
    host = text.lower().removesuffix(".")
    if not host.isascii():
        import idna

        try:
            host = idna.encode(host, uts46=True).decode().removesuffix(".")
        except (idna.IDNAError, UnicodeError):
            raise AccessDenied(f"{host[:80]!r} is not a host name") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _read_address(host)
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise AccessDenied(f"{text[:80]!r} is not a host name")
    return host, None


def _read_address(text: str) -> tuple[str, Address]:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise AccessDenied(
            f"{text[:80]!r} is not an address in its plain form",
            hint="write it as 192.0.2.1 or [2001:db8::1]",
        ) from None
    if getattr(address, "scope_id", None):
        raise AccessDenied(f"{text[:80]!r} has a scope, which is refused")
    return str(address), address


def _read_grant(entry: str) -> _Grant:
    wrong = InvalidArgument(
        f"allow_hosts: {entry!r} is not a host", hint="write example.com, *.example.com or 127.0.0.1:8080"
    )
    if not isinstance(entry, str) or re.search(r"[/@?#\s]", entry):
        raise wrong
    subdomains = entry.startswith("*.")
    text, port = entry.removeprefix("*."), None
    if text.count(":") <= 1 or text.startswith("["):  # an IPv6 address with a port is in brackets
        matched = re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", text)
        if matched is None or (matched[2] and not 0 < int(matched[2]) < 65536):
            raise wrong
        text, port = matched[1].strip("[]"), int(matched[2]) if matched[2] else None
    try:
        host, address = _read_host(text)
    except AccessDenied:
        raise wrong from None
    if subdomains and address is not None:
        raise wrong
    return _Grant(host, subdomains, port, address)
