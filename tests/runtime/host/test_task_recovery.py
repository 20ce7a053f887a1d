"""Tasks and turns whose process was killed: each ends in the right state, and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dying_program import make_agent
from host_stage import staged
from stand_ins import Place, until

from standfast import Runtime, Session
from standfast.durable.journal import HEARTBEAT_MS, SILENT_MS
from standfast.model.message import ToolMessage
from standfast.model.task import TaskKind, TaskRecord, TaskSpec, TaskState
from standfast.runtime.agent_runtime import open_store

PROGRAM = (Path(__file__).parent / "dying_program.py").read_text()


async def _states(runtime: Runtime) -> dict[str, TaskState]:
    return {task.id: task.state for task in await runtime.store.tasks(session_id="root")}


def _killed(child: Callable[..., Any], tmp_path: Path) -> Path:
    """Return a database whose process was killed while everything was running."""
    database = tmp_path / "standfast.db"
    program = child(PROGRAM, database)
    assert program.line() == "ready"
    program.kill()
    return database


@pytest.mark.slow
def test_after_a_kill_each_task_ends_in_the_right_state(child: Callable[..., Any], tmp_path: Path) -> None:
    """Ours: SPEC §9, a task that cannot be resumed is interrupted; any other resumes and ends by itself."""
    database = _killed(child, tmp_path)
    expected = {
        "plain": TaskState.FAILED,
        "observer": TaskState.FAILED,
        "works": TaskState.COMPLETED,
        "finished": TaskState.COMPLETED,
        "fresh": TaskState.FAILED,
        "idle": TaskState.IDLE,
        "lost": TaskState.FAILED,
    }

    async def main() -> None:
        async with Runtime(database, agents=[make_agent(hangs=False)]) as runtime:

            async def is_settled() -> bool:
                return await _states(runtime) == expected

            await until(is_settled)
            tasks = {task.id: task for task in await runtime.store.tasks(session_id="root")}
            for name in ("plain", "observer", "fresh", "lost"):
                error = tasks[name].error
                assert error is not None
                assert error.code == "INTERRUPTED"
            assert tasks["works"].result["text"] == "re: long work"
            assert tasks["finished"].result["text"] == "re: quick work"
            assert tasks["idle"].owner == runtime.tasks.owner

    asyncio.run(main())


@pytest.mark.slow
def test_after_a_kill_a_tool_that_waited_for_a_childs_turn_gets_its_result(
    child: Callable[..., Any], tmp_path: Path
) -> None:
    """Ours: the child's turn resumes by itself; the tool, run again, finds the same session and turn."""
    database = _killed(child, tmp_path)

    async def main() -> None:
        async with Runtime(database, agents=[make_agent(hangs=False)]) as runtime:

            async def is_over() -> bool:
                turns = [await runtime.store.open_turn(name) for name in ("root", "tool-child", "works")]
                return turns == [None, None, None]

            await until(is_over)
            session: Session[str] = await runtime.session("root")
            (answer,) = [one for one in await session.messages() if isinstance(one, ToolMessage)]
            assert answer.value == "re: long work"
            assert len(await runtime.store.turns("tool-child")) == 1

    asyncio.run(main())


@pytest.mark.slow
def test_a_childs_turn_resumes_where_only_its_parents_session_is_open(
    child: Callable[..., Any], tmp_path: Path
) -> None:
    """Ours: the agent of a child is found through its parent, even if it was not passed to the runtime."""
    database = _killed(child, tmp_path)

    async def main() -> None:
        async with Runtime(database) as runtime:
            await asyncio.sleep(0)
            await runtime.session("root", agent=make_agent(hangs=False))

            async def is_over() -> bool:
                return await runtime.store.open_turn("works") is None

            await until(is_over)

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_does_not_know_the_agent_leaves_a_subagents_task_to_others(
    child: Callable[..., Any], tmp_path: Path
) -> None:
    """Ours: listing tasks does not fail a task that another process can continue."""
    database = _killed(child, tmp_path)

    async def main() -> None:
        async with Runtime(database) as runtime:

            async def is_settled() -> bool:
                return (await _states(runtime))["plain"] is TaskState.FAILED

            await until(is_settled)
            await runtime.recover_tasks()
            assert (await _states(runtime))["works"] is TaskState.RUNNING

    asyncio.run(main())


# Two processes


async def _foreign(place: Place, owner: str, **changes: Any) -> TaskRecord:
    """Add a task that another process runs."""
    store = open_store(place.path) if place.path else place._memory
    record = TaskRecord(
        session_id="root",
        id="theirs",
        kind=changes.pop("kind", TaskKind.OTHER),
        state=changes.pop("state", TaskState.RUNNING),
        created_at=1,
        updated_at=place.clock.now_ms(),
        owner=owner,
        **changes,
    )
    await store.add_task(record)
    if place.path:
        await store.close()
    return record


def test_cancelling_a_task_of_another_process_only_marks_its_record(place: Place) -> None:
    """Ours: cancelling marks the record; the process that runs the task does the rest."""

    async def main() -> None:
        async with staged(place) as stage:
            elsewhere = "another-machine/boot:1:1/r.1"
            await _foreign(place, elsewhere)
            after = await stage.host.cancel_background_task("root", "theirs")
            assert (after.state, after.owner) == (TaskState.CANCEL_REQUESTED, elsewhere)
            await stage.runtime.recover_tasks()
            (task,) = await stage.host.list_background_tasks("root")
            assert task.state is TaskState.CANCEL_REQUESTED

    asyncio.run(main())


def test_a_task_on_another_machine_is_interrupted_after_a_long_silence(place: Place) -> None:
    """Bug: a task of a dead machine never ended, because its process could not be looked up."""

    async def main() -> None:
        async with staged(place) as stage:
            await _foreign(place, "another-machine/boot:1:1/r.1")
            await stage.runtime.recover_tasks()
            assert (await _states(stage.runtime))["theirs"] is TaskState.RUNNING
            place.clock.advance(SILENT_MS / 1000 + 1)
            await stage.runtime.recover_tasks()
            (task,) = await stage.host.list_background_tasks("root")
            assert task.error is not None
            assert (task.state, task.error.code) == (TaskState.FAILED, "INTERRUPTED")

    asyncio.run(main())


def test_a_running_task_shows_other_machines_that_it_is_alive(place: Place) -> None:
    """Ours: its record is written every 20 seconds; observers see no change."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.host.spawn_managed_task("root", TaskSpec(id="job"), asyncio.Event().wait)
            place.clock.advance(HEARTBEAT_MS / 1000 + 1)
            await stage.runtime.recover_tasks()
            task = await stage.runtime.store.task("root", "job")
            assert task is not None
            assert (task.state, task.updated_at) == (TaskState.RUNNING, place.clock.now_ms())

    asyncio.run(main())


def test_a_runtime_that_leaves_work_to_others_takes_over_no_task(place: Place) -> None:
    """Bug: with `keeper=False`, a program that only queued inputs took over the tasks of others."""

    async def main() -> None:
        async with staged(place):
            pass
        gone = "another-machine/boot:1:1/r.1"
        await _foreign(place, gone)
        place.clock.advance(SILENT_MS / 1000 + 1)
        async with place.runtime(keeper=False) as runtime:
            await until(lambda: runtime.looked_s is not None)
            assert (await _states(runtime))["theirs"] is TaskState.RUNNING
        async with place.runtime() as runtime:

            async def is_over() -> bool:
                return (await _states(runtime))["theirs"] is TaskState.FAILED

            await until(is_over)

    asyncio.run(main())


def test_a_process_cancels_its_task_at_another_processs_request(place: Place) -> None:
    """Ours: the keeper finds the request in the task's record."""

    async def main() -> None:
        async with staged(place) as mine:
            ended = asyncio.Event()

            async def work() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

            await mine.host.spawn_managed_task("root", TaskSpec(id="job"), work)
            async with place.runtime() as theirs:
                asked = await theirs.host("root").cancel_background_task("root", "job")
                assert asked.state is TaskState.CANCEL_REQUESTED
                await mine.runtime.recover_tasks()
                await ended.wait()

                async def is_over() -> bool:
                    task = await theirs.store.task("root", "job")
                    return task is not None and task.state is TaskState.CANCELLED

                await until(is_over)

    asyncio.run(main())


def test_a_dead_owners_task_that_was_being_cancelled_is_cancelled_not_failed(place: Place) -> None:
    """Ours: the task has ended, as the caller requested."""

    async def main() -> None:
        async with staged(place) as stage:
            dead = stage.runtime.tasks.owner.rpartition(".")[0] + ".0"
            await _foreign(place, dead, state=TaskState.CANCEL_REQUESTED)
            await stage.runtime.recover_tasks()
            (task,) = await stage.host.list_background_tasks("root")
            assert task.state is TaskState.CANCELLED

    asyncio.run(main())
