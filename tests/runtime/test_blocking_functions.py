"""Functions of the user that block: other sessions do not wait for them, and their limits hold."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stand_ins import EchoModel, Place, agent_of

from standfast import Agent, ScriptedModel, runtime_loop
from standfast.errors import DepsMissing, InstructionsFailed, InvalidArgument
from standfast.runtime.agent_runtime import Runtime

TIMEOUT_S = 0.4


class Block:
    """Blocks the thread that calls it, until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.inside = False

    def __call__(self) -> None:
        self.inside = True
        self.entered.set()
        self.released.wait(10)
        self.inside = False


@pytest.fixture
def block() -> Any:
    made = Block()
    yield made
    made.released.set()


async def others_go_on(runtime: Runtime, block: Block, work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begin *work*, which blocks, and run a turn of another session while it does."""
    other = await runtime.session("other", agent=Agent(ScriptedModel(["fine"])))
    doing = asyncio.ensure_future(work)
    assert await asyncio.to_thread(block.entered.wait, 10)
    assert (await other.turn("hi")).output == "fine"
    assert block.inside, "the other session waited until the function was over"
    return doing


# Instructions


def instructions_that(block: Block) -> dict[str, Any]:
    async def later(ctx: Any) -> str:
        block()
        return "be brief"

    class Callable_:
        async def __call__(self, ctx: Any) -> str:
            return await later(ctx)

    def plain(ctx: Any) -> str:
        block()
        return "be brief"

    return {"async": later, "object": Callable_(), "plain": plain, "returns a coroutine": lambda c: later(c)}


@pytest.mark.parametrize("kind", ["async", "object", "plain", "returns a coroutine"])
def test_instructions_that_block_delay_no_other_session(memory: Place, block: Block, kind: str) -> None:
    """Bug: an async function of the instructions ran on the runtime's loop."""
    model = EchoModel()

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(model, instructions=instructions_that(block)[kind])
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await others_go_on(runtime, block, turn.settled())
            block.released.set()
            assert (await doing).output == "re: go"

    asyncio.run(main())
    assert [one.instructions for one in model.requests] == ["be brief"]


@pytest.mark.parametrize("kind", ["async", "object", "plain", "returns a coroutine"])
def test_instructions_that_never_return_end_at_their_limit(memory: Place, block: Block, kind: str) -> None:
    """Bug: no limit held for an async one."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(EchoModel(), instructions=instructions_that(block)[kind])
            session = await runtime.session("s", agent=agent)
            with pytest.raises(InstructionsFailed, match=r"did not return within 0\.4 s"):
                await session.turn("go")
        assert block.inside

    asyncio.run(main())


# Deps


def factories_that(block: Block) -> dict[str, Callable[[Any], Any]]:
    async def later(ctx: Any) -> str:
        block()
        return "deps"

    async def generator(ctx: Any) -> AsyncIterator[str]:
        block()
        yield "deps"

    return {
        "async": later,
        "generator": generator,
        "manager": asynccontextmanager(generator),
        "plain": lambda ctx: [block(), "deps"][1],
        "returns a coroutine": lambda ctx: later(ctx),
        "returns a manager": lambda ctx: asynccontextmanager(generator)(ctx),
    }


FACTORIES = ["async", "generator", "manager", "plain", "returns a coroutine", "returns a manager"]


@pytest.mark.parametrize("kind", FACTORIES)
def test_a_deps_factory_that_blocks_delays_no_other_session(memory: Place, block: Block, kind: str) -> None:
    """Bug: async factories ran on the runtime's loop."""
    seen: list[Any] = []

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(EchoModel(), deps=factories_that(block)[kind], instructions=noting(seen))
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await others_go_on(runtime, block, turn.settled())
            block.released.set()
            assert (await doing).output == "re: go"

    asyncio.run(main())
    assert seen == ["deps"]


def noting(seen: list[Any]) -> Callable[[Any], str]:
    def note(ctx: Any) -> str:
        seen.append(ctx.deps)
        return ""

    return note


@pytest.mark.parametrize("kind", FACTORIES)
def test_a_deps_factory_that_never_returns_ends_at_its_limit(memory: Place, block: Block, kind: str) -> None:
    """Bug: no limit held for one that never awaits."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(EchoModel(), deps=factories_that(block)[kind])
            session = await runtime.session("s", agent=agent)
            with pytest.raises(DepsMissing, match=r"did not return within 0\.4 s"):
                await session.turn("go")
        assert block.inside

    asyncio.run(main())


def test_deps_that_block_while_they_are_released_delay_no_other_session(memory: Place, block: Block) -> None:
    """Bug: what a generator did after its yield ran on the runtime's loop."""

    async def factory(ctx: Any) -> AsyncIterator[str]:
        yield "deps"
        block()

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(EchoModel(), deps=factory)
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await others_go_on(runtime, block, turn.settled())
            block.released.set()
            assert (await doing).output == "re: go"

    asyncio.run(main())


def test_what_a_generator_holds_open_lives_on_one_loop_until_the_turn_is_over(memory: Place) -> None:
    """Ours: before and after its yield it is in one task, on one loop, which goes on meanwhile."""
    seen: list[Any] = []

    async def factory(ctx: Any) -> AsyncIterator[asyncio.Event]:
        ticked = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, ticked.set)
        seen.append((asyncio.current_task(), asyncio.get_running_loop()))
        yield ticked
        assert ticked.is_set()
        seen.append((asyncio.current_task(), asyncio.get_running_loop()))

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(EchoModel(), deps=factory, instructions=lambda ctx: time.sleep(0.1) or "")
            await (await runtime.session("s", agent=agent)).turn("go")
            assert asyncio.get_running_loop() is not seen[0][1]

    asyncio.run(main())
    assert seen[0] == seen[1]


# The way back


def test_functions_that_are_declared_so_run_on_the_runtimes_loop_and_are_watched(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: for objects of that loop. The log names one that blocks."""
    loops: list[Any] = []

    @runtime_loop
    async def instructions(ctx: Any) -> str:
        loops.append(asyncio.get_running_loop())
        time.sleep(0.3)  # noqa: ASYNC251
        return "brief"

    @runtime_loop
    async def deps(ctx: Any) -> AsyncIterator[int]:
        loops.append(asyncio.get_running_loop())
        time.sleep(0.3)  # noqa: ASYNC251
        yield 1
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of("x", instructions=instructions, deps=deps)
            await (await runtime.session("s", agent=agent)).turn("go")
        assert loops == [asyncio.get_running_loop()] * 3

    with caplog.at_level(logging.WARNING, "standfast.tools"):
        asyncio.run(main())
    assert "the deps factory of agent 'agent' blocks the runtime's event loop" in caplog.text
    assert "the function of the agent's instructions, for session s, blocks" in caplog.text


def test_only_async_functions_are_declared_for_the_runtimes_loop() -> None:
    """Ours: a plain function would block it by its nature."""
    with pytest.raises(InvalidArgument, match="@runtime_loop takes an async function or generator"):
        runtime_loop(lambda ctx: "x")
