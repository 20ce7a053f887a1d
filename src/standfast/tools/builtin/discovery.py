"""Tools that describe the tools and limits of guest code. Always available, without side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.tools.context import RunContext
from standfast.tools.decorator import built_in, tool
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolRegistry

# Described in the annotation, because an `Args:` section would load the docstring parser in every process.
_NAME = msgspec.Meta(description="the name of a tool, as list_tools() gives it")


Policy = Callable[[RunContext[Any]], dict[str, Any]]


def discovery_tools(registry: ToolRegistry, policy: Policy) -> list[RegisteredTool]:
    """Return `list_tools`, `describe_tool` and `current_policy`, which read the registry when called."""

    @tool(side_effect="none")
    def list_tools() -> list[dict[str, Any]]:
        """List the tools that can be called: name, description, side_effect and approval of each."""
        return [
            {
                "name": one.name,
                "description": one.description.partition("\n")[0],
                "side_effect": str(one.side_effect),
                "approval": one.approval_policy if isinstance(one.approval_policy, str) else "auto",
            }
            for one in registry.capabilities()
        ]

    @tool(side_effect="none")
    def describe_tool(name: Annotated[str, _NAME]) -> dict[str, Any]:
        """Describe one tool in full: its input and output schemas, limits and approval policy."""
        described: dict[str, Any] = msgspec.to_builtins(registry.require(name).capability)
        limits = described["limits"]
        return {**described, "limits": {**limits, "timeout_ms": limits["timeout_ms"] or SANDBOX_TIMEOUT_MS}}

    @tool(side_effect="none")
    def current_policy(ctx: RunContext[Any]) -> dict[str, Any]:
        """Return the limits of this run and of its session, and the permissions of the code."""
        return policy(ctx)

    return built_in(list_tools, describe_tool, current_policy)
