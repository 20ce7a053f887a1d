"""What the hosts of all sessions of a runtime share: tasks, monitors, who waits for whom."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from standfast.errors import StandfastError, StoreError
from standfast.model.task import TaskKind
from standfast.runtime.host.at_work import Waits
from standfast.runtime.host.monitor_records import told
from standfast.runtime.host.task_recovery import recover_tasks
from standfast.runtime.host.tasks import Tasks

if TYPE_CHECKING:
    from standfast.runtime.agent_runtime import Runtime
    from standfast.runtime.workplace import Workplace

_LOOK_S: Final = 1.0
"""So often are tasks and monitors looked after, however often the keeper is woken."""


class HostGround:
    """Made by `Runtime` when it opens, and closed by it."""

    def __init__(self, runtime: Runtime, place: Workplace) -> None:
        from standfast.runtime.monitors.monitors import Monitors  # not before a runtime is opened

        self.tasks = Tasks(runtime, place)
        self.monitors = Monitors(
            store=told(place.store, self.tasks.tell),
            clock=place.clock,
            owner=self.tasks.owner,
            queue_turn=runtime.queue_turn,
            takes_up=runtime.works_on,
        )
        self.waits = Waits()
        place.handles = self.tasks.handles
        self._runtime = runtime
        self._clock = place.clock
        self._looked_s: float | None = None

    async def recover(self, *, now: bool = False) -> None:
        """Look after tasks and monitors whose process is gone, and after handles, but not too often."""
        at = self._clock.monotonic()
        if not now and self._looked_s is not None and 0 <= at - self._looked_s < _LOOK_S:
            return
        self._looked_s = at
        live = await self._runtime.store.tasks(live=True)
        await recover_tasks(self._runtime, live)
        await self.tasks.handles.look_at_all()
        for session_id in {task.session_id for task in live if task.kind is TaskKind.MONITOR}:
            await self._runtime.put_to_work(session_id)
        try:
            await self.monitors.recover(live)
        except StoreError:
            raise
        except StandfastError as error:
            self._runtime.report(f"monitors: {error.message}")

    async def forget_session(self, session_id: str) -> None:
        """End what goes on beside the turns of a session that is no more."""
        await self.tasks.abandon(session_id)
        await self.monitors.forget(session_id)

    async def close(self) -> None:
        with contextlib.suppress(StoreError):
            await self.monitors.close()
        await self.tasks.close()
