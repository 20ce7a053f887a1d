"""Coroutines on separate event loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from standfast.errors import ServiceUnavailable
from standfast.tools.loop_threads import HomeIterator, LoopThreads, SharedLoop, at_home


async def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread has made the condition true."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


VAR: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="none")


def test_a_loop_is_reused_only_if_nothing_has_waited_on_it() -> None:
    """Ours: an object that was bound to a loop would fail at its second use."""

    async def main() -> None:
        threads, kept = LoopThreads(), []

        async def quick() -> None:
            kept.append(asyncio.get_running_loop())

        async def waits() -> None:
            kept.append(asyncio.get_running_loop())
            await asyncio.sleep(0)

        async def leaves_a_task() -> None:
            kept.append(asyncio.get_running_loop())
            left.append(asyncio.create_task(asyncio.sleep(60)))

        left: list[Any] = []
        await threads.run(quick)
        assert not kept[0].is_closed()
        for work in (waits, leaves_a_task):
            await threads.run(work)
            await until(kept[-1].is_closed)
        assert left[0].cancelled()
        threads.close(wait_s=5)

    asyncio.run(main())


def test_the_first_step_runs_inside_a_task() -> None:
    """Ours: `asyncio.timeout` and task groups remember the task in which they were entered."""

    async def main() -> None:
        threads = LoopThreads()

        async def work() -> bool:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert loop.is_running()
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            return asyncio.current_task() is task and asyncio.get_running_loop() is loop

        async def overdue() -> None:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)

        assert await threads.run(work)
        with pytest.raises(TimeoutError):
            await threads.run(overdue)
        threads.close(wait_s=5)

    asyncio.run(main())


def test_leftovers_on_a_loop_do_not_affect_later_coroutines() -> None:
    """Ours: a loop is reused only if nothing is left on it."""
    heard: list[str] = []

    async def main() -> None:
        threads, kept = LoopThreads(), []

        def note(word: str) -> Callable[[], None]:
            return lambda: heard.append(word)

        async def leaves_a_callback() -> None:
            kept.append(asyncio.get_running_loop())
            kept[-1].call_soon(note("callback"))

        async def leaves_a_timer() -> None:
            kept.append(asyncio.get_running_loop())
            kept[-1].call_later(0.02, note("timer"))

        async def stops() -> str:
            kept.append(asyncio.get_running_loop())
            kept[-1].stop()
            return "stopped"

        async def closes() -> None:
            asyncio.get_running_loop().close()

        async def leaves_a_generator() -> None:
            async def numbers() -> AsyncIterator[int]:
                try:
                    yield 1
                finally:
                    heard.append("generator")

            kept.append(asyncio.get_running_loop())
            async for _ in numbers():
                break

        async def waits() -> int:
            await asyncio.sleep(0.05)
            return 1

        for work in (leaves_a_callback, leaves_a_timer, stops, leaves_a_generator):
            assert await threads.run(work) in (None, "stopped")
            await until(kept[-1].is_closed)
            assert await threads.run(waits) == 1
        with pytest.raises(RuntimeError, match="running"):
            await threads.run(closes)
        assert heard == ["callback", "generator"]
        threads.close(wait_s=5)

    asyncio.run(main())


def test_an_idle_thread_holds_no_reference_to_its_last_coroutine() -> None:
    """Ours: the context of a call refers to its whole turn, which must be freed."""

    class Held:
        """An object that a coroutine uses."""

    async def main() -> None:
        threads, held = LoopThreads(), Held()
        seen = weakref.ref(held)

        def work_with(one: Held) -> Callable[[], Any]:
            async def work() -> bool:
                return one is not None

            return work

        assert await threads.run(work_with(held))
        del held
        await until(lambda: gc.collect() >= 0 and seen() is None)
        threads.close(wait_s=5)

    asyncio.run(main())


def test_context_variables_are_propagated() -> None:
    """Ours: the span of a call and its turn are known wherever its code runs, even when it calls back."""

    async def main() -> None:
        home, threads = asyncio.get_running_loop(), LoopThreads()

        async def read() -> str:
            return VAR.get()

        async def work() -> tuple[str, str]:
            before = VAR.get()
            VAR.set("inner")
            return before, await at_home(home, read)

        VAR.set("outer")
        assert await threads.run(work) == ("outer", "inner")
        assert VAR.get() == "outer"
        threads.close(wait_s=5)

    asyncio.run(main())


def test_a_cancellation_propagates_in_both_directions() -> None:
    """Ours: the waiting task is cancelled, and so is the work it waits for."""
    heard: list[str] = []

    async def main() -> None:
        home, threads = asyncio.get_running_loop(), LoopThreads()
        started = asyncio.Event()

        async def service() -> None:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.append("service")
                raise

        async def work() -> None:
            try:
                await at_home(home, service)
            except asyncio.CancelledError:
                heard.append("work")
                raise

        running = asyncio.ensure_future(threads.run(work))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: sorted(heard) == ["service", "work"])
        threads.close(wait_s=5)

    asyncio.run(main())


def test_work_waits_for_a_thread_when_no_loop_can_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: without free file descriptors, calls wait instead of failing."""
    made = 0

    def limited(self: LoopThreads) -> asyncio.AbstractEventLoop:
        nonlocal made
        if made >= 2:
            raise OSError(24, "Too many open files")
        made += 1
        return real(self)

    real = LoopThreads.new_loop
    monkeypatch.setattr(LoopThreads, "new_loop", limited)

    async def main() -> None:
        threads = LoopThreads()

        async def quick() -> int:
            return 1

        assert sum(await asyncio.gather(*(threads.run(quick) for _ in range(20)))) == 20
        threads.close(wait_s=5)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_caller_gets_the_error_if_no_loop_can_be_created_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: if no thread has a loop, the caller must not wait for ever."""

    def refused(self: LoopThreads) -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(LoopThreads, "new_loop", refused)

    async def main() -> None:
        threads = LoopThreads()
        with pytest.raises(OSError, match="Too many open files"):
            await threads.run(asyncio.Event().wait)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_shared_loop_runs_one_coroutine_at_a_time_and_is_replaced_when_stuck() -> None:
    """Ours: hooks of a session run one at a time; one that blocks for ever costs the session one thread."""
    release = threading.Event()

    async def main() -> None:
        threads = LoopThreads()
        shared = SharedLoop(threads)

        async def where() -> int:
            await asyncio.sleep(0.01)
            return threading.get_ident()

        assert len(set(await asyncio.gather(*(shared.run(where) for _ in range(10))))) == 1

        async def stuck() -> int:
            release.wait(30)
            return threading.get_ident()

        blocked = asyncio.ensure_future(shared.run(stuck))
        await asyncio.sleep(0.05)
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
        assert await asyncio.wait_for(shared.run(where), 10)
        release.set()
        threads.close(wait_s=5)

    asyncio.run(main())


def test_another_loops_iterator_can_be_read_until_its_loop_closes() -> None:
    """Ours: a tool can read the events of a turn; after the runtime has closed, it gets an error."""
    homes: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        homes.append(asyncio.get_running_loop())
        threads = LoopThreads()

        async def numbers() -> Any:
            for number in range(3):
                await asyncio.sleep(0)
                yield number

        items = HomeIterator(homes[0], numbers())

        async def read() -> list[int]:
            found = [one async for one in items]
            await items.aclose()
            return found

        assert await threads.run(read) == [0, 1, 2]
        threads.close(wait_s=5)

    asyncio.run(main())

    async def late() -> None:
        with pytest.raises(ServiceUnavailable, match="its event loop has ended"):
            await at_home(homes[0], asyncio.sleep, 0)

    asyncio.run(late())
