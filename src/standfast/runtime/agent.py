"""An agent: a model, its instructions and its tools. It holds no state; sessions do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

from standfast.errors import InvalidArgument, InvalidSessionId
from standfast.model.ids import SessionId
from standfast.model.prompt import PromptContribution, PromptLayer
from standfast.model.session_policy import SessionPolicy
from standfast.model.usage import UsageLimits
from standfast.plugins.discovery import resolve_plugin
from standfast.plugins.plugin import PluginFactory, as_factory
from standfast.ports.model_provider import ModelProvider
from standfast.protocols.standard.plugin import StandardProtocol
from standfast.runtime.dependencies import DepsFactory, checked_factory, needs_deps
from standfast.runtime.output_type import OutputType
from standfast.runtime.result import FinishedTurn
from standfast.runtime.session_context import as_layer
from standfast.tools.context import RunContext
from standfast.tools.decorator import AnyTool, as_registered
from standfast.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from standfast.runtime.attachments import Prompt
    from standfast.runtime.turn import Turn

Deps = TypeVar("Deps")
Output = TypeVar("Output")
Model = str | ModelProvider | Sequence[str | ModelProvider]
Instructions = Callable[[RunContext[Deps]], str | Awaitable[str]]
"""Makes the instructions of one turn."""


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


class Agent(Generic[Deps, Output]):
    """A model with instructions and tools.

    Args:
        model: `"provider:model"`, such as `"scripted:replies.json"`, or an object that is a `ModelProvider`.
            A list of them is asked in order: each next one when those before it have failed.
        name: sessions record it; another process finds the agent of an unfinished turn by it.
        instructions: what the model is told before anything else: a text, or a function, also async, of
            `RunContext` that returns it. The function is called once for each turn, before the turn begins.
        tools: functions, ideally decorated with `@tool`.
        plugins: what shapes its sessions: `Plugin`s, their classes, factories, or names of installed ones.
        system: more pieces of the system prompt, each in a slot.
        deps_type: the type of what tools and hooks get as `ctx.deps`. An agent that declares it runs no turn
            without deps.
        deps: makes the deps of turns that have no others, such as those that the runtime resumes by itself:
            a function, async function or async generator of a `DepsContext`.
        output_type: what the agent answers with. `str` is the model's text; of any other type the answer is
            checked, and the model is told if it does not fit.
        limits: what one turn may use.
        protocol: how the model acts. `"standard"` is native tool calls, `"code"` cells of Python (with
            options: `CodeProtocol(...)`); a plugin may bring another.
        settings: passed on to the provider as they are.
    """

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
    def __init__(
        self,
        model: Model,
        *,
        name: str = "agent",
        instructions: str | Instructions[Any] = "",
        tools: Iterable[AnyTool[Any]] = (),
        plugins: Iterable[object] = (),
        system: PromptLayer | Sequence[PromptContribution | str] | None = None,
        deps_type: Any = None,
        deps: DepsFactory[Any] | None = None,
        output_type: Any = str,
        limits: UsageLimits | None = None,
        protocol: str | object = "standard",
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.protocol = _checked_protocol(protocol)
        self.plugins = [resolve_plugin(one) for one in _listed_plugins(plugins)]
        self.system = as_layer(system)
        self.model = _checked_model(model)
        self.name = _checked_name(name)
        self.instructions = _checked_instructions(instructions)
        self.registry = ToolRegistry(as_registered(one) for one in _listed(tools))
        self.deps_type = deps_type
        self.deps: DepsFactory[Any] | None = checked_factory(deps)
        self.needs_deps = needs_deps(deps_type)
        self.output_type: OutputType | None = None if output_type is str else OutputType(output_type)
        self.limits = checked_limits(limits) or UsageLimits()
        self.settings = dict(settings or {})
        self.opened_models: dict[str, ModelProvider] = {}
        """The agent's own model, once it was run without a runtime; it stays open."""

    @property
    def model_id(self) -> str:
        """The model's name, as sessions record it."""
        return self.model if isinstance(self.model, str) else self.model.model_id

    def policy(self) -> SessionPolicy:
        """The settings that a session of this agent begins with; instructions that are a function are not."""
        return SessionPolicy(
            model=self.model_id,
            instructions=self.instructions if isinstance(self.instructions, str) else "",
            limits=self.limits,
            settings=self.settings,
        )

    async def run(
        self,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        deps: Deps | None = None,
        limits: UsageLimits | None = None,
    ) -> FinishedTurn[Output]:
        """Run one turn in a session of its own, in memory, to its answer.

        Raise `TurnStopped` if it ends without an answer, and `NobodyWaits` if it has to wait.
        """
        result = await self.run_stream(prompt, inputs=inputs, deps=deps, limits=limits)
        assert isinstance(result, FinishedTurn)  # every other end of such a turn is raised
        return result

    def run_sync(
        self,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        deps: Deps | None = None,
        limits: UsageLimits | None = None,
    ) -> FinishedTurn[Output]:
        """`run` without an event loop."""
        import asyncio

        if asyncio._get_running_loop() is not None:
            raise InvalidArgument(
                "run_sync() cannot wait inside a running event loop", hint="use `await agent.run(...)` there"
            )
        return asyncio.run(self.run(prompt, inputs=inputs, deps=deps, limits=limits))

    def run_stream(
        self,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        deps: Deps | None = None,
        limits: UsageLimits | None = None,
    ) -> Turn[Output]:
        """`run` as a turn to iterate over: its events as they happen; awaiting it gives the result."""
        from standfast.runtime.one_off import one_off_turn

        return one_off_turn(self, prompt, inputs=inputs, deps=deps, limits=limits)

    def __repr__(self) -> str:
        return f"<Agent {self.name} on {self.model_id}>"


def declared_agents(agent: Agent[Any, Any]) -> Mapping[str, Agent[Any, Any]]:
    """The agents that an agent's plugins declare as its subagents, by name."""
    found: dict[str, Agent[Any, Any]] = {}
    for plugin in agent.plugins:
        for declared in getattr(plugin, "declared_agents", ()):
            if isinstance(declared, Agent):
                found.setdefault(declared.name, declared)
    return found


def _checked_protocol(protocol: object) -> PluginFactory:
    if protocol == "standard":
        return StandardProtocol()
    if protocol == "code":
        from standfast.protocols.code.plugin import CodeProtocol  # only agents that act in code need it

        return CodeProtocol()
    if isinstance(protocol, str):
        raise InvalidArgument(
            f"there is no protocol {protocol!r}", hint='use protocol="standard", protocol="code", or a plugin'
        )
    return as_factory(protocol)


def _checked_instructions(instructions: object) -> Any:
    if isinstance(instructions, str) or callable(instructions):
        return instructions
    raise InvalidArgument(
        f"instructions is {type(instructions).__name__}, neither text nor a function",
        hint='use instructions="You help.", or a function of RunContext that returns a text',
    )


def _listed_plugins(plugins: object) -> list[object]:
    if isinstance(plugins, str) or not isinstance(plugins, Iterable):
        raise InvalidArgument("plugins= takes a list of plugins", hint="plugins=[Plan()]")
    return list(plugins)


def _checked_model(model: object) -> Any:
    if isinstance(model, (list, tuple)):
        from standfast.providers.resolve import one_of

        model = one_of(model)
    if isinstance(model, str) or (hasattr(model, "model_id") and hasattr(model, "stream")):
        return model
    raise InvalidArgument(
        f"{type(model).__name__} is not a model", hint='pass "provider:model", or an object with `stream`'
    )


def _checked_name(name: str) -> SessionId:
    try:
        return SessionId(name)
    except InvalidSessionId:
        raise InvalidArgument(
            f"{str(name)[:80]!r} cannot be the name of an agent",
            hint="use 1 to 64 ASCII letters, digits, '_' or '-'",
        ) from None


def _listed(tools: Iterable[object]) -> Iterable[object]:
    if isinstance(tools, Iterable) and not isinstance(tools, str):
        return tools
    raise InvalidArgument("tools is not a list", hint="use Agent(..., tools=[one, another])")


def checked_limits(limits: object) -> UsageLimits | None:
    """Refuse what is given for limits and is none."""
    if limits is None or isinstance(limits, UsageLimits):
        return limits
    raise InvalidArgument(
        f"limits is {type(limits).__name__}, not UsageLimits", hint="use UsageLimits(max_tokens=...)"
    )
