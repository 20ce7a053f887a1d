"""The definition of an agent: model, instructions, tools and plugins. It has no state; sessions have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from standfast.errors import InvalidArgument, InvalidSessionId
from standfast.model.limits import UsageLimits
from standfast.model.prompt import PromptContribution, PromptLayer, as_layer
from standfast.model.session import SessionId, SessionPolicy
from standfast.tools.decorator import AnyTool, as_registered
from standfast.tools.registry import ToolRegistry, ToolSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.plugins.plugin import PluginFactory
    from standfast.ports.model_provider import ModelProvider
    from standfast.runtime.dependencies import DepsFactory
    from standfast.runtime.output_type import OutputType
    from standfast.runtime.prompt_templates import PromptTemplate
    from standfast.tools.context import RunContext

Deps = TypeVar("Deps")
Output = TypeVar("Output")

if TYPE_CHECKING:
    Model = str | ModelProvider | Sequence[str | ModelProvider]
    Instructions = Callable[[RunContext[Deps]], str | Awaitable[str]]
    """A function that returns the instructions of one turn."""


class AgentDefinition(Generic[Deps, Output]):
    """An `Agent` as the runtime sees it: without `run`, which itself needs a runtime."""

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
        queue: str = "default",
        max_concurrent: int | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        from standfast.runtime.dependencies import checked_factory, needs_deps

        self.protocol = _checked_protocol(protocol)
        if isinstance(plugins, str) or not isinstance(plugins, Iterable):
            raise InvalidArgument("plugins= takes a list of plugins", hint="plugins=[Plan()]")
        self.plugins: list[PluginFactory] = []
        if given_plugins := list(plugins):
            from standfast.plugins.discovery import resolve_plugin  # only agents with plugins need it

            self.plugins = [resolve_plugin(one) for one in given_plugins]
        self.system = as_layer(system)
        self.model = _checked_model(model)
        self.name = _checked_name(name, "an agent")
        self.queue = _checked_name(queue, "a queue")
        if max_concurrent is not None and max_concurrent < 1:
            raise InvalidArgument(f"max_concurrent must be at least 1, got {max_concurrent}")
        self.max_concurrent = max_concurrent
        if not isinstance(instructions, str) and not callable(instructions):
            raise InvalidArgument(
                f"instructions must be a str or a function, got {type(instructions).__name__}",
                hint='use instructions="You help.", or a function of RunContext that returns a str',
            )
        self.instructions: Any = instructions
        if isinstance(tools, str) or not isinstance(tools, Iterable):
            raise InvalidArgument("tools is not a list", hint="use Agent(..., tools=[one, another])")
        given = list(tools)
        self.registry = ToolRegistry(as_registered(one) for one in given if not isinstance(one, ToolSource))
        for one in given:
            if isinstance(one, ToolSource):
                self.registry.connect(one)
        self.deps_type = deps_type
        self.deps: DepsFactory[Any] | None = checked_factory(deps)
        self.needs_deps = needs_deps(deps_type)
        self.output_type: OutputType | None = None
        if output_type is not str:
            from standfast.runtime.output_type import OutputType  # not needed by agents that answer with text

            self.output_type = OutputType(output_type)
        self.limits = checked_limits(limits) or UsageLimits()
        self.settings = dict(settings or {})
        self.prompts: dict[str, PromptTemplate] = {}
        if prompts is not None:
            from standfast.runtime.prompt_templates import prompt_templates  # only MCP clients use them

            self.prompts = prompt_templates(prompts)
        self.opened_models: dict[str, ModelProvider] = {}
        """The models opened for runs without a runtime; they stay open."""

    @property
    def model_id(self) -> str:
        """The model's name, as sessions record it."""
        return self.model if isinstance(self.model, str) else self.model.model_id

    def policy(self) -> SessionPolicy:
        """Return the settings of a new session of this agent, without instructions from a function."""
        return SessionPolicy(
            model=self.model_id,
            instructions=self.instructions if isinstance(self.instructions, str) else "",
            limits=self.limits,
            settings=self.settings,
        )

    def __repr__(self) -> str:
        return f"<Agent {self.name} on {self.model_id}>"


def declared_agents(agent: AgentDefinition[Any, Any]) -> Mapping[str, AgentDefinition[Any, Any]]:
    """Return the agents that an agent's plugins declare as its subagents, by name."""
    found: dict[str, AgentDefinition[Any, Any]] = {}
    for plugin in agent.plugins:
        for declared in getattr(plugin, "declared_agents", ()):
            if isinstance(declared, AgentDefinition):
                found.setdefault(declared.name, declared)
    return found


def _checked_name(name: str, what: str) -> str:
    try:
        return SessionId(name)
    except InvalidSessionId:
        raise InvalidArgument(
            f"{str(name)[:80]!r} cannot be the name of {what}",
            hint="use 1 to 64 ASCII letters, digits, '_' or '-'",
        ) from None


def _checked_protocol(protocol: object) -> PluginFactory:
    if protocol == "standard":
        from standfast.protocols.standard.plugin import StandardProtocol

        return StandardProtocol()
    if protocol == "code":
        from standfast.protocols.code.plugin import CodeProtocol  # needed only by agents that write code

        return CodeProtocol()
    if isinstance(protocol, str):
        raise InvalidArgument(
            f"protocol {protocol!r} is unknown", hint='use protocol="standard", protocol="code", or a plugin'
        )
    from standfast.plugins.plugin import as_factory

    return as_factory(protocol)


def _checked_model(model: object) -> Any:
    if isinstance(model, (list, tuple)):
        from standfast.providers.resolve import one_of

        model = one_of(model)
    if isinstance(model, str) or (hasattr(model, "model_id") and hasattr(model, "stream")):
        return model
    raise InvalidArgument(
        f"{type(model).__name__} is not a model", hint='pass "provider:model", or an object with `stream`'
    )


def checked_limits(limits: object) -> UsageLimits | None:
    """Return *limits*; raise `InvalidArgument` if they are not `UsageLimits`."""
    if limits is None or isinstance(limits, UsageLimits):
        return limits
    raise InvalidArgument(
        f"limits must be UsageLimits, got {type(limits).__name__}", hint="use UsageLimits(max_tokens=...)"
    )
