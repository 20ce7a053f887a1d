"""`standfast tasks`: work that runs beside the turns of sessions."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Runtime
from standfast.model.task import TaskKind, TaskSpec, TaskState
from standfast.providers.scripted import ScriptedModel

PROGRAM = """
import asyncio, sys
from standfast import Agent, Runtime
from standfast.model.task import TaskSpec
from standfast.providers.scripted import ScriptedModel

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        await runtime.session("ops", agent=Agent(ScriptedModel([])))
        async def build():
            try:
                await asyncio.Event().wait()
            finally:
                print("ended", flush=True)
        await runtime.host("ops").spawn_managed_task("ops", TaskSpec(id="build", label="make all"), build)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def done(home: Path) -> None:
    """A session with tasks that are over."""

    home.mkdir(parents=True)

    async def main() -> None:
        async with Runtime(home / "standfast.db") as runtime:
            await runtime.session("ops", agent=Agent(ScriptedModel([])))
            host = runtime.host("ops")
            for name in ("good", "bad"):
                await host.register_background_task("ops", TaskSpec(id=name, label=name, body={"n": 1}))
            await host.complete_background_task("ops", "good", TaskState.COMPLETED)
            await host.register_background_task("ops", TaskSpec(id="seen", kind=TaskKind.OBSERVER))
            await host.cancel_background_task("ops", "seen")

    asyncio.run(main())


@pytest.mark.usefixtures("done")
def test_the_list_shows_kind_state_and_description_of_each_task(standfast: Any) -> None:
    """Ours: the oldest is first; a task whose process died is not listed as running."""
    listed = standfast("tasks", "list", "--json").document
    assert [(task["id"], task["kind"], task["state"]) for task in listed] == [
        ("good", "other", "completed"), ("bad", "other", "failed"), ("seen", "observer", "cancelled"),
    ]  # fmt: skip
    assert listed[1]["error"]["code"] == "INTERRUPTED"
    shown = standfast("tasks", "list", "--session-id", "ops").stdout.splitlines()
    assert shown[0].split() == ["session", "task", "kind", "state", "what", "since"]
    assert shown[1].split()[:5] == ["ops", "good", "other", "completed", "good"]
    assert "no tasks" in standfast("tasks", "list", "--live").stdout
    assert standfast("tasks", "list", "--session-id", "unknown", "--json").document == []


@pytest.mark.usefixtures("done")
def test_a_task_is_shown_with_its_arguments_and_its_outcome(standfast: Any) -> None:
    """Ours: the whole record is shown, as text and as JSON."""
    shown = standfast("tasks", "show", "ops", "bad").stdout
    assert '{"n": 1}' in shown
    assert "INTERRUPTED" in shown
    assert standfast("tasks", "show", "ops", "bad", "--json").document["label"] == "bad"
    missing = standfast("tasks", "show", "ops", "missing")
    assert missing.status == 1
    assert "has no task 'missing'" in missing.stderr


@pytest.mark.usefixtures("done")
def test_cancelling_a_finished_task_changes_nothing_and_an_unknown_task_is_an_error(standfast: Any) -> None:
    """Ours: the command reports the actual state."""
    assert ": completed" in standfast("tasks", "cancel", "ops", "good").stdout
    assert standfast("tasks", "cancel", "ops", "missing").status == 1
    unknown = standfast("tasks", "cancel", "unknown", "good")
    assert (unknown.status, "standfast sessions list" in unknown.stderr) == (1, True)


@pytest.fixture
def running(home: Path, child: Callable[..., Any]) -> Any:
    """Return a process with a running task."""
    home.mkdir(parents=True)
    program = child(PROGRAM, home / "standfast.db")
    assert program.line() == "ready"
    return program


@pytest.mark.slow
def test_a_task_of_another_process_is_cancelled_there(standfast: Any, running: Any) -> None:
    """Ours: the command marks the record, and waits until the process has ended the task."""
    (listed,) = standfast("tasks", "list", "--live", "--json").document
    assert (listed["id"], listed["state"]) == ("build", "running")
    assert ": cancelled" in standfast("tasks", "cancel", "ops", "build").stdout
    assert running.line() == "ended"


@pytest.mark.slow
def test_a_task_of_a_killed_process_is_listed_as_interrupted(standfast: Any, running: Any) -> None:
    """Ours: SPEC §9, no task stays marked as running."""
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    (listed,) = standfast("tasks", "list", "--json").document
    assert (listed["state"], listed["error"]["code"]) == ("failed", "INTERRUPTED")


@pytest.mark.slow
def test_a_process_that_does_not_respond_has_been_asked_to_cancel(
    standfast: Any, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the command stops waiting after a time limit."""
    monkeypatch.setattr("standfast.cli.tasks._PATIENCE_S", 0.1)
    running.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert "its process was notified" in standfast("tasks", "cancel", "ops", "build").stdout
    assert time.monotonic() - began < 5
    running.process.send_signal(signal.SIGCONT)
    assert running.line() == "ended"
