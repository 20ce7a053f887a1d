"""The lifetime of async handles: they live as long as their session refers to them."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest
from code_stand_ins import cell, coder
from host_stage import staged
from plugin_stand_ins import ObedientModel
from stand_ins import HeldModel, Place, until

from standfast import Plugin, RunContext, action, tool
from standfast.errors import PluginStateLost
from standfast.model.frame import FrameSwitch
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.outcome import FrameSwitched
from standfast.model.session import FrameOpened
from standfast.model.task import TaskSpec, TaskState
from standfast.protocols.code.plugin import CodeProtocol
from standfast.runtime.agent_runtime import Runtime


async def _forever() -> None:
    await asyncio.Event().wait()


async def _spawn(runtime: Runtime, task_id: str, session_id: str = "root", *, handle: bool = True) -> None:
    await runtime.host(session_id).spawn_managed_task(
        session_id, TaskSpec(id=task_id, handle=handle), _forever
    )


async def _state(runtime: Runtime, task_id: str, session_id: str = "root") -> TaskState:
    found = await runtime.store.task(session_id, task_id)
    assert found is not None
    return found.state


async def _cancelled(runtime: Runtime, task_id: str, session_id: str = "root") -> None:
    async def is_so() -> bool:
        return await _state(runtime, task_id, session_id) is TaskState.CANCELLED

    await until(is_so)


async def _runs(runtime: Runtime, task_id: str, session_id: str = "root") -> bool:
    return await _state(runtime, task_id, session_id) is TaskState.RUNNING


class Jobs(Plugin):
    """A plugin that stores the ids of handles, or fails to snapshot."""

    broken = False

    @action(kind="command")
    async def hold(self, ctx: Any, args: list[str]) -> None:
        """Keep these handles."""
        self.state = args

    def snapshot(self, writer: Any) -> Any:
        if self.broken:
            raise PluginStateLost("jobs", "snapshot", "it does not say")
        return super().snapshot(writer)


class Begins(Plugin):
    """A plugin that starts tasks outside of turns."""

    @tool(side_effect="write")
    async def begin(self, ctx: RunContext[Any], number: int = 0) -> str:
        """Start a task and return the id of its handle."""
        task_id = f"job-{number or secrets.token_hex(6)}"
        spec = TaskSpec(id=task_id, handle=True)
        await ctx.host.spawn_managed_task(ctx.session_id, spec, _forever)
        return task_id


# References that count


def test_a_handle_that_no_message_names_is_cancelled_when_a_turn_is_committed(place: Place) -> None:
    """Bug: handles that their session had lost were never cancelled. Other tasks are left alone."""

    async def main() -> None:
        async with staged(place) as stage:
            for task_id in ("job-named", "job-lost"):
                await _spawn(stage.runtime, task_id)
            await _spawn(stage.runtime, "plain", handle=False)
            assert await _runs(stage.runtime, "job-lost"), "not before the session moves"
            await stage.session.turn("look at job-named")
            assert await _state(stage.runtime, "job-lost") is not TaskState.RUNNING, (
                "it was asked for already"
            )
            await _cancelled(stage.runtime, "job-lost")
            await stage.session.turn("and then?")
            assert await _runs(stage.runtime, "job-named")
            assert await _runs(stage.runtime, "plain")

    asyncio.run(main())


def test_a_handle_returned_by_a_tool_lives_as_long_as_the_message(place: Place) -> None:
    """Ours: a rewind to before the message releases the handle, once the turn is committed."""

    async def main() -> None:
        async with staged(place, Begins(), model=ObedientModel()) as stage:
            await stage.session.turn("hi")
            await stage.session.turn('call begin:{"number":1}')
            await stage.session.turn("go on")
            assert await _runs(stage.runtime, "job-1")
            await stage.runtime.rewind("root", turns=1)
            assert await _runs(stage.runtime, "job-1")
            await stage.runtime.rewind("root", turns=1)
            await _cancelled(stage.runtime, "job-1")

    asyncio.run(main())


def test_a_plugin_keeps_a_handle_alive_by_storing_its_id(place: Place) -> None:
    """Ours: a plugin's state refers to handles as messages do; releasing one needs no turn."""

    async def main() -> None:
        async with staged(place, Jobs()) as stage:
            await stage.session.plugins.invoke("jobs.hold", ["job-1"])
            await _spawn(stage.runtime, "job-1")
            await stage.session.turn("hi")
            await stage.runtime.recover_tasks()
            assert await _runs(stage.runtime, "job-1")
            await stage.session.plugins.invoke("jobs.hold", [])
            await stage.runtime.recover_tasks()
            await _cancelled(stage.runtime, "job-1")

    asyncio.run(main())


def test_a_handle_id_in_a_plugins_blob_keeps_the_handle_alive(place: Place) -> None:
    """Ours: the blobs of a plugin are part of its state."""

    async def main() -> None:
        async with staged(place, model=ObedientModel()) as stage:
            context = await stage.session._live.current()
            album = next(one for one in context.plugins.plugins if one.id == "album")
            album.pages["note"] = b"\0 see job-1 \0"  # type: ignore[attr-defined]
            album.touch()  # type: ignore[attr-defined]
            await _spawn(stage.runtime, "job-1")
            await stage.session.turn("hi")
            assert await _runs(stage.runtime, "job-1")

    asyncio.run(main())


def test_queued_input_keeps_a_handle_alive(place: Place) -> None:
    """Ours: queued input refers to handles like the message that it becomes."""

    async def main() -> None:
        async with staged(place) as stage:
            told = InjectedTurnInput(message=UserMessage(content="job-1 has begun"))
            await stage.host.inject_turn_input("root", told)
            await _spawn(stage.runtime, "job-1")
            await stage.session.append([UserMessage(content="moved")])
            await stage.runtime.recover_tasks()
            assert await _runs(stage.runtime, "job-1")
            await stage.session.turn("hi")
            await stage.session.turn("hi")
            assert await _runs(stage.runtime, "job-1")

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 10_000, 100_000])
@pytest.mark.parametrize("engine", ["monty", "cpython", "typescript"])
def test_a_variable_of_code_keeps_a_handle_alive(memory: Place, engine: str, padding: int) -> None:
    """Ours: in each engine, whatever the size of the state; a new frame keeps the variables."""
    typescript = engine == "typescript"
    protocol = CodeProtocol(language="typescript") if typescript else CodeProtocol(engine=engine)
    if typescript:
        kept = "'Ω ' + await begin({})" if padding else "{job: await begin({})}"
        first = f"const kept = {kept}; const pad = 'xyz'.repeat({padding}); null"
        second = "await begin({}); 1"
    else:
        first = f"kept = {{'job': begin()}}\npad = [str(n) for n in range({padding})]\nNone"
        second = "len(begin())"

    def reply(code: str) -> str:
        return cell(code).replace("python", "typescript") if typescript else cell(code)

    async def main() -> None:
        script = [one for code in (first, "1 + 1", second, "1 + 1") for one in (reply(code), "ok")]
        agent = coder(*script, plugins=[Begins()], protocol=protocol)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("begin")
            (kept,) = await runtime.store.tasks(session_id="s")
            await session.append([FrameOpened(switch=FrameSwitch(frame_id="f2", reason="mine"))])
            await session.turn("hi")
            assert await _runs(runtime, kept.id, "s")
            await session.turn("again")
            (lost,) = [one for one in await runtime.store.tasks(session_id="s") if one.id != kept.id]
            await session.append([FrameOpened(switch=FrameSwitch(frame_id="f3", reason="mine"))])
            await session.turn("hi")
            assert await _runs(runtime, kept.id, "s")
            await _cancelled(runtime, lost.id, "s")

    asyncio.run(main())


# When references are checked


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["job-1", "nothing"])
def test_a_frame_switch_keeps_the_handles_that_its_seed_or_task_names(place: Place, seed: str) -> None:
    """Ours: after `continue_as`, only references in the new frame count."""

    async def main() -> None:
        code = f"begin(1)\nbegin(2)\ncontinue_as('go on with job-2', '{seed}')"
        agent = coder(cell(code), "done", plugins=[Begins()])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            first = await session.turn("go").settled()
            assert isinstance(first.outcome, FrameSwitched)

            async def continued() -> bool:
                return len(await session.turns()) == 2 and (await session.turns())[1].summary is not None

            await until(continued)
            assert await _runs(runtime, "job-2", "s")
            if seed == "job-1":
                assert await _runs(runtime, "job-1", "s")
            else:
                await _cancelled(runtime, "job-1", "s")

    asyncio.run(main())


def test_handles_are_not_checked_while_a_turn_is_open(place: Place) -> None:
    """Ours: uncommitted messages of a running turn count as references."""

    async def main() -> None:
        held = HeldModel()
        async with staged(place, model=held) as stage:
            running = asyncio.ensure_future(stage.session.turn("hi").settled())
            await held.started.wait()
            await _spawn(stage.runtime, "job-1")
            await stage.runtime.recover_tasks()
            assert await _runs(stage.runtime, "job-1")
            held.go.set()
            await running
            await _cancelled(stage.runtime, "job-1")

    asyncio.run(main())


def test_handles_are_checked_when_another_process_moves_the_session(place: Place) -> None:
    """Ours: the process that runs the task notices that its session has moved on, and cancels the task."""

    async def main() -> None:
        async with staged(place, agents=True) as stage, staged(place, agents=True) as elsewhere:
            await _spawn(stage.runtime, "job-1")
            await _spawn(stage.runtime, "job-2")
            await elsewhere.session.turn("see job-2")
            await stage.runtime.recover_tasks()
            await _cancelled(stage.runtime, "job-1")
            assert await _runs(stage.runtime, "job-2")

    asyncio.run(main())


def test_a_transferred_handle_is_kept_alive_by_its_receiver(place: Place) -> None:
    """Seed: after transfer_async_handles, the sender's references no longer count."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.make("child")
            child = await stage.open("child")
            for task_id in ("job-1", "job-2"):
                await _spawn(stage.runtime, task_id, "child")
            await child.turn("job-1 and job-2")
            await stage.host.transfer_async_handles("child", "root", ["job-1", "job-2"])
            await stage.runtime.recover_tasks()
            await child.append([FrameOpened(switch=FrameSwitch(frame_id="f2", reason="mine"))])
            await child.turn("hi")
            await stage.runtime.recover_tasks()
            assert await _runs(stage.runtime, "job-1"), "the receiver has not moved yet"
            await stage.session.turn("take job-1")
            await _cancelled(stage.runtime, "job-2")
            assert await _runs(stage.runtime, "job-1")

    asyncio.run(main())


def test_a_handle_transferred_by_another_process_keeps_running_and_belongs_to_the_receiver(
    place: Place,
) -> None:
    """Bug: the process that ran it treated it as a task without a session, and failed it as INTERRUPTED."""

    async def main() -> None:
        async with staged(place, agents=True) as stage, staged(place, agents=True) as elsewhere:
            await stage.make("child")
            for task_id in ("job-1", "job-2"):
                await _spawn(stage.runtime, task_id, "child")
            await elsewhere.host.transfer_async_handles("child", "root", ["job-1", "job-2"])
            await stage.runtime.recover_tasks()
            assert await _runs(stage.runtime, "job-1")
            await elsewhere.session.turn("take job-1")
            await stage.runtime.recover_tasks()
            await _cancelled(stage.runtime, "job-2")
            assert await _runs(stage.runtime, "job-1")
            await stage.host.cancel_background_task("root", "job-1")
            assert await _state(stage.runtime, "job-1") is TaskState.CANCELLED

    asyncio.run(main())


def test_a_task_transferred_by_another_process_ends_in_its_new_session(place: Place) -> None:
    """Bug: its result was lost if it ended before its process had noticed the transfer."""

    async def main() -> None:
        go = asyncio.Event()

        async def work() -> str:
            await go.wait()
            return "done"

        async with staged(place, agents=True) as stage, staged(place, agents=True) as elsewhere:
            await stage.make("child")
            await stage.host.spawn_managed_task("child", TaskSpec(id="job-1"), work)
            await elsewhere.host.transfer_async_handles("child", "root", ["job-1"])
            go.set()

            async def is_over() -> bool:
                return (await _state(stage.runtime, "job-1")).is_terminal

            await until(is_over)
            found = await stage.runtime.store.task("root", "job-1")
            assert found is not None
            assert (found.state, found.result) == (TaskState.COMPLETED, "done")

    asyncio.run(main())


# Cost and failures


def test_a_turn_without_handles_checks_none(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: handles must cost nothing in a turn without any."""

    async def main() -> None:
        async with staged(memory) as stage:
            await _spawn(stage.runtime, "plain", handle=False)
            looked: list[str] = []
            monkeypatch.setattr(stage.runtime._open_background, "session_moved", looked.append)
            await stage.session.turn("hi")
            assert looked == []

    asyncio.run(main())


def test_nothing_is_cancelled_while_references_are_unknown(place: Place) -> None:
    """Ours: a plugin that cannot report its state may refer to any handle; turns continue."""

    async def main() -> None:
        async with staged(place, Jobs()) as stage:
            context = await stage.session._live.current()
            mine = next(one for one in context.plugins.plugins if one.id == "jobs")
            await _spawn(stage.runtime, "job-1")
            mine.broken = True  # type: ignore[attr-defined]
            await stage.session.turn("hi")
            assert await _runs(stage.runtime, "job-1")
            mine.broken = False  # type: ignore[attr-defined]
            await stage.session.turn("hi")
            await _cancelled(stage.runtime, "job-1")

    asyncio.run(main())


def test_an_ended_handle_is_no_longer_watched(memory: Place) -> None:
    """Ours: only live handles are watched."""

    async def main() -> None:
        async with staged(memory) as stage:
            await _spawn(stage.runtime, "job-1")
            await stage.host.cancel_background_task("root", "job-1")
            assert "root" not in stage.runtime.tasks.handles.watched
            await _spawn(stage.runtime, "job-1")
            await stage.runtime.delete("root")
            assert "root" not in stage.runtime.tasks.handles.watched

    asyncio.run(main())


def test_the_record_of_a_handle_is_marked_and_that_of_a_plain_task_is_not(memory: Place) -> None:
    """Ours: the mark is part of the record, and records of earlier versions lack it."""

    async def main() -> None:
        async with staged(memory) as stage:
            await _spawn(stage.runtime, "job-1")
            await _spawn(stage.runtime, "plain", handle=False)
            found: dict[str, Any] = {
                one.id: one.handle for one in await stage.host.list_background_tasks("root")
            }
            assert found == {"job-1": True, "plain": False}

    asyncio.run(main())
