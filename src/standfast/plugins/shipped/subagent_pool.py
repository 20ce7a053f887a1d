"""The budget that the turn of one session shares with its subagents, as it stands.

Theory of operation
-------------------
What the turn itself has used is told at its checkpoints, and between them by each reply. What subagents have
used is in the ledgers of their sessions; while a subagent's turn runs in this process, its replies are heard
as they come. A subagent begins with what is left then. When nothing is left, subagents at work are ended at
their next reply, and the turn at its next checkpoint.

The limits of a subagent's own turn are laid on the shelf before it begins, so that it can share them in turn,
and a call that is repeated after a crash gives the same.

Rule: a session whose limits share nothing is not counted, and costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from standfast.errors import ErrorObject, ToolError
from standfast.model.canonical import Json
from standfast.model.limits import Usage, UsageLimits
from standfast.plugins.contexts import Shelf
from standfast.plugins.shipped.subagent_budget import (
    KEPT_CALLS,
    Spent,
    allowance,
    is_shared,
    less,
    no_credit,
    used_up,
)
from standfast.plugins.shipped.subagent_children import Children, Known

_SCOPE: Final = "limits"


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a turn: when it began, what it has used, and its subagents when last seen."""

    turn_id: str = ""
    began_ms: int = 0
    own: Usage = Usage()
    subagents: Usage = Usage()
    warned: bool = False


class Pool:
    """The budget of one session. *keep* makes a tally durable with the turn."""

    def __init__(self, session_id: str, shelf: Shelf, keep: Callable[[Json], None]) -> None:
        self.session_id = session_id
        self.policy = UsageLimits()
        """What turns of the session may use, unless it is a subagent and was given less."""
        self.enabled = True
        self.is_subagent = False
        self.own_limits: Mapping[str, UsageLimits] = {}
        """The limits of other agents, by name."""
        self.tally = Tally()
        self._live: dict[str, Usage] = {}
        self._shelf = shelf
        self._keep = keep
        self._given: UsageLimits | None = None

    # What the turn has used

    async def begin(self, turn_id: str) -> None:
        """A turn of the session begins."""
        self._given = await self._read(self.session_id) if self.is_subagent else None
        self._live.clear()  # what still works was begun by another turn, and counts against that
        self._note(Tally(turn_id=turn_id, began_ms=_now_ms()))

    async def limits(self) -> UsageLimits:
        """What the turn and its subagents may use together."""
        if self._given is None and self.is_subagent:
            self._given = await self._read(self.session_id)
        return self._given or self.policy

    def replied(self, usage: Usage) -> None:
        """The session's own model has replied."""
        more = self.tally.own + msgspec.structs.replace(usage, calls=1)
        self._note(msgspec.structs.replace(self.tally, own=more))

    def counted(self, usage: Usage) -> None:
        """The turn itself has used so much, as the kernel counts."""
        if usage != self.tally.own:
            self._note(msgspec.structs.replace(self.tally, own=usage))

    def saw(self, subagents: Usage) -> None:
        """The turn's subagents have used so much in all."""
        if subagents != self.tally.subagents:
            self._note(msgspec.structs.replace(self.tally, subagents=subagents))

    def restore(self, kept: Json) -> None:
        self.tally = msgspec.convert(kept, Tally) if kept is not None else Tally()

    def _note(self, tally: Tally) -> None:
        self.tally = tally
        if self.enabled and is_shared(self._given or self.policy):
            self._keep(msgspec.to_builtins(tally))

    # What subagents use while they run

    def running(self, agent_id: str) -> Usage:
        return self._live.get(agent_id, Usage())

    def began(self, agent_id: str) -> None:
        """A turn of a subagent begins in this process."""
        self._live[agent_id] = Usage()

    def heard(self, agent_id: str, usage: Usage) -> None:
        """A subagent's model has replied. After the turn's end it is in the ledger already."""
        if agent_id in self._live:
            self._live[agent_id] += msgspec.structs.replace(usage, calls=1)

    async def ended(self, agent_id: str, children: Children) -> None:
        """A subagent's turn has ended: what it used is in its ledger, and what it was given is void."""
        if self.enabled and is_shared(await self.limits()):
            total = await self._in_ledgers(children)
            self._live.pop(
                agent_id, None
            )  # at once with the next line: it is never counted twice, or not at all
            self.saw(total)
            await self._shelf.put(_SCOPE, agent_id, None)
        self._live.pop(agent_id, None)

    # What is left

    async def used_up(self) -> ErrorObject | None:
        """Why the turn may go no further; None while there is something left, and if there are no subagents.

        What the turn has used up alone is the kernel's to tell. A call is left for its answer, and one for
        each other subagent at work, which may be in the middle of it.
        """
        limits, spent = await self.limits(), self._spent()
        alone = Spent(usage=self.tally.own, wall_ms=spent.wall_ms)
        if not self.enabled or spent == alone or used_up(limits, alone, kept_calls=1):
            return None
        return used_up(limits, spent, kept_calls=max(1, len(self._live)))

    async def may_step(self) -> bool:
        """Whether a turn of which nothing is left may make one step more: once, and never on credit."""
        if self.tally.warned or no_credit(await self.limits(), self._spent()) is not None:
            return False
        self._note(msgspec.structs.replace(self.tally, warned=True))
        return True

    def _spent(self) -> Spent:
        tally = self.tally
        usage = sum(self._live.values(), tally.own + tally.subagents)
        return Spent(usage=usage, wall_ms=_now_ms() - tally.began_ms if tally.began_ms else 0)

    async def look(self, children: Children) -> None:
        """See what the subagents of the turn have used so far."""
        if self.enabled and is_shared(await self.limits()):
            self.saw(await self._in_ledgers(children))

    async def _in_ledgers(self, children: Children) -> Usage:
        """What the subagents of the turn have used in turns that have ended."""
        total = Usage()
        for one in (await children.all()).values():
            if one.child.parent_turn == self.tally.turn_id:
                total += less(await children.usage(one.child), one.child.before)
        return total

    async def allowance(
        self, children: Children, known: Mapping[str, Known], agent_id: str, agent: str | None
    ) -> UsageLimits | None:
        """What a subagent that begins now may use; an error for the model if nothing is left.

        None is what its agent may use anyway.
        """
        shared = await self.limits()
        if not self.enabled or not is_shared(shared):
            return None
        if agent_id not in known and (given := await self._read(agent_id)) is not None:
            return given  # this very call has been carried out before
        await self.look(children)
        spent = self._spent()
        if (problem := used_up(shared, spent, kept_calls=KEPT_CALLS)) is not None:
            raise ToolError(problem.code, problem.message, hint=problem.hint)
        own = self.policy if agent is None else self.own_limits.get(agent, UsageLimits())
        limits = allowance(shared, spent, own)
        await self._shelf.put(_SCOPE, agent_id, msgspec.json.encode(limits))
        return limits

    async def _read(self, session_id: str) -> UsageLimits | None:
        kept = await self._shelf.get(_SCOPE, session_id)
        return None if kept is None else msgspec.json.decode(kept, type=UsageLimits)


def _now_ms() -> int:
    return int(time.time() * 1000)
