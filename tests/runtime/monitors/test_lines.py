"""Lines out of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.model.monitor import MAX_LINE_CHARS, RING
from standfast.runtime.monitors.process import LineReader, Lines


def _read(*chunks: bytes) -> list[str]:
    reader = LineReader()
    told = [text for chunk in chunks for text in reader.feed(chunk).texts]
    return [*told, *reader.end().texts]


def test_lines_are_cut_at_their_ends_wherever_the_chunks_are() -> None:
    """Ours: a line may arrive in several chunks."""
    assert _read(b"one\ntw", b"o\n", b"\nthree") == ["one", "two", "three"]


def test_the_ends_of_windows_lines_are_taken_off_and_blank_lines_say_nothing() -> None:
    """Ours: SPEC §9, each non-empty line is an update."""
    assert _read(b"one\r\n\r\n  \n\ttwo \r\n") == ["one", "\ttwo "]


def test_bytes_that_are_not_text_are_replaced() -> None:
    """Ours: binary output does not end a monitor."""
    assert _read(b"a\xff\xfeb\n", "ü".encode()[:1], "ü".encode()[1:] + b"\n") == ["a��b", "ü"]


def test_a_line_is_cut_and_one_without_an_end_needs_no_memory() -> None:
    """Ours: `yes | tr -d '\\n'` must not fill the memory of the runtime."""
    reader = LineReader()
    for _ in range(100):
        assert reader.feed("😀".encode() * 20_000) == Lines()
        assert len(reader._rest) <= 4 * MAX_LINE_CHARS
    assert reader.feed(b"x\nnext\n").texts == ("😀" * MAX_LINE_CHARS, "next")


def test_of_very_many_lines_the_last_are_made_and_the_others_counted() -> None:
    """Ours: a flood of lines costs no more than the ring can keep."""
    reader = LineReader()
    lines = reader.feed(b"".join(b"%d\n" % number for number in range(1_000)))
    assert (len(lines.texts), lines.skipped, lines.texts[-1]) == (RING, 1_000 - RING, "999")


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_how_the_bytes_are_cut_makes_no_difference(chunks: list[bytes]) -> None:
    """Ours: the lines depend on the bytes alone."""
    assert _read(*chunks) == _read(b"".join(chunks))
