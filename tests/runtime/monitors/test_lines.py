"""Splitting bytes into lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.model.monitor import MAX_LINE_CHARS, RING
from standfast.runtime.monitors.process import LineReader, Lines


def _read(*chunks: bytes) -> list[str]:
    reader = LineReader()
    told = [text for chunk in chunks for text in reader.feed(chunk).texts]
    return [*told, *reader.end().texts]


def test_lines_are_split_at_newlines_wherever_the_chunks_end() -> None:
    """Ours: a line may arrive in several chunks."""
    assert _read(b"one\ntw", b"o\n", b"\nthree") == ["one", "two", "three"]


def test_windows_line_endings_are_removed_and_blank_lines_are_ignored() -> None:
    """Ours: SPEC §9, each non-empty line is an update."""
    assert _read(b"one\r\n\r\n  \n\ttwo \r\n") == ["one", "\ttwo "]


def test_invalid_utf8_is_replaced() -> None:
    """Ours: binary output does not end a monitor."""
    assert _read(b"a\xff\xfeb\n", "ü".encode()[:1], "ü".encode()[1:] + b"\n") == ["a��b", "ü"]


def test_a_long_line_is_truncated_and_an_endless_one_needs_no_memory() -> None:
    """Ours: `yes | tr -d '\\n'` must not fill the memory of the runtime."""
    reader = LineReader()
    for _ in range(100):
        assert reader.feed("😀".encode() * 20_000) == Lines()
        assert len(reader._rest) <= 4 * MAX_LINE_CHARS
    assert reader.feed(b"x\nnext\n").texts == ("😀" * MAX_LINE_CHARS, "next")


def test_only_the_last_of_very_many_lines_are_kept_and_the_others_counted() -> None:
    """Ours: a flood of lines costs no more than the ring can keep."""
    reader = LineReader()
    lines = reader.feed(b"".join(b"%d\n" % number for number in range(1_000)))
    assert (len(lines.texts), lines.skipped, lines.texts[-1]) == (RING, 1_000 - RING, "999")


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_lines_do_not_depend_on_how_the_bytes_are_chunked(chunks: list[bytes]) -> None:
    """Ours: the lines depend on the bytes alone."""
    assert _read(*chunks) == _read(b"".join(chunks))
