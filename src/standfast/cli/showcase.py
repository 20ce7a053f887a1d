"""The demo sessions of `standfast serve` without APP, created while a person watches.

Run as a program with a store, this module begins the turn that the server kills and resumes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from standfast import Agent, Runtime, StandfastError, tool
from standfast.cli.demo_tools import order, refund
from standfast.model.events import ToolCallStarted
from standfast.plugins.shipped import Subagents
from standfast.providers.scripted import ScriptedModel

_REFUND: Final = "demo-refund"
_PROGRAM: Final = "demo-program"
_SURVIVOR: Final = "demo-survivor"
_TEAM: Final = "demo-team"
_QUESTION: Final = "Which process runs this program?"
_START_S: Final = 60.0


@tool(side_effect="read")
def process_id() -> int:
    """Return the id of the process that runs this call."""
    return os.getpid()


@tool(side_effect="read")
async def rest(seconds: float) -> None:
    """Wait a while.

    Args:
        seconds: how long.
    """
    await asyncio.sleep(seconds)


def showcase_agents() -> tuple[Agent[Any, str], ...]:
    """Return the demo agents. Their model is a script, so that they need no provider key."""
    script = Path(__file__).with_name("showcase.json")

    def model() -> ScriptedModel:
        return ScriptedModel.from_file(script, name="demo")

    reader = Agent(model(), name="reader", tools=[order])
    return (
        Agent(model(), name="demo", tools=[order, refund]),
        Agent(model(), name="demo-code", tools=[order, refund, process_id, rest], protocol="code"),
        Agent(model(), name="demo-team", plugins=[Subagents(agents=[reader])]),
    )


async def play(runtime: Runtime, store: str) -> None:
    """Create the sessions that the store does not have yet, one after the other."""
    scenes: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        (_REFUND, lambda: _turn(runtime, _REFUND, "demo", "Refund order A1, please")),
        (_PROGRAM, lambda: _turn(runtime, _PROGRAM, "demo-code", "Refund order A1 in three parts")),
        (_TEAM, lambda: _turn(runtime, _TEAM, "demo-team", "Ask two readers about order A1")),
        (_SURVIVOR, lambda: _kill_in_the_middle(store)),
    ]
    for session_id, make in scenes:
        with suppress(StandfastError):
            if await runtime.store.head(session_id) is None:
                await make()


async def _turn(runtime: Runtime, session_id: str, agent: str, prompt: str) -> None:
    session = await runtime.session(session_id, agent=runtime.agents[agent])
    await session.turn(prompt).settled()


async def _kill_in_the_middle(store: str) -> None:
    """Begin a turn in another process, and kill that with SIGKILL while its program rests.

    The runtime detects that the process is gone and resumes the turn.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "standfast.cli.showcase",
        store,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the server, which kills the process itself
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(_START_S):
            await child.stdout.readline()  # the program is resting now
    except TimeoutError:
        pass
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _begin(store: str) -> None:
    """Run the turn that is going to be killed, and report when its program rests."""
    agent = showcase_agents()[1]
    async with Runtime(store, agents=[agent], keeper=False) as runtime:
        session = await runtime.session(_SURVIVOR, agent=agent)
        async for event in session.turn(_QUESTION):
            if isinstance(event, ToolCallStarted) and event.call.name == "rest":
                sys.stdout.write("resting\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_begin(sys.argv[1]))
