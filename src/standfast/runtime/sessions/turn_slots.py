"""The slots that limit how many turns of which queues this process runs concurrently.

Theory of operation
-------------------
Every turn that no caller started takes a slot: each resumed turn, and the queued inputs of one session, which
run one after the other. Without a free slot nothing is claimed, so that another worker can claim it; when a
slot is freed, the background loop looks for work again. A turn that a caller starts takes no slot.

Rule: a turn of a child session takes no slot, because the parent's turn, which may wait for it, already has
one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from standfast.runtime.agent_definition import AgentDefinition

Free = Callable[[object], None]
"""Frees a slot; used as a done callback of the task that has it."""


_MANY: Final = 1_000


class TurnSlots:
    """The slots of one process. Without arguments, the number of turns is not limited.

    Args:
        total: how many turns may run concurrently.
        queues: the queues from which turns are claimed, each with its own limit; None means all queues.
    """

    def __init__(self, total: int | None = None, queues: Mapping[str, int | None] | None = None) -> None:
        self.total = total
        self.queues = queues
        self.is_closed = False
        """Whether this process no longer claims turns."""
        self.running = 0
        self.freed: Callable[[], None] = lambda: None
        """Called when a slot was freed and others may be waiting for one."""
        self._idle = asyncio.Event()
        self._by_queue: Counter[str] = Counter()
        self._by_agent: Counter[str] = Counter()

    @property
    def is_limited(self) -> bool:
        return self.total is not None or self.queues is not None

    @property
    def has_room(self) -> bool:
        """Whether a turn of some agent may start."""
        return not self.is_closed and (self.total is None or self.running < self.total)

    @property
    def free(self) -> int:
        """How many turns may start."""
        return _MANY if self.total is None else max(0, self.total - self.running)

    def admits(self, agent: AgentDefinition[Any, Any]) -> bool:
        """Return whether a turn of *agent* may start here now."""
        if not self.has_room or (self.queues is not None and agent.queue not in self.queues):
            return False
        limit = None if self.queues is None else self.queues[agent.queue]
        below_limit = limit is None or self._by_queue[agent.queue] < limit
        return below_limit and (
            agent.max_concurrent is None or self._by_agent[agent.name] < agent.max_concurrent
        )

    def take(self, agent: AgentDefinition[Any, Any] | None, *, below: bool = False) -> Free | None:
        """Take a slot for a turn of *agent*, also in a session *below* another; None if it must not start."""
        if agent is None or (below and not self.is_closed):  # without an agent, the turn itself reports that
            return lambda task: None
        if not self.admits(agent):
            return None
        queue, name = agent.queue, agent.name
        self._count(queue, name, 1)

        def free(task: object) -> None:
            self._count(queue, name, -1)
            if not self.running:
                self._idle.set()
            if self.is_limited:
                self.freed()

        return free

    async def drain(self, timeout_s: float) -> bool:
        """Stop claiming and wait for the running turns; return whether all have ended in time."""
        self.is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.running:
                    self._idle.clear()
                    await self._idle.wait()
        return not self.running

    def _count(self, queue: str, name: str, by: int) -> None:
        self.running += by
        self._by_queue[queue] += by
        self._by_agent[name] += by
