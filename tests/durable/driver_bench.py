"""One turn on a test bench: a real store that logs writes, and a host whose effects the test scripts.

The log is one list of lines: `hooks.before_turn.1` means that hooks run, `model.1` that the model is
called, `save …` and `commit` that the store has written, `run tool.1.1` that a call has begun,
`cell.1 hears 3 2` that a cell resumes with these results, `parking` that the resources of cells are released.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, Final

from standfast.durable.driver import Committed, Driven, TurnDriver
from standfast.durable.effects import Deliver, EffectReady, KeptState, Prepared
from standfast.durable.journal import replay
from standfast.errors import PluginStateLost
from standfast.machine.commands import CallModel, Command, ContinueCell, PrepareCall, RunHooks, RunTool
from standfast.machine.inputs import (
    CallPrepared,
    CallRuled,
    CellCalled,
    CellPaused,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    OutputCheck,
    Resumed,
    Stage,
    ToolSettled,
    TurnStarted,
    encode_input,
)
from standfast.machine.turn_machine import TurnMachine
from standfast.model.limits import UsageLimits
from standfast.model.message import RequestedCall, UserMessage
from standfast.model.outcome import Ended, Finished, Stopped
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.session import SessionHead
from standfast.ports.session_store import (
    Blob,
    Claimant,
    CommitRefused,
    JournalEntry,
    Lease,
    NewTurn,
    QueuedInput,
    Save,
    Saved,
    SessionStore,
    TurnCommit,
)
from standfast.testing.clock import FakeClock

_PATIENCE_S: Final = 20
"""So long may a test take that waits for what does not happen. A stepped loop could not tell."""

EVERY_STAGE: tuple[Stage, ...] = ("before_turn", "prepare", "before_tool_call", "checkpoint", "after_turn")


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fire only when the test advances it."""

    def __init__(self) -> None:
        super().__init__()
        self._stepped_s = 0.0

    def time(self) -> float:
        return self._stepped_s

    def advance(self, seconds: float) -> None:
        self._stepped_s += seconds


class Log:
    """A store that logs the driver's writes together with its host's actions."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.lines: list[str] = []
        self.saves: list[Save] = []
        self.commits: list[TurnCommit] = []
        self.before_save: Callable[[], Awaitable[Any]] | None = None
        self.before_commit: Callable[[], Awaitable[Any]] | None = None
        self._noted = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def note(self, line: str) -> None:
        self.lines.append(line)
        self._noted.set()

    async def until(self, line: str) -> None:
        """Wait until this line has been logged."""
        while line not in self.lines:
            self._noted.clear()
            await self._noted.wait()

    async def save(self, lease: Lease, save: Save) -> Saved:
        before, self.before_save = self.before_save, None
        if before is not None:
            await before()
        saved = await self._store.save(lease, save)
        self.saves.append(save)
        keys = [entry.key for entry in save.entries]
        if saved.checkpoint is not None:
            keys.append(saved.checkpoint.key)
        self.note(f"save {' '.join(keys)}")
        return saved

    async def park(self, lease: Lease, save: Save, summary: Any) -> None:
        await self._store.park(lease, save, summary)
        self.note(f"park {' '.join(entry.key for entry in save.entries)}")

    async def commit(self, lease: Lease, commit: TurnCommit) -> SessionHead | CommitRefused:
        before, self.before_commit = self.before_commit, None
        if before is not None:
            await before()
        self.commits.append(commit)
        done = await self._store.commit(lease, commit)
        self.note(f"refused {done.reason}" if isinstance(done, CommitRefused) else "commit")
        return done


class Host:
    """An effect host whose outcomes the test scripts.

    `held` maps the keys of hooks, preparations, rulings, model calls and parking to events; each of them
    finishes when its event is set. `meanwhile` runs while they are under way. `cells` has the calls that run
    code, with the inputs that each delivers after no result, after one result, after two, and so on; a cell
    without an entry keeps computing. `leaves` has the state that a call leaves when its result is accepted.
    """

    def __init__(self, log: Log, *replies: ModelReplied | ModelFailed) -> None:
        self.log = log
        self.replies = list(replies)
        self.prepared: dict[int, Prepared] = {}
        self.rulings: dict[str, Ruling] = {}
        self.preparations: dict[str, CallPrepared] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.meanwhile: dict[str, Callable[[], Any]] = {}
        self.outcomes: list[Ended | None] = []
        self.told: list[Ended] = []
        self.states: list[JournalEntry] = []
        self.blobs: list[Blob] = []
        self.kept_now = KeptState()
        self.loses_state = False
        self.tolerated: list[bool] = []
        self.deliver: Deliver | None = None
        self.running: list[RunTool] = []
        self.begun: list[bool] = []
        self.cells: dict[int, tuple[tuple[Input, ...], ...]] = {}
        self.continued: list[ContinueCell] = []
        self.leaves: dict[int, JournalEntry] = {}
        self.taken_in: list[int] = []
        self.finish_at_once = True
        self.asked = asyncio.Event()
        self.both_run = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()
        self.stopped = 0

    # Plugins

    async def run_hooks(self, command: RunHooks) -> HooksRan:
        await self._under_way(command.key)
        self.outcomes.append(command.outcome)
        ruling = self.rulings.get(command.key, NOTHING_SAID)
        return HooksRan(at_ms=1, stage=command.stage, number=command.number, ruling=ruling)

    async def prepare_call(self, command: PrepareCall) -> CallPrepared:
        await self._under_way(command.key)
        return self.preparations.get(command.key) or CallPrepared(at_ms=1, number=command.number)

    async def finalizing(self, outcome: Ended) -> None:
        self.told.append(outcome)

    def settled(self, given: ToolSettled) -> None:
        self.taken_in.append(given.call_id)
        if (left := self.leaves.pop(given.call_id, None)) is not None:
            self.states.append(left)

    def changed_states(self, given: Input | None = None) -> tuple[JournalEntry, ...]:
        states, self.states = tuple(self.states), []
        return states

    def take_blobs(self) -> tuple[Blob, ...]:
        blobs, self.blobs = tuple(self.blobs), []
        return blobs

    async def kept(self, *, tolerant: bool) -> KeptState:
        self.tolerated.append(tolerant)
        if self.loses_state and not tolerant:
            raise PluginStateLost("p", "snapshot", "it cannot say what it remembers")
        return self.kept_now

    def hold(self, key: str) -> asyncio.Event:
        """Let the effect with this key begin but not finish."""
        self.held[key] = asyncio.Event()
        return self.held[key]

    async def _under_way(self, key: str) -> None:
        self.log.note(key)
        try:
            if key in self.meanwhile:
                self.meanwhile[key]()
            if key in self.held:
                await self.held[key].wait()
        except asyncio.CancelledError:
            self.log.note(f"{key} broken off")
            raise

    # The model and the tools

    async def call_model(self, command: CallModel) -> ModelReplied | ModelFailed:
        self.asked.set()
        await self._under_way(command.key)
        await self.answer.wait()
        return self.replies.pop(0)

    def ready_at_once(self, command: RunTool) -> EffectReady | None:
        return None

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        self.begun.append(begun)
        call_id = command.call.call_id
        if not command.ruled:
            await self._under_way(f"rule.{call_id}")
        return self.prepared.get(call_id) or self._ready(command)

    def _ready(self, command: RunTool) -> EffectReady:
        call_id = command.call.call_id
        pure = call_id in self.cells
        if command.ruled:
            return EffectReady(command, idempotent=pure, call=None, pure=pure)
        ruling = self.rulings.get(f"rule.{call_id}", CallRuling())
        assert isinstance(ruling, CallRuling)
        ruled = CallRuled(at_ms=1, call_id=call_id, ruling=ruling)
        return EffectReady(command, idempotent=pure, call=None, ruled=ruled, pure=pure)

    def start(self, ready: EffectReady, deliver: Deliver) -> None:
        self.log.note(f"run {ready.command.key}")
        self.running.append(ready.command)
        if len(self.running) == 2:
            self.both_run.set()
        self.deliver = deliver
        call_id = ready.command.call.call_id
        if ready.pure:
            self._compute(call_id, 0)
        elif self.finish_at_once:
            asyncio.get_running_loop().call_soon(deliver, settled(call_id))

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        heard = " ".join(str(one.call_id) for one in command.answers[: command.count])
        self.log.note(f"cell.{command.call.call_id} hears {heard}")
        self.continued.append(command)
        self.deliver = deliver
        self._compute(command.call.call_id, command.count)

    def _compute(self, call_id: int, heard: int) -> None:
        assert self.deliver is not None
        for given in (*self.cells.get(call_id, ()), *[()] * (heard + 1))[heard]:
            asyncio.get_running_loop().call_soon(self.deliver, given)

    parks_at_once = False

    async def parking(self) -> None:
        await self._under_way("parking")

    async def check_output(self, text: str) -> OutputCheck:
        return OutputCheck(problem="no") if text == "bad" else OutputCheck(value=text)

    def stop(self) -> None:
        self.stopped += 1


class BlindObserver:
    """An observer that ignores every event."""

    def fed(self, given: Input, following: Sequence[Command]) -> None: ...

    def running(self, command: RunTool) -> None: ...


def replied(text: str = "", *names: str) -> ModelReplied:
    return ModelReplied(at_ms=1, text=text, calls=tuple(RequestedCall(name=name) for name in names))


def settled(call_id: int, value: str = "ok") -> ToolSettled:
    return ToolSettled(at_ms=1, call_id=call_id, value=value)


def paused(call_id: int, number: int, *names: str) -> CellPaused:
    made = tuple(CellCalled(name=name) for name in names)
    return CellPaused(at_ms=1, call_id=call_id, number=number, calls=made)


def said(text: str) -> UserMessage:
    return UserMessage(content=text)


def saying(*texts: str) -> Ruling:
    """Return a ruling with these messages."""
    return Ruling(messages=tuple(said(text) for text in texts))


def state(key: str, body: bytes = b"1") -> JournalEntry:
    return JournalEntry(key=key, kind="state", body=body)


class Bench:
    """One turn of one session that has begun, with its store, clock and host."""

    def __init__(self, store: SessionStore, clock: FakeClock) -> None:
        self.log = Log(store)
        self.clock = clock
        self.limits = UsageLimits()
        self.stages: tuple[Stage, ...] = ()
        self.slept: list[float] = []
        self.machine = TurnMachine()

    async def begin(self, *replies: ModelReplied | ModelFailed) -> tuple[TurnDriver, Host, list[Any]]:
        now = self.clock.now_ms()
        await self.log.open_session(SessionHead(session_id="s", created_at=now, updated_at=now))
        message = UserMessage(content="hi")
        started = TurnStarted(
            at_ms=now, turn_id="t_1", message=message, limits=self.limits, stages=self.stages
        )
        new = NewTurn(
            session_id="s",
            turn_id="t_1",
            agent="a",
            make_input=lambda head, claimed: encode_input(started),
            input_digest="",
        )
        begun = await self.log.begin(new, self.claimant())
        commands = self.machine.feed(started)
        host = Host(self.log, *replies)
        return self.driver(begun.lease, host), host, commands

    async def take_over(self, *replies: ModelReplied | ModelFailed) -> tuple[TurnDriver, Host, list[Any]]:
        """Return a driver, a host and commands with which another process would resume the turn."""
        taken = await self.log.take_over("t_1", self.claimant("other"))
        replayed = replay("t_1", taken.input, taken.journal)
        self.machine = replayed.machine
        host = Host(self.log, *replies)
        driver = self.driver(taken.lease, host, replayed=replayed)
        driver.feed(Resumed(at_ms=self.clock.now_ms()))
        return driver, host, replayed.machine.outstanding()

    def driver(self, lease: Lease, host: Host, **known: Any) -> TurnDriver:
        services = SimpleNamespace(store=self.log, clock=self.clock, sleep=self._sleep, keeps_journals=False)
        return TurnDriver(self.machine, lease, host, BlindObserver(), services, **known)

    def claimant(self, owner: str = "me") -> Claimant:
        return Claimant(owner=owner, now_ms=self.clock.now_ms(), lease_ms=30_000)

    async def inject(self, text: str) -> None:
        item = QueuedInput(
            input_id=text, session_id="s", kind="inject", message=UserMessage(content=text), created_at=1
        )
        await self.log.put_input(item)

    async def states(self) -> dict[str, bytes]:
        """Return the states in the journal, as another process would find them."""
        self.clock.advance(31)
        taken = await self.log.take_over("t_1", self.claimant("other"))
        return {entry.key: entry.body for entry in taken.journal if entry.kind == "state"}

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def on(bench: Callable[[], Bench], test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a bench, and close its store."""
    asyncio.run(_on(bench, test))


def stepped(
    bench: Callable[[], Bench], test: Callable[[Bench, SteppedLoop], Coroutine[Any, Any, None]]
) -> None:
    """Run a test on a bench whose loop fires timers only when the test advances it."""

    async def with_loop(one: Bench) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        await test(one, loop)

    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        runner.run(_on(bench, with_loop))


async def _on(bench: Callable[[], Bench], test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    one = bench()
    testing = asyncio.ensure_future(test(one))
    loop = asyncio.get_running_loop()
    gave_up = False

    def give_up() -> None:
        nonlocal gave_up
        gave_up = testing.cancel()

    patience = threading.Timer(_PATIENCE_S, loop.call_soon_threadsafe, [give_up])
    patience.start()
    try:
        await asyncio.wait([testing])
    finally:
        patience.cancel()
        patience.join()
        await one.log.close()
    assert not gave_up, f"what the test waits for does not happen: {one.log.lines}"
    await testing


def finished(driven: Driven) -> str:
    assert isinstance(driven, Committed)
    assert isinstance(driven.summary.outcome, Finished)
    return driven.summary.outcome.text


def stopped(driven: Driven) -> Stopped:
    assert isinstance(driven, Committed)
    assert isinstance(driven.summary.outcome, Stopped)
    return driven.summary.outcome
