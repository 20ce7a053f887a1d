"""Every hook with every fault, one cell each: guards fail closed, observers are not fatal, sessions survive.

A row is a place where a plugin is called, a column is a fault. Each cell opens a session that has had a
successful turn, provokes the fault, checks for the outcome in the table, then switches the fault off
and lets the same session finish a turn. If a plugin is called only while a session is opened, the fault is
switched on before; a session that could not be opened is opened again without it.

Columns without a meaning in a row still have a cell: a directive that is illegal there is an answer of the
wrong type, and a plain function that is `async` is one that answers with a coroutine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plugin_bench import Actor, Ear, Notes, errors_of
from stand_ins import Place, until

from standfast import Agent
from standfast.errors import StandfastError, TurnCode
from standfast.model.directive import AbortTurn, EmitTrace, ReplaceToolArgs
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, Stopped, StopReason
from standfast.model.plugin_state import PluginSnapshotMeta
from standfast.model.session import SessionPolicy
from standfast.plugins.actions import action
from standfast.plugins.contexts import ContextCompaction, SwitchAgentFrame, TriggerEvent
from standfast.plugins.hook import HOOKS, hook
from standfast.plugins.plugin import Plugin, PluginSessionContext
from standfast.plugins.protocol import ProtocolSessionPlugin
from standfast.plugins.registrar import PluginRegistrar
from standfast.ports.model_provider import ReplyEnded
from standfast.protocols.standard.plugin import StandardDriver
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.result import TurnResult
from standfast.testing.clock import FakeClock
from standfast.tools.registry import ToolCatalogContribution

pytestmark = pytest.mark.slow

MIB = 1 << 20
ID = "faulty"


class Odd(BaseException):
    """An exception that is not an Exception, so `except Exception` misses it."""


# Columns


FAULTS = {
    "raises": "raises",
    "hangs": "hangs",
    "hangs and swallows the cancellation": "hangs",
    "hangs and never stops": "hangs",
    "returns garbage": "returns garbage",
    "illegal directive": "illegal directive",
    "huge output": "huge output",
    "cancelled": "cancelled",
    "raises BaseException": "raises BaseException",
    "raises SystemExit": "raises BaseException",
}
"""Each column, and the required fault that it belongs to."""

DEMANDED = {
    "raises",
    "hangs",
    "returns garbage",
    "illegal directive",
    "huge output",
    "cancelled",
    "raises BaseException",
}

RAISED: dict[str, BaseException] = {
    "raises": RuntimeError("boom"),
    "cancelled": asyncio.CancelledError(),
    "raises BaseException": Odd(),
    "raises SystemExit": SystemExit(3),
}


@dataclass(slots=True)
class Switch:
    """The fault to provoke, for all copies of the plugin, in any thread.

    `release` ends hooks that would never stop; `hanging` is the number of hooks that have not ended.
    """

    kind: str
    fault: str | None = None
    asked: int = 0
    hanging: int = 0
    release: threading.Event = field(default_factory=threading.Event)

    def __deepcopy__(self, memo: object) -> Switch:
        return self

    async def answer(self, given: tuple[Any, ...]) -> Any:
        if self.fault is None:
            return good_answer(self.kind, given)
        self.asked += 1
        if self.fault.startswith("hangs"):
            return await self._hang(given)
        if self.fault == "cancels its own task":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()
        return self._wrong(given)

    def plain_answer(self, given: tuple[Any, ...]) -> Any:
        if self.fault is None:
            return good_answer(self.kind, given)
        self.asked += 1
        if self.fault.startswith("hangs"):
            return self._hang(given)  # a coroutine, where nothing is awaited
        return self._wrong(given)

    def _wrong(self, given: tuple[Any, ...]) -> Any:
        assert self.fault is not None
        if self.fault in RAISED:
            raise RAISED[self.fault]
        if self.fault == "returns garbage":
            return 1 + 2j
        if self.fault == "illegal directive":
            return ILLEGAL.get(self.kind, ReplaceToolArgs(arguments={}))
        return HUGE[self.kind](given)

    async def _hang(self, given: tuple[Any, ...]) -> Any:
        self.hanging += 1
        try:
            await self._wait(self.fault)
        finally:
            self.hanging -= 1
        return good_answer(self.kind, given)

    async def _wait(self, fault: str | None) -> None:
        if fault == "hangs":
            await asyncio.Event().wait()
        while not self.release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if fault == "hangs and swallows the cancellation":
                    break


ILLEGAL: dict[str, object] = {
    "after_turn": AbortTurn(message="too late"),
    "before_tool_call": SwitchAgentFrame("f", "every directive is legal there"),
}


def good_answer(kind: str, given: tuple[Any, ...]) -> Any:
    """Return the answer of a plugin without a fault."""
    match kind:
        case "context_transform" | "session_config_mutator":
            return given[1]
        case "assistant_stream":
            return given[0].chunk
        case "assistant_response":
            return given[0].response
        case "tool_result_projector":
            return "a result"
        case "trigger_catalog":
            return []
        case "action":
            return "well"
    return None


def _huge_directive(given: tuple[Any, ...]) -> object:
    return EmitTrace(name="all", body="x" * (2 * MIB))


def _huge_text(given: tuple[Any, ...]) -> object:
    return "x" * (2 * MIB)


HUGE: dict[str, Callable[[tuple[Any, ...]], object]] = {
    "prompt_contributor": _huge_text,
    "context_transform": lambda given: [UserMessage(content="x" * (20 * MIB))],
    "compactor": lambda given: ContextCompaction(seed=(UserMessage(content="x" * (5 * MIB)),)),
    "before_turn": _huge_directive,
    "checkpoint": _huge_directive,
    "after_turn": _huge_directive,
    "before_tool_call": _huge_directive,
    "after_tool_call": _huge_directive,
    "assistant_stream": _huge_text,
    "assistant_response": lambda given: ReplyEnded(text="x" * (17 * MIB)),
    "turn_finalized": _huge_text,
    "turn_persisted": _huge_text,
    "session_restored": _huge_text,
    "session_config_changed": _huge_text,
    "session_config_mutator": lambda given: SessionPolicy(instructions="x" * (20 * MIB)),
    "tool_catalog": lambda given: ToolCatalogContribution(hidden=frozenset(f"n{i}" for i in range(100_000))),
    "trigger_catalog": lambda given: [TriggerEvent(name=f"n{i}") for i in range(100_000)],
    "before_llm_call": lambda given: SwitchAgentFrame("f", "x" * (20 * MIB)),
    "tool_result_projector": _huge_text,
    "action": lambda given: "x" * (17 * MIB),
    "build": _huge_text,
    "register": _huge_text,
    "session_ready": _huge_text,
    "snapshot": lambda given: PluginSnapshotMeta(
        plugin_id=ID, plugin_version="1", revision=9, state="x" * (20 * MIB)
    ),
    "restore": _huge_text,
}


# Rows


TURN_FAILS = "the turn fails"
MODEL_CALL_FAILS = "the model call fails"
CALL_FAILS = "that call fails"
NEVER_FATAL = "never fatal"
CATALOG_FAILS = "the catalog build fails"
ACTION_FAILS = "the action fails"
OPENING_FAILS = "the session cannot be opened"
COMMIT_FAILS = "the turn fails, what was kept stays"
HARMLESS = "nothing happens"

ROWS: dict[str, str] = {
    "prompt_contributor": TURN_FAILS,
    "context_transform": TURN_FAILS,
    "compactor": TURN_FAILS,
    "before_turn": TURN_FAILS,
    "checkpoint": TURN_FAILS,
    "after_turn": TURN_FAILS,
    "before_tool_call": CALL_FAILS,
    "after_tool_call": CALL_FAILS,
    "assistant_stream": MODEL_CALL_FAILS,
    "assistant_response": MODEL_CALL_FAILS,
    "turn_finalized": NEVER_FATAL,
    "turn_persisted": NEVER_FATAL,
    "session_restored": NEVER_FATAL,
    "session_config_changed": NEVER_FATAL,
    "session_config_mutator": NEVER_FATAL,
    "tool_catalog": CATALOG_FAILS,
    "trigger_catalog": CATALOG_FAILS,
    "before_llm_call": TURN_FAILS,
    "tool_result_projector": CALL_FAILS,
    "action": ACTION_FAILS,
    "build": OPENING_FAILS,
    "register": OPENING_FAILS,
    "session_ready": OPENING_FAILS,
    "snapshot": COMMIT_FAILS,
    "restore": OPENING_FAILS,
}
"""Each place where a plugin is called, and the outcome of a fault there."""

OPENING, CONFIGURING, ACTING, TURN = "opening", "configuring", "acting", "turn"

REFUSED_AT: dict[str, str] = {
    "tool_catalog": TURN,  # built while the session is opened, but not read there
    "trigger_catalog": OPENING,
    "action": ACTING,
    "build": OPENING,
    "register": OPENING,
    "session_ready": OPENING,
    "restore": OPENING,
}
"""The step that raises the outcome of a fault, if one does."""

ASKED_AT_OPENING = (
    "session_restored", "tool_catalog", "trigger_catalog", "build", "register", "session_ready", "restore",
)  # fmt: skip
"""Places where a plugin is called while a session is opened, and not again without a reason."""

PLAIN_LIVES = ("build", "register", "session_ready", "snapshot", "restore")
OBSERVERS = ("turn_finalized", "turn_persisted", "session_restored", "session_config_changed")
UNHEARD = ("returns garbage", "illegal directive", "huge output")

EXCEPTIONS: dict[tuple[str, str], str] = {
    **{(kind, fault): HARMLESS for kind in OBSERVERS for fault in UNHEARD},
    **{(kind, fault): HARMLESS for kind in ("register", "session_ready", "restore") for fault in UNHEARD},
    ("action", "illegal directive"): HARMLESS,  # an action may answer with any JSON
    ("tool_catalog", "huge output"): HARMLESS,  # names of unknown tools have no effect
}
"""Hooks whose return value is ignored, so a wrong one does no harm."""


class Faulty(Plugin):
    """A plugin with one fault."""

    id = ID

    def __init__(self, switch: Switch) -> None:
        self.switch = switch


def faulty(switch: Switch) -> Plugin:
    """Return a plugin that is called in one place."""
    body: dict[str, Any] = {"id": ID}
    if switch.kind in HOOKS:
        body["say"] = hook(switch.kind)(_method(HOOKS[switch.kind].plain))
    else:
        body |= LIVES[switch.kind]
    made: Plugin = type("FaultyOne", (Faulty,), body)(switch)
    return made


def _method(plain: bool) -> Any:
    def answer(self: Faulty, *given: Any) -> Any:
        return self.switch.plain_answer(given)

    async def answer_later(self: Faulty, *given: Any) -> Any:
        return await self.switch.answer(given)

    return answer if plain else answer_later


def _build(self: Faulty, ctx: PluginSessionContext) -> Any:
    wrong = self.switch.plain_answer((ctx,))
    return Plugin.build(self, ctx) if wrong is None else wrong


def _register(self: Faulty, registrar: PluginRegistrar) -> Any:
    Plugin.register(self, registrar)
    return self.switch.plain_answer((registrar,))


def _session_ready(self: Faulty, ctx: PluginSessionContext) -> Any:
    return self.switch.plain_answer((ctx,))


async def _remember(self: Faulty, ctx: Any) -> None:
    self.state = {"turns": (self.state or {"turns": 0})["turns"] + 1}


def _snapshot(self: Faulty, writer: Any) -> Any:
    wrong = self.switch.plain_answer((writer,))
    return Plugin.snapshot(self, writer) if wrong is None else wrong


def _restore(self: Faulty, meta: Any, reader: Any) -> Any:
    Plugin.restore(self, meta, reader)
    return self.switch.plain_answer((meta, reader))


async def _act(self: Faulty, ctx: Any) -> Any:
    return await self.switch.answer((ctx,))


async def _project(self: Faulty, ctx: Any) -> Any:
    return await self.switch.answer((ctx,))


def _register_projector(self: Faulty, registrar: PluginRegistrar) -> None:
    registrar.tool_calls.project_result(_project.__get__(self))


class FaultyProtocol(ProtocolSessionPlugin):
    """A protocol with a hook before each model call."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch

    async def before_llm_call(self, ctx: Any, request: Any) -> Any:
        return await self.switch.answer((ctx, request))


def _register_protocol(self: Faulty, registrar: PluginRegistrar) -> None:
    registrar.protocol.session(FaultyProtocol(self.switch))
    registrar.protocol.driver(StandardDriver())


LIVES: dict[str, dict[str, Any]] = {
    "build": {"build": _build},
    "register": {"register": _register},
    "session_ready": {"session_ready": _session_ready},
    "snapshot": {"snapshot": _snapshot, "remember": hook("before_turn")(_remember)},
    "restore": {"restore": _restore, "remember": hook("before_turn")(_remember)},
    "action": {"act": action(name=f"{ID}.act")(_act)},
    "tool_result_projector": {"register": _register_projector},
    "before_llm_call": {"register": _register_protocol},
}


# A cell


@dataclass(slots=True)
class Scene:
    """The objects that a cell inspects."""

    place: Place
    switch: Switch
    fault: str
    ear: Ear = field(default_factory=Ear)
    notes: Notes = field(default_factory=Notes)
    model: Actor = field(default_factory=Actor)
    agent: Agent[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        plugin = faulty(self.switch)
        if self.switch.kind == "before_llm_call":
            self.agent = Agent(self.model, tools=[self.notes.tool()], protocol=plugin)
        else:
            self.agent = Agent(self.model, tools=[self.notes.tool()], plugins=[plugin])

    def runtime(self) -> Runtime:
        limit = 0.5 if self.fault.startswith("hangs") else 10  # a busy machine is slow to answer too
        return self.place.runtime(trace=self.ear, hook_timeout_s=limit)

    async def open(self, runtime: Runtime) -> Session[Any]:
        return await runtime.session("s", agent=self.agent)

    def failures(self) -> list[str]:
        """Return the traced failures of the plugin."""
        return [str(one.body) for one in self.ear.named("plugin_failed") if one.plugin_id == ID]


@dataclass(slots=True)
class Seen:
    """The effects of a fault."""

    session: Session[Any] | None = None
    result: TurnResult[Any] | None = None
    raised: BaseException | None = None
    policy: SessionPolicy | None = None
    step: str = OPENING
    """The last step that was started."""


async def _provoke(scene: Scene, runtime: Runtime) -> Seen:
    """Do everything that may make the plugin fail."""
    kind, switch, seen = scene.switch.kind, scene.switch, Seen()
    try:
        if kind in ASKED_AT_OPENING:
            switch.fault = scene.fault
        seen.session = await scene.open(runtime)
        switch.fault = scene.fault
        seen.step = CONFIGURING
        seen.policy = await seen.session.plugins.configure(instructions="Be brief.")
        if kind == "action":
            seen.step = ACTING
            await seen.session.plugins.invoke(f"{ID}.act")
        seen.step = TURN
        seen.result = await seen.session.turn("go").settled()
    except BaseException as error:
        seen.raised = error
    return seen


def _check(scene: Scene, outcome: str, seen: Seen) -> None:
    check = {
        TURN_FAILS: _check_turn_failed,
        MODEL_CALL_FAILS: _check_model_call_failed,
        CALL_FAILS: _check_call_failed,
        NEVER_FATAL: _check_not_fatal,
        CATALOG_FAILS: _check_refused,
        ACTION_FAILS: _check_refused,
        OPENING_FAILS: _check_refused,
        COMMIT_FAILS: _check_turn_failed,
        HARMLESS: _check_harmless,
    }[outcome]
    check(scene, seen)


def _check_turn_failed(scene: Scene, seen: Seen) -> None:
    assert seen.raised is None
    assert seen.result is not None
    outcome = seen.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.PLUGIN_ABORT
    assert outcome.error.code == TurnCode.PLUGIN_ERROR
    assert repr(ID) in outcome.error.message


def _check_model_call_failed(scene: Scene, seen: Seen) -> None:
    """Check that the reply was discarded, and that none of its calls was made."""
    _check_turn_failed(scene, seen)
    assert seen.result is not None
    texts = [getattr(one, "text", "") for one in seen.result.messages]
    assert "done" not in texts


def _check_call_failed(scene: Scene, seen: Seen) -> None:
    assert seen.raised is None
    assert seen.result is not None
    assert seen.result.outcome == Finished(text="done")
    [error] = errors_of(seen.result.messages)
    assert error.code == TurnCode.PLUGIN_ERROR
    assert repr(ID) in error.message
    before = scene.switch.kind == "before_tool_call"
    assert scene.notes.written == ["hi"] + ([] if before else ["hi"])
    assert all(record.error == error for record in seen.result.calls)


def _check_not_fatal(scene: Scene, seen: Seen) -> None:
    _check_harmless(scene, seen)
    assert scene.failures(), "it is traced, with the plugin's id"


def _check_harmless(scene: Scene, seen: Seen) -> None:
    assert seen.raised is None
    assert seen.result is not None
    assert seen.result.outcome == Finished(text="done")
    assert seen.policy is not None
    assert seen.policy.instructions == "Be brief."
    assert errors_of(seen.result.messages) == []


def _check_refused(scene: Scene, seen: Seen) -> None:
    assert isinstance(seen.raised, StandfastError)
    assert repr(ID) in seen.raised.message
    assert seen.step == REFUSED_AT[scene.switch.kind]


async def _cell(scene: Scene) -> None:
    switch = scene.switch
    kind = switch.kind
    async with scene.runtime() as runtime:
        assert (await (await scene.open(runtime)).turn("first")).output == "done"
    async with scene.runtime() as runtime:
        seen = await _provoke(scene, runtime)
        assert switch.asked, "the fault never occurred"
        _check(scene, EXCEPTIONS.get((kind, scene.fault), ROWS[kind]), seen)
        switch.fault = None
        switch.release.set()
        session = seen.session or await scene.open(runtime)
        again = await session.turn("again")
        assert again.output == "done"
        assert errors_of(again.messages) == []
        assert await session.unfinished() is None
        await until(lambda: not _left_over() and not switch.hanging)


def _left_over() -> set[Any]:
    from standfast.plugins.running import _cancelled

    return _cancelled


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ROWS)
def test_a_fault_has_the_outcome_in_the_table(
    kind: str, fault: str, memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed: guards fail closed, observers are never fatal, and the session stays usable."""

    async def main() -> None:
        await _cell(Scene(memory, Switch(kind), fault))

    asyncio.run(main())
    if EXCEPTIONS.get((kind, fault), ROWS[kind]) == NEVER_FATAL:
        assert f"plugin {ID}, {kind}: " in caplog.text


STORED = [
    (kind, fault)
    for kind in (
        "before_turn",
        "before_tool_call",
        "after_tool_call",
        "turn_persisted",
        "tool_catalog",
        "snapshot",
    )
    for fault in ("raises", "hangs and swallows the cancellation", "illegal directive")
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), STORED)
def test_a_fault_has_the_same_outcome_with_a_file(
    kind: str, fault: str, tmp_path: Path, clock: FakeClock
) -> None:
    """Ours: a fault has the same outcome in every store."""

    async def main() -> None:
        await _cell(Scene(Place(tmp_path / "standfast.db", clock), Switch(kind), fault))

    asyncio.run(main())


AWAITED = [kind for kind in ROWS if not (kind in HOOKS and HOOKS[kind].plain) and kind not in PLAIN_LIVES]


@pytest.mark.parametrize("kind", AWAITED)
def test_a_hook_that_cancels_its_own_task_fails(kind: str, memory: Place) -> None:
    """Bug: the exception ended the calling turn without an outcome."""

    async def main() -> None:
        await _cell(Scene(memory, Switch(kind), "cancels its own task"))

    asyncio.run(main())


@pytest.mark.parametrize(
    "kind",
    [
        "before_turn", "prompt_contributor", "context_transform", "compactor", "before_llm_call",
        "assistant_stream", "assistant_response", "before_tool_call", "after_tool_call",
        "tool_result_projector", "checkpoint",
    ],
)  # fmt: skip
@pytest.mark.parametrize("fault", ["hangs", "hangs and swallows the cancellation"])
def test_a_turn_can_be_cancelled_while_a_hook_hangs(kind: str, fault: str, memory: Place) -> None:
    """Ours: cancelling a turn does not wait for a plugin's timeout, and is not a failure of the plugin."""

    async def main() -> None:
        scene = Scene(memory, Switch(kind), fault)
        async with memory.runtime(trace=scene.ear) as runtime:
            session = await scene.open(runtime)
            await session.turn("first")
            scene.switch.fault = fault
            turn = session.turn("go")
            turn.start()
            await until(lambda: scene.switch.asked > 0)
            assert await turn.cancel()
            outcome = (await turn.settled()).outcome
            assert isinstance(outcome, Stopped)
            assert outcome.reason is StopReason.CANCELLED
            assert scene.failures() == []
            scene.switch.fault = None
            assert (await session.turn("again")).output == "done"

    asyncio.run(main())


def test_a_failing_hook_discards_the_directives_of_the_others(memory: Place) -> None:
    """Ours: the directives of a stage that fails are discarded."""

    class Sayer(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> Any:
            return EmitTrace(name="said")

    class LaterSayer(Sayer):
        """The same plugin, after the one that fails."""

    async def main() -> None:
        switch = Switch("before_turn", "raises")
        ear = Ear()
        agent = Agent(Actor(), plugins=[Sayer(), faulty(switch), LaterSayer()])
        async with memory.runtime(trace=ear) as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go").settled()
            assert isinstance(result.outcome, Stopped)
            assert ear.named("said") == []

    asyncio.run(main())


def test_a_hanging_observer_does_not_keep_events_from_the_others(memory: Place) -> None:
    """Seed: lifecycle events reach all observers concurrently."""
    heard: list[str] = []

    class Hearer(Plugin):
        @hook
        async def turn_persisted(self, event: Any) -> None:
            heard.append(event.turn_id)

    async def main() -> None:
        switch = Switch("turn_persisted", "hangs")
        agent = Agent(Actor(), plugins=[faulty(switch), Hearer()])
        async with memory.runtime(hook_timeout_s=0.25) as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert heard == [result.turn_id]

    asyncio.run(main())


def test_every_hook_has_a_row() -> None:
    """Ours: every hook must be tested with every fault."""
    assert set(HOOKS) <= set(ROWS)
    assert set(ROWS) - set(HOOKS) == set(LIVES)
    assert set(ROWS) == set(HUGE)
    for name, kind in HOOKS.items():
        assert ROWS[name] == kind.on_failure
    refused = {
        kind for kind, outcome in ROWS.items() if outcome in (CATALOG_FAILS, ACTION_FAILS, OPENING_FAILS)
    }
    assert set(REFUSED_AT) == refused
    assert {kind for kind, step in REFUSED_AT.items() if step == OPENING} < set(ASKED_AT_OPENING)


def test_every_required_fault_has_a_column() -> None:
    """Seed: raises, hangs, garbage, illegal directive, huge output, cancelled, BaseException."""
    assert set(FAULTS.values()) == DEMANDED
    assert set(RAISED) < set(FAULTS)
    assert {kind for kind, _ in EXCEPTIONS} < set(ROWS)
    assert {fault for _, fault in EXCEPTIONS} < set(FAULTS)
