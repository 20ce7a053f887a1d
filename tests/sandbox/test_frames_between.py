"""Frames over a socket, however they are split."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.sandbox.frames_between import HEADER, Frames, FrameTooLarge

Pair = tuple[socket.socket, Frames]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return a plain socket, and the other end as frames of at most 100 bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Frames.over(theirs, max_frame=100)


def framed(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def test_a_frame_arrives_unchanged(pair: Pair) -> None:
    """Ours: this includes empty frames."""
    ours, frames = pair
    other = Frames.over(ours)
    for data in (b"one", b"", b"x" * 100):
        other.send(data)
        assert frames.receive() == data


def test_frames_that_arrive_together_are_separated(pair: Pair) -> None:
    """Ours: a worker sends the result of a run and then the state, one after the other."""
    ours, frames = pair
    ours.sendall(framed(b"one") + framed(b"two") + framed(b""))
    assert [frames.receive() for _ in range(3)] == [b"one", b"two", b""]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.integers(1, 7))
def test_frames_may_be_split_anywhere(frames: list[bytes], size: int) -> None:
    """Ours: a frame may be split even in the middle of its length."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = b"".join(map(framed, frames))
        reader = Frames.over(theirs)
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        writer = threading.Thread(target=lambda: [ours.sendall(piece) for piece in pieces])
        writer.start()
        assert [reader.receive() for _ in frames] == frames
        writer.join()


def socket_pair() -> tuple[Frames, Frames]:
    ours, theirs = socket.socketpair()
    return Frames.over(ours), Frames.over(theirs)


def pipe_pair() -> tuple[Frames, Frames]:
    (there, tells), (back, answers) = os.pipe(), os.pipe()
    return Frames(back, tells), Frames(there, answers)


@pytest.mark.parametrize("make", [socket_pair, pipe_pair])
def test_a_large_frame_arrives_whole(make: Callable[[], tuple[Frames, Frames]]) -> None:
    """Ours: a frame may be larger than the buffer of a socket or a pipe."""
    ours, theirs = make()
    data = bytes(range(256)) * 20_000
    writer = threading.Thread(target=ours.send, args=(data,))
    writer.start()
    assert theirs.receive() == data
    writer.join()
    theirs.send(b"back")
    assert ours.receive() == b"back"
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.close()


def test_a_frame_that_is_too_large_is_refused_by_its_length(pair: Pair) -> None:
    """Ours: the rest of the frame is not awaited."""
    ours, frames = pair
    ours.sendall(HEADER.pack(101))
    with pytest.raises(FrameTooLarge):
        frames.receive()


@pytest.mark.parametrize("sent", [b"", b"\0\0", HEADER.pack(5) + b"abc"])
def test_a_connection_closed_by_the_peer_is_an_end(pair: Pair, sent: bytes) -> None:
    """Ours: the connection may end at any byte."""
    ours, frames = pair
    ours.sendall(sent)
    ours.close()
    with pytest.raises(EOFError):
        frames.receive()


@pytest.mark.parametrize("make", [socket_pair, pipe_pair])
def test_a_connection_reports_whether_it_has_unread_data(make: Callable[[], tuple[Frames, Frames]]) -> None:
    """Ours: a worker that sent more than was requested is not reused."""
    ours, theirs = make()
    assert not theirs.has_unread()
    ours._write(framed(b"one") + b"\0")
    assert theirs.has_unread()
    assert theirs.receive() == b"one"
    assert theirs.has_unread(), "one byte of the next length was read together with the frame"
    ours._write(b"\0\0\0")
    assert theirs.receive() == b""
    assert not theirs.has_unread()
    ours.close()
    assert theirs.has_unread(), "the end of the connection can be read"
    theirs.close()
