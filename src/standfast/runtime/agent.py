"""`Agent`, the class with which users define an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from standfast.errors import InvalidArgument
from standfast.runtime.agent_definition import AgentDefinition, Deps, Output
from standfast.runtime.result import FinishedTurn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Generic, TypedDict, Unpack

    from typing_extensions import TypeForm

    from standfast.model.limits import UsageLimits
    from standfast.model.prompt import PromptContribution, PromptLayer
    from standfast.runtime.agent_definition import Instructions, Model
    from standfast.runtime.agent_session import Prompt
    from standfast.runtime.dependencies import DepsFactory
    from standfast.runtime.turn import Turn
    from standfast.tools.decorator import AnyTool

    class _Options(TypedDict, Generic[Deps], total=False):
        """The keyword arguments that every overload of `Agent` accepts."""

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
            In a list of models, each one is tried if those before it have failed.
        name: the name that sessions record, by which another process finds the agent of an unfinished turn.
        instructions: the first part of the system prompt: a string, or a function (plain or async) of
            `RunContext` that returns one. The function is called once for each turn, before the turn begins.
        tools: functions, ideally decorated with `@tool`.
        plugins: `Plugin` instances, their classes, factories, or names of installed plugins.
        system: more parts of the system prompt, each in a slot.
        deps_type: the type of `ctx.deps` in tools and hooks. If an agent declares it, its turns do not run
            without deps.
        deps: a factory of deps for turns whose caller passed none, such as turns that the runtime resumes by
            itself: a function, async function or async generator of a `DepsContext`.
        output_type: the type of the agent's answers. `str` is the model's text. For any other type the answer
            is validated, and the model tries again if it is invalid.
        limits: the limits of one turn.
        protocol: how the model acts: `"standard"` means native tool calls, `"code"` cells of Python (with
            options: `CodeProtocol(...)`); a plugin may provide another.
        settings: model settings, passed to the provider unchanged.
        queue: the queue from which workers claim the agent's turns (`standfast worker --queues`).
        max_concurrent: how many of its turns one worker runs concurrently.
        prompts: prompt templates for MCP clients, by name: `{"refund": "Refund order {order}."}`.
    """

    if TYPE_CHECKING:  # implemented in `AgentDefinition`

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
        """Run one turn in a new in-memory session and return its answer.

        Raise `TurnStopped` if it ends without an answer, and `RuntimeRequired` if it has to wait.
        """
        result = await self.run_stream(prompt, **options)
        assert isinstance(result, FinishedTurn)  # any other outcome of such a turn is raised
        return result

    def run_sync(self, prompt: Prompt, **options: Unpack[_RunOptions[Deps]]) -> FinishedTurn[Output]:
        """Like `run`, for callers without an event loop."""
        import asyncio

        if asyncio._get_running_loop() is not None:
            raise InvalidArgument(
                "run_sync() was called inside a running event loop", hint="use `await agent.run(...)` there"
            )
        return asyncio.run(self.run(prompt, **options))

    def run_stream(self, prompt: Prompt, **options: Unpack[_RunOptions[Deps]]) -> Turn[Output]:
        """Like `run`, but return a turn: iterate over it for its events, or await it for its result."""
        from standfast.runtime.one_off import one_off_turn

        return one_off_turn(self, prompt, **options)
