"""Subagents: agents that a model starts and that run concurrently with it.

    Agent(model, tools=[...], plugins=[Subagents(agents=[researcher], max_depth=2, max_children=8)])

A subagent is a child session with its own turns, which are as durable as any others; any process that knows
its agent can run them. It starts without a history, and with the remainder of its parent's budget. A declared
subagent (`agents=`) has the tools of its own agent, whether or not its parent has them; any other has at most
its parent's tools.

Rules
-----
1. `spawn_agent` returns as soon as the subagent is stored; the parent does not wait, and all run
   concurrently.
2. From parent to child, the remaining depth and the budget only decrease, and so do the tools that a model
   passes on.
3. A turn that ends without an answer closes its running subagents. So does a subagent's turn, however it
   ends, because no later turn waits for them. A turn of the root session that ends with an answer leaves its
   subagents running, and a later turn can wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.directive import AbortTurn, EnqueueMessages
from standfast.model.limits import Usage, UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Stopped
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.model.session import SessionPolicy
from standfast.plugins import contexts
from standfast.plugins.actions import PluginActionContext, action
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin, check_numbers
from standfast.plugins.shipped import subagent_children
from standfast.plugins.shipped.subagent_budget import SharedBudget, less
from standfast.plugins.shipped.subagent_tools import SubagentTools, rests_of_all
from standfast.plugins.snapshot import SnapshotReader
from standfast.ports.model_provider import ReplyEnded

if TYPE_CHECKING:
    from standfast.model.plugin_state import PluginSnapshotMeta
    from standfast.plugins.registrar import PluginRegistrar

_HOW = (
    "You can delegate parts of the work to subagents, which run concurrently: spawn_agent(task) starts one, "
    "wait() returns their results. A subagent does not see this conversation."
)


class TreeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a session, of all subagents below it, and the total."""

    own: Usage
    subagents: Usage
    total: Usage


class Subagents(Plugin):
    """A plugin for agents whose work can be divided.

    Args:
        agents: agents that the model may start by name. Each has its own tools. An agent given as a name must
            also be passed to `Runtime(agents=[...])`.
        max_depth: how many levels of subagents there may be below the root session.
        max_children: how many subagents of one session may run at a time.
        share_budget: whether the usage of subagents counts against the turn that gave them work.
    """

    id = subagent_children.PLUGIN_ID
    summary = "Agents that a model starts and that run concurrently with it."

    def __init__(
        self, agents: Sequence[Any] = (), max_depth: int = 2, max_children: int = 8, share_budget: bool = True
    ) -> None:
        self.agents: Sequence[Any] = agents
        self.max_depth = max_depth
        self.max_children = max_children
        self.share_budget = share_budget
        self.check_options()
        self._declared = _Declared(one for one in agents if not isinstance(one, str))
        limits = {_name_of(one): getattr(one, "limits", None) for one in agents}
        self._agent_limits = {name: one for name, one in limits.items() if isinstance(one, UsageLimits)}

    @property
    def declared_agents(self) -> Sequence[Any]:
        """The agents that were passed as objects, so that the runtime can find them by name."""
        return self._declared.agents

    @property
    def declared_names(self) -> Sequence[str]:
        """The names of the agents that may be subagents with their own authority."""
        return self.agents

    def check_options(self) -> None:
        if isinstance(self.agents, str) or not isinstance(self.agents, Sequence):
            raise InvalidArgument(
                "agents of plugin 'subagents' is not a list",
                hint="pass agents=[researcher], or a list of names",
            )
        self.agents = [_name_of(one) for one in self.agents]
        check_numbers(self, max_depth=1, max_children=1)

    @property
    def depth(self) -> int:
        """How many sessions are above this one."""
        subagent = self.session.subagent
        return 0 if subagent is None else subagent.depth

    def register(self, registrar: PluginRegistrar) -> None:
        session = self.session
        self.budget = SharedBudget(
            session.session_id, session.storage, lambda tally: self._keep("tally", tally)
        )
        self.budget.enabled = self.share_budget
        self.budget.is_subagent = session.subagent is not None
        self.budget.own_limits = self._agent_limits
        tools = self._tools = SubagentTools(session, self.budget, self.agents, self.max_children)
        super().register(registrar)
        if self.depth < self.max_depth:
            registrar.tools.add(tools.spawn_agent, tools.send_input, tools.wait, tools.close)
            registrar.prompt.contributor(self.tell_how)
        if self.share_budget:
            registrar.checkpoints.at(self.check_budget)
            registrar.output.response(self.count_reply)
        if self.session.subagent is None:
            return
        registrar.tool_calls.before(self.note_call)
        self._schema = subagent_children.schema_in(self.session.subagent.task)
        if self._schema is not None:
            registrar.checkpoints.at(self.check_answer)

    def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
        super().restore(meta, reader)
        self.budget.restore(self._kept().get("tally"))

    def _kept(self) -> dict[str, Any]:
        return self.state or {}

    def _keep(self, name: str, value: Json) -> None:
        self.state = {**self._kept(), name: value}

    @hook
    async def session_config_mutator(
        self, change: contexts.SessionConfigChanged, policy: SessionPolicy
    ) -> SessionPolicy:
        """Read the session's limits, which subagents share, without changing the settings."""
        self.budget.policy = policy.limits
        return policy

    @hook
    async def before_turn(self, ctx: contexts.TurnHookContext) -> None:
        if self._kept():
            self.state = None
        await self.budget.begin(ctx.turn_id)

    @hook
    async def turn_finalized(self, event: contexts.TurnFinalized) -> None:
        """Close the subagents that no later turn will wait for."""
        if not isinstance(event.outcome, Stopped) and self.session.subagent is None:
            return
        children = subagent_children.Children(self.session.host, self.session.session_id)
        at_work = [agent_id for agent_id, one in (await children.all()).items() if one.live]
        await asyncio.gather(
            *(children.host.cancel_background_task(children.session_id, agent_id) for agent_id in at_work)
        )

    async def tell_how(self, ctx: contexts.PromptHookContext) -> PromptContribution:
        words = _HOW
        if self.agents:
            words += f" Specialized subagents, to be named in `agent`: {', '.join(self.agents)}."
        return PromptContribution(content=words, slot=PromptSlot.GUIDANCE)

    async def count_reply(self, ctx: contexts.AssistantResponseHookContext) -> ReplyEnded:
        self.budget.replied(ctx.response.usage)
        return ctx.response

    async def check_budget(self, ctx: contexts.CheckpointHookContext) -> EnqueueMessages | AbortTurn | None:
        """If the budget is used up, ask the model for its answer, or end the turn if no step is left."""
        self.budget.counted(ctx.usage)
        problem = await self.budget.used_up() if ctx.checkpoint == "after_work" else None
        if problem is None:
            return None
        if not await self.budget.may_step():
            return AbortTurn(message=problem.message, code=problem.code, hint=problem.hint)
        words = f"{problem.message}. This is the last step: give your answer now, with what you have."
        return EnqueueMessages(messages=(UserMessage(content=words),))

    async def note_call(self, ctx: contexts.ToolCallHookContext) -> None:
        """Record the tool of a call, so that the parent can report what a person is asked to approve."""
        self._keep("calls", {**self._kept().get("calls", {}), str(ctx.call_id): ctx.tool_name})

    async def check_answer(self, ctx: contexts.CheckpointHookContext) -> EnqueueMessages | None:
        """Ask the model to correct an answer that does not match the parent's schema."""
        fixes = self._kept().get("fixes", 0)
        if ctx.checkpoint != "before_completion" or fixes >= subagent_children.MAX_FIXES:
            return None
        _, problem = subagent_children.read_value(ctx.answer, self._schema or {})
        if problem is None:
            return None
        self._keep("fixes", fixes + 1)
        words = f"Your answer was not accepted: {problem}. Give the whole answer again."
        return EnqueueMessages(messages=(UserMessage(content=words),))

    @action
    async def show(self, ctx: PluginActionContext) -> list[subagent_children.SubagentReport]:
        """Return the status of each subagent of the session, oldest first."""
        children = subagent_children.Children(ctx.host, self.session.session_id)
        chosen = [one.child for one in (await children.all()).values()]
        turns = await rests_of_all(children, chosen, 0, for_people=False)
        report = self._tools.report
        return [await report(children, child, turns.get(child.session_id)) for child in chosen]

    @action
    async def usage(self, ctx: PluginActionContext) -> TreeUsage:
        """Return the usage of the session and its subagents in all turns that have ended."""
        head = (await ctx.host.snapshot_session(self.session.session_id)).head
        own = sum((line.usage for line in head.usage), Usage())
        total = await subagent_children.tree_usage(ctx.host, self.session.session_id)
        return TreeUsage(own=own, subagents=less(total, own), total=total)


class _Declared:
    """Agents that a plugin refers to, shared by the copies of the plugin."""

    __slots__ = ("agents",)

    def __init__(self, agents: Iterable[Any]) -> None:
        self.agents = tuple(agents)

    def __deepcopy__(self, memo: object) -> _Declared:
        return self


def _name_of(agent: Any) -> str:
    name = agent if isinstance(agent, str) else getattr(agent, "name", None)
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{agent!r} is not an agent", hint="pass agents or their names")
    return name
