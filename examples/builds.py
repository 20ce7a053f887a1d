"""Builds that go on beside the turns of an agent. The model is a script, so it needs no key.

Run it with `python examples/builds.py`; `standfast.db` is made where you are. One build ends while the
program runs, the other is interrupted when it closes; `standfast tasks list --data-dir .` then shows both.
"""

import asyncio
from functools import partial

from standfast import Agent, RunContext, Runtime, ScriptedModel, Session, TaskSpec, TaskState, tool
from standfast.events import TaskChanged


@tool(side_effect="write")
async def start_builds(ctx: RunContext[None], targets: list[str]) -> str:
    """Start builds. They go on while the conversation does."""
    for target in targets:
        task = TaskSpec(id=f"build-{target}", label=f"make {target}")
        await ctx.host.spawn_managed_task(ctx.session_id, task, partial(build, target))
    return "started"


async def build(target: str) -> str:
    await asyncio.sleep(0.05 if target == "docs" else 3600)
    return f"{target} is built"


def script() -> ScriptedModel:
    call = {"name": "start_builds", "arguments": {"targets": ["docs", "all"]}}
    return ScriptedModel([{"tool_calls": [call]}, "Both builds have started."])


async def first_completed(session: Session[str]) -> None:
    async for seen in session.observe():
        if isinstance(seen.event, TaskChanged) and seen.event.record.state is TaskState.COMPLETED:
            return


async def main() -> None:
    async with Runtime("standfast.db") as runtime:
        session = await runtime.session("ops", agent=Agent(script(), tools=[start_builds]))
        completed = asyncio.create_task(first_completed(session))  # from now on: a build may be quick
        print((await session.turn("Build the docs and everything else.")).output)
        await completed
        for task in await runtime.host("ops").list_background_tasks("ops"):
            print(f"{task.id}: {task.state}, {task.result}")


asyncio.run(main())
