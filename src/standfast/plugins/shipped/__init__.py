"""The plugins that ship with Standfast, which also serve as examples.

Each is imported when it is first used, independently of the others. Agents may also refer to them by the
names of their entry points: `Agent(plugins=["plan", "guard"])`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.plugins.shipped.compaction": "Compaction",
        "standfast.plugins.shipped.guard": "Guard",
        "standfast.plugins.shipped.memory": "Memory",
        "standfast.plugins.shipped.plan": "Plan",
        "standfast.plugins.shipped.redact": "Redact",
        "standfast.plugins.shipped.rolling_history": "RollingHistory",
        "standfast.plugins.shipped.subagents": "Subagents",
        "standfast.plugins.shipped.tool_output_budget": "ToolOutputBudget",
    },
)


if TYPE_CHECKING:
    from standfast.plugins.shipped.compaction import Compaction as Compaction
    from standfast.plugins.shipped.guard import Guard as Guard
    from standfast.plugins.shipped.memory import Memory as Memory
    from standfast.plugins.shipped.plan import Plan as Plan
    from standfast.plugins.shipped.redact import Redact as Redact
    from standfast.plugins.shipped.rolling_history import RollingHistory as RollingHistory
    from standfast.plugins.shipped.subagents import Subagents as Subagents
    from standfast.plugins.shipped.tool_output_budget import ToolOutputBudget as ToolOutputBudget
