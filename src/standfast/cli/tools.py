"""`standfast tools`: the capabilities that guest code may call under the given options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import SandboxGrants, wrong_grants_are_wrong_usage
from standfast.cli.options import Invocation, answers, grants_options, inherited_options
from standfast.cli.output import CommandOutput, console
from standfast.cli.report import facts_table, plain_table

if TYPE_CHECKING:
    from standfast.model.capability import Capability
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
    """List and describe the capabilities that guest code may call."""


@command.command("list")
@grants_options
@answers
def list_tools(_: Invocation, *, grants: SandboxGrants) -> CommandOutput:
    """List the capabilities that these options grant."""
    capabilities = _registry(grants).capabilities()

    def show() -> None:
        rows = [
            (one.name, one.side_effect, approval_text(one), one.description.strip().partition("\n")[0])
            for one in capabilities
        ]
        console().print(plain_table("tool", "side effect", "approval", "description", rows=rows, whole=(0,)))

    return CommandOutput(capabilities, show)


@command.command("describe")
@click.argument("name")
@grants_options
@answers
def describe(_: Invocation, *, name: str, grants: SandboxGrants) -> CommandOutput:
    """Describe one capability: its signature, parameters, limits and approval."""
    tool = _registry(grants).require(name)
    capability = tool.capability

    def show() -> None:
        from rich.syntax import Syntax

        from standfast.model.limits import AGENT_TIMEOUT_MS, SANDBOX_TIMEOUT_MS
        from standfast.tools.stubs import PythonTypes, stub_of

        shown, schema, limits = console(), capability.input_schema, capability.limits
        stub = Syntax(stub_of(tool), "python", theme="ansi_dark", background_color="default", word_wrap=True)
        shown.print(stub)
        shown.print(f"\n{capability.description}\n")
        parameters: dict[str, Any] = schema.get("properties", {})
        if parameters:
            rows = [
                (
                    name,
                    PythonTypes(schema).text(part),
                    "required" if name in schema.get("required", ()) else "optional",
                    part.get("description", ""),
                )
                for name, part in parameters.items()
            ]
            shown.print(plain_table("parameter", "type", "", "description", rows=rows))
            shown.print()
        timeout = f"{limits.timeout_ms} ms"
        if limits.timeout_ms is None:
            timeout = f"{SANDBOX_TIMEOUT_MS} ms, from an agent {AGENT_TIMEOUT_MS} ms"
        facts = (
            ("side effect", str(capability.side_effect)),
            ("approval", approval_text(capability)),
            ("idempotent", "yes" if capability.idempotent else "no"),
            ("timeout", timeout),
            ("rate", "not limited" if limits.rate_per_min is None else f"{limits.rate_per_min} a minute"),
        )
        shown.print(facts_table(facts))

    return CommandOutput(capability, show)


def _registry(grants: SandboxGrants) -> ToolRegistry:
    from standfast.runtime.sandbox import Sandbox

    with wrong_grants_are_wrong_usage():
        return Sandbox(grants.options(None)).registry


def approval_text(capability: Capability) -> str:
    policy = capability.approval_policy
    return policy if isinstance(policy, str) else f"auto: {policy.auto.rule}"
