"""Plan: a checklist that the model maintains and the user sees.

The model writes it with one tool and reads it in every prompt. Subscribers of the session get an event for
each change. It is part of the session's state: it survives a restart, a fork has a copy, a rewind restores
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.directive import EmitRuntimeEvents, RuntimeEvent
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.plugins.actions import PluginActionContext, action
from standfast.plugins.contexts import PromptHookContext, ToolResultHookContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin, check_numbers
from standfast.tools.context import RunContext
from standfast.tools.decorator import tool

_MARKS: Final = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]"}


class PlanItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the plan."""

    title: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    status: Literal["pending", "in_progress", "done"] = "pending"


class Plan(Plugin):
    """A plugin for agents whose tasks have several steps.

    Args:
        max_items: the largest number of items in the plan.
    """

    id = "plan"
    summary = "A checklist that the model keeps and the user sees."

    def __init__(self, max_items: int = 50) -> None:
        self.max_items = max_items
        self.check_options()

    def check_options(self) -> None:
        check_numbers(self, max_items=1)

    @property
    def items(self) -> list[PlanItem]:
        """Return the current plan."""
        return msgspec.convert(self._kept().get("items", []), list[PlanItem])

    def _kept(self) -> dict[str, Any]:
        return self.state or {}

    def _replace(self, items: Sequence[PlanItem], changed_by: str) -> None:
        """Store a new plan, unless it equals the current one."""
        tidy = [PlanItem(title=" ".join(item.title.split()), status=item.status) for item in items]
        if not all(item.title for item in tidy):
            raise InvalidArgument("an item of the plan has an empty title")
        if len(tidy) > self.max_items:
            raise InvalidArgument(f"a plan has at most {self.max_items} items, this one has {len(tidy)}")
        if sum(item.status == "in_progress" for item in tidy) > 1:
            raise InvalidArgument("only one item can be in_progress", hint="leave the others pending")
        if tidy != self.items:
            self.state = {"items": msgspec.to_builtins(tidy), "changed_by": changed_by}

    @tool(side_effect="none", loop="runtime")
    async def update_plan(self, ctx: RunContext[Any], items: list[PlanItem]) -> str:
        """Write down the steps of the task, or update their status. The user sees the plan.

        Make a plan for a task of several steps and keep it current: one item in_progress at a time, marked
        done as soon as it is finished. The items replace the whole plan; an empty list removes it.

        Args:
            items: all items, in order.
        """
        self._replace(items, ctx.idempotency_key)
        done = sum(item.status == "done" for item in self.items)
        return f"{done} of {len(self.items)} done"

    @hook
    async def prompt_contributor(self, ctx: PromptHookContext) -> PromptContribution | None:
        if not self.items:
            return None
        lines = "\n".join(f"{_MARKS[item.status]} {item.title}" for item in self.items)
        words = f"The current plan; keep it up to date with update_plan:\n{lines}"
        return PromptContribution(content=words, slot=PromptSlot.RUNTIME_CONTEXT)

    @hook
    async def after_tool_call(self, ctx: ToolResultHookContext) -> EmitRuntimeEvents | None:
        """Emit an event if this call changed the plan."""
        if self._kept().get("changed_by") != f"{ctx.turn_id}.{ctx.call_id}":
            return None
        body = {"items": self._kept()["items"]}
        return EmitRuntimeEvents(events=(RuntimeEvent(kind="plan_updated", body=body),))

    @action
    async def show(self, ctx: PluginActionContext) -> list[PlanItem]:
        """Return the current plan."""
        return self.items

    @action(name="plan.set", kind="command")
    async def set_plan(self, ctx: PluginActionContext, items: list[PlanItem]) -> list[PlanItem]:
        """Replace the plan; the model reads it before its next reply."""
        self._replace(items, changed_by="")
        return self.items
