"""An agent: a model, its instructions and its tools. It holds no state; sessions do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from holdfast.errors import InvalidArgument
from holdfast.model.ids import SessionId
from holdfast.model.usage import UsageLimits
from holdfast.ports.model_provider import ModelProvider
from holdfast.runtime.output_type import OutputType
from holdfast.tools.decorator import as_registered
from holdfast.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from holdfast.runtime.attachments import Prompt
    from holdfast.runtime.result import TurnResult
    from holdfast.runtime.turn import Turn

Deps = TypeVar("Deps")
Output = TypeVar("Output")


class Agent(Generic[Deps, Output]):
    """A model with instructions and tools.

    Args:
        model: `"provider:model"`, such as `"scripted:replies.json"`, or an object that is a `ModelProvider`.
        name: sessions record it; another process finds the agent of an unfinished turn by it.
        instructions: what the model is told before anything else.
        tools: functions, ideally decorated with `@tool`.
        deps_type: the type of what tools get as `RunContext.deps`; for the type checker.
        output_type: what the agent answers with. `str` is the model's text; of any other type the answer is
            checked, and the model is told if it does not fit.
        limits: what one turn may use.
        protocol: how the model acts. `"standard"` is native tool calls.
        settings: passed on to the provider as they are.
    """

    @overload
    def __init__(
        self: Agent[Deps, str],
        model: str | ModelProvider,
        *,
        name: str = ...,
        instructions: str = ...,
        tools: Iterable[object] = ...,
        deps_type: type[Deps] = ...,
        limits: UsageLimits | None = ...,
        protocol: str = ...,
        settings: dict[str, Any] | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Deps, Output],
        model: str | ModelProvider,
        *,
        name: str = ...,
        instructions: str = ...,
        tools: Iterable[object] = ...,
        deps_type: type[Deps] = ...,
        output_type: type[Output],
        limits: UsageLimits | None = ...,
        protocol: str = ...,
        settings: dict[str, Any] | None = ...,
    ) -> None: ...
    def __init__(
        self,
        model: str | ModelProvider,
        *,
        name: str = "agent",
        instructions: str = "",
        tools: Iterable[object] = (),
        deps_type: Any = None,
        output_type: Any = str,
        limits: UsageLimits | None = None,
        protocol: str = "standard",
        settings: dict[str, Any] | None = None,
    ) -> None:
        if protocol != "standard":
            raise InvalidArgument(
                f"there is no protocol {protocol!r} in this release", hint='use protocol="standard"'
            )
        self.model = model
        self.name = SessionId(name)
        self.instructions = instructions
        self.registry = ToolRegistry(as_registered(one) for one in tools)
        self.deps_type = deps_type
        self.output_type: OutputType | None = None if output_type is str else OutputType(output_type)
        self.limits = limits or UsageLimits()
        self.settings = dict(settings or {})
        self.opened_models: dict[str, ModelProvider] = {}
        """The agent's own model, once it was run without a runtime; it stays open."""

    @property
    def model_id(self) -> str:
        """The model's name, as sessions record it."""
        return self.model if isinstance(self.model, str) else self.model.model_id

    def read_output(self, text: str, value: Any) -> Any:
        """The answer as the agent's `output_type` has it."""
        return text if self.output_type is None else self.output_type.load(value)

    async def run(
        self, prompt: Prompt, *, deps: Any = None, limits: UsageLimits | None = None
    ) -> TurnResult[Output]:
        """One turn in a session of its own, in memory. `TurnStopped` if it ends without an answer."""
        return await self.run_stream(prompt, deps=deps, limits=limits)

    def run_sync(
        self, prompt: Prompt, *, deps: Any = None, limits: UsageLimits | None = None
    ) -> TurnResult[Output]:
        """`run` without an event loop."""
        import asyncio

        return asyncio.run(self.run(prompt, deps=deps, limits=limits))

    def run_stream(
        self, prompt: Prompt, *, deps: Any = None, limits: UsageLimits | None = None
    ) -> Turn[Output]:
        """`run` as a turn to iterate over: its events as they happen; awaiting it gives the result."""
        from holdfast.runtime.one_off import one_off_turn

        return one_off_turn(self, prompt, deps=deps, limits=limits)

    def __repr__(self) -> str:
        return f"<Agent {self.name} on {self.model_id}>"
