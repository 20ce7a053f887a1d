"""Deadlines for connecting, for the first byte, between chunks and for the whole reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from plain_vendor import PlainServer, failure_of, plain_model, text_of

from standfast.errors import InvalidArgument
from standfast.providers.http.deadlines import DeadlineExceeded, Deadlines, WaitTimer
from standfast.testing.servers.http_server import Fault, ServedReply

SHORT = 0.05
LONG = 30.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await test()

    asyncio.run(bounded())


@pytest.mark.parametrize("name", ["connect_s", "first_byte_s", "between_chunks_s", "total_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_deadline_must_be_positive(name: str, value: float) -> None:
    """Ours: the value is checked on construction."""
    with pytest.raises(InvalidArgument, match=name):
        Deadlines(**{name: value})


def test_a_server_that_does_not_complete_the_handshake_times_out() -> None:
    """Seed: there is a deadline for connecting."""

    async def test() -> None:
        async with PlainServer(["never"]) as server:
            https = server.base_url.replace("http", "https")
            error = await failure_of(plain_model(https, deadlines=Deadlines(connect_s=SHORT)))

        assert f"could not be reached within {SHORT} s" in error.message
        assert error.retryable

    run(test)


def test_a_server_that_accepts_the_request_but_sends_nothing_times_out() -> None:
    """Seed: there is a deadline for the first byte."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="late", delay_ms=60_000)]) as server:
            limits = Deadlines(first_byte_s=SHORT)
            error = await failure_of(plain_model(server.base_url, deadlines=limits))

        assert f"did not answer within {SHORT} s" in error.message
        assert error.retryable
        assert error.hint is not None
        assert "first_byte_s" in error.hint

    run(test)


def test_headers_without_a_body_do_not_count_as_the_first_byte() -> None:
    """Ours: many servers send their headers at once and compute afterwards."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="late", fault=Fault(stall_at=0))]) as server:
            limits = Deadlines(first_byte_s=5 * SHORT)
            error = await failure_of(plain_model(server.base_url, deadlines=limits))
            await server.hung_up.wait()

        assert "did not answer" in error.message

    run(test)


def test_a_stalled_stream_times_out_and_its_connection_is_closed() -> None:
    """Seed: there is a deadline between chunks."""

    async def test() -> None:
        async with PlainServer([ServedReply(chunks=("a", "b"), fault=Fault(stall_at=25))]) as server:
            error = await failure_of(
                plain_model(server.base_url, deadlines=Deadlines(between_chunks_s=SHORT))
            )
            await server.hung_up.wait()

        assert f"sent nothing for {SHORT} s in the middle" in error.message
        assert error.retryable

    run(test)


def test_a_reply_that_never_ends_times_out() -> None:
    """Seed: there is a deadline for the whole reply; chunks that keep coming do not extend it."""

    async def test() -> None:
        drip = ServedReply(chunks=("a",) * 1000, chunk_delay_ms=5)
        async with PlainServer([drip]) as server:
            limits = Deadlines(between_chunks_s=LONG, total_s=4 * SHORT)
            error = await failure_of(plain_model(server.base_url, deadlines=limits))

        assert f"took more than {4 * SHORT} s" in error.message

    run(test)


class FakeTime(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = lambda wait=None: self._jump(wait) or select(0)  # type: ignore[attr-defined]

    def _jump(self, seconds: float | None) -> None:
        self._now += max(0.0, seconds or 0.0)

    def time(self) -> float:
        return self._now


def run_in_fake_time(test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=FakeTime) as runner:
        runner.run(test())  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_each_wait_gets_its_own_deadline() -> None:
    """Seed: keep-alives extend a deadline; a timer that was set once is checked again."""

    async def test() -> None:
        watch = WaitTimer(1000)
        watch.limit_each("between_chunks_s", 5)
        for _ in range(10):
            with watch:
                await asyncio.sleep(4)
        with pytest.raises(DeadlineExceeded, match="between_chunks_s"), watch:
            await asyncio.sleep(6)
        assert now() == pytest.approx(45)

    run_in_fake_time(test)


def test_a_consumer_may_take_longer_than_the_deadline_between_chunks() -> None:
    """Ours: deadlines apply to the server, not to the reader; tools and hooks run between chunks."""

    async def test() -> None:
        watch = WaitTimer(1000)
        watch.limit_each("between_chunks_s", 5)
        for _ in range(3):
            with watch:
                await asyncio.sleep(1)
            await asyncio.sleep(50)
        with pytest.raises(DeadlineExceeded), watch:
            await asyncio.sleep(6)
        assert now() == pytest.approx(158)

    run_in_fake_time(test)


def test_several_waits_can_share_a_deadline() -> None:
    """Ours: waiting for headers and for the first byte of the body share one deadline."""

    async def test() -> None:
        watch = WaitTimer(1000)
        watch.limit_all("first_byte_s", 10)
        with watch:
            await asyncio.sleep(8)
        with pytest.raises(DeadlineExceeded, match="first_byte_s"), watch:
            await asyncio.sleep(8)
        assert now() == pytest.approx(10)

    run_in_fake_time(test)


def test_the_total_deadline_is_not_extended_by_more_chunks() -> None:
    """Seed: there is a deadline for the whole reply."""

    async def drip(watch: WaitTimer) -> None:
        while True:
            with watch:
                await asyncio.sleep(4)

    async def test() -> None:
        watch = WaitTimer(30)
        watch.limit_each("between_chunks_s", 5)
        with pytest.raises(DeadlineExceeded, match="total_s"):
            await drip(watch)
        assert now() == pytest.approx(30)

    run_in_fake_time(test)


def test_a_consumer_that_used_up_the_total_gets_the_error_at_its_next_wait() -> None:
    """Ours: the total includes the time that the consumer spends."""

    async def test() -> None:
        watch = WaitTimer(30)
        watch.limit_each("between_chunks_s", 5)
        await asyncio.sleep(100)
        with pytest.raises(DeadlineExceeded, match="total_s"), watch:
            pytest.fail("this is not reached")
        assert now() == pytest.approx(100)

    run_in_fake_time(test)


def test_a_cancelled_wait_stays_cancelled_even_if_it_is_overdue() -> None:
    """Ours: a deadline must not swallow the cancellation of a turn."""

    async def test() -> None:
        watch = WaitTimer(LONG)
        watch.limit_each("between_chunks_s", LONG)

        async def wait() -> None:
            with watch:
                await asyncio.Event().wait()

        def cancel_when_overdue() -> None:
            task.cancel()
            watch.limit_all("between_chunks_s", 0)
            watch._check()

        task = asyncio.create_task(wait())
        asyncio.get_running_loop().call_soon(cancel_when_overdue)
        with pytest.raises(asyncio.CancelledError):
            await task
        watch.stop()

    run(test)


def test_a_task_interrupted_by_a_deadline_is_not_left_cancelled() -> None:
    """Ours: `asyncio.timeout` and task groups around a call count cancellations."""

    async def test() -> None:
        watch = WaitTimer(LONG)
        watch.limit_each("between_chunks_s", SHORT)
        with pytest.raises(DeadlineExceeded) as caught, watch:
            await asyncio.Event().wait()
        task = asyncio.current_task()

        assert caught.value.limit == "between_chunks_s"
        assert task is not None
        assert task.cancelling() == 0

    run(test)


def test_a_timeout_around_a_call_belongs_to_the_caller() -> None:
    """Ours: a caller's shorter timeout raises `TimeoutError`, not a failure of the model."""

    async def test() -> None:
        async with PlainServer([ServedReply(text="late", fault=Fault(stall_at=0))]) as server:

            async def expire(limit: asyncio.Timeout) -> None:
                await server.stalled.wait()
                limit.reschedule(now())

            async def ask() -> None:
                async with asyncio.timeout(LONG) as limit, asyncio.TaskGroup() as group:
                    group.create_task(expire(limit))
                    await text_of(plain_model(server.base_url))

            with pytest.raises(TimeoutError):
                await ask()
            await server.hung_up.wait()

    run(test)
