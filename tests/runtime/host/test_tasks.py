"""Background tasks: their records, their outcomes, and their cancellation."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import tracemalloc
from typing import Any

import pytest
from host_stage import Stage, staged
from stand_ins import HeldModel, Place, of_kind, until

from standfast.errors import InvalidArgument, SessionNotFound, TaskExists, TaskNotFound, ToolError
from standfast.model.events import TaskChanged
from standfast.model.host_requests import SessionCreateRequest, TurnInput
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.monitor import MonitorSpec, MonitorState
from standfast.model.outcome import Stopped
from standfast.model.task import TaskKind, TaskRecord, TaskSpec, TaskState


class Job:
    """A task's work that waits until the test says how to end."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0
        self.ended = False
        self._stubborn = stubborn

    async def __call__(self) -> Any:
        self.started.set()
        try:
            while True:
                try:
                    await self.go.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    if not self._stubborn:
                        raise
                else:
                    return {"answer": 42}
        finally:
            self.ended = True


def _spec(task_id: str = "job", **options: Any) -> TaskSpec:
    return TaskSpec(id=task_id, **options)


async def _task(stage: Stage, task_id: str = "job", session_id: str = "root") -> TaskRecord:
    found = await stage.runtime.store.task(session_id, task_id)
    assert found is not None
    return found


async def _until_over(stage: Stage, task_id: str = "job") -> TaskRecord:
    async def is_over() -> bool:
        return (await _task(stage, task_id)).state.is_terminal

    await until(is_over)
    return await _task(stage, task_id)


# Managed tasks


def test_a_managed_task_has_a_record_from_its_start_to_its_end(place: Place) -> None:
    """Seed: TaskHost.spawn_managed_task stores the result of the task."""

    async def main() -> None:
        async with staged(place) as stage:
            job = Job()
            record = await stage.host.spawn_managed_task("root", _spec(label="a job", body={"n": 1}), job)
            assert (record.state, record.label, record.body) == (TaskState.RUNNING, "a job", {"n": 1})
            assert await stage.host.list_background_tasks("root") == [record]
            await job.started.wait()
            job.go.set()
            over = await _until_over(stage)
            assert (over.state, over.result, over.error) == (TaskState.COMPLETED, {"answer": 42}, None)
            assert over.created_at == record.created_at
        async with staged(place) as stage:
            assert await stage.host.list_background_tasks("root") == [over]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ValueError("bad"), "RUNTIME_ERROR"),
        (SystemExit(1), "RUNTIME_ERROR"),
        (ToolError("NO_LUCK", "no"), "NO_LUCK"),
    ],
)
def test_an_exception_of_a_managed_task_becomes_a_typed_failure(
    memory: Place, raised: Any, code: str
) -> None:
    """Ours: no exception of a task reaches the runtime."""

    async def work() -> None:
        raise raised

    async def main() -> None:
        async with staged(memory) as stage:
            await stage.host.spawn_managed_task("root", _spec(), work)
            over = await _until_over(stage)
            assert over.state is TaskState.FAILED
            assert over.error is not None
            assert over.error.code == code

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "code"), [("x" * 70_000, "RESPONSE_TOO_LARGE"), (object(), "RESULT_NOT_SERIALIZABLE")]
)
def test_a_result_that_cannot_be_stored_is_a_failure(memory: Place, value: Any, code: str) -> None:
    """Ours: results are JSON, at most 64 KB."""

    async def work() -> Any:
        return value

    async def main() -> None:
        async with staged(memory) as stage:
            await stage.host.spawn_managed_task("root", _spec(), work)
            over = await _until_over(stage)
            assert over.state is TaskState.FAILED
            assert over.error is not None
            assert over.error.code == code

    asyncio.run(main())


def test_a_task_id_is_unique_among_live_tasks_and_reusable_after_the_end(place: Place) -> None:
    """Seed: SPEC §9, live ids are unique, terminal ones may be reused."""

    async def main() -> None:
        async with staged(place) as stage:
            first = Job()
            await stage.host.spawn_managed_task("root", _spec(), first)
            for attempt in (
                stage.host.spawn_managed_task("root", _spec(), Job()),
                stage.host.register_background_task("root", _spec()),
            ):
                with pytest.raises(TaskExists):
                    await attempt
            first.go.set()
            await _until_over(stage)
            again = await stage.host.spawn_managed_task("root", _spec(), Job())
            assert again.state is TaskState.RUNNING

    asyncio.run(main())


def test_a_task_without_a_session_or_a_valid_id_is_refused(memory: Place) -> None:
    """Ours: a record that could not be read back is refused before it is written."""

    async def main() -> None:
        async with staged(memory) as stage:
            with pytest.raises(SessionNotFound):
                await stage.host.spawn_managed_task("missing", _spec(), Job())
            with pytest.raises(InvalidArgument):
                await stage.host.register_background_task("root", _spec("no spaces"))
            with pytest.raises(InvalidArgument):
                await stage.host.register_background_task("root", _spec(body="x" * 70_000))
            assert await stage.host.list_background_tasks("root") == []

    asyncio.run(main())


# Cancelling


def test_cancelling_marks_the_record_then_ends_the_task_then_closes_the_record(place: Place) -> None:
    """Seed: cancel_background_task sets cancel_requested, and cancelled once the task has ended."""

    async def main() -> None:
        async with staged(place) as stage:
            job = Job()
            await stage.host.spawn_managed_task("root", _spec(), job)
            await job.started.wait()
            after = await stage.host.cancel_background_task("root", "job")
            assert (after.state, job.ended, job.cancelled) == (TaskState.CANCELLED, True, 1)
            again = await stage.host.cancel_background_task("root", "job")
            assert again == after
            events = of_kind(TaskChanged, [event for _, event in stage.session._live.events.feed.since(0)])
            assert [event.record.state for event in events] == [
                TaskState.RUNNING, TaskState.CANCEL_REQUESTED, TaskState.CANCELLED,
            ]  # fmt: skip

    asyncio.run(main())


def test_a_managed_task_can_be_cancelled_while_it_starts(place: Place) -> None:
    """Ours: whether the start or the cancellation is faster, no task runs without a record."""

    async def main() -> None:
        async with staged(place) as stage:
            for number in range(20):
                job, name = Job(), f"t{number}"
                spawning = asyncio.create_task(stage.host.spawn_managed_task("root", _spec(name), job))

                async def is_there(name: str = name) -> bool:
                    return await stage.runtime.store.task("root", name) is not None

                await until(is_there)
                await stage.host.cancel_managed_task("root", name)
                await spawning
                assert (await _task(stage, name)).state is TaskState.CANCELLED
                assert job.ended or not job.started.is_set()
            assert stage.runtime.tasks._handles == {}
            with pytest.raises(TaskNotFound):
                await stage.host.cancel_managed_task("root", "missing")

    asyncio.run(main())


def test_a_task_that_ignores_its_cancellation_is_abandoned(place: Place) -> None:
    """Ours: after a grace period it is recorded as cancelled, and its later actions change nothing."""

    async def main() -> None:
        async with staged(place) as stage:
            stage.runtime.tasks.ends.grace_s = 0.01
            job = Job(stubborn=True)
            await stage.host.spawn_managed_task("root", _spec(), job)
            await job.started.wait()
            after = await stage.host.cancel_background_task("root", "job")
            assert (after.state, job.ended) == (TaskState.CANCELLED, False)
            job.go.set()
            await until(lambda: job.ended)
            await until(lambda: not stage.runtime.tasks.ends.late)
            assert await _task(stage) == after

    asyncio.run(main())


def test_a_registered_task_is_cancelled_by_the_plugin_that_registered_it(place: Place) -> None:
    """Seed: register_background_task takes a cancel function; without one nothing is cancelled."""

    async def main() -> None:
        async with staged(place) as stage:
            called: list[str] = []

            async def cancel() -> None:
                called.append((await _task(stage)).state)

            await stage.host.register_background_task("root", _spec(), cancel)
            await stage.host.register_background_task("root", _spec("plain", kind=TaskKind.OBSERVER))
            assert (await stage.host.cancel_background_task("root", "job")).state is TaskState.CANCELLED
            assert called == [TaskState.CANCEL_REQUESTED]
            assert (await stage.host.cancel_background_task("root", "plain")).state is TaskState.CANCELLED

    asyncio.run(main())


def test_a_cancel_function_that_fails_or_hangs_does_not_keep_the_record_open(memory: Place) -> None:
    """Ours: the failure is reported, and the task is still cancelled."""

    async def broken() -> None:
        raise ValueError("no")

    async def hanging() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with staged(memory) as stage:
            stage.runtime.tasks.ends.grace_s = 0.01
            for number, cancel in enumerate((broken, hanging)):
                await stage.host.register_background_task("root", _spec(f"t{number}"), cancel)
                after = await stage.host.cancel_background_task("root", f"t{number}")
                assert after.state is TaskState.CANCELLED
            for task in stage.runtime.tasks.ends.late:
                task.cancel()

    asyncio.run(main())


def test_a_task_may_cancel_itself(memory: Place) -> None:
    """Ours: a task that cancels itself does not wait for itself."""

    async def main() -> None:
        async with staged(memory) as stage:
            heard: list[object] = []

            async def work() -> None:
                heard.append((await stage.host.cancel_background_task("root", "job")).state)
                await asyncio.Event().wait()

            await stage.host.spawn_managed_task("root", _spec(), work)
            await _until_over(stage)
            await until(lambda: not stage.runtime.tasks._handles)
            assert heard == [TaskState.CANCELLED]

    asyncio.run(main())


def test_a_task_that_cancels_all_tasks_ends_last(place: Place) -> None:
    """Ours: the task reads the states of the others before it is cancelled itself."""

    async def main() -> None:
        async with staged(place) as stage:
            others = [Job() for _ in range(5)]
            for number, job in enumerate(others):
                await stage.host.spawn_managed_task("root", _spec(f"t{number}"), job)
            heard: list[int] = []

            async def work() -> None:
                heard.append(len(await stage.host.cancel_all_background_tasks("root")))
                await asyncio.Event().wait()

            await stage.host.spawn_managed_task("root", _spec(), work)
            assert (await _until_over(stage)).state is TaskState.CANCELLED
            await until(lambda: not stage.runtime.tasks._handles)
            assert heard == [6]
            assert all(job.ended or not job.started.is_set() for job in others)

    asyncio.run(main())


def test_a_task_may_close_its_own_session(place: Place) -> None:
    """Ours: closing ends everything except the task itself, which continues."""

    async def main() -> None:
        async with staged(place) as stage:
            other = Job()
            await stage.host.spawn_managed_task("root", _spec("other"), other)

            async def work() -> str:
                await stage.host.close_session("root")
                return "closed"

            await stage.host.spawn_managed_task("root", _spec(), work)
            over = await _until_over(stage)
            assert (over.state, over.result) == (TaskState.COMPLETED, "closed")
            assert (await _task(stage, "other")).state is TaskState.CANCELLED

    asyncio.run(main())


def test_an_unregistered_or_completed_task_ends_with_the_runtime(memory: Place) -> None:
    """Ours: no task keeps running in a process without a record."""

    async def main() -> None:
        jobs = [Job(), Job()]
        async with staged(memory) as stage:
            for number, job in enumerate(jobs):
                await stage.host.spawn_managed_task("root", _spec(f"t{number}"), job)
                await job.started.wait()
            await stage.host.unregister_background_task("root", "t0")
            await stage.host.complete_background_task("root", "t1", TaskState.COMPLETED)
            assert [job.ended for job in jobs] == [False, False]
        assert [job.ended for job in jobs] == [True, True]

    asyncio.run(main())


def test_cancelling_a_subagents_task_closes_its_session_and_all_descendants(place: Place) -> None:
    """Seed: cancelling a subagent's task closes its session and the sessions below it."""

    async def main() -> None:
        model = HeldModel()
        async with staged(place, model=model) as stage:
            await stage.make("child")
            await stage.host_of("child").create_session(SessionCreateRequest(session_id="below"))
            job = Job()
            await stage.host_of("below").spawn_managed_task("below", _spec("deep"), job)
            started = await stage.host.start_turn_stream(
                "child", TurnInput(message=UserMessage(content="work"))
            )
            await model.started.wait()
            spec = _spec("agent", kind=TaskKind.SUBAGENT, body={"session_id": "child"})
            await stage.host.register_background_task("root", spec)
            after = await stage.host.cancel_background_task("root", "agent")
            assert after.state is TaskState.CANCELLED
            done = await stage.host.await_turn(started.turn_id)
            assert isinstance(done.outcome, Stopped)
            assert (await _task(stage, "deep", "below")).state is TaskState.CANCELLED

    asyncio.run(main())


@pytest.mark.slow
def test_cancelling_a_monitors_task_ends_its_processes(place: Place) -> None:
    """Seed: cancelling a monitor's task ends its process tree."""

    async def main() -> None:
        async with staged(place) as stage:
            spec = MonitorSpec(id="watch", command=("sleep", "600"))
            await stage.host.start_monitor("root", spec)
            (listed,) = await stage.host.list_background_tasks("root")
            assert (listed.kind, listed.state) == (TaskKind.MONITOR, TaskState.RUNNING)
            after = await stage.host.cancel_background_task("root", "watch")
            assert after.state is TaskState.CANCELLED
            (status,) = (await stage.host.monitor_snapshot("root")).monitors
            assert status.state is MonitorState.STOPPED
            states = [
                event.record.state
                for event in of_kind(
                    TaskChanged, [one for _, one in stage.session._live.events.feed.since(0)]
                )
            ]
            assert states[0] is TaskState.RUNNING
            assert states[-1] is TaskState.CANCELLED

    asyncio.run(main())


def test_all_live_tasks_are_cancelled_together_and_ended_ones_stay_unchanged(place: Place) -> None:
    """Seed: cancel_all_background_tasks returns the tasks that it cancelled."""

    async def main() -> None:
        async with staged(place) as stage:
            jobs = [Job() for _ in range(3)]
            for number, job in enumerate(jobs):
                await stage.host.spawn_managed_task("root", _spec(f"t{number}"), job)
            jobs[0].go.set()
            await _until_over(stage, "t0")
            ended = await stage.host.cancel_all_background_tasks("root")
            assert sorted(task.id for task in ended) == ["t1", "t2"]
            assert {task.state for task in ended} == {TaskState.CANCELLED}
            assert (await _task(stage, "t0")).state is TaskState.COMPLETED
            assert await stage.host.cancel_all_background_tasks("root") == []

    asyncio.run(main())


# States


def test_a_live_task_is_running_or_idle_and_an_ended_one_stays_ended(place: Place) -> None:
    """Seed: transition_background_task_live_state, complete_background_task, unregister_background_task."""

    async def main() -> None:
        async with staged(place) as stage:
            host = stage.host
            await host.register_background_task("root", _spec())
            await host.transition_background_task_live_state("root", "job", TaskState.IDLE)
            assert (await _task(stage)).state is TaskState.IDLE
            await host.transition_background_task_live_state("root", "job", TaskState.RUNNING)
            assert (await _task(stage)).state is TaskState.RUNNING
            await host.complete_background_task("root", "job", TaskState.FAILED)
            for _ in range(2):
                await host.complete_background_task("root", "job", TaskState.COMPLETED)
                await host.transition_background_task_live_state("root", "job", TaskState.IDLE)
                assert (await _task(stage)).state is TaskState.FAILED
            await host.unregister_background_task("root", "job")
            await host.unregister_background_task("root", "job")
            await host.complete_background_task("root", "missing", TaskState.COMPLETED)
            await host.transition_background_task_live_state("root", "missing", TaskState.IDLE)
            assert await host.list_background_tasks("root") == []
            with pytest.raises(InvalidArgument):
                await host.complete_background_task("root", "job", TaskState.RUNNING)
            with pytest.raises(InvalidArgument):
                await host.transition_background_task_live_state("root", "job", TaskState.COMPLETED)

    asyncio.run(main())


def test_a_task_that_is_being_cancelled_does_not_become_running_again(memory: Place) -> None:
    """Ours: a task that learns late of cancel_requested cannot undo it."""

    async def main() -> None:
        async with staged(memory) as stage:
            entered, leave = asyncio.Event(), asyncio.Event()

            async def cancel() -> None:
                entered.set()
                await leave.wait()

            await stage.host.register_background_task("root", _spec(), cancel)
            cancelling = asyncio.create_task(stage.host.cancel_background_task("root", "job"))
            await entered.wait()
            await stage.host.transition_background_task_live_state("root", "job", TaskState.RUNNING)
            assert (await _task(stage)).state is TaskState.CANCEL_REQUESTED
            leave.set()
            assert (await cancelling).state is TaskState.CANCELLED

    asyncio.run(main())


# Handles


def test_handles_are_validated_one_by_one(place: Place) -> None:
    """Seed: validate_async_handles_visible names the first unknown handle."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.host.register_background_task("root", _spec("a"))
            await stage.host.validate_async_handles_visible("root", [])
            await stage.host.validate_async_handles_visible("root", ["a"])
            with pytest.raises(TaskNotFound, match="'b'"):
                await stage.host.validate_async_handles_visible("root", ["a", "b", "c"])

    asyncio.run(main())


def test_either_all_tasks_are_transferred_to_another_session_or_none(place: Place) -> None:
    """Seed: transfer_async_handles; a running task keeps running, and ends in its new session."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.make("child")
            jobs = {name: Job() for name in "abc"}
            for name, job in jobs.items():
                await stage.host.spawn_managed_task("child", _spec(name), job)
            with pytest.raises(TaskNotFound):
                await stage.host.transfer_async_handles("child", "root", ["a", "missing"])
            await stage.host.register_background_task("root", _spec("c"))
            with pytest.raises(TaskExists):
                await stage.host.transfer_async_handles("child", "root", ["a", "c"])
            assert {task.id for task in await stage.host.list_background_tasks("child")} == {"a", "b", "c"}
            own = stage.runtime._open.hosts_of("child").action
            await own.transfer_async_handles("child", "root", ["a", "b", "a"])
            await own.transfer_async_handles("child", "root", [])
            assert {task.id for task in await stage.host.list_background_tasks("root")} == {"a", "b", "c"}
            jobs["a"].go.set()
            assert (await _until_over(stage, "a")).state is TaskState.COMPLETED
            await stage.host.cancel_background_task("root", "b")
            assert jobs["b"].ended

    asyncio.run(main())


def test_cancelling_unreferenced_handles_spares_the_named_tasks(place: Place) -> None:
    """Seed: cancel_unreferenced_async_handles cancels all tasks except the named ones."""

    async def main() -> None:
        async with staged(place) as stage:
            for name in "abc":
                await stage.host.spawn_managed_task("root", _spec(name), Job())
            ended = await stage.host.cancel_unreferenced_async_handles("root", ["b", "unknown"])
            assert {task.id for task in ended} == {"a", "c"}
            assert (await _task(stage, "b")).state is TaskState.RUNNING

    asyncio.run(main())


# Hidden tasks


def test_hidden_tasks_are_awaited_but_not_listed(place: Place) -> None:
    """Seed: spawn_hidden_task and await_hidden_tasks."""

    async def main() -> None:
        async with staged(place) as stage:
            job, done = Job(), []

            async def follow() -> None:
                await stage.host.await_hidden_tasks("root")
                done.append(job.ended)

            async def broken() -> None:
                raise ValueError("this error is dropped")

            for work in (job, follow, broken):
                await stage.host.spawn_hidden_task("root", "hidden", work)
            assert await stage.host.list_background_tasks("root") == []
            job.go.set()
            await stage.host.await_hidden_tasks("root")
            await stage.host.await_hidden_tasks("elsewhere")
            assert done == [True]
            assert stage.runtime.tasks.hidden.running == {}

    asyncio.run(main())


def test_closing_a_runtime_waits_for_hidden_tasks_which_can_still_use_its_services(place: Place) -> None:
    """Ours: a plugin's tasks are completed; those that take too long are cancelled."""

    async def main() -> None:
        wrote: list[str] = []
        late = Job(stubborn=False)
        async with staged(place) as stage:
            stage.runtime.tasks.hidden.grace_s = 0.05

            async def work() -> None:
                await asyncio.sleep(0)
                wrote.append((await stage.host.snapshot_current()).head.session_id)

            await stage.host.spawn_hidden_task("root", "quick", work)
            await stage.host.spawn_hidden_task("root", "slow", late)
        assert wrote == ["root"]
        assert (late.cancelled, late.ended) == (1, True)

    asyncio.run(main())


# The end of sessions and runtimes


def test_closing_a_runtime_ends_its_tasks_as_interrupted(place: Place) -> None:
    """Ours: no task is left running, in the process or in the store."""

    async def main() -> None:
        job = Job()
        async with staged(place) as stage:
            await stage.host.spawn_managed_task("root", _spec(), job)
            await stage.host.register_background_task("root", _spec("other"))
            await job.started.wait()
        assert job.ended
        async with staged(place) as stage:
            for name in ("job", "other"):
                task = await _task(stage, name)
                assert task.state is TaskState.FAILED
                assert task.error is not None
                assert task.error.code == "INTERRUPTED"

    asyncio.run(main())


def test_deleting_a_session_ends_its_tasks(place: Place) -> None:
    """Ours: a task without a session would have no owner."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.make("child")
            job, hidden = Job(), Job()
            await stage.host.spawn_managed_task("child", _spec(), job)
            await stage.host.spawn_hidden_task("child", "hidden", hidden)
            await job.started.wait()
            await stage.runtime.delete("child")
            assert (job.ended, hidden.ended) == (True, True)
            assert stage.runtime.tasks._handles == {}

    asyncio.run(main())


# Input for turns


def test_input_for_an_idle_session_waits_for_its_next_turn(place: Place) -> None:
    """Seed: inject_turn_input does not start a turn (SPEC §9)."""

    async def main() -> None:
        async with staged(place) as stage:
            input = InjectedTurnInput(message=UserMessage(content="by the way"), id="n1")
            assert await stage.host.inject_turn_input("root", input) == "n1"
            assert await stage.host.inject_turn_input("root", input) == "n1"
            assert (await stage.session.turns()) == []
            done = await stage.session.turn("hello")
            contents = [one.content for one in done.messages if isinstance(one, UserMessage)]
            assert sorted(contents) == ["by the way", "hello"]
            child = stage.runtime._open.hosts_of(await stage.make("child")).action
            unnamed = InjectedTurnInput(message=UserMessage(content="done"))
            assert await child.inject_turn_input("root", unnamed)
            with pytest.raises(SessionNotFound):
                await child.inject_turn_input("missing", unnamed)

    asyncio.run(main())


# A thousand


async def _thousand(stage: Stage) -> dict[str, float]:
    """Register, list and cancel a thousand tasks; return the CPU time of each step, in ms."""
    took: dict[str, float] = {}

    async def timed(name: str, work: Any) -> Any:
        began = time.process_time()
        found = await work
        took[name] = (time.process_time() - began) * 1000
        return found

    async def wait() -> None:
        await asyncio.Event().wait()

    host = stage.host
    spawning = [host.spawn_managed_task("root", _spec(f"t{number}"), wait) for number in range(1000)]
    await timed("register", asyncio.gather(*spawning))
    assert len(await timed("list", host.list_background_tasks("root"))) == 1000
    assert len(await timed("cancel", host.cancel_all_background_tasks("root"))) == 1000
    for number in range(1000):
        await host.unregister_background_task("root", f"t{number}")
    for _ in range(20):
        await asyncio.sleep(0)  # the loop releases ended tasks
    stage.session._live.forget()
    gc.collect()
    return took


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_a_thousand_tasks_take_milliseconds_each_and_leak_no_memory(place: Place) -> None:
    """Ours: registering, listing and cancelling take milliseconds; memory returns to where it was."""

    async def main() -> None:
        others = threading.active_count()
        async with staged(place) as stage:
            tracemalloc.start()
            await _thousand(stage)  # warm up: one-time allocations are done
            held = [tracemalloc.get_traced_memory()[0]]
            for _ in range(3):
                took = await _thousand(stage)
                held.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
            print(place.path and "sqlite", {name: f"{ms:.0f} ms" for name, ms in took.items()}, held)
            # Tables grow now and then; a leak grows every time, and here by less than 20 bytes per task.
            assert min(after - before for before, after in itertools.pairwise(held)) < 20_000
            assert threading.active_count() < others + 20  # a thousand readers wait for eight threads
            assert max(took.values()) < 10_000  # for all of them together, on a slow machine and traced
            tasks = stage.runtime.tasks
            assert (tasks._handles, tasks.hidden.running) == ({}, {})
            assert (tasks.ends.late, tasks._coming) == (set(), [])

    asyncio.run(main())
