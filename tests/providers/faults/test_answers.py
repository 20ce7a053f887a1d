"""Answers that lie about their length, point elsewhere, repeat the key, or come from another server."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from fault_stage import Played, essence, faulty, hear, play, turn
from fault_table import cell
from fault_vendors import DONE, LINES, REPLY, TEXT, Vendor

from standfast.errors import TurnCode, TurnStopped
from standfast.model.outcome import Stopped, StopReason

pytestmark = pytest.mark.slow

HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


def stopped(played: Played) -> Stopped:
    assert isinstance(played.result.outcome, Stopped)
    assert played.result.outcome.reason is StopReason.PROVIDER_ERROR
    assert played.desk.written == []
    return played.result.outcome


# Length


@cell("length-long")
def test_a_content_length_that_is_too_long_does_not_affect_a_complete_reply(vendor: Vendor) -> None:
    """Seed: with a wrong content length, the vendor's last event decides, not the proxy's length."""

    async def scene() -> None:
        size = sum(map(len, vendor.blocks()))
        played = await turn(vendor, [faulty(content_length=2 * size), DONE])
        assert (played.status, len(played.requests)) == ("finished", 2)
        assert sorted(played.desk.written) == sorted(LINES)
        error = await turn(
            vendor, [faulty(status=500, message="Oops.", content_length=10**6)], max_attempts=1
        )
        assert "Oops." in stopped(error).error.message

    play(scene())


@cell("length-short")
def test_a_content_length_that_is_too_short_cuts_the_reply_off(vendor: Vendor) -> None:
    """Seed: with a wrong content length, the remaining bytes are not read as the reply to any other call."""

    async def scene() -> None:
        blocks = vendor.blocks()
        enough = len(b"".join(blocks[: len(blocks) - vendor.last + 1]).rstrip())
        for length in range(0, enough, enough // 10):
            played = await turn(vendor, [faulty(content_length=length), REPLY, DONE])
            assert (played.status, len(played.requests)) == ("finished", 3)
            assert sorted(played.desk.written) == sorted(LINES)
            assert played.shown() == TEXT + DONE

    play(scene())


@cell("length-short-open")
def test_bytes_beyond_a_short_content_length_are_not_read_as_the_next_response(
    vendor: Vendor,
) -> None:
    """Ours: on a connection that stays open, the rest of such a response would be read as another one."""

    async def scene() -> None:
        body = b"".join(vendor.blocks())
        size = len(body)
        replies = [
            faulty(body=body),
            faulty(body=body, content_length=size // 2, stall_at=size),
            faulty(body=body),
        ]
        async with vendor.server(replies) as server:
            model = vendor.open(server)
            whole, halved, again = [await hear(model) for _ in replies]
            await model.close()
        assert halved.error is not None
        assert halved.error.retryable
        assert essence(again.ended) == essence(whole.ended)

    play(scene())


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@cell("redirect-host")
def test_a_redirect_to_another_host_is_refused_and_no_key_is_sent_there(vendor: Vendor, status: int) -> None:
    """Seed: redirects are not followed, whatever their status."""

    async def scene() -> None:
        async with vendor.server([REPLY, DONE]) as other:
            target = f"{other.base_url.replace('127.0.0.1', 'localhost')}/there?key={vendor.key}"
            played = await turn(vendor, [faulty(status=status, redirect=target), REPLY, DONE])
            assert (other.connections, other.requests) == (0, [])
        error = stopped(played).error
        assert f"redirects to localhost (HTTP {status})" in error.message
        assert len(played.requests) == 1
        assert vendor.key not in repr(played.result) + repr(played.events)

    play(scene())


@pytest.mark.parametrize("location", ["/elsewhere", "http://127.0.0.1:1/v1", "//127.0.0.1", ""])
@cell("redirect-path")
def test_a_redirect_to_the_same_host_is_refused_too(vendor: Vendor, location: str) -> None:
    """Ours: another port or path of a host may belong to another party."""

    async def scene() -> None:
        played = await turn(vendor, [faulty(redirect=location), REPLY, DONE])
        assert "which is not followed" in stopped(played).error.message
        assert len(played.requests) == 1

    play(scene())


# Messages


def everything_about(played: Played) -> str:
    """Return everything that a program could log about a turn."""
    said = [repr(played.result), repr(played.events)]
    if isinstance(played.result.outcome, Stopped):
        said += traceback.format_exception(TurnStopped(played.result))
    return "\n".join(said)


def files_in(home: Path) -> Iterator[bytes]:
    """Return the files, the log before the database, so that no record moves between them unseen."""
    for path in sorted(home.iterdir(), reverse=True):
        with suppress(FileNotFoundError):
            yield path.read_bytes()


def check_no_key_is_left(vendor: Vendor, played: Played, home: Path) -> None:
    said = everything_about(played)
    stored = list(files_in(home))
    assert stored
    for form in {vendor.key, quote(vendor.key, safe="")}:
        assert form not in said
        assert all(form.encode() not in data for data in stored)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
@cell("key-in-error")
def test_an_error_has_the_vendors_message_without_the_key(
    vendor: Vendor, status: int, tmp_path: Path
) -> None:
    """Seed: neither the vendor's error nor anything stored contains the key."""
    words = f"Do not use {vendor.key} (or ?key={quote(vendor.key, safe='')}) here."

    async def scene() -> None:
        headers = {"x-echo": vendor.key, "www-authenticate": f"Bearer {vendor.key}"}
        replies = [faulty(status=status, message=words, headers=headers)]
        played = await turn(vendor, replies, path=tmp_path / "h.db", max_attempts=1)
        message = stopped(played).error.message
        assert "Do not use [key] (or ?key=[key]) here." in message
        assert str(status) in message
        check_no_key_is_left(vendor, played, tmp_path)

    play(scene())


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (502, "text/html", True),
        (200, "text/html; charset=utf-8", False),
        (200, "text/event-stream", True),
        (403, "text/html", False),
    ],
)
@cell("html")
def test_a_proxy_that_answers_in_html_is_distinguished_from_the_vendor(
    vendor: Vendor, status: int, kind: str, again: bool, tmp_path: Path
) -> None:
    """Seed: an HTML page from a proxy is retried if the failure is temporary, otherwise reported at once."""
    page = HTML.replace(b"nginx", f"nginx, {vendor.key}".encode())

    async def scene() -> None:
        html = faulty(status=status, body=page, headers={"content-type": kind})
        played = await turn(vendor, [html, REPLY, DONE], path=tmp_path / "h.db")
        if again:
            assert (played.status, played.said(), len(played.requests)) == ("finished", [TEXT, DONE], 3)
            assert played.slept_ms
        else:
            error = stopped(played).error
            assert error.code == TurnCode.PROVIDER_ERROR
            assert "502 Bad Gateway" in error.message
            assert len(played.requests) == 1
        check_no_key_is_left(vendor, played, tmp_path)

    play(scene())
