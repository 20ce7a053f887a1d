"""Ending runs: by name, by task, by the death of a worker, by closing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, CapabilityLimits, Sandbox, tool

pytestmark = pytest.mark.slow

LONG = CapabilityLimits(timeout_ms=60_000)


@tool(side_effect="read", limits=LONG)
def block(seconds: float = 20) -> str:
    time.sleep(seconds)
    return "back"


@tool(side_effect="read", limits=LONG)
async def block_later(seconds: float = 20) -> str:
    await asyncio.sleep(seconds)
    return "back"


@tool(approval="manual")
def ask() -> None: ...


ENDLESS = {
    "computing": "while True:\n    pass",
    "in a tool": "block()",
    "in an async tool": "block_later()",
    "awaiting": "await block_later()",
    "gathering": "import asyncio\nawait asyncio.gather(block(), block_later())",
    "sleeping": "import time\ntime.sleep(20)",
    "sleeping asynchronously": "import asyncio\nawait asyncio.sleep(20)",
    "multiplying": "x = 7 ** 3_000_000\nwhile True:\n    y = x * x",
}
LIMITS = {"cpu_ms": 20_000, "wall_ms": 20_000, "memory_mb": 200}


async def _busy(box: Sandbox, session: str) -> None:
    """Wait until a run that was just started is under way."""
    await asyncio.sleep(0.08)


def run(work: Callable[[Sandbox], Awaitable[None]], **options: Any) -> None:
    async def go() -> None:
        async with Sandbox(tools=[block, block_later, ask], **options) as box:
            await work(box)

    asyncio.run(go())


@pytest.mark.parametrize("what", ENDLESS)
def test_a_run_can_be_cancelled_at_any_stage(what: str) -> None:
    """Ours: SPEC §7, `cancel` ends tools and guest code within their grace period."""

    async def work(box: Sandbox) -> None:
        await box.run("x = 1", session="s")
        task = asyncio.create_task(box.run("x = 2\n" + ENDLESS[what], session="s", limits=LIMITS))
        await _busy(box, "s")
        started = time.monotonic()
        assert await box.cancel("s") is True
        result = await task
        assert time.monotonic() - started < 3
        assert (result.status, result.error and result.error.code) == ("cancelled", "CANCELLED")
        assert result.diagnostics[-1].code == "SESSION_ROLLED_BACK"
        assert (await box.run("x", session="s")).result == 1
        assert await box.cancel("s") is False

    run(work)


def test_cancelling_one_session_leaves_the_others_alone() -> None:
    """Ours: a cancellation affects only the named session."""

    async def work(box: Sandbox) -> None:
        other = asyncio.create_task(box.run("block(0.3)", session="other"))
        task = asyncio.create_task(box.run("block()", session="s", limits=LIMITS))
        await _busy(box, "s")
        await box.cancel("s")
        assert (await task).status == "cancelled"
        assert (await other).result == "back"

    run(work)


def test_a_run_queued_behind_a_cancelled_one_still_runs() -> None:
    """Ours: a cancellation ends one run, not the queue."""

    async def work(box: Sandbox) -> None:
        task = asyncio.create_task(box.run("block()", session="s", limits=LIMITS))
        await _busy(box, "s")
        queued = asyncio.create_task(box.run("1 + 1", session="s"))
        await asyncio.sleep(0.02)
        await box.cancel("s")
        assert (await task).status == "cancelled"
        assert (await queued).result == 2

    run(work)


@pytest.mark.parametrize("what", ["computing", "in a tool", "in an async tool", "gathering", "sleeping"])
def test_cancelling_the_task_ends_the_run(what: str) -> None:
    """Ours: a cancelled `await box.run` raises and leaves nothing running."""

    async def work(box: Sandbox) -> None:
        await box.run("x = 1", session="s")
        task = asyncio.create_task(box.run("x = 2\n" + ENDLESS[what], session="s", limits=LIMITS))
        await _busy(box, "s")
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await box.run("x", session="s")).result == 1
        assert time.monotonic() - started < 3

    run(work)


def test_a_run_ends_when_its_callers_timeout_expires() -> None:
    """Ours: asyncio.timeout works on a run as on anything else."""

    async def work(box: Sandbox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await box.run("while True:\n    pass", session="s", limits=LIMITS)
        assert (await box.run("1 + 1", session="s")).result == 2

    run(work)


def test_cancelling_a_queued_run_affects_no_other_run() -> None:
    """Bug: cancelling a queued run ended the run before it, or kept the lock."""

    async def work(box: Sandbox) -> None:
        first = asyncio.create_task(box.run("x = 5\nblock(0.3)\nx", session="s"))
        await _busy(box, "s")
        second = asyncio.create_task(box.run("x = 6", session="s"))
        await asyncio.sleep(0.02)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (await first).result == 5
        assert (await box.run("x", session="s")).result == 5

    run(work)


def test_cancelling_tasks_that_wait_for_a_worker_frees_their_slots() -> None:
    """Bug: a cancelled waiter kept its slot."""

    async def work(box: Sandbox) -> None:
        holder = asyncio.create_task(box.run("block(0.3)", session="a"))
        await _busy(box, "a")
        waiters = [asyncio.create_task(box.run("1", session=f"w{i}")) for i in range(5)]
        await asyncio.sleep(0.02)
        for waiter in waiters[:4]:
            waiter.cancel()
        await asyncio.gather(*waiters[:4], return_exceptions=True)
        assert (await holder).result == "back"
        assert (await waiters[4]).result == 1
        results = await asyncio.gather(*(box.run("2", session=f"z{i}") for i in range(4)))
        assert [item.result for item in results] == [2] * 4

    run(work, workers=1)


def _engines() -> set[int]:
    found = set()
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for pid in _read(path).split():
            if "monty" in _read(Path(f"/proc/{pid}/cmdline")):
                found.add(int(pid))
    return found


def _read(path: Path) -> str:
    """Return the contents of a file in /proc, or nothing if it is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""


def test_killing_a_worker_interrupts_its_run_and_the_next_run_works() -> None:
    """Ours: a crash of the engine is INTERRUPTED, and the session is as before the run."""
    with BlockingSandbox(tools=[block]) as box:
        box.run("x = 1", session="s")
        box.run("x", session="s")
        timer = threading.Timer(0.15, lambda: [os.kill(pid, signal.SIGKILL) for pid in _engines()])
        timer.start()
        result = box.run("x = 2\nwhile True:\n    pass", session="s", limits=LIMITS)
        timer.join()
        assert (result.status, result.error and result.error.code) == ("interrupted", "INTERRUPTED")
        assert result.diagnostics[-1].code == "SESSION_ROLLED_BACK"
        assert box.run("x", session="s").result == 1


def test_killing_a_worker_during_a_tool_interrupts_its_run() -> None:
    """Ours: the result is the same wherever the run is."""
    with BlockingSandbox(tools=[block]) as box:
        box.run("x = 1\n'settled'", session="s")
        timer = threading.Timer(0.1, lambda: [os.kill(pid, signal.SIGKILL) for pid in _engines()])
        timer.start()
        result = box.run("x = 2\nblock(0.3)\nx", session="s", limits=LIMITS)
        timer.join()
        assert (result.status, result.error and result.error.code) == ("interrupted", "INTERRUPTED")
        assert box.run("x", session="s").result == 1


def test_killing_an_idle_worker_loses_no_variables() -> None:
    """Ours: everything that a worker holds is also in the session's last dump."""
    with BlockingSandbox() as box:
        box.run("x = 41\n'settled'", session="s")
        box.run("'settled'", session="s")
        for pid in _engines():
            os.kill(pid, signal.SIGKILL)
        result = box.run("x + 1", session="s")
        if result.status == "interrupted":
            result = box.run("x + 1", session="s")
        assert result.result == 42


def test_a_run_after_an_idle_worker_was_killed_starts_another_worker() -> None:
    """Ours: a worker may be dropped at any time without the user noticing."""
    with BlockingSandbox() as box:
        box.run("x = 41\n'settled'", session="s")
        for pid in _engines():
            os.kill(pid, signal.SIGKILL)
        assert box.run("x + 1", session="s").result == 42


def test_closing_the_sandbox_ends_its_runs_and_its_processes() -> None:
    """Ours: no run and no process is left behind."""

    async def go() -> list[Any]:
        async with Sandbox(tools=[block, block_later, ask]) as box:
            tasks = [
                asyncio.create_task(box.run(code, session=f"s{i}", limits=LIMITS))
                for i, code in enumerate(ENDLESS.values())
                if code != ENDLESS["multiplying"]
            ]
            await asyncio.sleep(0.25)
            started = time.monotonic()
        assert time.monotonic() - started < 2
        return await asyncio.gather(*tasks, return_exceptions=True)

    before = _engines()
    results = asyncio.run(go())
    assert {getattr(item, "status", item) for item in results} == {"cancelled"}
    deadline = time.monotonic() + 3
    while _engines() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _engines() - before == set()


def test_an_interrupt_ends_an_interruptible_run(child: Callable[..., Any]) -> None:
    """Ours: Ctrl-C in a script ends the run itself, not only the wait for it, and its result says so."""
    one = child(
        """
        import time
        from standfast import BlockingSandbox
        with BlockingSandbox(interruptible=True) as box:
            box.run("x = 1")
            print("ready", flush=True)
            result = box.run("x = 2\\nwhile True:\\n    pass", limits={"cpu_ms": 20000, "wall_ms": 20000})
            started = time.monotonic()
            print(result.status, box.run("x").result, time.monotonic() - started < 3)
        """
    )
    assert one.line() == "ready"
    time.sleep(0.2)
    started = time.monotonic()
    os.kill(one.process.pid, signal.SIGINT)
    assert one.output(timeout=10) == "cancelled 1 True\n"
    assert time.monotonic() - started < 3


@pytest.mark.slow
def test_an_interrupt_of_a_blocking_run_takes_effect_when_the_run_ends(
    child: Callable[..., Any],
) -> None:
    """Ours: runs are driven on the calling thread, and the sandbox stays usable."""
    one = child(
        """
        from standfast import BlockingSandbox
        with BlockingSandbox() as box:
            box.run("x = 1")
            print("ready", flush=True)
            try:
                box.run("x = 2\\nwhile True:\\n    pass", limits={"cpu_ms": 600, "wall_ms": 20000})
            except KeyboardInterrupt:
                print("interrupted")
            print(box.run("x").result)
        """
    )
    assert one.line() == "ready"
    time.sleep(0.1)
    os.kill(one.process.pid, signal.SIGINT)
    assert one.output(timeout=10) == "interrupted\n1\n"


@pytest.mark.slow
@pytest.mark.parametrize("interruptible", [False, True])
def test_an_interrupt_during_a_tool_is_not_delivered_to_guest_code(
    child: Callable[..., Any], interruptible: bool
) -> None:
    """Bug: a handler on the main thread got the user's Ctrl-C, and guest code could catch it."""
    one = child(
        f"""
        import time
        from standfast import BlockingSandbox, CapabilityLimits, tool

        @tool(limits=CapabilityLimits(timeout_ms=60_000))
        def slow(n: int) -> None:
            print("ready", flush=True)
            time.sleep(3)

        with BlockingSandbox(tools=[slow], interruptible={interruptible}) as box:
            box.run("x = 1")
            guarded = "    try:\\n        slow(i)\\n    except BaseException:\\n        pass\\n"
            code = "x = 2\\nfor i in range(3):\\n" + guarded + "'continued'"
            try:
                result = box.run(code, limits={{"wall_ms": 30000}})
                print(result.status)
            except KeyboardInterrupt:
                print("cancelled")
            print(box.run("x").result)
        """
    )
    assert one.line() == "ready"
    time.sleep(0.1)
    os.kill(one.process.pid, signal.SIGINT)
    assert one.output(timeout=15).split() == ["cancelled", "1"]
