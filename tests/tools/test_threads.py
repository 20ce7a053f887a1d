"""Threads that never prevent the process from exiting."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from standfast.tools.threads import DaemonThreads


def test_a_job_runs_off_the_loop_and_returns_its_value() -> None:
    """Ours: a blocking job must not block the event loop."""

    async def go() -> tuple[int, int]:
        threads = DaemonThreads()
        here = threading.get_ident()
        there = await threads.run(threading.get_ident)
        threads.close()
        return here, there

    here, there = asyncio.run(go())
    assert here != there


def test_an_exception_of_a_job_is_raised_where_it_is_awaited() -> None:
    """Ours: the caller gets the exception of a job that ran in another thread."""

    async def go() -> None:
        threads = DaemonThreads()
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        assert await threads.run(lambda: 5) == 5
        threads.close()

    asyncio.run(go())


def test_a_thread_is_reused_and_many_jobs_run_concurrently() -> None:
    """Ours: threads are created on demand, and there are never fewer than jobs."""

    async def go() -> None:
        threads = DaemonThreads()
        await threads.run(lambda: None)
        deadline = time.monotonic() + 5
        while not threads._idle and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
        assert await threads.run(lambda: threading.current_thread().name) == "standfast-1"
        barrier = threading.Barrier(20)
        await asyncio.gather(*(threads.run(lambda: barrier.wait(5)) for _ in range(20)))
        threads.close()

    asyncio.run(go())


def test_a_job_that_ends_after_its_loop_is_dropped_silently() -> None:
    """Ours: the result of a tool that returns too late is dropped without an error."""
    threads = DaemonThreads()
    gate, done = threading.Event(), threading.Event()

    async def go() -> None:
        task = asyncio.ensure_future(threads.run(lambda: gate.wait(5)))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(go())
    gate.set()
    threads.start(done.set)
    assert done.wait(5)
    threads.close()


def test_the_process_exits_although_a_job_hangs() -> None:
    """Ours: the standard executor would hang at exit."""
    script = (
        "import threading; from standfast.tools.threads import DaemonThreads;"
        "DaemonThreads().start(threading.Event().wait)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=20).returncode == 0


def test_a_thread_that_is_busy_during_close_ends_with_its_job() -> None:
    """Bug: the thread waited for more work that could never come."""
    threads = DaemonThreads("closing")
    gate = threading.Event()
    started = threading.Event()

    def job() -> None:
        started.set()
        gate.wait(10)

    threads.start(job)
    assert started.wait(10)
    threads.close()
    gate.set()
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("closing") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_jobs_wait_for_a_limited_number_of_threads_and_all_run() -> None:
    """Bug: a thousand concurrent readers created hundreds of threads, each with its own connection."""

    async def go() -> tuple[list[int], set[str]]:
        threads = DaemonThreads("few", at_most=3)
        names: set[str] = set()

        def job(number: int) -> int:
            names.add(threading.current_thread().name)
            return number

        values = await asyncio.gather(*(threads.run(lambda n=number: job(n)) for number in range(500)))  # type: ignore[misc]
        threads.close()
        return values, names

    values, names = asyncio.run(go())
    assert values == list(range(500))
    assert 1 <= len(names) <= 3


def test_a_job_after_the_threads_were_closed_still_runs() -> None:
    """Ours: the caller of a closed store gets an error; it must not wait for threads that have ended."""

    async def go() -> int:
        threads = DaemonThreads("few", at_most=1)
        await threads.run(lambda: 1)
        threads.close()
        return await asyncio.wait_for(threads.run(lambda: 2), 10)

    assert asyncio.run(go()) == 2
