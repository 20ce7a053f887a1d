"""Resumes unfinished turns, with the agents and the tools that their sessions have on record.

Theory of operation
-------------------
A round asks the store which turns can be resumed, makes one host for each agent that they need and a sandbox
for each session of code, and drives all turns at once, each to its end or its next wait. Hosts are closed
after the round: nothing runs unseen. `--watch` also delivers timers that are due, and runs queued input.

Rule: a turn whose agent or tools cannot be made is reported with the reason, once, and left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from standfast.cli.agent_host import AgentHost, open_sessions, recorded_settings
from standfast.cli.agent_options import AgentSettings
from standfast.cli.background import Background, Leave, Terminated, sigterm_raises
from standfast.cli.follower import Follower
from standfast.cli.host import Grants, make_recorded_sandbox
from standfast.cli.output import visible
from standfast.cli.short_text import short_json, shortened
from standfast.cli.turn_report import TurnReport, report_turn, wait_text
from standfast.errors import ErrorObject, StandfastError
from standfast.model.head import SessionHead
from standfast.model.message import Message, UserMessage, text_of
from standfast.model.outcome import Finished, FrameSwitched, Stopped, Waiting
from standfast.model.run import RunResult
from standfast.model.turn import TurnRecord
from standfast.runtime.triggers import fire_due
from standfast.tools.threads import DaemonThreads

_POLL_S = 1.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome of a turn that was to be resumed. One whose input was code has a `result`."""

    record: TurnRecord
    report: TurnReport | None = None
    prompt: str = ""
    problem: ErrorObject | None = None
    result: RunResult | None = None

    def document(self) -> dict[str, Any]:
        now = TurnReport(self.record) if self.report is None else self.report
        more = {} if self.result is None else {"result": self.result}
        return {**now.document(), "prompt": self.prompt or None, "problem": self.problem, **more}

    def line(self) -> str:
        """One line: which turn it was and how it ended."""
        what = f"{self.record.session_id}  {self.record.turn_id}"
        asked = f"  {shortened(self.prompt, 40)!r}" if self.prompt else ""
        return visible(f"{what}{asked}  {self._fate()}")

    def _fate(self) -> str:
        if self.problem is not None:
            hint = f" ({self.problem.hint})" if self.problem.hint else ""
            return f"not taken up: {self.problem.message}{hint}"
        outcome = None if self.report is None else self.report.outcome
        match outcome:
            case None:
                return "another process goes on with it"
            case Finished() if self.result is not None and self.result.error is not None:
                return f"{self.result.status}: {self.result.error.message}"
            case Finished() if self.result is not None:
                return f"finished: {short_json(self.result.result)}"
            case Finished(text=text):
                return f"finished: {shortened(text, 80)}"
            case FrameSwitched(switch=switch):
                return f"went on in frame {switch.frame_id}"
            case Waiting(waits=waits):
                return "; ".join(wait_text(wait) for wait in waits)
            case Stopped(reason=reason, error=error):
                return f"stopped ({reason}): {error.message}"
            case _:
                assert_never(outcome)


class Recovery:
    """Rounds of taking up, over one data directory."""

    def __init__(self, data_dir: Path, given: AgentSettings, session_id: str | None) -> None:
        self._data_dir = data_dir
        self._given = given
        self._session_id = session_id
        self._reported: set[str] = set()
        self._threads = DaemonThreads("standfast-recover")

    async def round(self, tell: Callable[[Recovered], None]) -> list[Recovered]:
        """Resume the turns that can be resumed now, calling *tell* with each when it is done."""
        gate = asyncio.Semaphore(_AT_ONCE)
        groups: dict[AgentSettings | ErrorObject, list[TurnRecord]] = {}
        code: list[tuple[TurnRecord, SessionHead]] = []
        async with open_sessions(self._data_dir) as runtime:
            for record in await runtime.store.unfinished(runtime.now_ms()):
                if self._session_id not in (None, record.session_id) or record.turn_id in self._reported:
                    continue
                head = await runtime.store.head(record.session_id)
                if head is not None and head.code is not None:
                    code.append((record, head))
                else:
                    groups.setdefault(self._settings({} if head is None else head.host), []).append(record)
        found = await asyncio.gather(
            *(self._group(settings, records, gate, tell) for settings, records in groups.items()),
            *(self._resume_code(record, head, gate, tell) for record, head in code),
        )
        return [one for group in found for one in group]

    async def _resume_code(
        self,
        record: TurnRecord,
        head: SessionHead,
        gate: asyncio.Semaphore,
        tell: Callable[[Recovered], None],
    ) -> list[Recovered]:
        """Resume a turn whose input is code, on a thread, with the tools that its session has on record."""
        session_id = record.session_id

        def resume() -> RunResult | None:
            grants = Grants(tools=self._given.tools)
            with make_recorded_sandbox(self._data_dir, grants, head.host) as box:
                return box.recover(session_id).get(session_id)

        try:
            async with gate:
                result = await self._threads.run(resume)
        except StandfastError as error:
            return [self._refused(record, error.error_object(), tell)]
        async with open_sessions(self._data_dir) as runtime:
            report = None if result is None else await report_turn(runtime, record.turn_id)
        recovered = Recovered(record, report, result=result)
        tell(recovered)
        return [recovered]

    async def wake(self, tell: Callable[[Recovered], None]) -> None:
        """Deliver the timers that are due, and run what is queued for sessions, each to its end."""
        async with open_sessions(self._data_dir) as runtime:
            await fire_due(runtime.store, runtime.now_ms())
            queued = [one for one in await runtime.store.with_queued() if self._session_id in (None, one)]
            heads = [await runtime.store.head(one) for one in queued if one not in self._reported]
        for head in heads:
            if head is not None:
                await self._run_queued(head, tell)

    async def _run_queued(self, head: SessionHead, tell: Callable[[Recovered], None]) -> None:
        session_id, settings = head.session_id, self._settings(head.host)
        if isinstance(settings, ErrorObject):  # told of with the turns that nobody can go on with
            self._reported.add(session_id)
            return
        async with AgentHost(self._data_dir, settings) as host:
            before = {record.turn_id for record in await host.runtime.store.turns(session_id)}
            session = await host.session(session_id)
            draining = host.runtime.live(session_id).draining
            if draining is not None:
                await asyncio.gather(draining, return_exceptions=True)
            for record in await session.turns():
                if record.turn_id not in before:
                    tell(Recovered(record, TurnReport(record)))

    def _settings(self, recorded: dict[str, Any]) -> AgentSettings | ErrorObject:
        try:
            return self._given.over(
                AgentSettings() if self._given.model and not recorded else recorded_settings(recorded)
            )
        except StandfastError as error:
            return error.error_object()

    async def _group(
        self,
        settings: AgentSettings | ErrorObject,
        records: list[TurnRecord],
        gate: asyncio.Semaphore,
        tell: Callable[[Recovered], None],
    ) -> list[Recovered]:
        if isinstance(settings, ErrorObject):
            return [self._refused(record, settings, tell) for record in records]
        try:
            host = AgentHost(self._data_dir, settings)
        except StandfastError as error:
            return [self._refused(record, error.error_object(), tell) for record in records]

        async def one(record: TurnRecord) -> Recovered:
            async with gate:
                recovered = await self._take_up(host, record)
            if recovered.problem is not None:
                self._reported.add(record.turn_id)
            tell(recovered)
            return recovered

        async with host:
            return list(await asyncio.gather(*(one(record) for record in records)))

    def _refused(
        self, record: TurnRecord, problem: ErrorObject, tell: Callable[[Recovered], None]
    ) -> Recovered:
        self._reported.add(record.turn_id)
        refused = Recovered(record, problem=problem)
        tell(refused)
        return refused

    async def _take_up(self, host: AgentHost, record: TurnRecord) -> Recovered:
        said: list[Message] = []

        async def go_on() -> None:
            await host.session(record.session_id)
            result = await host.runtime.live(record.session_id).turn_of(record.turn_id).settled()
            said.extend(result.messages)

        follower = Follower(host, record.session_id, lambda _: None)
        try:
            report = await follower.follow(go_on())
        except StandfastError as error:
            return Recovered(record, problem=error.error_object())
        first = said[0] if said else None
        return Recovered(record, report, text_of(first.content) if isinstance(first, UserMessage) else "")


def recover_all(recovery: Recovery, *, watch: bool, tell: Callable[[Recovered], None]) -> list[Recovered]:
    """One round, or round after round until Ctrl-C or SIGTERM."""
    background = Background()
    try:
        with sigterm_raises():
            return background.run(_watch(recovery, tell) if watch else recovery.round(tell))
    except (KeyboardInterrupt, Terminated, Leave):
        if watch:
            return []
        raise KeyboardInterrupt from None
    finally:
        background.leave(_rest())


async def _watch(recovery: Recovery, tell: Callable[[Recovered], None]) -> list[Recovered]:
    while True:
        await recovery.round(tell)
        await recovery.wake(tell)
        await asyncio.sleep(_POLL_S)


async def _rest() -> None:
    """Wait for what was told to stop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)
