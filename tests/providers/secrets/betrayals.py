"""Every way in which a server can fail, with the key in everything that it sends."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from planted_keys import Planting, found_in

from standfast.testing.servers.http_server import Fault, ServedReply

_HTML = {"content-type": "text/html; charset=utf-8"}
_JSON = {"content-type": "application/json"}


def faults(planting: Planting) -> dict[str, Fault]:
    """Return the faults by name."""
    return {
        **dict(_refusals(planting.key)),
        **dict(_other_answers(planting.key)),
        **dict(_broken_connections()),
        **dict(_bad_streams(planting)),
    }


def is_sent_in_headers(fault: Fault, key: str) -> bool:
    """Return whether the server sends the key in its headers, which `httpcore2` logs at DEBUG."""
    return bool(found_in(f"{fault.headers} {fault.redirect}", key))


def served(fault: Fault) -> ServedReply:
    return ServedReply(chunks=("Hello", " there"), fault=fault)


def _refusals(key: str) -> Iterator[tuple[str, Fault]]:
    told = (
        f"Incorrect API key provided: {key}. You can find yours at https://example.test/keys?key={quote(key)}"
    )
    for status in (400, 401, 403, 404, 500, 529):
        yield f"{status} that repeats the key", Fault(status=status, message=told)
    yield "a key near the end of what is shown", Fault(status=401, message="x" * 1_960 + key)
    yield (
        "a rate limit with the key in its headers",
        Fault(
            status=429,
            message=f"slow down, {key}",
            headers={"retry-after": key, "x-request-id": key, "set-cookie": f"key={key}"},
        ),
    )
    for name, body in _bodies(key).items():
        yield f"500 with {name}", Fault(status=500, body=body, headers=_JSON if body[:1] == b"{" else _HTML)


def _bodies(key: str) -> dict[str, bytes]:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    echo = {"headers": {"authorization": f"Bearer {key}", "x-api-key": key}}
    return {
        "a page that has the key": f"<html><b>{html.escape(key)}</b> {quote(key, safe='').lower()}".encode(),
        "plain words": f"no such key: {key.upper()}".encode(),
        "a key that begins where the excerpt ends": b"y" * 170 + key.encode(),
        "JSON in which the key is escaped": f'{{"error": {{"message": "{escaped}"}}}}'.encode(),
        "JSON with escaped slashes": json.dumps({"detail": f"key {key}"}).replace("/", "\\/").encode(),
        "JSON that has no end": json.dumps({"error": {"message": key}}).encode()[:-3],
        "the request's headers": json.dumps({"error": echo}).encode(),
        "JSON inside JSON": json.dumps({"error": {"message": json.dumps(echo)}}).encode(),
        "a router's report": json.dumps({"error": {"message": "no", "metadata": {"raw": echo}}}).encode(),
        "bytes that are no text": b"\xff\xfe" + key.encode(),
    }


def _other_answers(key: str) -> Iterator[tuple[str, Fault]]:
    yield "a redirect to a URL", Fault(redirect=f"http://other.test/{quote(key)}?key={quote(key, safe='')}")
    yield "a redirect to a host", Fault(redirect=f"http://{key}/")
    yield "a redirect to what is no URL", Fault(redirect=key)
    yield "a page instead of a stream", Fault(body=f"<html>{html.escape(key)}".encode(), headers=_HTML)
    yield "an object instead of a stream", Fault(body=json.dumps({"you": key}).encode(), headers=_JSON)
    yield "a kind that has the key in it", Fault(body=b"?", headers={"content-type": f"text/{key}"})
    yield "a body that does not unpack", Fault(headers={"content-encoding": "gzip"})


def _broken_connections() -> Iterator[tuple[str, Fault]]:
    yield "cut off", Fault(cut_at=40)
    yield "reset", Fault(cut_at=40, reset=True)
    yield "reset at once", Fault(cut_at=0, reset=True)
    yield "a length that is a lie", Fault(content_length=10_000, cut_at=40)


def _bad_streams(planting: Planting) -> Iterator[tuple[str, Fault]]:
    key = planting.key
    yield "an event that is no JSON", Fault(order="garbage:1")
    yield "an event that tells of an error", Fault(body=planting.error_event(f"bad key {key}"))
    yield "such an event that is too long to be shown", Fault(body=planting.error_event("x" * 1_975 + key))
    for name, data in _events(key).items():
        yield f"an event with {name}", Fault(body=b"data: %s\n\n" % data)
        yield f"a named event with {name}", Fault(body=b"event: message_start\ndata: %s\n\n" % data)


def _events(key: str) -> dict[str, bytes]:
    def nested(value: Any) -> bytes:
        return json.dumps({"type": "message_start", "choices": value, "candidates": value}).encode()

    return {
        "the key where JSON should be": key.encode(),
        "the key behind where it is cut off": b"z" * 95 + key.encode(),
        "a key as a key": json.dumps({key: key}).encode()[:-1],
        "the key as a type": json.dumps({"type": key, "object": "error", "error": key}).encode(),
        "the key where a list belongs": nested(key),
        "the key where an object belongs": nested([key]),
        "the key as a reason": nested([{"index": 0, "finish_reason": [key], "finishReason": {"why": key}}]),
        "bytes that are no text": b'{"type": "' + key.encode() + b'\xff"}',
        "brackets without end": b"[" * 20_000 + key.encode(),
    }
