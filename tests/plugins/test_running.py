"""Running hooks: time limits, containment, phases, and tasks that start eagerly."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from plugin_bench import PhaseLog

from standfast.errors import InvalidArgument, PluginFailed
from standfast.plugins.running import (
    HookRunner,
    NoAnswer,
    RegisteredHook,
    RunningStage,
    all_within,
    at_once,
    within,
)
from standfast.tools.threads import Started
from standfast.tools.tracebacks import described

word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")


def hook_of(
    function: Callable[..., Any], plugin_id: str = "one", kind: str = "before_turn"
) -> RegisteredHook:
    return RegisteredHook(plugin_id, kind, function)


async def stage(runner: HookRunner, *hooks: RegisteredHook) -> list[Any]:
    """Run some hooks, one after another."""

    async def work(at: RunningStage) -> list[Any]:
        return [await at.call(one) for one in hooks]

    return await runner.stage(work)


# Containment


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), StopAsyncIteration(),
              asyncio.CancelledError(), TimeoutError(), InvalidArgument("bad")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
def test_any_exception_of_a_hook_becomes_a_failure_that_names_it(error: BaseException, waits: bool) -> None:
    """Ours: no exception escapes from a hook, not even a BaseException."""

    async def broken() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    async def main() -> None:
        with pytest.raises(PluginFailed, match="plugin 'one' failed in before_turn: ") as caught:
            await stage(HookRunner(), hook_of(broken))
        assert type(error).__name__ in caught.value.message
        assert caught.value.plugin_id == "one"

    asyncio.run(main())


def test_another_plugins_failure_that_a_hook_does_not_catch_is_its_own() -> None:
    """Ours: the error names the plugin whose hook failed."""

    async def broken() -> None:
        raise PluginFailed("other", "action", "no")

    async def own() -> None:
        raise PluginFailed("one", "elsewhere", "no")

    async def main() -> None:
        with pytest.raises(PluginFailed, match=r"plugin 'one' failed in before_turn: .*'other'"):
            await stage(HookRunner(), hook_of(broken))
        with pytest.raises(PluginFailed, match="plugin 'one' failed in elsewhere: no"):
            await stage(HookRunner(), hook_of(own))

    asyncio.run(main())


def test_an_exception_is_described_even_if_its_message_raises() -> None:
    """Ours: the `__str__` of an exception may itself raise."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(Broken()) == "Broken: (its message cannot be shown)"
    assert described(ValueError()) == "ValueError"
    assert described(ValueError("\ud800")) == "ValueError: ?"
    assert len(described(ValueError("x" * 9000))) < 2100


def test_a_synchronous_hook_is_contained_too() -> None:
    """Ours: a catalog is built without awaiting, so its hooks are plain functions."""

    def broken() -> None:
        raise SystemExit

    async def later() -> None: ...

    runner = HookRunner()
    assert runner.call_plain(hook_of(lambda: 3)) == 3
    with pytest.raises(PluginFailed, match="plugin 'one' failed in before_turn: SystemExit"):
        runner.call_plain(hook_of(broken))
    with pytest.raises(PluginFailed, match="its caller cannot await it"):
        runner.call_plain(hook_of(later))


def test_a_coroutine_from_a_synchronous_hook_is_refused() -> None:
    """Bug: the coroutine was never awaited."""

    async def later() -> None: ...

    async def main() -> None:
        with pytest.raises(TypeError, match="async def"):
            _ = at_once(later())
        with pytest.raises(TypeError):
            at_once(asyncio.get_running_loop().create_future())
        assert at_once("now") == "now"

    asyncio.run(main())


# Time


def test_a_hook_that_takes_too_long_fails() -> None:
    """Ours: hooks have a time limit."""

    async def main() -> None:
        with pytest.raises(
            PluginFailed, match=r"plugin 'one' failed in before_turn: it did not answer within"
        ):
            await stage(HookRunner(0.01), hook_of(asyncio.Event().wait))

    asyncio.run(main())


def test_the_hooks_of_a_stage_share_one_deadline_and_the_running_one_is_blamed() -> None:
    """Ours: the time limit applies to the whole stage."""

    async def quick() -> str:
        await asyncio.sleep(0)
        return "quick"

    async def main() -> None:
        slow = hook_of(asyncio.Event().wait, "slow")
        with pytest.raises(PluginFailed, match="plugin 'slow'"):
            await stage(HookRunner(0.01), hook_of(quick), slow, hook_of(quick, "last"))

    asyncio.run(main())


def test_an_answer_after_the_deadline_does_not_count() -> None:
    """Bug: a guard that timed out could still allow the call by swallowing its cancellation."""

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "yes"
        return "never"

    async def main() -> None:
        with pytest.raises(PluginFailed, match="it did not answer within"):
            await stage(HookRunner(0.01), hook_of(stubborn))

    asyncio.run(main())


def test_a_hook_that_never_stops_is_abandoned() -> None:
    """Ours: a turn does not wait for a hook that ignores its cancellation."""
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise RuntimeError("this error is dropped")

    async def main() -> None:
        with pytest.raises(PluginFailed, match="it did not answer within"):
            await stage(HookRunner(0.01), hook_of(stubborn))
        release.set()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_hook_that_cancels_its_own_task_fails() -> None:
    """Bug: the cancellation also affected the caller of the hook."""

    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    async def waits_first() -> None:
        await asyncio.sleep(0)
        await suicidal()

    async def main() -> None:
        for function in (suicidal, waits_first):
            with pytest.raises(PluginFailed, match="plugin 'one'"):
                await stage(HookRunner(), hook_of(function))

    asyncio.run(main())


def test_a_task_that_cancels_itself_has_no_answer() -> None:
    """Ours: this holds even if the task hides its cancellation until the end."""

    async def sly() -> str:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "all is well"

    async def main() -> None:
        with pytest.raises(NoAnswer, match="it cancelled the task"):
            await within(5, sly())

    asyncio.run(main())


def test_cancelling_the_caller_cancels_the_hook() -> None:
    """Ours: cancelling a turn cancels its hooks."""
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def main() -> None:
        asking = asyncio.ensure_future(stage(HookRunner(), hook_of(slow)))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert ended == ["slow"]

    asyncio.run(main())


def test_concurrent_observers_without_an_answer_are_reported() -> None:
    """Seed: lifecycle events reach all observers concurrently."""

    async def quick() -> None: ...

    async def slow() -> None:
        await asyncio.Event().wait()

    async def sly() -> None:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def main() -> None:
        assert await all_within(1, []) == []
        assert await all_within(1, [quick(), quick()]) == []
        found = await all_within(0.01, [quick(), slow(), quick(), sly(), slow()])
        assert [place for place, _ in found] == [1, 4, 3]
        assert "within 0.01 s" in found[0][1]
        assert "cancelled" in found[2][1]

    asyncio.run(main())


# Phases


def test_a_phase_is_named_after_the_hook_and_the_plugin() -> None:
    """Seed: phases are probed as `plugin_hook.{kind}.{plugin_id}`."""

    async def quick() -> None: ...

    async def main() -> None:
        log = PhaseLog()
        runner = HookRunner(probe=log)
        await stage(runner, hook_of(quick), hook_of(quick, "other", "checkpoint"))
        runner.call_plain(hook_of(lambda: None, "one", "tool_catalog"))
        assert log.lines == [
            "+plugin_hook.before_turn.one",
            "-plugin_hook.before_turn.one",
            "+plugin_hook.checkpoint.other",
            "-plugin_hook.checkpoint.other",
            "+plugin_hook.tool_catalog.one",
            "-plugin_hook.tool_catalog.one",
        ]

    asyncio.run(main())


@pytest.mark.parametrize("plain", [False, True])
def test_a_phase_ends_before_its_error_is_raised(plain: bool) -> None:
    """Seed: the probe ends before the error propagates."""
    log = PhaseLog()

    async def broken() -> None:
        raise ValueError

    def plainly_broken() -> None:
        raise ValueError

    async def main() -> None:
        runner = HookRunner(probe=log)
        try:
            if plain:
                runner.call_plain(hook_of(plainly_broken))
            else:
                await stage(runner, hook_of(broken), hook_of(broken, "never"))
        except PluginFailed:
            assert log.lines == ["+plugin_hook.before_turn.one", "-plugin_hook.before_turn.one"]
            log.lines.append("travelled")

    asyncio.run(main())
    assert log.lines[-1] == "travelled"


def test_a_phase_that_takes_too_long_ends_too() -> None:
    """Seed: the probe also ends if the hook times out."""

    async def main() -> None:
        log = PhaseLog()
        with pytest.raises(PluginFailed):
            await stage(HookRunner(0.01, log), hook_of(asyncio.Event().wait))
        assert log.lines == ["+plugin_hook.before_turn.one", "-plugin_hook.before_turn.one"]

    asyncio.run(main())


# Tasks that start eagerly


def test_work_that_never_waits_completes_immediately() -> None:
    """Ours: most hooks never wait, so they need no task."""

    async def quick() -> str:
        return word.get()

    async def broken() -> None:
        raise ValueError("x")

    async def main() -> None:
        word.set("outer")
        assert Started(quick()).over
        assert Started(quick()).result() == "outer"
        failed = Started(broken())
        assert failed.over
        with pytest.raises(ValueError, match="x"):
            failed.result()

    asyncio.run(main())


def test_work_that_waits_continues_as_one_task_in_one_context() -> None:
    """Ours: code before the first wait runs in the same task as the code after it."""
    seen: list[Any] = []

    async def slow() -> str:
        word.set("inner")
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return word.get()

    async def main() -> None:
        outer = asyncio.current_task()
        started = Started(slow())
        assert asyncio.current_task() is outer
        assert not started.over
        assert started.task is not None
        assert await started.task == "inner"
        assert started.result() == "inner"
        assert seen == [started.task, started.task]
        assert word.get() == "none"

    asyncio.run(main())


def test_work_that_cancels_itself_in_its_first_step_receives_the_cancellation() -> None:
    """Bug: the work was abandoned, and its `finally` ran only at garbage collection."""
    heard: list[str] = []

    async def slow(stays: bool) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            if not stays:
                raise
        await asyncio.sleep(0)
        return "stayed"

    async def main() -> None:
        started = Started(slow(False))
        assert started.task is not None
        with pytest.raises(asyncio.CancelledError):
            await started.task
        staying = Started(slow(True))
        assert staying.task is not None
        assert await staying.task == "stayed"
        assert heard == ["cancelled"] * 2

    asyncio.run(main())


def test_work_may_start_more_work() -> None:
    """Ours: a hook may use task groups, timeouts and gather."""

    async def inner(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def outer() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(inner(number)) for number in range(3)]
        more: list[Awaitable[int]] = [within(5, inner(3)), asyncio.wait_for(inner(4), 5)]
        return sum(task.result() for task in tasks) + sum(await asyncio.gather(*more))

    async def main() -> None:
        assert await within(5, outer()) == 10

    asyncio.run(main())
