"""The parser of server-sent events, against the specification and a reference parser."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import ModelError
from standfast.providers.http.dialect import ServerEvent
from standfast.providers.http.sse import EventParser

BOM = b"\xef\xbb\xbf"
MARKS = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    BOM,
    b"7",
    b"x\xc3\xa9",
]
LINES = [
    b"data: {}\n\n",
    b"event: a\ndata: {}\n\n",
    b"event: a\r\ndata: {}\r\n\r\n",
    b": ping\n\n",
    b"data:\n\n",
]
STREAMS = st.lists(st.sampled_from(MARKS + LINES), max_size=25).map(b"".join)


def parsed(*pieces: bytes) -> list[ServerEvent]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.end()


def by_the_rules(stream: bytes) -> list[ServerEvent]:
    """Parse line by line, as the specification describes it."""
    *lines, rest = re.split(b"\r\n|\n|\r", stream.removeprefix(BOM))
    found, name, data = [], b"", b""
    for line in [*lines, *([] if rest else [b""])]:
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if not line:
            if data[:-1]:
                found.append(ServerEvent(name.decode(errors="replace"), data[:-1]))
            name, data = b"", b""
        elif field == b"data":
            data += value + b"\n"
        elif field == b"event":
            name = value
    return found


@given(STREAMS, st.lists(st.integers(0, 200), max_size=12))
def test_a_stream_yields_the_specified_events_however_it_is_split(stream: bytes, cuts: list[int]) -> None:
    """Seed: events may be split anywhere, because the network splits arbitrarily."""
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(ends)]

    assert parsed(*pieces) == by_the_rules(stream)


@given(STREAMS)
def test_a_stream_read_byte_by_byte_yields_the_same_events(stream: bytes) -> None:
    """Ours: single bytes are the worst case."""
    assert parsed(*(stream[at : at + 1] for at in range(len(stream)))) == by_the_rules(stream)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data: a\r\ndata: b\r\n\r\n", [("", b"a\nb")]),
        (b"data: a\rdata: b\r\r", [("", b"a\nb")]),
        (b"event: n\ndata: a\n\n", [("n", b"a")]),
        (b"data: a\nevent: n\n\n", [("n", b"a")]),
        (b"event: n\n\ndata: a\n\n", [("", b"a")]),
        (b": keep-alive\n\ndata: a\n\n", [("", b"a")]),
        (b": keep-alive\ndata: a\n\n", [("", b"a")]),
        (b"id: 1\nunknown: 2\ndata: a\n\n", [("", b"a")]),
        (BOM + b"data: a\n\n", [("", b"a")]),
        (BOM + BOM + b"data: a\n\n", []),
        (b"data: a\n\n\n\n\ndata: b\n\n", [("", b"a"), ("", b"b")]),
        (b"data:\n\ndata: \n\ndata\n\n", []),
        (b"datas: a\n\n data: b\n\n", []),
        (b"event: \xff\ndata: a\n\n", [("�", b"a")]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_the_specification_is_followed(stream: bytes, events: list[tuple[str, bytes]]) -> None:
    """Seed: the format has comments, multi-line data, CRLF, BOM and keep-alives."""
    assert parsed(stream) == events


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_each_event_has_its_own_name_if_every_chunk_has_one_event(line_end: bytes) -> None:
    """Ours: the fast path of the parser must not reuse the name of the previous event."""
    chunks = [
        b"data: 1",
        b"data: 2",
        b"event: a\ndata: 3",
        b"event: a\ndata: 4",
        b"event: b\ndata: 5",
        b"data: 6",
    ]
    stream = [(chunk + b"\n\n").replace(b"\n", line_end) for chunk in chunks]

    assert parsed(*stream) == [("", b"1"), ("", b"2"), ("a", b"3"), ("a", b"4"), ("b", b"5"), ("", b"6")]


def test_a_lone_cr_in_a_chunk_with_crlf_also_ends_a_line() -> None:
    """Ours: the fast path for CRLF must not keep a lone CR in the data."""
    assert parsed(b"data: 1\r\n\r\n", b"data: 2\rdata: 3\r\n\r\n") == [("", b"1"), ("", b"2\n3")]


def test_an_event_is_returned_as_soon_as_its_last_byte_arrives() -> None:
    """Ours: events must not be delayed until the next chunk."""
    parser = EventParser()

    assert parser.feed(b"data: a\r\n\r") == [("", b"a")]
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == [("", b"b")]


def test_a_last_event_without_its_blank_line_counts_if_its_lines_are_complete() -> None:
    """Ours: some servers end a stream right after their last line."""
    assert parsed(b"data: a\n\ndata: [DONE]\n") == [("", b"a"), ("", b"[DONE]")]
    assert parsed(b"data: a\n\ndata: [DON") == [("", b"a")]


def test_the_retry_field_is_kept() -> None:
    """Seed: the SSE field `retry` names a delay."""
    parser = EventParser()
    parser.feed(b"retry: 1500\n\nretry: soon\n\nretry: 99999999999999\n\n")

    assert parser.retry_ms == 1500


def test_an_event_that_is_too_large_is_refused_whether_whole_or_in_pieces() -> None:
    """Ours: the size of an event is limited."""
    for pieces in (
        [b"data: 0123456789\n\n"],
        [b"data: 01234", b"56789"],
        [b"data: x\n\ndata: 0123456789\n\n"],
    ):
        parser = EventParser(max_event_bytes=12)
        with pytest.raises(ModelError, match="more than 12 bytes") as caught:
            [parser.feed(piece) for piece in pieces]
        assert caught.value.code == "RESPONSE_TOO_LARGE"
        assert not caught.value.retryable


def test_a_large_event_in_tiny_pieces_is_copied_only_once() -> None:
    """Ours: joining a megabyte of arguments at every piece would copy gigabytes."""
    said = b"x" * 200_000
    parser = EventParser()
    parser.feed(b"data: ")
    for at in range(len(said)):
        assert not parser.feed(said[at : at + 1])

    assert parser.feed(b"\n\n") == [("", said)]
