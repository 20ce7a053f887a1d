"""A process with every kind of task, which hangs until it is killed. Arguments: database.

Its model answers "quick ..." at once and hangs otherwise. A tool of `root` waits for a turn of `tool-child`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from standfast import Agent, Plugin, RunContext, Runtime, tool
from standfast.model.host_requests import SessionCreateRequest, TurnInput
from standfast.model.message import RequestedCall, UserMessage, text_of
from standfast.model.task import TaskKind, TaskSpec, TaskState
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded

HANGING = asyncio.Event()
"""Both turns that hang do so."""


class Model:
    model_id = "dying:one"

    def __init__(self, hangs: bool) -> None:
        self.hangs = hangs
        self.hanging = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        words = text_of(last.content) if isinstance(last, UserMessage) else "done"
        if words == "delegate":
            yield ReplyEnded(text="", calls=(RequestedCall(name="delegate"),))
            return
        if self.hangs and not words.startswith("quick"):
            self.hanging += 1
            if self.hanging == 2:
                HANGING.set()
            await asyncio.Event().wait()
        yield ReplyEnded(text=f"re: {words}")

    async def close(self) -> None:
        """Nothing to close."""


class Delegating(Plugin):
    @tool(side_effect="read")
    async def delegate(self, ctx: RunContext[None]) -> str:
        """Let a child work, and wait for it."""
        request = SessionCreateRequest(session_id="tool-child")
        made = await ctx.host.create_session(request)
        key = TurnInput(message=UserMessage(content="long work"), idempotency_key=ctx.idempotency_key)
        return (await ctx.host.start_turn(made.session_id, key)).text


def make_agent(*, hangs: bool) -> Agent[None, str]:
    return Agent(Model(hangs), name="worker", plugins=[Delegating()])


async def main(database: str) -> None:
    agent = make_agent(hangs=True)
    async with Runtime(database) as runtime:
        await runtime.session("root", agent=agent)
        host = runtime.host("root")

        async def hang() -> None:
            await asyncio.Event().wait()

        await host.spawn_managed_task("root", TaskSpec(id="plain"), hang)
        await host.register_background_task("root", TaskSpec(id="observer", kind=TaskKind.OBSERVER))
        for name, words in (("works", "long"), ("finished", "quick"), ("idle", "quick"), ("fresh", "")):
            await host.create_session(SessionCreateRequest(session_id=name, subagent=True))
            spec = TaskSpec(id=name, kind=TaskKind.SUBAGENT, body={"session_id": name})
            await host.register_background_task("root", spec)
            if words:
                said = TurnInput(message=UserMessage(content=f"{words} work"))
                started = await host.start_turn_stream(name, said)
                if words == "quick":
                    await host.await_turn(started.turn_id)
        await host.transition_background_task_live_state("root", "idle", TaskState.IDLE)
        lost = TaskSpec(id="lost", kind=TaskKind.SUBAGENT, body={"session_id": "missing"})
        await host.register_background_task("root", lost)
        await host.start_turn_stream("root", TurnInput(message=UserMessage(content="delegate")))
        await HANGING.wait()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
