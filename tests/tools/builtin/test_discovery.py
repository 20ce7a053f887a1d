"""The functions that guest code can call to learn about its tools."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import UnknownTool
from standfast.model.capability import ToolCallContext, auto_approval
from standfast.tools import ToolRegistry, tool
from standfast.tools.builtin.discovery import DiscoveryTools
from standfast.tools.context import RunContext
from standfast.tools.registry import REGISTERED


@tool(side_effect="network", approval="manual")
def transfer(amount: int) -> str:
    """Send money.

    It cannot be called back.
    """
    return str(amount)


@tool(side_effect="read", approval=auto_approval("True"))
def balance() -> int:
    """Look at the money."""
    return 1


def make() -> ToolRegistry:
    registry = ToolRegistry()
    policy = {"network": False}
    registry.upsert(REGISTERED, DiscoveryTools(registry, lambda run: {**policy, "session": run.session_id}))
    return registry


def call(registry: ToolRegistry, name: str, *args: Any) -> Any:
    found = registry.require(name)
    bound = found.bind(ToolCallContext(name=name, args=list(args)))
    context = [RunContext(None, "s")] if found.takes_context else []
    value = found.handler(*context, *bound.args, **bound.kwargs)
    found.check_output(value)
    return value


def test_tools_registered_later_are_listed() -> None:
    """Ours: the registry is read at the time of the call."""
    registry = make()
    assert [entry["name"] for entry in call(registry, "list_tools")] == [
        "current_policy",
        "describe_tool",
        "list_tools",
    ]
    registry.register(transfer.registered)
    registry.register(balance.registered)
    listed = {entry["name"]: entry for entry in call(registry, "list_tools")}
    assert listed["transfer"] == {
        "name": "transfer",
        "description": "Send money.",
        "side_effect": "network",
        "approval": "manual",
    }
    assert listed["balance"]["approval"] == "auto"
    assert listed["list_tools"]["approval"] == "none"


def test_describe_tool_returns_the_whole_contract() -> None:
    """Seed: `describe_tool(name)` describes a tool in full."""
    registry = make()
    registry.register(transfer.registered)
    described = call(registry, "describe_tool", "transfer")
    assert described["input_schema"]["properties"] == {"amount": {"type": "integer"}}
    assert described["approval_policy"] == "manual"
    assert described["limits"]["timeout_ms"] == 5000
    assert described["idempotent"] is False


def test_an_unknown_name_gets_a_suggestion() -> None:
    """Ours: a typo gets the closest name."""
    with pytest.raises(UnknownTool) as raised:
        call(make(), "describe_tool", "list_tool")
    assert raised.value.hint == "did you mean list_tools?"


def test_current_policy_returns_the_hosts_policy() -> None:
    """Seed: `current_policy()` is always available."""
    assert call(make(), "current_policy") == {"network": False, "session": "s"}


def test_discovery_has_no_side_effects() -> None:
    """Ours: discovery never waits for a person and is never journaled."""
    for each in make():
        assert str(each.capability.side_effect) == "none"
        assert each.capability.approval_policy == "none"
        assert each.capability.idempotent
        assert each.owner == "standfast built-in"
