"""What went wrong with a call, as a `ModelError`.

Rules
-----
1. The vendor's own words come first; nothing that is said holds the key.
2. Whether another attempt makes sense is the vendor's word if it has one, and else the status's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec

from standfast.errors import Code, ModelError, TurnCode
from standfast.providers.http.address import Address
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import Complaint, Dialect

Explain = Callable[[int, Mapping[str, str], bytes], ModelError]
"""What an answer with that status, those headers (in lower case) and the beginning of that body means."""

_WORTH_ANOTHER: Final = frozenset((408, 409, 425, 429))
_LONGEST_MESSAGE: Final = 2_000
_LONGEST_EXCERPT: Final = 200
_LONGEST_WAIT_MS: Final = 7 * 24 * 3_600_000
_FOR_EVER: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")


def explained(
    dialect: Dialect, status: int, headers: Mapping[str, str], body: bytes, *, key_hint: str = ""
) -> ModelError:
    """What an answer that is no stream of events means."""
    if 300 <= status < 400:
        return _redirected(dialect, status, headers)
    if status < 300:
        return _something_else(dialect, headers, body)
    complaint = _complaint(dialect, status, body)
    said = complaint.message.strip()[:_LONGEST_MESSAGE] or _phrase(status)
    limited = status == 429 and complaint.code == TurnCode.PROVIDER_ERROR
    wait_ms = max(complaint.retry_after_ms or 0, retry_after_ms(headers) or 0)
    return ModelError(
        f"{dialect.provider}: {said} (HTTP {status})",
        code=Code.RATE_LIMITED if limited else complaint.code,
        retryable=_retryable(status, headers, complaint),
        retry_after_ms=wait_ms or None,
        hint=key_hint or None if status in (401, 403) else None,
    )


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """How long a server asks to wait: milliseconds, seconds, or a date. No time at all is no wish."""
    for name, factor in (("retry-after-ms", 1), ("retry-after", 1000)):
        try:
            wait_ms = float(headers.get(name, "")) * factor
        except ValueError:
            continue
        if math.isfinite(wait_ms) and wait_ms >= 0:
            return min(math.ceil(wait_ms), _LONGEST_WAIT_MS) or None
    return _until_ms(headers.get("retry-after", ""), headers.get("date", ""))


def late(limit: str, deadlines: Deadlines, base_url: str) -> ModelError:
    """What it means that a deadline has passed."""
    seconds = f"{getattr(deadlines, limit):g} s"
    problem = {
        "connect_s": f"{base_url} could not be reached within {seconds}",
        "first_byte_s": f"{base_url} did not answer within {seconds}",
        "between_chunks_s": f"{base_url} sent nothing for {seconds} in the middle of a reply",
        "total_s": f"the reply from {base_url} took more than {seconds}",
    }[limit]
    return ModelError(problem, retryable=True, hint=f"Deadlines({limit}=...) says how long is too long")


def broken(error: Exception, address: Address, deadlines: Deadlines) -> ModelError:
    """What it means that the connection could not be made, or did not hold."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout):
        return late("connect_s", deadlines, address.base_url)
    said = address.secret.scrub(_words_of(error))[:_LONGEST_MESSAGE] or type(error).__name__
    unreached = isinstance(error, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol)
    problem = "could not be reached" if unreached else "broke the call off"
    ours = isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol | httpx2.InvalidURL)
    lasting = ours or any(word in said for word in _FOR_EVER)
    return ModelError(f"{address.base_url} {problem}: {said}", retryable=not lasting)


def _words_of(error: Exception) -> str:
    """What it says, up to where it quotes the request: a header may be somebody's secret."""
    return str(error).partition(" b'")[0].partition(' b"')[0]


def excerpt(body: bytes) -> str:
    """The beginning of a body, on one line."""
    text = " ".join(body[: 4 * _LONGEST_EXCERPT].decode(errors="replace").split())
    return text if len(text) <= _LONGEST_EXCERPT else f"{text[:_LONGEST_EXCERPT]}…"


def _redirected(dialect: Dialect, status: int, headers: Mapping[str, str]) -> ModelError:
    target = _host_of(headers.get("location", "")) or "another path"
    return ModelError(
        f"{dialect.provider}: the server redirects to {target} (HTTP {status}), which is not followed",
        hint="if that is the right place, pass it as base_url",
    )


def _host_of(url: str) -> str | None:
    """The host that a URL names; what else is in it is nobody's business."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return "a place that is no URL"


def _something_else(dialect: Dialect, headers: Mapping[str, str], body: bytes) -> ModelError:
    """A success that is none; a vendor's complaint may be in it all the same."""
    kind = headers.get("content-type", "something")[:_LONGEST_EXCERPT]
    complaint = _complaint(dialect, 200, body) if "json" in kind else Complaint("")
    return ModelError(
        f"{dialect.provider}: the server sent {kind} where a stream of events belongs: {excerpt(body)!r}",
        code=complaint.code,
        retryable=complaint.retryable or False,
        retry_after_ms=retry_after_ms(headers),
        hint="is base_url right, and is there a proxy that answers in its place?",
    )


def _complaint(dialect: Dialect, status: int, body: bytes) -> Complaint:
    try:
        return dialect.complaint(status, body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Complaint(excerpt(body))


def _retryable(status: int, headers: Mapping[str, str], complaint: Complaint) -> bool:
    if complaint.retryable is not None:
        return complaint.retryable
    advice = headers.get("x-should-retry", "")
    if advice in ("true", "false"):
        return advice == "true"
    return status in _WORTH_ANOTHER or status >= 500


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "the server gives no reason"


def _until_ms(date: str, now: str) -> int | None:
    """From then until then; the server's own clock is the better one to compare its date with."""
    then_s = _seconds_of(date)
    if then_s is None:
        return None
    now_s = _seconds_of(now)
    wait_s = then_s - (time.time() if now_s is None else now_s)
    return min(max(0, math.ceil(wait_s * 1000)), _LONGEST_WAIT_MS) or None


def _seconds_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
