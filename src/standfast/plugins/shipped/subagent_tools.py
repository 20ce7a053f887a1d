"""The tools with which a model runs subagents.

Rule: everything that a call creates is named after that call, so that a call repeated after a crash finds the
objects that its first execution created. Only a declared agent has tools that its parent's session lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from standfast import errors
from standfast.model.canonical import digest_bytes
from standfast.model.capability import SessionToolAccess, ToolAvailability
from standfast.model.events import ReplyReceived
from standfast.model.host_requests import AssembledTurn, SessionCreateRequest, TurnInput
from standfast.model.limits import CapabilityLimits
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.outcome import Waiting
from standfast.plugins.plugin import PluginSessionContext
from standfast.plugins.shipped.subagent_budget import SharedBudget
from standfast.plugins.shipped.subagent_children import (
    Child,
    Children,
    KnownChild,
    SubagentReport,
    is_schema,
    require_child,
    task_words,
)
from standfast.ports.host import SessionTurnHandle, ToolHookHost
from standfast.tools.context import RunContext
from standfast.tools.decorator import tool

Text = Annotated[str, msgspec.Meta(min_length=1)]
WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=3_600)]

_MAX_SCHEMA_BYTES: Final = 16 * 1024
_A_MINUTE: Final = CapabilityLimits(timeout_ms=60_000)
_AN_HOUR: Final = CapabilityLimits(timeout_ms=3_660_000, max_response_bytes=16 << 20)

_BEGINNING_S: Final = 2.0
"""How long to wait for a subagent to start. If that takes longer, its turn was already running."""

_ENDING_S: Final = 10.0
"""How long to wait for a cancelled subagent to end."""

_LOOK_S: Final = 0.25
"""How long `wait` may take to read the status of subagents if its timeout is 0."""


class SpawnRequest(msgspec.Struct, frozen=True):
    """The arguments of `spawn_agent`."""

    agent_id: str
    task: str
    agent: str | None
    tools: list[str] | None
    output_schema: dict[str, Any] | None

    def session(self, access: SessionToolAccess) -> SessionCreateRequest:
        """Return the session to create."""
        return SessionCreateRequest(
            session_id=self.agent_id,
            child=True,
            subagent=True,
            agent=self.agent,
            task=task_words(self.task, self.output_schema),
            tool_access=access,
            authority="narrowed" if self.agent is None else "own",
        )


class SpawnedAgent(msgspec.Struct, frozen=True):
    """A subagent that was started."""

    agent_id: str


class SentInput(msgspec.Struct, frozen=True, kw_only=True):
    """A message sent to a subagent. If `began`, it started a turn; otherwise the running turn reads it."""

    agent_id: str
    began: bool


class SubagentTools:
    """The four tools, for the session of one `Subagents` plugin, and the tasks that follow its subagents."""

    def __init__(
        self, session: PluginSessionContext, budget: SharedBudget, agents: Sequence[str], max_children: int
    ) -> None:
        self._session = session
        self._budget = budget
        self._agents = agents
        self._max_children = max_children
        self._one_at_a_time = asyncio.Lock()
        self._watchers: set[asyncio.Task[None]] = set()
        self._ran_out: dict[str, errors.ErrorObject] = {}

    @tool(side_effect="external_system", idempotent=True, limits=_A_MINUTE, loop="runtime")
    async def spawn_agent(
        self,
        ctx: RunContext[Any],
        task: Text,
        agent: str | None = None,
        tools: list[str] | None = None,
        output_schema: dict[str, Any] | None = None,
    ) -> SpawnedAgent:
        """Delegate work to a subagent, which runs concurrently with you; wait() returns its answer.

        The subagent does not see this conversation: include everything it needs to know in the task.

        Args:
            task: what the subagent should do, and what its answer should contain.
            agent: the name of a special subagent; by default, the subagent is an agent like you.
            tools: the names of the tools that it may use, a subset of yours or of those of the special
                subagent; by default, all of them.
            output_schema: a JSON Schema that its answer must match; wait() then returns the answer as a
                value.
        """
        async with _while_open(ctx), self._one_at_a_time:
            children = Children(ctx.host, ctx.session_id)
            known, agent_id = await children.all(), f"sub-{_key(ctx)}"
            if agent_id not in known:
                asked = SpawnRequest(agent_id, task, agent, tools, output_schema)
                await self._spawn(ctx, children, known, asked)
            return SpawnedAgent(agent_id)

    @tool(side_effect="external_system", limits=_A_MINUTE, loop="runtime")
    async def send_input(self, ctx: RunContext[Any], agent_id: str, text: Text) -> SentInput:
        """Send a message to a subagent: a running one reads it in its turn, an ended one starts another.

        Args:
            agent_id: the id that spawn_agent() returned.
            text: the message.
        """
        async with _while_open(ctx), self._one_at_a_time:
            children = Children(ctx.host, ctx.session_id)
            known = await children.all()
            found = require_child(known, agent_id)
            if found.live and await children.last_turn(agent_id) == found.child.after:  # it is running
                message = InjectedTurnInput(id=f"sub-{_key(ctx)}", message=UserMessage(content=text))
                await ctx.host.inject_turn_input(agent_id, message)
                return SentInput(agent_id=agent_id, began=False)
            await self._begin_again(ctx, children, known, found.child, text)
            return SentInput(agent_id=agent_id, began=True)

    @tool(side_effect="read", limits=_AN_HOUR, loop="runtime")
    async def wait(
        self,
        ctx: RunContext[Any],
        agent_ids: list[str] | None = None,
        timeout_s: WaitSeconds = 300,
        for_people: bool = False,
    ) -> list[SubagentReport]:
        """Wait for subagents and return their status.

        It returns when each of them has ended or waits for a person, or when the timeout expires. A subagent
        is finished (text, and value if you passed a schema), failed or cancelled (error), waiting (for the
        approvals in waits: tell the user), or running.

        Args:
            agent_ids: which subagents; by default, all that are running or were given work in this turn.
            timeout_s: how long to wait at most; 0 returns the current status immediately.
            for_people: keep waiting for those that wait for a person.
        """
        async with _while_open(ctx):
            children = Children(ctx.host, ctx.session_id)
            known = await children.all()
            if agent_ids is None:
                found = [one for one in known.values() if one.live or one.child.parent_turn == ctx.turn_id]
            else:
                found = [require_child(known, agent_id) for agent_id in dict.fromkeys(agent_ids)]
            chosen = [one.child for one in found]
            turns = await rests_of_all(children, chosen, timeout_s, for_people)
            told = [await self.report(children, child, turns.get(child.session_id)) for child in chosen]
            await self._budget.look(children)
        return told

    @tool(side_effect="external_system", idempotent=True, limits=_A_MINUTE, loop="runtime")
    async def close(self, ctx: RunContext[Any], agent_id: str) -> SubagentReport:
        """End a subagent and all subagents below it. Their history and usage are kept.

        Args:
            agent_id: the id that spawn_agent() returned.
        """
        async with _while_open(ctx):
            children = Children(ctx.host, ctx.session_id)
            found = require_child(await children.all(), agent_id)
            if found.live:
                await ctx.host.cancel_background_task(ctx.session_id, agent_id)
            await ctx.host.close_session(agent_id)
            turns = await rests_of_all(children, [found.child], _ENDING_S, for_people=True)
            return await self.report(children, found.child, turns.get(agent_id))

    async def _spawn(
        self, ctx: RunContext[Any], children: Children, known: dict[str, KnownChild], asked: SpawnRequest
    ) -> None:
        """Check all arguments, then create the subagent's session and start its turn."""
        self._require_place(known)
        if asked.agent is not None and asked.agent not in self._agents:
            known_agents = ", ".join(self._agents) or "none; omit `agent`"
            raise errors.InvalidArgument(
                f"agent {asked.agent[:80]!r} is not a declared subagent",
                hint=f"the declared subagents are: {known_agents}",
            )
        schema = asked.output_schema
        if schema is not None and len(msgspec.json.encode(schema)) > _MAX_SCHEMA_BYTES:
            raise errors.InvalidArgument(f"output_schema is larger than {_MAX_SCHEMA_BYTES:,} bytes")
        if schema is not None and not is_schema(schema):
            raise errors.InvalidArgument("output_schema is not a JSON Schema")
        if asked.agent is None:
            access = await tools_for_child(ctx.host, ctx.session_id, asked.tools)
        else:  # a declared agent has its own tools
            access = SessionToolAccess() if asked.tools is None else _exactly(asked.tools)
        limits = await self._budget.allowance(children, known, asked.agent_id, asked.agent)
        with contextlib.suppress(errors.SessionExists):  # this call already created it, before a crash
            await ctx.host.create_session(asked.session(access))
        child = Child(
            session_id=asked.agent_id,
            agent=asked.agent,
            task=asked.task,
            parent_turn=ctx.turn_id,
            output_schema=asked.output_schema,
            limits=limits,
        )
        started = None
        with contextlib.suppress(
            TimeoutError
        ):  # it is already running: this call was executed before, and then the process crashed
            async with asyncio.timeout(_BEGINNING_S):
                started = await children.begin_first(child)
        await self._put_on_record(children, child, started)

    async def _put_on_record(
        self, children: Children, child: Child, started: SessionTurnHandle | None
    ) -> None:
        """Register a subagent as a task of its parent's session, and start a task that awaits its end."""
        if started is not None:
            child = msgspec.structs.replace(child, turn_id=started.turn_id)
        with contextlib.suppress(errors.TaskExists):
            await children.host.register_background_task(children.session_id, child.spec())
        self._budget.began(child.session_id)
        context = contextvars.Context()  # the task is not part of the turn that started it
        task = asyncio.get_running_loop().create_task(self._follow(child, started), context=context)
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _begin_again(
        self, ctx: RunContext[Any], children: Children, known: dict[str, KnownChild], child: Child, text: str
    ) -> None:
        """Start another turn of a subagent that has ended."""
        self._require_place({name: one for name, one in known.items() if name != child.session_id})
        limits = await self._budget.allowance(children, known, child.session_id, child.agent)
        if known[child.session_id].live:
            await children.settle(child, await children.rests(child))
        again = msgspec.structs.replace(
            child,
            after=await children.last_turn(child.session_id),
            parent_turn=ctx.turn_id,
            before=child.before if child.parent_turn == ctx.turn_id else await children.usage(child),
            limits=limits,
        )
        asked = TurnInput(
            message=UserMessage(content=text),
            limits=limits,
            idempotency_key=f"{child.session_id}.{_key(ctx)}",
        )
        started = await children.host.start_turn_stream(child.session_id, asked)
        await self._put_on_record(children, again, started)

    def _require_place(self, known: dict[str, KnownChild]) -> None:
        at_work = [agent_id for agent_id, one in known.items() if one.live]
        if len(at_work) >= self._max_children:
            raise errors.ToolError(
                "TOO_MANY_SUBAGENTS",
                f"{len(at_work)} subagents are running, the limit is {self._max_children}; "
                "wait() for some of them, or close() one",
            )

    async def _follow(self, child: Child, started: SessionTurnHandle | None) -> None:
        children = Children(self._session.host, self._session.session_id)
        with contextlib.suppress(errors.StandfastError):  # the runtime was closed: another one resumes it
            if started is not None:
                await self._count(child, started)
            turn = await children.rests(child, for_people=True)
            await self._budget.ended(child.session_id, children)
            await children.settle(child, turn)

    async def _count(self, child: Child, started: SessionTurnHandle) -> None:
        """Count the usage of a subagent, and cancel it when the budget is used up."""
        async for event in started.events:
            if not isinstance(event, ReplyReceived) or not self._budget.enabled:
                continue
            self._budget.heard(child.session_id, event.usage)
            problem = (
                await self._budget.used_up() if child.parent_turn == self._budget.tally.turn_id else None
            )
            if problem is not None and event.calls:
                self._ran_out[child.session_id] = problem
                await self._session.host.cancel_turn(child.turn_id)

    async def report(self, children: Children, child: Child, turn: AssembledTurn | None) -> SubagentReport:
        """Return the status of a subagent."""
        agent_id = child.session_id
        if turn is not None and not isinstance(turn.outcome, Waiting):
            await self._budget.ended(agent_id, children)
        report = await children.report(child, turn, self._budget.running(agent_id))
        if report.status == "cancelled" and agent_id in self._ran_out:
            return msgspec.structs.replace(report, status="failed", error=self._ran_out[agent_id])
        return report


@contextlib.asynccontextmanager
async def _while_open(ctx: RunContext[Any]) -> AsyncIterator[None]:
    """Leave a call without a result if the runtime is closing; the next process repeats the call."""
    try:
        yield
    except errors.StandfastError:
        try:
            await ctx.host.list_background_tasks(ctx.session_id)
        except errors.StandfastError:  # the runtime is closed
            await asyncio.sleep(_ENDING_S)
        raise


async def tools_for_child(
    host: ToolHookHost, session_id: str, wanted: Sequence[str] | None
) -> SessionToolAccess:
    """Return the tools of a subagent: those that this session may call, limited to *wanted*."""
    may = [
        one["name"]
        for one in await host.tool_catalog(session_id)
        if ToolAvailability(one["availability"]) >= ToolAvailability.CALLABLE
    ]
    if wanted is None:
        return _exactly(may)
    if missing := [name for name in wanted if name not in may]:
        raise errors.InvalidArgument(
            f"you have no tool {missing[0][:80]!r} to pass on",
            hint=f"your tools are: {', '.join(may) or 'none'}",
        )
    return _exactly(wanted)


def _exactly(names: Sequence[str]) -> SessionToolAccess:
    """Return an access that allows exactly these tools; to allow none, it names one tool and hides it."""
    if names:
        return SessionToolAccess(tools=tuple(names))
    return SessionToolAccess(tools=("none",), hidden_tools=("none",))


def _key(ctx: RunContext[Any]) -> str:
    """Return a key of a call, which is the same each time the call is executed."""
    return digest_bytes(f"{ctx.session_id}/{ctx.idempotency_key}".encode())[:16]


async def rests_of_all(
    children: Children, chosen: Sequence[Child], timeout_s: float, for_people: bool
) -> dict[str, AssembledTurn]:
    """Wait for these subagents; return the turns that have ended or wait for a person by the timeout."""

    async def settled(child: Child) -> AssembledTurn:
        turn = await children.rests(child, for_people=for_people and timeout_s > 0)
        await children.settle(child, turn)
        return turn

    waits = {asyncio.ensure_future(settled(child)): child for child in chosen}
    if not waits:
        return {}
    try:
        done, _ = await asyncio.wait(waits, timeout=max(timeout_s, _LOOK_S))
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return {waits[one].session_id: one.result() for one in done}
