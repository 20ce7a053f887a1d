"""`standfast tools`: what guest code may call under the given options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import Grants, wrong_grants_are_wrong_usage
from standfast.cli.options import Invocation, answers, grants_options, inherited_options
from standfast.cli.output import Answer, console
from standfast.cli.report import facts_table, plain_table

if TYPE_CHECKING:
    from standfast.model import Capability
    from standfast.tools.registered_tool import RegisteredTool
    from standfast.tools.registry import ToolRegistry


@click.group(
    "tools",
    epilog="""\b
Examples:
  standfast tools list --tools examples/refunds.py
  standfast tools describe refund --tools examples/refunds.py
  standfast tools list --mount /data=./data --json
""",
)
@inherited_options
def command() -> None:
    """List and describe what guest code may call."""


@command.command("list")
@grants_options
@answers
def list_tools(_: Invocation, *, grants: Grants) -> Answer:
    """List the capabilities that these options grant."""
    registry = _registry(grants)
    return Answer(registry.capabilities(), lambda: _show_list(registry))


@command.command("describe")
@click.argument("name")
@grants_options
@answers
def describe(_: Invocation, *, name: str, grants: Grants) -> Answer:
    """Describe one capability: its signature, parameters, limits and approval."""
    tool = _registry(grants).require(name)
    return Answer(tool.capability, lambda: _show(tool))


def _registry(grants: Grants) -> ToolRegistry:
    from standfast.runtime.sandbox import Sandbox

    with wrong_grants_are_wrong_usage():
        return Sandbox(grants.options(None)).registry


def _show_list(registry: ToolRegistry) -> None:
    table = plain_table("tool", "side effect", "approval", "description")
    table.columns[0].no_wrap = True
    for tool in registry:
        capability = tool.capability
        first_line = capability.description.strip().partition("\n")[0]
        table.add_row(tool.name, capability.side_effect, _approval(capability), first_line)
    console().print(table)


def _show(tool: RegisteredTool) -> None:
    from rich.syntax import Syntax

    from standfast.tools.stubs import stub_of

    shown = console()
    capability = tool.capability
    shown.print(
        Syntax(stub_of(tool), "python", theme="ansi_dark", background_color="default", word_wrap=True)
    )
    shown.print(f"\n{capability.description}\n")
    parameters: dict[str, Any] = capability.input_schema.get("properties", {})
    if parameters:
        shown.print(_parameters(capability.input_schema, parameters))
        shown.print()
    shown.print(_conditions(capability))


def _parameters(schema: dict[str, Any], parameters: dict[str, Any]) -> Any:
    from standfast.tools.stubs import type_text

    required = schema.get("required", ())
    table = plain_table("parameter", "type", "", "description")
    for name, part in parameters.items():
        need = "required" if name in required else "optional"
        table.add_row(name, type_text(part, schema.get("$defs", {})), need, part.get("description", ""))
    return table


def _conditions(capability: Capability) -> Any:
    limits = capability.limits
    rate = f"{limits.rate_per_min} a minute" if limits.rate_per_min is not None else "not limited"
    facts = (
        ("side effect", capability.side_effect),
        ("approval", _approval(capability)),
        ("idempotent", "yes" if capability.idempotent else "no"),
        ("timeout", _timeout(limits.timeout_ms)),
        ("rate", rate),
    )
    return facts_table(facts)


def _timeout(timeout_ms: int | None) -> str:
    from standfast.model.limits import AGENT_TIMEOUT_MS, SANDBOX_TIMEOUT_MS

    if timeout_ms is not None:
        return f"{timeout_ms} ms"
    return f"{SANDBOX_TIMEOUT_MS} ms, from an agent {AGENT_TIMEOUT_MS} ms"


def _approval(capability: Capability) -> str:
    policy = capability.approval_policy
    return policy if isinstance(policy, str) else f"auto: {policy.auto.rule}"
