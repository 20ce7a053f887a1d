"""Streams that are cut off, and streams that arrive in small pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fault_stage import essence, faulty, hear, play, turn
from fault_table import cell
from fault_vendors import ASKED, DONE, LINES, REPLY, SETTINGS, SMALL, TEXT, Vendor, lean

from standfast.ports.model_provider import ModelDelta, ReplyEnded, TextArrived
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.http.model import HttpModel
from standfast.providers.http.sse import EventParser
from standfast.providers.script import Reply, ScriptedCall
from standfast.providers.settings import read_settings
from standfast.testing.servers.http_server import ServedReply

pytestmark = pytest.mark.slow

ENDINGS = ("fin", "rst", "proper")


def whole_from(vendor: Vendor, blocks: list[bytes]) -> tuple[int, int]:
    """Return after how many bytes the reply may be complete, and after how many it must be.

    Between them is the blank line after the last event: part of it, or none of it, may suffice.
    """
    told = b"".join(blocks[: len(blocks) - vendor.last + 1])
    return len(told.rstrip()), len(told)


def read(model: HttpModel, body: bytes, *, proper: bool) -> list[ModelDelta]:
    """Return the reply that the model reads from a body, without a connection."""
    asked = PreparedRequest("m", ASKED, read_settings(dict(SETTINGS)), {}, "here")
    reader = model._dialect.reader(asked)
    parser = EventParser()
    events = parser.feed(body) + (parser.end() if proper else [])
    return [delta for event in events for delta in reader.feed(event)]


@pytest.mark.slow
@cell("cut-read")
def test_a_call_is_read_completely_or_not_at_all(vendor: Vendor) -> None:
    """Seed: streams are cut at every byte, and no partial tool call runs."""
    model = vendor.model("http://127.0.0.1:1", vendor.key, None)
    blocks = vendor.blocks()
    body, (earliest, _) = b"".join(blocks), whole_from(vendor, blocks)
    (whole,) = (one for one in read(model, body, proper=False) if isinstance(one, ReplyEnded))
    assert [call.arguments for call in whole.calls] == [
        '{"line":"the first line of all","number":1}',
        r'{"line":"second {\"a\": 1}","number":22}',
    ]
    for end in range(len(body)):
        for proper in (False, True):
            found = read(model, body[:end], proper=proper)
            text = "".join(one.text for one in found if isinstance(one, TextArrived))
            assert TEXT.startswith(text)
            for ended in (one for one in found if isinstance(one, ReplyEnded)):
                assert end >= earliest
                assert essence(ended) == essence(whole)


def cut(body: bytes, end: int, ending: str) -> ServedReply:
    if ending == "proper":
        return faulty(body=body[:end])
    return faulty(body=body, cut_at=end, reset=ending == "rst")


def all_cuts(blocks: list[bytes]) -> list[tuple[int, str]]:
    """Return every byte with one kind of cut, and the boundaries of events with every kind."""
    starts = [sum(map(len, blocks[:number])) for number in range(len(blocks) + 1)]
    edges = {start + by for start in starts for by in (-1, 0)}
    return [
        (end, ending)
        for end in range(starts[-1] + 1)
        for number, ending in enumerate(ENDINGS)
        if end % len(ENDINGS) == number or end in edges
    ]


@pytest.mark.slow
@cell("cut-wire")
def test_a_connection_that_is_cut_yields_a_complete_reply_or_a_retryable_failure(
    vendor: Vendor, sampled: Callable[[int], slice]
) -> None:
    """Seed: streams are cut at every byte."""
    blocks = lean(vendor.blocks(SMALL))
    body, (earliest, latest) = b"".join(blocks), whole_from(vendor, blocks)
    cuts = all_cuts(blocks)[sampled(7)]

    async def scene() -> None:
        async with vendor.server([faulty(body=body), *(cut(body, *one) for one in cuts)]) as server:
            model = vendor.open(server)
            whole = await hear(model)
            assert (whole.text, whole.thought) == (SMALL.text, SMALL.reasoning)
            for end, ending in cuts:
                heard = await hear(model)
                assert whole.text.startswith(heard.text)
                assert whole.thought.startswith(heard.thought)
                if heard.error is None:
                    assert end >= earliest
                    assert essence(heard.ended) == essence(whole.ended)
                else:
                    assert end < latest or ending == "rst"  # a reset may discard bytes sent before it
                    assert heard.error.retryable
            await model.close()

    play(scene())


@cell("cut-turn")
def test_a_turn_recovers_from_a_cut_and_retracts_streamed_text(vendor: Vendor) -> None:
    """Seed: no partial tool call runs, and streamed text is retracted."""

    async def scene() -> None:
        enough, _ = whole_from(vendor, vendor.blocks())
        showed = 0
        for number, end in enumerate(range(0, enough, enough // 12)):
            first = faulty(cut_at=end, reset=number % 2 == 1)
            played = await turn(vendor, [first, REPLY, DONE])
            assert (played.status, len(played.requests)) == ("finished", 3)
            assert played.requests[0].body == played.requests[1].body
            assert sorted(played.desk.written) == sorted(LINES)
            assert played.said() == [TEXT, DONE]
            assert played.shown() == TEXT + DONE
            showed += len(played.retracted())
        assert showed

    play(scene())


@pytest.mark.parametrize("arguments", ["", "{", '{"line": "the fir', '{"line": "all", "number": 1'])
@cell("cut-length")
def test_a_call_truncated_by_the_token_limit_does_not_run(vendor: Vendor, arguments: str) -> None:
    """Seed: no partial tool call runs if the vendor reports that the reply reached its limit."""
    call = ScriptedCall(name="write", arguments=arguments)

    async def scene() -> None:
        played = await turn(vendor, [Reply(tool_calls=(call,), stop_reason="length"), DONE])
        assert (played.status, played.said()[-1], len(played.requests)) == ("finished", DONE, 2)
        assert played.desk.written == []

    play(scene())


@cell("split")
def test_a_stream_yields_the_same_reply_however_it_is_split(vendor: Vendor) -> None:
    """Seed: a stream may be split anywhere."""
    body = b"".join(lean(vendor.blocks(SMALL)))

    async def scene() -> None:
        sizes = (None, 1, 2, 3, 7)
        async with vendor.server([faulty(body=body, split=size) for size in sizes]) as server:
            model = vendor.open(server)
            whole, *others = [await hear(model) for _ in sizes]
            assert whole.ended is not None
            assert all(other == whole for other in others)
            await model.close()

    play(scene())
