"""Follows what happens in a session while some work on it is done.

Theory of operation
-------------------
The events of a session are shown from its live feed, not from one turn: what the runtime takes up by itself
(a turn that was left, a task in a new frame) is seen as well. Following ends when the work is done and
nothing runs in the session any more. What happens while nobody follows is kept and shown the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from standfast.cli.agent_host import AgentHost
from standfast.cli.background import Background
from standfast.cli.turn_report import TurnReport, report_turn
from standfast.errors import TurnNotFound
from standfast.model.events import Event, TurnBegan
from standfast.runtime.live_feed import Subscription
from standfast.runtime.sessions.live_session import LiveSession

_LOOK_S = 0.05
"""How often it is looked whether what the runtime began by itself has ended."""


class Follower:
    """Carries out work on one session of a host and shows what happens meanwhile. Used on the host's loop."""

    def __init__(self, host: AgentHost, session_id: str, show: Callable[[Event], None]) -> None:
        self.session_id = session_id
        self.host = host
        self._show = show
        self._subscription: Subscription | None = None
        self._work: asyncio.Future[Any] | None = None
        self._turn_id: str | None = None

    @property
    def _live(self) -> LiveSession:
        return self.host.runtime.live(self.session_id)

    async def follow(self, work: Coroutine[Any, Any, Any]) -> TurnReport | None:
        """Await *work*, showing events; return the report of the last turn that ran meanwhile, if any did."""
        if self._subscription is None:
            self._subscription = self._live.feed.listen(Subscription())
        subscription = self._subscription
        self._turn_id = None
        self._work = task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: subscription.ring())
        try:
            await self._until_over(task, subscription)
        finally:
            task.cancel()
            self._work = None
        return await self._report(task)

    async def cancel(self) -> None:
        """End the turn that runs; if none does, give the work up."""
        driver = self._live.driver
        if driver is not None and await self._live.cancel(driver.turn_id):
            return
        for task in (self._work, *self._live.tasks()):
            if task is not None:
                task.cancel()

    async def _until_over(self, task: asyncio.Future[Any], subscription: Subscription) -> None:
        while True:
            self._show_arrived(subscription)
            if not task.done():
                await subscription.wait()
            elif self._live.tasks():
                await subscription.wait(_LOOK_S)
            else:
                break
        self._show_arrived(subscription)

    def _show_arrived(self, subscription: Subscription) -> None:
        while (event := subscription.take()) is not None:
            if isinstance(event, TurnBegan):
                self._turn_id = event.turn_id
            self._show(event)

    async def _report(self, task: asyncio.Future[Any]) -> TurnReport | None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TurnNotFound):  # somebody else has carried it on
            raise error
        return None if self._turn_id is None else await report_turn(self.host.runtime, self._turn_id)


def carry_out(
    follower: Follower, work: Coroutine[Any, Any, Any], on_cancel: Callable[[], None]
) -> TurnReport | None:
    """Do one thing on a session, from opening its host to closing it. Ctrl-C ends the turn."""
    background = Background()
    host = follower.host

    async def cancel() -> None:
        on_cancel()
        await follower.cancel()

    background.run(host.__aenter__())
    try:
        return background.attend(follower.follow(work), cancel)
    finally:
        background.leave(host.__aexit__(None, None, None))
