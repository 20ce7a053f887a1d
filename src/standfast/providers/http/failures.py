"""Conversion of failed calls into `ModelError`.

Rule: the message is the vendor's, without the key; the vendor, else the HTTP status, decides about a retry.
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
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import Dialect, ErrorReport
from standfast.providers.http.endpoint import Endpoint

ExplainResponse = Callable[[int, Mapping[str, str], bytes], ModelError]
"""Converts a status, headers (names in lower case) and the beginning of a body to an error."""

TRANSIENT_STATUSES: Final = frozenset((408, 409, 425, 429))
_MAX_MESSAGE_CHARS: Final = 2_000
_MAX_EXCERPT_CHARS: Final = 200
_MAX_WAIT_MS: Final = 7 * 24 * 3_600_000
_PERMANENT: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")


def response_error(
    dialect: Dialect, status: int, headers: Mapping[str, str], body: bytes, *, key_hint: str = ""
) -> ModelError:
    """Explain a response that is not a stream of events."""
    if 300 <= status < 400:
        try:
            target = urlsplit(headers.get("location", "")).hostname or "another path"
        except ValueError:
            target = "an invalid URL"
        return ModelError(
            f"{dialect.provider}: the server redirects to {target} (HTTP {status}), which is not followed",
            hint="if that is the right URL, pass it as base_url",
        )
    if status < 300:  # the body may still be a vendor's error
        kind = headers.get("content-type", "something")[:_MAX_EXCERPT_CHARS]
        report = _read_error(dialect, 200, body) if "json" in kind else ErrorReport("")
        return ModelError(
            f"{dialect.provider}: the server sent {kind} instead of an event stream: {excerpt(body)!r}",
            code=report.code,
            retryable=report.retryable or False,
            retry_after_ms=retry_after_ms(headers),
            hint="check base_url, and whether a proxy answers instead of the server",
        )
    report = _read_error(dialect, status, body)
    phrase = next((one.phrase for one in HTTPStatus if one == status), "the server gives no reason")
    message = report.message.strip()[:_MAX_MESSAGE_CHARS] or phrase
    limited = status == 429 and report.code == TurnCode.PROVIDER_ERROR
    retryable = report.retryable
    if retryable is None:
        advice = headers.get("x-should-retry", "")
        by_status = status in TRANSIENT_STATUSES or status >= 500
        retryable = advice == "true" if advice in ("true", "false") else by_status
    return ModelError(
        f"{dialect.provider}: {message} (HTTP {status})",
        code=Code.RATE_LIMITED if limited else report.code,
        retryable=retryable,
        retry_after_ms=max(report.retry_after_ms or 0, retry_after_ms(headers) or 0) or None,
        hint=key_hint or None if status in (401, 403) else None,
    )


def _read_error(dialect: Dialect, status: int, body: bytes) -> ErrorReport:
    try:
        return dialect.read_error(status, body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ErrorReport(excerpt(body))


def excerpt(body: bytes) -> str:
    """Return the beginning of *body* on one line."""
    text = " ".join(body[: 4 * _MAX_EXCERPT_CHARS].decode(errors="replace").split())
    return text if len(text) <= _MAX_EXCERPT_CHARS else f"{text[:_MAX_EXCERPT_CHARS]}…"


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Parse the delay that the server requests: in milliseconds, in seconds, or as a date. 0 becomes None."""
    for name, factor in (("retry-after-ms", 1), ("retry-after", 1000)):
        try:
            wait_ms = float(headers.get(name, "")) * factor
        except ValueError:
            continue
        if math.isfinite(wait_ms) and wait_ms >= 0:
            return min(math.ceil(wait_ms), _MAX_WAIT_MS) or None
    then_s = _seconds_of(headers.get("retry-after", ""))
    if then_s is None:
        return None
    now_s = _seconds_of(headers.get("date", ""))  # the server's own clock, if it sends it
    wait_s = then_s - (time.time() if now_s is None else now_s)
    return min(max(0, math.ceil(wait_s * 1000)), _MAX_WAIT_MS) or None


def _seconds_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def deadline_error(limit: str, deadlines: Deadlines, base_url: str) -> ModelError:
    """Explain that the deadline named *limit* has passed."""
    seconds = f"{getattr(deadlines, limit):g} s"
    problem = {
        "connect_s": f"{base_url} could not be reached within {seconds}",
        "first_byte_s": f"{base_url} did not answer within {seconds}",
        "between_chunks_s": f"{base_url} sent nothing for {seconds} in the middle of a reply",
        "total_s": f"the reply from {base_url} took more than {seconds}",
    }[limit]
    return ModelError(problem, retryable=True, hint=f"set the time limit with Deadlines({limit}=...)")


def connection_error(error: Exception, endpoint: Endpoint, deadlines: Deadlines) -> ModelError:
    """Explain that a connection could not be made, or broke."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout):
        return deadline_error("connect_s", deadlines, endpoint.base_url)
    # The text may quote the request, whose headers may hold a secret: keep the part before the quotation.
    text = str(error).partition(" b'")[0].partition(' b"')[0]
    message = endpoint.secret.scrub(text)[:_MAX_MESSAGE_CHARS] or type(error).__name__
    unreached = isinstance(error, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol)
    problem = "could not be reached" if unreached else "closed the connection during the call"
    ours = isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol | httpx2.InvalidURL)
    permanent = ours or any(word in message for word in _PERMANENT)
    return ModelError(f"{endpoint.base_url} {problem}: {message}", retryable=not permanent)
