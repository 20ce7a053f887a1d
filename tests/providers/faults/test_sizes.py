"""Large replies: a megabyte of arguments, a hundred thousand chunks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest
from fault_stage import Stage, faulty, play, turn
from fault_table import cell
from fault_vendors import DONE, Vendor

from standfast.model.events import TextStreamed
from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers import chat_server, openai_server

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]

MEGABYTE: Final = 1024 * 1024
PIECE: Final = 64
CHUNKS: Final = 100_000
MOST_GROWTH_BYTES: Final = 48 * MEGABYTE
LONGEST_CPU_S: Final = 30.0
LONG_LINE: Final = ('a "long" \\ line, ' * (MEGABYTE // 17 + 1))[:MEGABYTE]
LARGE: Final = Reply(
    text="A long one. ",
    chunk_size=PIECE,
    tool_calls=(ScriptedCall(name="write", arguments={"line": LONG_LINE, "number": 7}),),
)


def small_pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


@pytest.fixture
def _many_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make servers send arguments in many small pieces; Google sends them whole."""
    monkeypatch.setattr(openai_server, "cut_text", lambda text, size: small_pieces(text))
    monkeypatch.setattr(chat_server, "_pieces", small_pieces)


@pytest.mark.slow
@pytest.mark.usefixtures("_many_deltas")
@cell("big-arguments")
def test_a_megabyte_of_arguments_arrives_unchanged(vendor: Vendor) -> None:
    """Seed: tool arguments may be 1 MB long."""

    async def scene() -> None:
        began = time.process_time()
        played = await turn(vendor, [LARGE, DONE])
        assert played.status == "finished"
        assert played.desk.written == [(LONG_LINE, 7)]
        assert time.process_time() - began < LONGEST_CPU_S

    play(scene())


@pytest.mark.slow
@pytest.mark.usefixtures("_many_deltas")
@cell("big-arguments-cut")
def test_a_megabyte_of_arguments_that_is_cut_off_does_not_run(vendor: Vendor) -> None:
    """Seed: no partial tool call runs, however much of it arrived."""

    async def scene() -> None:
        size = sum(map(len, vendor.blocks(LARGE)))
        cuts = [faulty(LARGE, cut_at=size // 2), faulty(LARGE, cut_at=size * 9 // 10, reset=True)]
        played = await turn(vendor, [*cuts, "Never mind."])
        assert (played.status, len(played.requests)) == ("finished", 3)
        assert played.desk.written == []
        assert played.shown() == "Never mind."

    play(scene())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@cell("many-chunks")
def test_a_reply_of_a_hundred_thousand_chunks_is_read_in_bounded_memory(vendor: Vendor) -> None:
    """Seed: a reply of 100,000 chunks needs no memory beyond its text."""

    text = "0123456789" * (CHUNKS // 10)

    async def scene() -> None:
        stage = Stage()
        async with vendor.server([Reply(text=text, chunk_size=1)]) as server, stage.runtime() as runtime:
            model = vendor.open(server)
            going = (await runtime.session("s", agent=stage.agent(model))).turn("Go!")
            began, count, grown, base = time.process_time(), 0, 0, 0
            async for event in going:
                if isinstance(event, TextStreamed):
                    base = base or resident_bytes()
                    count += 1
                    if count % 10_000 == 0:
                        grown = max(grown, resident_bytes() - base)
            assert (count, (await going).output) == (CHUNKS, text)
            assert grown < MOST_GROWTH_BYTES
            assert time.process_time() - began < LONGEST_CPU_S
            await model.close()

    play(scene())
