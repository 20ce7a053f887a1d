"""Monitors through `Runtime`: tools start them, they wake idle sessions, and they survive a kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from monitor_stage import gone, is_running, pids_in, until_async, until_now

from standfast import Agent, RunContext, Runtime, tool
from standfast.model.message import ToolMessage, UserMessage
from standfast.model.monitor import MonitorSpec, MonitorState, WakePolicy
from standfast.model.task import TaskState
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.monitors.running_monitor import monitor_of

pytestmark = pytest.mark.slow

Start = Callable[..., Any]


@tool(side_effect="write")
async def watch(ctx: RunContext[Any], file: str) -> str:
    """Watch a file and wake this session when it grows."""
    command = ("tail", "-n", "+1", "-f", file)
    spec = MonitorSpec(id="log", command=command, wake=WakePolicy.QUEUE_TURN, restart=True)
    snapshot = await ctx.host.start_monitor(ctx.session_id, spec)
    return snapshot.monitors[0].state.value


@tool(side_effect="write")
async def news(ctx: RunContext[Any]) -> list[str]:
    """Return the updates of the monitors."""
    batch = await ctx.host.take_monitor_updates(ctx.session_id)
    return [update.text for update in batch.updates]


@tool(side_effect="write")
async def stop(ctx: RunContext[Any]) -> str:
    """Stop watching."""
    await ctx.host.stop_monitor(ctx.session_id, "log")
    snapshot = await ctx.host.monitor_snapshot(ctx.session_id)
    return snapshot.monitors[0].state.value


def _watcher(file: Path, **options: Any) -> Agent[Any, Any]:
    def asks(name: str, **arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"name": name, "arguments": arguments}]}

    wake = [asks("news"), {"text": "noted"}]
    replies = [asks("watch", file=str(file)), {"text": "watching"}, *wake, *wake, *wake]
    model = ScriptedModel([*replies, asks("stop"), {"text": "stopped"}], strict=False)
    return Agent(model, name="watcher", tools=[watch, news, stop], **options)


def _say(file: Path, line: str) -> None:
    with file.open("a") as log:
        log.write(line + "\n")


async def _turns(session: Any, count: int) -> None:
    """Wait until `count` turns have ended."""

    async def ended() -> bool:
        turns = await session.turns()
        return len(turns) >= count and all(turn.state.value == "ended" for turn in turns)

    await until_async(ended)


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "sqlite"])
def test_a_monitor_on_a_growing_file_wakes_an_idle_session_three_times(tmp_path: Path, stored: bool) -> None:
    """Ours: a queued wake starts a turn when the session is idle."""
    log = tmp_path / "log"
    log.touch()

    async def main() -> None:
        async with Runtime(tmp_path / "standfast.db" if stored else None) as runtime:
            session = await runtime.session("s", agent=_watcher(log))
            assert (await session.turn("Watch it.")).output == "watching"
            for number, line in enumerate(["one", "two", "three"]):
                _say(log, line)
                await _turns(session, number + 2)
            messages = await session.messages()
            told = [it.content for it in messages if isinstance(it, UserMessage)]
            assert told == ["Watch it.", *[f"Monitor 'log':\n> {line}" for line in ("one", "two", "three")]]
            taken = [it.value for it in messages if isinstance(it, ToolMessage)]
            assert taken == ["running", ["one"], ["two"], ["three"]]
            assert (await session.turn("Stop it.")).output == "stopped"
            task = await runtime.store.task("s", "log")
            assert task is not None
            assert task.state is TaskState.CANCELLED

    asyncio.run(main())


HOST = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_wakes import _watcher
from standfast import Runtime
from standfast.model.monitor import MonitorSpec

async def main(home):
    async with Runtime(home / "standfast.db") as runtime:
        session = await runtime.session("s", agent=_watcher(home / "log"))
        await session.turn("Watch it.")
        daemon = "setsid sh -c 'echo $$ > daemon; sleep 1000' & echo $$ > main; wait"
        monitors = runtime._open_background.monitors
        await monitors.start("s", MonitorSpec(id="once", command=daemon, cwd=str(home)))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("opens", [True, False])
def test_killing_the_runtime_leaves_no_orphan_and_no_monitor_listed_as_running(
    child: Start, tmp_path: Path, opens: bool
) -> None:
    """Ours: after SIGKILL of the runtime, a restart finds a consistent state.

    The session need not be opened if its agent is known.
    """
    log = tmp_path / "log"
    log.touch()
    victim = child(HOST, str(tmp_path))
    assert victim.line() == "ready"
    until_now(
        lambda: all(
            (tmp_path / name).exists() and (tmp_path / name).read_text() for name in ("daemon", "main")
        )
    )
    pids = pids_in(tmp_path / "daemon", tmp_path / "main")
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.process.wait()
    until_now(lambda: not any(map(is_running, pids)))

    async def restart() -> None:
        agent = _watcher(log)
        async with Runtime(tmp_path / "standfast.db", agents=[] if opens else [agent]) as runtime:
            before = {task.id: monitor_of(task) for task in await runtime.store.tasks()}
            if opens:
                await runtime.session("s", agent=agent)

            async def recovered() -> bool:
                now = {
                    it.spec.id: it.state
                    for it in (await runtime._open_background.monitors.snapshot("s")).monitors
                }
                tokens = [it.process.token for it in before.values() if it is not None and it.process]
                return now == {"log": MonitorState.RUNNING, "once": MonitorState.FAILED} and all(
                    map(gone, tokens)
                )

            await until_async(recovered)
            _say(log, "after")
            await _turns(await runtime.session("s"), 2)
            once = await runtime.store.task("s", "once")
            assert once is not None
            assert once.error is not None
            assert (once.state, once.error.code) == (TaskState.FAILED, "INTERRUPTED")
        # A closed runtime has no running monitors.

    asyncio.run(restart())


def test_cancelling_the_task_of_a_monitor_ends_its_processes(tmp_path: Path) -> None:
    """Seed: cancel_background_task is kind-aware; a monitor's process tree is ended."""

    async def main() -> None:
        async with Runtime() as runtime:
            await runtime.session("s", agent=Agent(ScriptedModel([])))
            await runtime._open_background.monitors.start(
                "s", MonitorSpec(id="m", command="echo $$ > a; sleep 1000", cwd=str(tmp_path))
            )
            until_now(lambda: (tmp_path / "a").exists() and (tmp_path / "a").read_text())
            record = await runtime.host("s").cancel_background_task("s", "m")
            assert record.state is TaskState.CANCELLED
            assert not is_running(*pids_in(tmp_path / "a"))
            assert [task.id for task in await runtime.host("s").list_background_tasks("s")] == ["m"]

    asyncio.run(main())
