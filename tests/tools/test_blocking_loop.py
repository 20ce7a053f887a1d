"""The loop of blocking callers: calls run on a helper, which hands the loop back if something is due."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from standfast import BlockingSandbox, tool
from standfast.errors import Code
from standfast.model.limits import CapabilityLimits
from standfast.model.run import RunStatus
from standfast.tools.threads import BlockingLoop, DaemonThreads, run_blocking

SHORT = CapabilityLimits(timeout_ms=150)
HELPERS = DaemonThreads("test-helpers")


def call(job: Callable[[], Any]) -> asyncio.Future[Any]:
    """Let the running loop call *job* next; return a future of its result."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, BlockingLoop)
    future = loop.create_future()

    def work() -> Callable[[], object]:
        result = job()
        return lambda: loop.call_soon_threadsafe(lambda: future.done() or future.set_result(result))

    if not loop.call_next(work, HELPERS):
        HELPERS.start(work)
    return future


def test_calls_one_after_the_other_run_on_one_thread_that_is_not_the_callers() -> None:
    async def work() -> set[int]:
        return {await call(threading.get_ident) for _ in range(20)}

    threads = run_blocking(work())
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_call_has_no_running_loop_and_may_start_one() -> None:
    async def inner() -> str:
        return "inner"

    async def work() -> tuple[Any, str, str]:
        running = await call(asyncio._get_running_loop)
        return running, await call(lambda: asyncio.run(inner())), await call(lambda: run_blocking(inner()))

    assert run_blocking(work()) == (None, "inner", "inner")
    assert asyncio._get_running_loop() is None


def test_calls_at_the_same_time_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)

    async def work() -> list[int]:
        return list(await asyncio.gather(*(call(meeting.wait) for _ in range(3))))

    assert sorted(run_blocking(work())) == [0, 1, 2]


def test_a_timer_takes_the_loop_back_from_a_call_that_hangs() -> None:
    released = threading.Event()

    async def work() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await call(lambda: released.wait(20))
        return str(await call(lambda: "the next call"))

    began = time.monotonic()
    assert run_blocking(work()) == "the next call"
    assert time.monotonic() - began < 5
    released.set()
    assert run_blocking(work_after()) == 3  # a late result of the call does not reach the next work


async def work_after() -> int:
    return sum([await call(lambda: 1) for _ in range(3)])


def test_a_shorter_timer_of_a_later_call_is_not_missed() -> None:
    async def work() -> list[bool]:
        async def timed(limit_s: float, call_s: float) -> bool:
            try:
                async with asyncio.timeout(limit_s):
                    await call(lambda: time.sleep(call_s))
            except TimeoutError:
                return True
            return False

        return [await timed(20, 0.01), await timed(0.05, 1.5), await timed(20, 0.01)]

    began = time.monotonic()
    assert run_blocking(work()) == [False, True, False]
    assert time.monotonic() - began < 1.4


def test_a_callback_of_another_thread_is_not_delayed_by_a_call() -> None:
    released = threading.Event()

    async def work() -> str:
        loop = asyncio.get_running_loop()
        posted = loop.create_future()
        threading.Timer(0.05, lambda: loop.call_soon_threadsafe(posted.set_result, "posted")).start()
        hanging = call(lambda: released.wait(20))
        first = await posted
        released.set()
        return f"{first}, {await hanging}"

    assert run_blocking(work()) == "posted, True"


def test_timers_fire_between_calls() -> None:
    async def work() -> int:
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_later(0.01 * number, fired.append, number)
        while len(fired) < 5:
            await call(lambda: None)
        return len(fired)

    assert run_blocking(work()) == 5


def test_an_exception_that_ends_a_helper_is_raised_in_the_caller() -> None:
    def give_up() -> None:
        raise SystemExit(7)

    async def work() -> None:
        await call(lambda: None)
        asyncio.get_running_loop().call_soon(give_up)
        await call(lambda: None)

    with pytest.raises(SystemExit):
        run_blocking(work())
    assert run_blocking(work_after()) == 3


def test_many_runs_with_calls_that_end_at_their_deadlines() -> None:
    """The helper's return from a call races with the caller's taking the loop back."""

    async def work() -> None:
        for _ in range(30):
            try:
                async with asyncio.timeout(0.002):
                    await call(lambda: time.sleep(0.002))
            except TimeoutError:
                pass
        assert await call(lambda: "end") == "end"

    for _ in range(5):
        run_blocking(work())


def test_a_tool_that_hangs_times_out_and_the_run_continues() -> None:
    released = threading.Event()

    @tool(side_effect="none", limits=SHORT)
    def hang() -> str:
        """Hang."""
        released.wait(20)
        return "late"

    @tool(side_effect="none")
    def name() -> str:
        """Return the thread's name."""
        return threading.current_thread().name

    code = """
first = name()
try:
    hang()
    end = "none"
except TimeoutError:
    end = "timeout"
[first == name(), end]
"""
    with BlockingSandbox(tools=[hang, name]) as box:
        result = box.run(code)
        assert (result.status, result.result) == (RunStatus.OK, [False, "timeout"])
        released.set()
        again = box.run("[name() == name(), name() != '']")
        assert again.result == [True, True]


def test_a_call_is_cancelled_while_it_hangs() -> None:
    released, began = threading.Event(), threading.Event()

    @tool(side_effect="none")
    def hang() -> None:
        """Hang."""
        began.set()
        released.wait(20)

    with BlockingSandbox(tools=[hang]) as box:
        threading.Thread(target=lambda: began.wait(10) and box.cancel("default")).start()
        result = box.run("hang()\nhang()")
        assert result.error is not None
        assert result.error.code == Code.CANCELLED
        released.set()
        assert box.run("1+1").result == 2


def test_ctrl_c_ends_a_run_whose_tool_hangs() -> None:
    released, began = threading.Event(), threading.Event()

    @tool(side_effect="none")
    def hang() -> None:
        """Hang."""
        began.set()
        released.wait(20)

    main = threading.get_ident()

    def interrupt() -> None:
        began.wait(10)
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    with BlockingSandbox(tools=[hang]) as box:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            box.run("hang()")
        released.set()
        assert box.run("1+1").result == 2


def test_a_caller_is_not_woken_for_each_call_after_a_timer_has_passed() -> None:
    """Bug: once a timer had passed between two calls, every later call woke the caller."""

    class CountedSignals(queue.SimpleQueue[None]):
        count = 0

        def put(self, item: None, block: bool = True, timeout: float | None = None) -> None:
            self.count += 1
            super().put(item)

    signals = CountedSignals()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, BlockingLoop)
        loop._signals = signals
        later = [loop.call_later(seconds, bool) for seconds in (0.02, 60)]
        for _ in range(100):
            time.sleep(0.001)  # noqa: ASYNC251 - as guest code, which the thread of the loop waits for
            await call(bool)
        later[1].cancel()

    run_blocking(work())
    assert signals.count < 50
