"""Blocking functions of the user: other sessions do not wait for them, and their limits apply."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar

import msgspec
import pydantic
import pytest
from stand_ins import EchoModel, Place, agent_of, asks, results

from standfast import (
    Agent,
    CapabilityLimits,
    ScriptedModel,
    ToolMessage,
    TurnStopped,
    UsageLimits,
    runtime_loop,
    tool,
)
from standfast.errors import DepsMissing, InstructionsFailed, InvalidArgument
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.output_type import OutputType
from standfast.tools.decorator import as_registered

TIMEOUT_S = 0.4


class Block:
    """A function that blocks the calling thread until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.inside = False

    def __call__(self) -> None:
        self.inside = True
        self.entered.set()
        self.released.wait(10)
        self.inside = False

    current: ClassVar[Block]


@pytest.fixture
def block() -> Any:
    made = Block.current = Block()
    yield made
    made.released.set()


async def run_others_meanwhile(runtime: Runtime, block: Block, work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Start *work*, which blocks, and run a turn of another session meanwhile."""
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
def test_blocking_instructions_delay_no_other_session(memory: Place, block: Block, kind: str) -> None:
    """Bug: an async instructions function ran on the runtime's loop."""
    model = EchoModel()

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(model, instructions=instructions_that(block)[kind])
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await run_others_meanwhile(runtime, block, turn.settled())
            block.released.set()
            assert (await doing).output == "re: go"

    asyncio.run(main())
    assert [one.instructions for one in model.requests] == ["be brief"]


@pytest.mark.parametrize("kind", ["async", "object", "plain", "returns a coroutine"])
def test_instructions_that_never_return_fail_at_their_limit(memory: Place, block: Block, kind: str) -> None:
    """Bug: no limit applied to an async function."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(EchoModel(), instructions=instructions_that(block)[kind])
            session = await runtime.session("s", agent=agent)
            with pytest.raises(InstructionsFailed, match=r"did not return within 0\.4 s"):
                await session.turn("go")
        assert block.inside

    asyncio.run(main())


# Deps


def factories_that(block: Block) -> dict[str, Any]:
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
def test_a_blocking_deps_factory_delays_no_other_session(memory: Place, block: Block, kind: str) -> None:
    """Bug: async factories ran on the runtime's loop."""
    seen: list[Any] = []

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(EchoModel(), deps=factories_that(block)[kind], instructions=noting(seen))  # type: ignore[call-overload]
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await run_others_meanwhile(runtime, block, turn.settled())
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
def test_a_deps_factory_that_never_returns_fails_at_its_limit(memory: Place, block: Block, kind: str) -> None:
    """Bug: no limit applied to a function that never awaits."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(EchoModel(), deps=factories_that(block)[kind])  # type: ignore[call-overload]
            session = await runtime.session("s", agent=agent)
            with pytest.raises(DepsMissing, match=r"did not return within 0\.4 s"):
                await session.turn("go")
        assert block.inside

    asyncio.run(main())


def test_deps_that_block_while_they_are_released_delay_no_other_session(memory: Place, block: Block) -> None:
    """Bug: the code of a generator after its yield ran on the runtime's loop."""

    async def factory(ctx: Any) -> AsyncIterator[str]:
        yield "deps"
        block()

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(EchoModel(), deps=factory)  # type: ignore[call-overload]
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await run_others_meanwhile(runtime, block, turn.settled())
            block.released.set()
            assert (await doing).output == "re: go"

    asyncio.run(main())


def test_a_generators_resources_live_on_one_loop_until_the_turn_is_over(memory: Place) -> None:
    """Ours: the code before and after its yield runs in one task, on one loop, which runs meanwhile."""
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
            agent = Agent(EchoModel(), deps=factory, instructions=lambda ctx: time.sleep(0.1) or "")  # type: ignore[call-overload]
            await (await runtime.session("s", agent=agent)).turn("go")
            assert asyncio.get_running_loop() is not seen[0][1]

    asyncio.run(main())
    assert seen[0] == seen[1]


# Opting in to the runtime's loop


def test_functions_declared_for_the_runtimes_loop_run_there_and_are_watched(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: such functions may use objects of the runtime's loop; the log names one that blocks."""
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
    assert "the agent's instructions function, for session s, blocks" in caplog.text


def test_only_async_functions_can_be_declared_for_the_runtimes_loop() -> None:
    """Ours: a plain function would always block the loop."""
    with pytest.raises(InvalidArgument, match="@runtime_loop takes an async function or generator"):
        runtime_loop(lambda ctx: "x")


# Validators


def blocked() -> None:
    """Block for as long as the test wants."""
    Block.current()


class Model(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def check(cls, value: int) -> int:
        blocked()
        return value


@dataclasses.dataclass
class Data:
    n: int

    def __post_init__(self) -> None:
        blocked()


class Record(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        blocked()


class Code(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        blocked()
        return cls.ONE


@dataclasses.dataclass
class Coded:
    n: Code


@dataclasses.dataclass
class Made:
    n: int
    at: float = dataclasses.field(default_factory=lambda: blocked() or 1.0)


@dataclasses.dataclass
class Outer:
    inner: list[Data | None]
    n: int = 0


TYPES: dict[str, Any] = {
    "pydantic": Model,
    "dataclass": Data,
    "struct": Record,
    "enum": Coded,
    "default": Made,
    "nested": Outer,
}


def tool_of(type_: Any, returns: Any = str, **options: Any) -> Any:
    def pay(order: Any) -> Any:
        return "paid"

    pay.__annotations__ = {"order": type_, "return": returns}
    return tool(side_effect="read", **options)(pay)


def order(kind: str) -> dict[str, Any]:
    return {"order": {"inner": [{"n": 2}]} if kind == "nested" else {"n": 2}}


@pytest.mark.parametrize("kind", TYPES)
def test_blocking_argument_validators_delay_no_other_session(memory: Place, block: Block, kind: str) -> None:
    """Bug: arguments were converted on the runtime's loop, whatever code their types run."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of(asks(("pay", order(kind))), "end", tools=[tool_of(TYPES[kind])])
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await run_others_meanwhile(runtime, block, turn.settled())
            block.released.set()
            done = await doing
            assert results(done.messages) == ["paid"]

    asyncio.run(main())


def test_an_argument_validator_that_never_returns_fails_at_the_tools_limit(
    memory: Place, block: Block
) -> None:
    """Bug: `timeout_ms` did not apply before the tool's own code began."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            pay = tool_of(TYPES["pydantic"], limits=CapabilityLimits(timeout_ms=300))
            agent = agent_of(asks(("pay", order(""))), "end", tools=[pay])
            done = await (await runtime.session("s", agent=agent)).turn("go")
            (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
            assert result.error is not None
            assert result.error.message == "the values of pay() could not be checked within 300 ms"
        assert block.inside

    asyncio.run(main())


@pytest.mark.parametrize("kind", TYPES)
def test_blocking_answer_validators_delay_no_other_session(memory: Place, block: Block, kind: str) -> None:
    """Bug: answers were converted to the agent's `output_type` on the runtime's loop, twice."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            answer = json.dumps(order(kind)["order"])
            agent = agent_of(answer, output_type=TYPES[kind])
            turn = (await runtime.session("s", agent=agent)).turn("go")
            doing = await run_others_meanwhile(runtime, block, turn.settled())
            block.released.set()
            assert (await doing).output.n is not None

    asyncio.run(main())


def test_an_answer_validator_that_never_returns_fails_at_its_limit(memory: Place, block: Block) -> None:
    """Ours: the model reads why, and the turn ends like any other with an invalid answer."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            limits = UsageLimits(max_output_retries=0)
            agent = agent_of('{"n": 1}', output_type=TYPES["pydantic"], limits=limits)
            session = await runtime.session("s", agent=agent)
            with pytest.raises(TurnStopped, match=r"the check did not end within 0\.4 s"):
                await session.turn("go")
        assert block.inside

    asyncio.run(main())


def test_a_turn_can_be_cancelled_while_an_answer_validator_blocks(memory: Place, block: Block) -> None:
    """Ours: the validation is abandoned."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of('{"n": 1}', output_type=TYPES["pydantic"])
            turn = (await runtime.session("s", agent=agent)).turn("go")
            turn.start()
            assert await asyncio.to_thread(block.entered.wait, 10)
            await turn.cancel()
            assert (await turn.settled()).status == "stopped"
        assert block.inside

    asyncio.run(main())


@dataclasses.dataclass
class Plain:
    n: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Colour(enum.Enum):
    RED = "red"


class Checked(pydantic.BaseModel):
    """pydantic's own checks are not the user's code."""

    n: Annotated[int, pydantic.Field(ge=1)]
    colour: Colour = Colour.RED
    plain: Plain | None = None
    at: datetime.datetime | None = None
    more: list[Checked] = pydantic.Field(default_factory=list)


class Starting(pydantic.BaseModel):
    n: int

    def model_post_init(self, context: Any) -> None:
        """Code of the user."""


class Annotating(pydantic.BaseModel):
    n: Annotated[int, pydantic.AfterValidator(lambda value: value)]


class Defaulting(pydantic.BaseModel):
    n: int = pydantic.Field(default_factory=lambda: 1)


class Looking(pydantic.BaseModel):
    n: Code


class Overriding(pydantic.BaseModel):
    n: int

    @classmethod
    def model_validate(cls, *args: Any, **options: Any) -> Any:
        return super().model_validate(*args, **options)


def test_types_that_run_no_code_are_converted_without_a_thread() -> None:
    """Ours: only types that can block are converted on a thread."""

    def paint(plain: Plain, colour: Colour, names: list[str] = ["a"], by: int = 1) -> dict[str, Plain]:  # noqa: B006
        return {}

    assert not as_registered(paint).runs_code
    assert not OutputType(list[Plain]).runs_code
    assert not OutputType(Checked).runs_code


@pytest.mark.parametrize("type_", [Starting, Annotating, Defaulting, Looking, Overriding, *TYPES.values()])
def test_types_that_run_code_are_recognized(type_: Any) -> None:
    """Ours: code is found wherever it is, even in nested fields."""
    assert OutputType(type_).runs_code
    assert OutputType(list[type_]).runs_code
    assert OutputType(dict[str, type_ | None]).runs_code
