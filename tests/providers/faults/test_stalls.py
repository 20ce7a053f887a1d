"""Servers that stop sending."""

from __future__ import annotations

import pytest
from fault_stage import essence, faulty, hear, play, turn
from fault_table import cell
from fault_vendors import CHAT, DONE, LINES, REPLY, TEXT, Vendor

from standfast.errors import TurnCode
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel
from standfast.providers.openai_compatible import OpenAICompatibleModel
from standfast.testing.servers.http_server import ModelServer, ServedReply

pytestmark = pytest.mark.slow

SOON, LATE = 0.1, 60.0


def stalled(vendor: Vendor, where: str) -> tuple[ServedReply, Deadlines, str]:
    """Return a reply that stalls at this point, the deadline that ends it, and the error."""
    size = sum(map(len, vendor.blocks()))
    first = Deadlines(first_byte_s=SOON, between_chunks_s=LATE)
    between = Deadlines(first_byte_s=LATE, between_chunks_s=SOON)
    whole = Deadlines(first_byte_s=LATE, between_chunks_s=LATE, total_s=SOON)
    return {
        "before the headers": (ServedReply(text="late", delay_ms=60_000), first, "did not answer within"),
        "before the first byte": (faulty(stall_at=0), first, "did not answer within"),
        "in the middle": (faulty(stall_at=size // 2), between, "in the middle of a reply"),
        "anywhere": (faulty(stall_at=size // 2), whole, "took more than"),
    }[where]


@pytest.mark.parametrize(
    "where", ["before the headers", "before the first byte", "in the middle", "anywhere"]
)
@cell("stall")
def test_a_deadline_ends_a_stall_with_a_retryable_error(vendor: Vendor, where: str) -> None:
    """Seed: there are deadlines for the first byte, between chunks and for the whole reply."""
    reply, deadlines, words = stalled(vendor, where)

    async def scene() -> None:
        async with vendor.server([reply]) as server:
            model = vendor.open(server, deadlines)
            error = (await hear(model)).error
            await model.close()
        assert error is not None
        assert (error.code, error.retryable) == (TurnCode.PROVIDER_ERROR, True)
        assert words in error.message
        assert "Deadlines(" in (error.hint or "")

    play(scene())


def impatient(vendor: Vendor, server: ModelServer) -> HttpModel:
    """Return a model that hardly waits for a token count after the last event."""
    model = vendor.open(server)
    if isinstance(model, OpenAICompatibleModel):
        model.usage_within_s = SOON
    return model


@cell("stall-after-end")
def test_a_stall_after_the_last_event_does_not_lose_the_reply(vendor: Vendor) -> None:
    """Ours: the vendor's last event ends a reply; a token count after it is not required."""
    blocks = vendor.blocks()
    told = sum(map(len, blocks[: len(blocks) - vendor.last + 1]))

    async def scene() -> None:
        replies = [faulty(body=b"".join(blocks)), faulty(body=b"".join(blocks), stall_at=told)]
        async with vendor.server(replies) as server:
            model = impatient(vendor, server)
            whole, halted = await hear(model), await hear(model)
            await server.hung_up.wait()
            await model.close()
        assert essence(whole.ended) == essence(halted.ended)
        assert halted.ended is not None
        assert halted.ended.usage.output == (0 if vendor is CHAT else 4)

    play(scene())


@cell("stall-turn")
def test_a_turn_recovers_from_a_stall(vendor: Vendor) -> None:
    """Seed: after a stall, streamed text is retracted and no partial tool call runs."""

    async def scene() -> None:
        reply, _, _ = stalled(vendor, "in the middle")
        played = await turn(vendor, [reply, REPLY, DONE], deadlines=Deadlines(between_chunks_s=5 * SOON))
        assert (played.status, len(played.requests)) == ("finished", 3)
        assert sorted(played.desk.written) == sorted(LINES)
        assert played.shown() == TEXT + DONE
        assert played.retracted()

    play(scene())
