"""When the awaiter of a `PromptFuture` continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from standfast.durable.prompt_future import PromptFuture

_PLACE: ContextVar[str] = ContextVar("place", default="")


async def _waiting(future: PromptFuture[int], log: list[str]) -> asyncio.Task[int]:
    """Return a task that awaits *future* and logs the result."""

    async def main() -> int:
        _PLACE.set("task")
        try:
            found = await future
        except BaseException as error:
            log.append(type(error).__name__)
            raise
        log.append(f"{found} in {_PLACE.get()}")
        return found

    task = asyncio.create_task(main())
    await asyncio.sleep(0)
    return task


async def _from_callback(settle: Callable[[], None], log: list[str]) -> None:
    """Call *settle* as a loop callback would, and log when it returns."""
    returned = asyncio.get_running_loop().create_future()

    def call() -> None:
        settle()
        log.append("returned")
        returned.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    await returned


def _run(test: Callable[[PromptFuture[int], list[str]], Awaitable[None]]) -> list[str]:
    log: list[str] = []

    async def main() -> None:
        await test(PromptFuture(), log)

    asyncio.run(main())
    return log


def test_the_awaiter_continues_within_the_call_in_its_own_context() -> None:
    """Ours: this saves one cycle of the loop for each result."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        await _from_callback(lambda: future.set_result(1, at_once=True), log)
        assert await task == 1

    assert _run(test) == ["1 in task", "returned"]


def test_an_error_is_raised_within_the_call() -> None:
    """Ours: errors are as prompt as results."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        await _from_callback(lambda: future.set_exception(KeyError("x"), at_once=True), log)
        with pytest.raises(KeyError):
            await task

    assert _run(test) == ["KeyError", "returned"]


def test_without_at_once_it_is_a_plain_future() -> None:
    """Ours: the outcomes of several effects are processed together."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        await _from_callback(lambda: future.set_result(1), log)
        assert await task == 1

    assert _run(test) == ["returned", "1 in task"]


def test_settling_within_a_task_does_not_interrupt_that_task() -> None:
    """Ours: asyncio refuses to enter one task from within another."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        future.set_result(1, at_once=True)
        log.append("returned")
        assert await task == 1

    assert _run(test) == ["returned", "1 in task"]


def test_awaiting_a_settled_future_does_not_suspend() -> None:
    """Ours: a write made at once is done before its caller awaits it."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        future.set_result(1, at_once=True)
        assert await future == 1

    assert _run(test) == []


def test_cancelling_the_awaiter_cancels_the_future() -> None:
    """Ours: a second cancellation has no effect, as with any future."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()
        assert not future.cancel()

    assert _run(test) == ["CancelledError"]


def test_other_callbacks_are_called_a_cycle_later() -> None:
    """Ours: `wait`, `shield` and `wait_for` add and remove their own callbacks."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        assert (await asyncio.wait((future,), timeout=0))[1] == {future}
        future.add_done_callback(lambda done: log.append(f"callback {done.result()}"))
        await _from_callback(lambda: future.set_result(1, at_once=True), log)
        assert await task == 1
        assert await asyncio.shield(future) == 1

    assert _run(test) == ["1 in task", "returned", "callback 1"]


def test_a_removed_callback_is_not_called() -> None:
    """Ours: this includes the callback that would be called at once."""

    async def test(future: PromptFuture[int], log: list[str]) -> None:
        task = await _waiting(future, log)
        resume = future._resume
        assert resume is not None
        assert future.remove_done_callback(resume) == 1
        assert future.remove_done_callback(resume) == 0
        future.set_result(1, at_once=True)
        await asyncio.sleep(0)
        assert log == []
        task.cancel()

    _run(test)
