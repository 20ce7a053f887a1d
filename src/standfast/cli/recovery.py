"""Recovery of unfinished turns, with the agents and tools in their sessions' records.

A round reads from the store which turns can be resumed, creates one host for each agent that they need and a
sandbox for each code session, and drives all turns concurrently, each to its end or its next wait. Hosts are
closed after the round, so nothing runs unseen. `--watch` also fires due timers, and runs queued input. Rule:
a turn whose agent or tools cannot be created is reported once, with the reason, and left unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from standfast.cli.agent_host import AgentHost, open_sessions, recorded_settings
from standfast.cli.agent_options import AgentSettings
from standfast.cli.follower import BackgroundLoop, Follower, InterruptedTwice, Terminated, sigterm_raises
from standfast.cli.host import SandboxGrants, make_recorded_sandbox
from standfast.cli.output import short_json, shortened, visible
from standfast.cli.turn_report import TurnReport, report_turn, wait_text
from standfast.errors import ErrorObject, StandfastError
from standfast.model.message import Message, UserMessage, text_of
from standfast.model.outcome import Finished, FrameSwitched, Stopped, Waiting
from standfast.model.run import RunResult
from standfast.model.session import SessionHead, TurnRecord
from standfast.runtime.triggers import fire_due
from standfast.tools.threads import DaemonThreads

_POLL_S = 1.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome of a turn that recovery tried to resume. A turn whose input was code has a `result`."""

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
        """Return one line that names the turn and its outcome."""
        what = f"{self.record.session_id}  {self.record.turn_id}"
        asked = f"  {shortened(self.prompt, 40)!r}" if self.prompt else ""
        return visible(f"{what}{asked}  {self._outcome_text()}")

    def _outcome_text(self) -> str:
        if self.problem is not None:
            hint = f" ({self.problem.hint})" if self.problem.hint else ""
            return f"not resumed: {self.problem.message}{hint}"
        outcome = None if self.report is None else self.report.outcome
        match outcome:
            case None:
                return "another process resumes it"
            case Finished() if self.result is not None and self.result.error is not None:
                return f"{self.result.status}: {self.result.error.message}"
            case Finished() if self.result is not None:
                return f"finished: {short_json(self.result.result)}"
            case Finished(text=text):
                return f"finished: {shortened(text, 80)}"
            case FrameSwitched(switch=switch):
                return f"continued in frame {switch.frame_id}"
            case Waiting(waits=waits):
                return "; ".join(wait_text(wait) for wait in waits)
            case Stopped(reason=reason, error=error):
                return f"stopped ({reason}): {error.message}"
            case _:
                assert_never(outcome)


class Recovery:
    """Rounds of recovery over one data directory. *show* gets each turn when it is done."""

    def __init__(
        self,
        data_dir: Path | str,
        given: AgentSettings,
        session_id: str | None,
        show: Callable[[Recovered], None],
    ) -> None:
        self._data_dir = data_dir
        self._given = given
        self._session_id = session_id
        self._show = show
        self._reported: set[str] = set()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._threads = DaemonThreads("standfast-recover")

    async def round(self) -> list[Recovered]:
        """Resume the turns that can be resumed now."""
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
            *(self._resume_group(settings, records) for settings, records in groups.items()),
            *(self._resume_code(record, head) for record, head in code),
        )
        return [one for group in found for one in group]

    async def wake(self) -> None:
        """Fire due timers, and run the queued input of sessions, each to its end."""
        async with open_sessions(self._data_dir) as runtime:
            await fire_due(runtime.store, await runtime.triggers(), runtime.now_ms())
            queued = [one for one in await runtime.store.with_queued() if self._session_id in (None, one)]
            heads = [await runtime.store.head(one) for one in queued if one not in self._reported]
        for head in heads:
            if head is None:
                continue
            session_id, settings = head.session_id, self._settings(head.host)
            if isinstance(settings, ErrorObject):  # reported with the turns that cannot be resumed
                self._reported.add(session_id)
                continue
            async with AgentHost(self._data_dir, settings) as host:
                before = {record.turn_id for record in await host.runtime.store.turns(session_id)}
                session = await host.session(session_id)
                draining = host.runtime.live(session_id).draining
                if draining is not None:
                    await asyncio.gather(draining, return_exceptions=True)
                for record in await session.turns():
                    if record.turn_id not in before:
                        self._show(Recovered(record, TurnReport(record)))

    def _settings(self, recorded: dict[str, Any]) -> AgentSettings | ErrorObject:
        try:
            return self._given.over(
                AgentSettings() if self._given.model and not recorded else recorded_settings(recorded)
            )
        except StandfastError as error:
            return error.error_object()

    def _done(self, recovered: Recovered) -> Recovered:
        if recovered.problem is not None:
            self._reported.add(recovered.record.turn_id)
        self._show(recovered)
        return recovered

    async def _resume_code(self, record: TurnRecord, head: SessionHead) -> list[Recovered]:
        """Resume a turn whose input is code, on a thread, with the tools in its session's record."""
        session_id = record.session_id

        def resume() -> RunResult | None:
            grants = SandboxGrants(tools=self._given.tools)
            with make_recorded_sandbox(self._data_dir, grants, head.host) as box:
                return box.recover(session_id).get(session_id)

        try:
            async with self._gate:
                result = await self._threads.run(resume)
        except StandfastError as error:
            return [self._done(Recovered(record, problem=error.error_object()))]
        async with open_sessions(self._data_dir) as runtime:
            report = None if result is None else await report_turn(runtime, record.turn_id)
        return [self._done(Recovered(record, report, result=result))]

    async def _resume_group(
        self, settings: AgentSettings | ErrorObject, records: list[TurnRecord]
    ) -> list[Recovered]:
        """Resume the turns of one agent."""
        try:
            host = settings if isinstance(settings, ErrorObject) else AgentHost(self._data_dir, settings)
        except StandfastError as error:
            host = error.error_object()
        if isinstance(host, ErrorObject):
            return [self._done(Recovered(record, problem=host)) for record in records]
        async with host:
            return list(await asyncio.gather(*(self._resume_turn(host, record) for record in records)))

    async def _resume_turn(self, host: AgentHost, record: TurnRecord) -> Recovered:
        messages: list[Message] = []

        async def settle() -> None:
            messages.extend((await host.settle(record.session_id, record.turn_id)).messages)

        try:
            async with self._gate:
                report = await Follower(host, record.session_id, lambda _: None).follow(settle())
        except StandfastError as error:
            return self._done(Recovered(record, problem=error.error_object()))
        first = messages[0] if messages else None
        prompt = text_of(first.content) if isinstance(first, UserMessage) else ""
        return self._done(Recovered(record, report, prompt))


def recover_all(recovery: Recovery, *, watch: bool) -> list[Recovered]:
    """Run one round, or repeat rounds until Ctrl-C or SIGTERM."""
    background = BackgroundLoop()

    async def run() -> list[Recovered]:
        while watch:
            await recovery.round()
            await recovery.wake()
            await asyncio.sleep(_POLL_S)
        return await recovery.round()

    async def wait_for_cancelled() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    try:
        with sigterm_raises():
            return background.run(run())
    except (KeyboardInterrupt, Terminated, InterruptedTwice):
        if watch:
            return []
        raise KeyboardInterrupt from None
    finally:
        background.leave(wait_for_cancelled())
