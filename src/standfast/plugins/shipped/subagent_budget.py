"""The budget that a turn shares with its subagents.

Tokens, model calls, cost and time are shared: the limits of a turn apply to its own usage plus that of the
subagents it gave work to. Limits on iterations, attempts and the like are not shared, because they control
how a single agent works.

The turn's own usage is known at its checkpoints, and between them from each reply. The usage of subagents is
in the ledgers of their sessions; while a subagent's turn runs in this process, its replies are counted as
they arrive. A subagent's limits are the remainder of the budget when it starts. When nothing is left, running
subagents are stopped at their next reply, and the turn at its next checkpoint.

The limits of a subagent's turn are written to the plugin's storage before it begins, so that the subagent can
share them with its own subagents, and a call that is repeated after a crash assigns the same limits.

Rules
-----
1. The last model calls are reserved for the turn itself, so that it can read its subagents' results and
   answer.
2. A turn that has used up its tokens or time gets one more step, as it does without subagents; a turn that
   has used up its model calls or cost does not.
3. If no shared limit is set, nothing is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from standfast.errors import ErrorObject, ToolError, TurnCode
from standfast.model.canonical import Json
from standfast.model.limits import Usage, UsageLimits, dollars
from standfast.plugins.contexts import PluginStorage
from standfast.plugins.shipped.subagent_children import Children, KnownChild

_SCOPE: Final = "limits"
KEPT_CALLS: Final = 2
"""How many model calls are reserved for the parent: one to wait for the subagent, one to answer."""

SHARED: Final = ("max_tokens", "max_calls", "max_cost_usd", "max_wall_ms")
"""The limits of a turn that it shares with its subagents."""


class SharedSpending(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a turn and its subagents."""

    usage: Usage = Usage()
    wall_ms: int = 0


def is_shared(limits: UsageLimits) -> bool:
    """Return whether any shared limit is set."""
    return any(getattr(limits, name) is not None for name in SHARED)


def no_credit(limits: UsageLimits, spent: SharedSpending) -> ErrorObject | None:
    """Return why the turn itself may not call its model again; None if it may."""
    hard = UsageLimits(max_calls=limits.max_calls, max_cost_usd=limits.max_cost_usd)
    return used_up(hard, spent, kept_calls=0)


def used_up(limits: UsageLimits, spent: SharedSpending, *, kept_calls: int) -> ErrorObject | None:
    """Return an error for the limit that is used up, with *kept_calls* reserved; None if none is."""
    usage = spent.usage
    if limits.max_tokens is not None and usage.total >= limits.max_tokens:
        return _over(f"used {usage.total:,} tokens, the limit is {limits.max_tokens:,}")
    if limits.max_calls is not None and usage.calls + kept_calls >= limits.max_calls:
        return _over(f"made {usage.calls:,} model calls, the limit is {limits.max_calls:,}")
    most = limits.max_cost_nano_usd
    if most is not None and usage.cost_nano_usd >= most:
        return _over(f"cost {dollars(usage.cost_nano_usd)}, the limit is {dollars(most)}")
    if limits.max_wall_ms is not None and spent.wall_ms >= limits.max_wall_ms:
        return _over(f"took {spent.wall_ms:,} ms, the limit is {limits.max_wall_ms:,}")
    return None


def allowance(shared: UsageLimits, spent: SharedSpending, own: UsageLimits) -> UsageLimits:
    """Return the limits of a subagent that starts now. Check `used_up` first: something must be left."""
    used = msgspec.structs.replace(spent.usage, calls=spent.usage.calls + KEPT_CALLS)
    left = shared.left(used, spent.wall_ms)
    lower = {name: value for name, value in left.items() if (getattr(own, name) or value) >= value}
    return msgspec.structs.replace(own, **lower)


def less(usage: Usage, before: Usage) -> Usage:
    """Return *usage* minus the usage *before*."""
    names = Usage.__struct_fields__
    return Usage(**{name: max(0, getattr(usage, name) - getattr(before, name)) for name in names})


def _over(problem: str) -> ErrorObject:
    return ErrorObject(
        code=TurnCode.TURN_BUDGET,
        message=f"the turn and its subagents {problem}",
        hint="raise it in UsageLimits, or answer with what you have",
    )


class BudgetTally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a turn began, its usage, and the last known usage of its subagents."""

    turn_id: str = ""
    began_ms: int = 0
    own: Usage = Usage()
    subagents: Usage = Usage()
    warned: bool = False


class SharedBudget:
    """The budget of one session. *keep* stores a tally with the turn."""

    def __init__(self, session_id: str, storage: PluginStorage, keep: Callable[[Json], None]) -> None:
        self.session_id = session_id
        self.policy = UsageLimits()
        """The limits of the session's turns; a subagent may have been given lower ones."""
        self.enabled = True
        self.is_subagent = False
        self.own_limits: Mapping[str, UsageLimits] = {}
        """The limits of other agents, by name."""
        self.tally = BudgetTally()
        self._live: dict[str, Usage] = {}
        self._storage = storage
        self._keep = keep
        self._given: UsageLimits | None = None

    async def begin(self, turn_id: str) -> None:
        """Begin to count a turn of the session."""
        self._given = await self._read(self.session_id) if self.is_subagent else None
        self._live.clear()  # running subagents count against the earlier turn that started them
        self._note(BudgetTally(turn_id=turn_id, began_ms=_now_ms()))

    async def limits(self) -> UsageLimits:
        """Return the limits that the turn and its subagents share."""
        if self._given is None and self.is_subagent:
            self._given = await self._read(self.session_id)
        return self._given or self.policy

    def replied(self, usage: Usage) -> None:
        """Count a reply of the session's own model."""
        more = self.tally.own + msgspec.structs.replace(usage, calls=1)
        self._note(msgspec.structs.replace(self.tally, own=more))

    def counted(self, usage: Usage) -> None:
        """Set the usage of the turn itself, as the kernel counts it."""
        if usage != self.tally.own:
            self._note(msgspec.structs.replace(self.tally, own=usage))

    def saw(self, subagents: Usage) -> None:
        """Set the total usage of the turn's subagents."""
        if subagents != self.tally.subagents:
            self._note(msgspec.structs.replace(self.tally, subagents=subagents))

    def restore(self, kept: Json) -> None:
        self.tally = msgspec.convert(kept, BudgetTally) if kept is not None else BudgetTally()

    def _note(self, tally: BudgetTally) -> None:
        self.tally = tally
        if self.enabled and is_shared(self._given or self.policy):
            self._keep(msgspec.to_builtins(tally))

    def running(self, agent_id: str) -> Usage:
        return self._live.get(agent_id, Usage())

    def began(self, agent_id: str) -> None:
        """Start counting the usage of a subagent's turn that runs in this process."""
        self._live[agent_id] = Usage()

    def heard(self, agent_id: str, usage: Usage) -> None:
        """Count a reply of a subagent's model, unless its turn has ended and the ledger contains it."""
        if agent_id in self._live:
            self._live[agent_id] += msgspec.structs.replace(usage, calls=1)

    async def ended(self, agent_id: str, children: Children) -> None:
        """Stop counting a subagent's turn: its ledger now has its usage, and its limits no longer apply."""
        if self.enabled and is_shared(await self.limits()):
            total = await self._in_ledgers(children)
            self._live.pop(agent_id, None)  # no await before `saw`, so that usage counts exactly once
            self.saw(total)
            await self._storage.put(_SCOPE, agent_id, None)
        self._live.pop(agent_id, None)

    async def used_up(self) -> ErrorObject | None:
        """Return why the turn may not continue; None while something is left, or if it has no subagents.

        The machine itself reports the limits that the turn reaches alone. One model call is reserved for the
        turn's answer, and one for each other running subagent, which may be making one now.
        """
        limits, spent = await self.limits(), self._spent()
        alone = SharedSpending(usage=self.tally.own, wall_ms=spent.wall_ms)
        if not self.enabled or spent == alone or used_up(limits, alone, kept_calls=1):
            return None
        return used_up(limits, spent, kept_calls=max(1, len(self._live)))

    async def may_step(self) -> bool:
        """Return whether a turn with nothing left may make a last step, which never exceeds calls or cost."""
        if self.tally.warned or no_credit(await self.limits(), self._spent()) is not None:
            return False
        self._note(msgspec.structs.replace(self.tally, warned=True))
        return True

    def _spent(self) -> SharedSpending:
        tally = self.tally
        usage = sum(self._live.values(), tally.own + tally.subagents)
        return SharedSpending(usage=usage, wall_ms=_now_ms() - tally.began_ms if tally.began_ms else 0)

    async def look(self, children: Children) -> None:
        """Read the usage of the turn's subagents so far."""
        if self.enabled and is_shared(await self.limits()):
            self.saw(await self._in_ledgers(children))

    async def _in_ledgers(self, children: Children) -> Usage:
        """Return the usage of the turn's subagents in turns that have ended."""
        total = Usage()
        for one in (await children.all()).values():
            if one.child.parent_turn == self.tally.turn_id:
                total += less(await children.usage(one.child), one.child.before)
        return total

    async def allowance(
        self, children: Children, known: Mapping[str, KnownChild], agent_id: str, agent: str | None
    ) -> UsageLimits | None:
        """Return the limits of a new subagent, None for its agent's own.

        Raise `ToolError` if nothing is left.
        """
        shared = await self.limits()
        if not self.enabled or not is_shared(shared):
            return None
        if agent_id not in known and (given := await self._read(agent_id)) is not None:
            return given  # this call was executed before, and then the process crashed
        await self.look(children)
        spent = self._spent()
        if (problem := used_up(shared, spent, kept_calls=KEPT_CALLS)) is not None:
            raise ToolError(problem.code, problem.message, hint=problem.hint)
        own = self.policy if agent is None else self.own_limits.get(agent, UsageLimits())
        limits = allowance(shared, spent, own)
        await self._storage.put(_SCOPE, agent_id, msgspec.json.encode(limits))
        return limits

    async def _read(self, session_id: str) -> UsageLimits | None:
        kept = await self._storage.get(_SCOPE, session_id)
        return None if kept is None else msgspec.json.decode(kept, type=UsageLimits)


def _now_ms() -> int:
    return int(time.time() * 1000)
