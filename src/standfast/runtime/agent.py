"""The agent as users write it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from standfast.errors import InvalidArgument
from standfast.model.limits import UsageLimits
from standfast.model.prompt import PromptContribution, PromptLayer
from standfast.runtime.agent_definition import AgentDefinition, Deps, Instructions, Model, Output
from standfast.runtime.dependencies import DepsFactory
from standfast.runtime.result import FinishedTurn
from standfast.tools.decorator import AnyTool

if TYPE_CHECKING:
    from typing import Generic, TypedDict, Unpack

    from typing_extensions import TypeForm

    from standfast.runtime.agent_session import Prompt
    from standfast.runtime.turn import Turn

    class _Options(TypedDict, Generic[Deps], total=False):
        """The settings that every kind of agent takes."""

        name: str
        instructions: str | Instructions[Deps]
        tools: Iterable[AnyTool[Deps]]
        plugins: Iterable[object]
        system: PromptLayer | Sequence[PromptContribution | str] | None
        limits: UsageLimits | None
        protocol: str | object
        settings: dict[str, Any] | None
        queue: str
        max_concurrent: int | None
        prompts: Mapping[str, str] | None

    class _RunOptions(TypedDict, Generic[Deps], total=False):
        """The settings of one run: values that code can read by name, the deps, and the limits."""

        inputs: Mapping[str, Any] | None
        deps: Deps | None
        limits: UsageLimits | None


class Agent(AgentDefinition[Deps, Output]):
    """A model with instructions and tools.

    Args:
        model: `"provider:model"`, such as `"scripted:replies.json"`, or an object that is a `ModelProvider`.
            A list of them is asked in order: each next one when those before it have failed.
        name: sessions record it; another process finds the agent of an unfinished turn by it.
        instructions: the first part of the system prompt: a text, or a function, also async, of
            `RunContext` that returns it. The function is called once for each turn, before the turn begins.
        tools: functions, ideally decorated with `@tool`.
        plugins: what shapes its sessions: `Plugin`s, their classes, factories, or names of installed ones.
        system: more pieces of the system prompt, each in a slot.
        deps_type: the type of what tools and hooks get as `ctx.deps`. An agent that declares it runs no turn
            without deps.
        deps: makes the deps of turns that have no others, such as those that the runtime resumes by itself:
            a function, async function or async generator of a `DepsContext`.
        output_type: what the agent answers with. `str` is the model's text; of any other type the answer is
            checked, and the model retries if it does not fit.
        limits: what one turn may use.
        protocol: how the model acts. `"standard"` is native tool calls, `"code"` cells of Python (with
            options: `CodeProtocol(...)`); a plugin may bring another.
        settings: passed on to the provider as they are.
        queue: the queue that workers claim its turns from (`standfast worker --queues`).
        max_concurrent: how many of its turns one worker runs at once.
        prompts: texts that MCP clients may fill in and send, by name: `{"refund": "Refund order {order}."}`.
    """

    if TYPE_CHECKING:  # what is done is in `AgentDefinition`

        @overload
        def __init__(self: Agent[None, str], model: Model, **options: Unpack[_Options[None]]) -> None: ...
        @overload
        def __init__(
            self: Agent[Deps, str],
            model: Model,
            *,
            deps_type: TypeForm[Deps],
            deps: DepsFactory[Deps] | None = None,
            **options: Unpack[_Options[Deps]],
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[None, Output],
            model: Model,
            *,
            output_type: TypeForm[Output],
            **options: Unpack[_Options[None]],
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[Deps, Output],
            model: Model,
            *,
            deps_type: TypeForm[Deps],
            deps: DepsFactory[Deps] | None = None,
            output_type: TypeForm[Output],
            **options: Unpack[_Options[Deps]],
        ) -> None: ...
        def __init__(self, model: Model, **options: Any) -> None: ...

    async def run(self, prompt: Prompt, **options: Unpack[_RunOptions[Deps]]) -> FinishedTurn[Output]:
        """Run one turn in a session of its own, in memory, to its answer.

        Raise `TurnStopped` if it ends without an answer, and `RuntimeRequired` if it has to wait.
        """
        result = await self.run_stream(prompt, **options)
        assert isinstance(result, FinishedTurn)  # every other end of such a turn is raised
        return result

    def run_sync(self, prompt: Prompt, **options: Unpack[_RunOptions[Deps]]) -> FinishedTurn[Output]:
        """`run` without an event loop."""
        import asyncio

        if asyncio._get_running_loop() is not None:
            raise InvalidArgument(
                "run_sync() cannot wait inside a running event loop", hint="use `await agent.run(...)` there"
            )
        return asyncio.run(self.run(prompt, **options))

    def run_stream(self, prompt: Prompt, **options: Unpack[_RunOptions[Deps]]) -> Turn[Output]:
        """`run` as a turn to iterate over: its events as they happen; awaiting it gives the result."""
        from standfast.runtime.one_off import one_off_turn

        return one_off_turn(self, prompt, **options)
