"""Tools that describe the tools and limits of guest code. Always available, without side effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from standfast.model.capability import SideEffect, ToolManifest
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.tools.context import RunContext
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import StaticTools, ToolRegistry

# Described in the annotation, because an `Args:` section would load the docstring parser in every process.
_NAME = msgspec.Meta(description="the name of a tool, as list_tools() gives it")


Policy = Callable[[RunContext[Any]], dict[str, Any]]


class DiscoveryTools(StaticTools):
    """`list_tools`, `describe_tool` and `current_policy`, which read the registry when called.

    Their contracts are derived when they are first needed, because most runs need none of them.
    """

    def __init__(self, registry: ToolRegistry, policy: Policy) -> None:
        super().__init__(())
        self._registry = registry
        self._policy = policy
        functions = (self.list_tools, self.describe_tool, self.current_policy)
        self._functions: dict[str, Callable[..., Any]] = {one.__name__: one for one in functions}

    def manifests(self) -> Sequence[ToolManifest]:
        return [
            ToolManifest(id=name, name=name, description=function.__doc__ or "", side_effect=SideEffect.NONE)
            for name, function in self._functions.items()
        ]

    def resolve(self, name: str) -> RegisteredTool | None:
        from standfast.tools.decorator import built_in, tool

        function = self._functions.get(name)
        return None if function is None else built_in(tool(side_effect="none")(function))[0]

    def list_tools(self) -> list[dict[str, Any]]:
        """List the tools that can be called: name, description, side_effect and approval of each."""
        return [
            {
                "name": one.name,
                "description": one.description.partition("\n")[0],
                "side_effect": str(one.side_effect),
                "approval": one.approval_policy if isinstance(one.approval_policy, str) else "auto",
            }
            for one in self._registry.capabilities()
        ]

    def describe_tool(self, name: Annotated[str, _NAME]) -> dict[str, Any]:
        """Describe one tool in full: its input and output schemas, limits and approval policy."""
        described: dict[str, Any] = msgspec.to_builtins(self._registry.require(name).capability)
        limits = described["limits"]
        return {**described, "limits": {**limits, "timeout_ms": limits["timeout_ms"] or SANDBOX_TIMEOUT_MS}}

    def current_policy(self, ctx: RunContext[Any]) -> dict[str, Any]:
        """Return the limits of this run and of its session, and the permissions of the code."""
        return self._policy(ctx)
