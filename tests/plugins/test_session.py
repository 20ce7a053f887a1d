"""`PluginSession`: everything that the runtime asks of a session's plugins, following the seed's list."""

from __future__ import annotations

import asyncio
import hashlib
import re
import struct
import types
from typing import Any

import pytest
from plugin_bench import (
    Actor,
    Ear,
    PhaseLog,
    checkpoint_context,
    compaction_context,
    projection_context,
    prompt_context,
    response_context,
    result_context,
    session_of,
    stream_context,
    tool_result_context,
    transform_context,
    turn_context,
)
from stand_ins import Place, said

from standfast import Agent, tool
from standfast.errors import PluginFailed, PluginStateLost
from standfast.model.capability import SessionToolAccess, ToolAvailability
from standfast.model.directive import EmitTrace
from standfast.model.message import Message, UserMessage
from standfast.model.outcome import Finished
from standfast.model.plugin_state import PluginSessionSnapshot, PluginSnapshotEntry, PluginSnapshotMeta
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.model.session import SessionPolicy
from standfast.plugins.contexts import (
    ContextCompaction,
    SessionConfigChanged,
    SessionRestored,
    SubagentContext,
    ToolCatalogContext,
    TurnFinalized,
    TurnPersisted,
)
from standfast.plugins.hook import HOOKS, hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.running import HookRunner, RunningStage
from standfast.plugins.session import PluginSession, SessionAuthority
from standfast.ports.model_provider import ReplyEnded
from standfast.protocols.standard.plugin import StandardDriver
from standfast.tools.registry import ToolCatalogContribution

SEED_METHODS = {
    "session_id": "session_id",
    "tool_access": "tool_access",
    "subagent_context": "subagent_context",
    "extensions": "extensions",
    "triggers": "triggers",
    "host": "host",
    "tools": "tool_registry",
    "tool_registry": "tool_registry",
    "protocol_session": "protocol_session",
    "code_executor": "code_executor",
    "assistant_prose_projector": "assistant_prose_projector",
    "protocol_driver": "protocol_driver",
    "plugin_actions": "plugin_actions",
    "has_assistant_stream_hooks": "has_assistant_stream_hooks",
    "prepare_turn_context": "prepare_turn_context",
    "compact_context": "compact_context",
    "collect_prompt_contributions": "collect_prompt_contributions",
    "before_turn": "before_turn",
    "before_tool_call": "before_tool_call",
    "after_tool_call": "after_tool_call",
    "after_turn": "after_turn",
    "at_checkpoint": "at_checkpoint",
    "transform_assistant_stream": "transform_assistant_stream",
    "transform_assistant_response": "transform_assistant_response",
    "project_tool_result": "project_tool_result",
    "emit_runtime_event": "emit_runtime_event",
    "emit_runtime_event_with_phase_probe": "emit_runtime_event",
    "has_runtime_event_hooks": "has_runtime_event_hooks",
    "mutate_session_config": "mutate_session_config",
    "snapshot": "snapshot",
    "snapshot_is_current": "snapshot_is_current",
    "snapshot_revision_fingerprint": "snapshot_revision_fingerprint",
    "restore": "restore",
    "fork_for_session": "fork_for_session",
    "fork_for_child_session": "fork_for_child_session",
    "fork_for_session_with_tool_catalog": "fork_for_session_with_tool_catalog",
    "invoke_plugin_action": "invoke_plugin_action",
    "call_plugin_action": "call_plugin_action",
}
"""The methods of the seed's PluginSession, and their counterparts here. The runner handles probes itself."""


@pytest.mark.parametrize("method", SEED_METHODS)
def test_every_method_of_the_seed_has_a_counterpart(method: str) -> None:
    """Seed: PluginSession has a counterpart for every method."""
    session = session_of()
    assert hasattr(session, SEED_METHODS[method])


def at(runner: HookRunner | None = None) -> RunningStage:
    return RunningStage(runner or HookRunner())


def named(kind: type[Plugin], plugin_id: str) -> Plugin:
    """Return a plugin of this class under another id."""
    made: Plugin = type(kind.__name__, (kind,), {"id": plugin_id})()
    return made


class Quiet(Plugin):
    """A plugin that returns no directives."""


class Rememberer(Plugin):
    """A plugin with a state."""

    id = "rememberer"


# What there is


def test_a_session_exposes_what_it_was_built_with() -> None:
    """Seed: session_id, tool_access, subagent_context, extensions, host, tool_registry."""
    authority = SessionAuthority(
        tool_access=SessionToolAccess(tools=("look",)),
        subagent=SubagentContext(parent_session_id="p"),
    )
    session = session_of(Quiet(), build={"session_id": "mine", "authority": authority})
    assert session.session_id == "mine"
    assert session.tool_access == SessionToolAccess(tools=("look",))
    assert session.subagent_context == SubagentContext(parent_session_id="p")
    assert [plugin.id for plugin in session.plugins] == ["standard", "quiet"]
    assert [factory.id for factory in session.host.factories] == ["standard", "quiet"]
    assert isinstance(session.protocol_driver, StandardDriver)
    assert session.code_executor is None
    assert session.assistant_prose_projector is None
    assert session.plugin_actions() == []
    assert not session.has_assistant_stream_hooks()
    assert not session.has_runtime_event_hooks("turn_persisted")


def test_the_objects_that_fill_the_slots_are_found() -> None:
    """Seed: code_executor and assistant_prose_projector return the registered objects."""

    class Executor:
        async def execute_code(self, ctx: Any, request: Any) -> Any: ...

    class Prose:
        def project_assistant_prose(self, text: str) -> str:
            return text.strip()

    executor, prose = Executor(), Prose()

    class Filler(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.protocol.code_executor(executor)
            registrar.protocol.prose_projector(prose)

    session = session_of(Filler())
    found = session.code_executor
    assert found is not None
    assert found.cell_tool == "run_code"
    assert session.assistant_prose_projector is prose


def test_only_stages_with_hooks_are_requested() -> None:
    """Ours: a turn without plugins makes no requests to them."""

    class Busy(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> None: ...

        @hook
        async def compactor(self, ctx: Any) -> None: ...

        @hook
        async def checkpoint(self, ctx: Any) -> None: ...

    assert session_of(Quiet()).stages == ()
    assert session_of(Busy()).stages == ("before_turn", "prepare", "checkpoint")


# The context of a model call


def said_by(plugin_id: str, *pieces: Any) -> Plugin:
    class Sayer(Plugin):
        @hook
        async def prompt_contributor(self, ctx: Any) -> Any:
            return list(pieces)

    return named(Sayer, plugin_id)


def collected(session: PluginSession) -> list[PromptContribution]:
    return asyncio.run(session.collect_prompt_contributions(prompt_context(), at()))


def piece(content: str, slot: PromptSlot = PromptSlot.GUIDANCE, priority: int = 0) -> PromptContribution:
    return PromptContribution(content=content, slot=slot, priority=priority)


def test_prompt_contributions_are_sorted_by_slot_then_priority_in_a_stable_order() -> None:
    """Seed: sorted by slot (in the order in which the model reads them), then by ascending priority."""
    slots = [
        PromptSlot.INTRO,
        PromptSlot.EXECUTION,
        PromptSlot.GUIDANCE,
        PromptSlot.PROJECT_INSTRUCTIONS,
        PromptSlot.RUNTIME_CONTEXT,
        PromptSlot.ENVIRONMENT,
    ]
    backwards = [piece(f"{slot} {priority}", slot, priority) for slot in slots[::-1] for priority in (5, -5)]
    found = collected(session_of(said_by("a", *backwards), said_by("b", piece("b"), piece("c"))))
    assert [one.slot for one in found if one.priority] == [slot for slot in slots for _ in range(2)]
    guidance = [one.content for one in found if one.slot is PromptSlot.GUIDANCE]
    assert guidance == ["guidance -5", "b", "c", "guidance 5"]


def test_a_duplicate_contribution_is_dropped_and_the_first_wins() -> None:
    """Seed: duplicates by (slot, priority, stripped text) are dropped; the first wins."""
    session = session_of(
        said_by("a", piece(" Be kind.\n")),
        said_by("b", piece("Be kind."), piece("Be kind.", priority=1), piece("Be kind.", PromptSlot.INTRO)),
    )
    assert collected(session) == [
        piece("Be kind.", PromptSlot.INTRO),
        piece(" Be kind.\n"),
        piece("Be kind.", priority=1),
    ]


def test_an_empty_contribution_is_dropped() -> None:
    """Ours: a contribution of only white space counts as empty."""
    assert collected(session_of(said_by("a", "", "  \n"))) == []


def transforming(plugin_id: str, priority: int, mark: str) -> Plugin:
    class Marker(Plugin):
        @hook(priority=priority)
        async def context_transform(self, ctx: Any, messages: list[Message]) -> list[Message]:
            return [*messages, UserMessage(content=mark)]

    return named(Marker, plugin_id)


def test_transforms_are_chained_by_descending_priority_in_a_stable_order() -> None:
    """Seed: transforms of equal priority keep the order of their plugins."""
    session = session_of(
        transforming("a", 0, "a"),
        transforming("b", 5, "b"),
        transforming("c", 0, "c"),
        transforming("d", 9, "d"),
    )
    found = asyncio.run(session.prepare_turn_context(transform_context(), [], at()))
    assert said(found) == ["d", "b", "a", "c"]


def compacting(plugin_id: str, priority: int, seed: tuple[UserMessage, ...] | None) -> Plugin:
    class Compactor(Plugin):
        @hook(priority=priority)
        async def compactor(self, ctx: Any) -> ContextCompaction | None:
            return None if seed is None else ContextCompaction(seed=seed)

    return named(Compactor, plugin_id)


def test_the_first_non_empty_compaction_wins() -> None:
    """Seed: later compactors are not used."""
    wanted = UserMessage(content="in short")
    session = session_of(
        compacting("late", 0, (UserMessage(content="too late"),)),
        compacting("silent", 9, None),
        compacting("empty", 8, ()),
        compacting("first", 7, (wanted,)),
    )
    found = asyncio.run(session.compact_context(compaction_context(), at()))
    assert found is not None
    assert found.seed == (wanted,)
    silent = session_of(compacting("empty", 0, ()), compacting("silent", 0, None))
    assert asyncio.run(silent.compact_context(compaction_context(), at())) is None


# Turns and calls


class Tracer(Plugin):
    """A plugin that reports the stage at which it was called."""

    @hook
    async def before_turn(self, ctx: Any) -> Any:
        return EmitTrace(name=f"{self.id} before_turn")

    @hook
    async def checkpoint(self, ctx: Any) -> Any:
        return EmitTrace(name=f"{self.id} {ctx.checkpoint}")

    @hook
    async def after_turn(self, ctx: Any) -> Any:
        return EmitTrace(name=f"{self.id} after_turn")

    @hook
    async def after_tool_call(self, ctx: Any) -> Any:
        return EmitTrace(name=f"{self.id} after_tool_call")


class OtherTracer(Tracer):
    """The same plugin under another name."""


def test_every_hook_of_a_stage_is_called_in_order_and_its_directives_are_owned() -> None:
    """Seed: before_turn, at_checkpoint, after_turn and after_tool_call collect owned directives."""

    async def main() -> None:
        session = session_of(OtherTracer(), Tracer())
        outcome = Finished(text="done")
        asked = {
            "before_turn": await session.before_turn(turn_context()),
            "after_work": await session.at_checkpoint(checkpoint_context()),
            "after_turn": await session.after_turn(result_context(outcome)),
            "after_tool_call": await session.after_tool_call(tool_result_context(1)),
        }
        for stage, found in asked.items():
            assert [(one.plugin_id, one.value) for one in found] == [
                ("other-tracer", EmitTrace(name=f"other-tracer {stage}")),
                ("tracer", EmitTrace(name=f"tracer {stage}")),
            ]

    asyncio.run(main())


def test_a_stage_without_hooks_returns_nothing() -> None:
    """Ours: a stage without hooks is valid."""

    async def main() -> None:
        session = session_of(Quiet())
        assert await session.before_turn(turn_context()) == []
        assert await session.after_tool_call(tool_result_context(1)) == []
        assert await session.project_tool_result(projection_context(1)) is None

    asyncio.run(main())


# The model's reply


def echoing(plugin_id: str) -> Plugin:
    class Echo(Plugin):
        @hook
        async def assistant_stream(self, ctx: Any) -> str:
            return f"{ctx.chunk}{self.id}"

        @hook
        async def assistant_response(self, ctx: Any) -> ReplyEnded:
            return ReplyEnded(text=f"{ctx.response.text}{self.id}")

    return named(Echo, plugin_id)


def test_stream_and_response_hooks_are_chained() -> None:
    """Seed: each hook is given the text or reply of the hook before it."""

    async def main() -> None:
        session = session_of(echoing("a"), echoing("b"))
        assert session.has_assistant_stream_hooks()
        pieces = await session.transform_assistant_stream(stream_context("."))
        assert [(one.plugin_id, one.value.chunk) for one in pieces] == [("a", ".a"), ("b", ".ab")]
        replies = await session.transform_assistant_response(response_context("!"))
        assert [(one.plugin_id, one.value.response.text) for one in replies] == [("a", "!a"), ("b", "!ab")]

    asyncio.run(main())


def test_a_projector_determines_what_the_model_reads_of_a_result() -> None:
    """Seed: project_tool_result replaces what the model reads."""

    class Projector(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.tool_calls.project_result(self.project)

        async def project(self, ctx: Any) -> str:
            return f"<{ctx.value}>"

    session = session_of(Projector())
    assert asyncio.run(session.project_tool_result(projection_context(7))) == "<7>"


# Lifecycle and settings

EVENTS = {
    "turn_finalized": TurnFinalized(session_id="s", turn_id="t", outcome=Finished(text="x")),
    "turn_persisted": TurnPersisted(session_id="s", turn_id="t", outcome=Finished(text="x"), leaf="n"),
    "session_restored": SessionRestored(session_id="s", leaf="n"),
    "session_config_changed": SessionConfigChanged(session_id="s", before=None, after=SessionPolicy()),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_observers_are_notified_concurrently(kind: str) -> None:
    """Seed: lifecycle events go to all observers concurrently: the first may wait for the second."""

    async def main() -> None:
        met = asyncio.Barrier(2)
        told: list[Any] = []

        async def tell(self: Any, event: Any) -> None:
            await met.wait()
            told.append(event)

        one = type("One", (Plugin,), {kind: hook(kind)(tell)})()
        other = type("Other", (Plugin,), {kind: hook(kind)(tell)})()
        session = session_of(one, other)
        assert session.has_runtime_event_hooks(kind)
        await session.emit_runtime_event(EVENTS[kind])  # type: ignore[arg-type]
        assert told == [EVENTS[kind]] * 2

    asyncio.run(main())


def test_mutators_are_chained_and_a_failing_one_changes_nothing() -> None:
    """Seed: session config mutators are chained; one that fails leaves the policy unchanged."""

    def mutating(plugin_id: str, broken: bool = False) -> Plugin:
        class Mutator(Plugin):
            @hook
            async def session_config_mutator(self, ctx: Any, policy: SessionPolicy) -> SessionPolicy:
                if broken:
                    raise RuntimeError("boom")
                return SessionPolicy(model=f"{policy.model}{self.id}")

        return named(Mutator, plugin_id)

    ear = Ear()
    session = session_of(mutating("a"), mutating("b", broken=True), mutating("c"), ear=ear)
    changed = SessionConfigChanged(session_id="s", before=None, after=SessionPolicy(model="p:m"))
    found = asyncio.run(session.mutate_session_config(changed, SessionPolicy(model="p:m")))
    assert found.model == "p:mac"
    assert ear.reports == [
        ("b", "session_config_mutator", "plugin 'b' failed in session_config_mutator: RuntimeError: boom")
    ]


# Phases


def test_every_hook_is_probed_under_its_name(memory: Place) -> None:
    """Seed: phases are probed as `plugin_hook.{kind}.{plugin_id}`."""

    async def later(self: Any, *given: Any) -> Any:
        return given[1] if len(given) == 2 else None

    async def chunk(self: Any, ctx: Any) -> Any:
        return ctx.chunk

    async def response(self: Any, ctx: Any) -> Any:
        return ctx.response

    def plain(self: Any, *given: Any) -> Any:
        return None if given else []

    special = {"assistant_stream": chunk, "assistant_response": response}
    functions: dict[str, Any] = {
        kind: special.get(kind, plain if HOOKS[kind].plain else _copy_of(later)) for kind in HOOKS
    }
    everywhere = type("Everywhere", (Plugin,), {f"on_{kind}": hook(kind)(_copy_of(function))
                                                for kind, function in functions.items()})  # fmt: skip

    async def look() -> str:
        """Look."""
        return "seen"

    async def main() -> PhaseLog:
        log = PhaseLog()
        agent = Agent(Actor(tool="look"), tools=[look], plugins=[everywhere()])
        for _ in range(2):
            async with memory.runtime(probe=log) as runtime:
                session = await runtime.session("s", agent=agent)
                await session.turn("go")
                await session.plugins.configure(instructions="Be brief.")
        return log

    log = asyncio.run(main())
    begun = {line[1:] for line in log.lines if line.startswith("+") and line.endswith(".everywhere")}
    assert begun == {f"plugin_hook.{kind}.everywhere" for kind in HOOKS}
    assert sorted(line[1:] for line in log.lines if line[0] == "+") == sorted(
        line[1:] for line in log.lines if line[0] == "-"
    )


def _copy_of(function: Any) -> Any:
    """Return a copy of the function, so that each can carry its own mark."""
    return types.FunctionType(
        function.__code__, function.__globals__, function.__name__, None, function.__closure__
    )


# The catalog


def test_the_catalog_applies_plugins_then_the_overlay_then_the_authority() -> None:
    """Seed: contributions of plugins come first, then the session's overlay, authority last."""

    class Hider(Plugin):
        @hook
        def tool_catalog(self, ctx: ToolCatalogContext) -> ToolCatalogContribution:
            assert [one.name for one in ctx.tools] == ["a", "b", "c", "d"]
            return ToolCatalogContribution({"c": ToolAvailability.CALLABLE}, frozenset({"a"}))

    tools = [tool(name=name)(_empty) for name in "abcd"]
    session = session_of(
        Hider(),
        tools=tools,
        build={
            "overlay": ToolCatalogContribution({"b": ToolAvailability.OFF, "c": ToolAvailability.SEARCHABLE})
        },
    )
    catalog = session.resolve_tool_catalog(
        ToolCatalogContext(
            session_id="s",
            tools=session.tool_registry.manifests(),
            tool_access=SessionToolAccess(hidden_tools=("d",)),
            extensions=session.extensions,
        )
    )
    assert [(one.name, one.availability) for one in catalog.tools] == [("c", ToolAvailability.SEARCHABLE)]


async def _empty() -> str:
    """Do nothing."""
    return ""


# State


def golden(*plugins: tuple[str, str, int]) -> int:
    """Return the fingerprint, computed independently."""
    data = b"".join(
        name.encode() + b"\x00" + version.encode() + b"\x00" + struct.pack("<Q", revision) + b"\xff"
        for name, version, revision in plugins
    )
    return int(struct.unpack("<Q", hashlib.sha256(data).digest()[:8])[0])


def test_the_fingerprint_equals_an_independently_computed_sha256() -> None:
    """Seed: the first 8 bytes, little-endian, of SHA-256 over `id 00 version 00 revision(u64 LE) FF`."""

    class Alpha(Plugin):
        version = "1.4"

    class Beta(Plugin):
        id = "beta.two"

    session = session_of(Alpha(), Beta())
    start = [("standard", "1", 0), ("alpha", "1.4", 0), ("beta.two", "1", 0)]
    assert session.snapshot_revision_fingerprint() == golden(*start)
    alpha = session.plugins[1]
    assert isinstance(alpha, Alpha)
    alpha.state = 1
    for _ in range(300):
        alpha.touch()
    assert session.snapshot_revision_fingerprint() == golden(start[0], ("alpha", "1.4", 301), start[2])


def test_the_fingerprint_of_two_plugins_is_a_known_number() -> None:
    """Seed: the golden value never changes."""
    data = (
        b"standard\x001\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff"
        b"rememberer\x001\x00\x02\x00\x00\x00\x00\x00\x00\x00\xff"
    )
    expected = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
    session = session_of(Rememberer())
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.touch()
    plugin.touch()
    assert session.snapshot_revision_fingerprint() == expected == GOLDEN


GOLDEN = 14871711366668008085


def test_the_fingerprint_depends_on_the_order_of_plugins() -> None:
    """Seed: the fingerprint covers the plugins in order."""
    one, other = session_of(Quiet(), Rememberer()), session_of(Rememberer(), Quiet())
    assert one.snapshot_revision_fingerprint() != other.snapshot_revision_fingerprint()


def entry(plugin_id: str, state: Any, version: str = "1", revision: int = 1) -> PluginSnapshotEntry:
    meta = PluginSnapshotMeta(plugin_id=plugin_id, plugin_version=version, revision=revision, state=state)
    return PluginSnapshotEntry(meta=meta)


def test_a_snapshot_is_current_until_count_version_or_revision_changes() -> None:
    """Seed: snapshot_is_current compares count, versions and revisions."""
    session = session_of(Rememberer())
    snapshot, _ = session.snapshot()
    assert set(snapshot.plugins) == {"standard", "rememberer"}
    assert session.snapshot_is_current(snapshot)
    assert not session.snapshot_is_current(None)
    assert not session.snapshot_is_current(PluginSessionSnapshot())
    more = {**snapshot.plugins, "other": entry("other", 1)}
    assert not session.snapshot_is_current(PluginSessionSnapshot(plugins=more))
    renamed = {"standard": snapshot.plugins["standard"], "other": entry("other", 1)}
    assert not session.snapshot_is_current(PluginSessionSnapshot(plugins=renamed))
    newer = {**snapshot.plugins, "rememberer": entry("rememberer", None, "2", 0)}
    assert not session.snapshot_is_current(PluginSessionSnapshot(plugins=newer))
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = {"n": 1}
    assert not session.snapshot_is_current(snapshot)
    assert session.snapshot_is_current(session.snapshot()[0])


def restored(
    *entries: PluginSnapshotEntry, plugin: Plugin | None = None, ear: Ear | None = None
) -> PluginSession:
    snapshot = PluginSessionSnapshot(plugins={one.meta.plugin_id: one for one in entries})
    return session_of(plugin or Rememberer(), build={"snapshot": snapshot}, ear=ear)


def state_of(session: PluginSession) -> Any:
    plugin = session.plugins[-1]
    assert isinstance(plugin, Plugin)
    return plugin.state, plugin.revision


def test_state_is_restored() -> None:
    """Seed: a snapshot restores the state."""
    session = restored(entry("rememberer", {"n": 3}, revision=7))
    assert state_of(session) == ({"n": 3}, 7)
    assert session.changed() == {}


def test_missing_state_is_restored_as_none() -> None:
    """Seed: no entry in the snapshot means restore with state None."""
    told: list[PluginSnapshotMeta] = []

    class Asker(Plugin):
        def restore(self, meta: PluginSnapshotMeta, reader: Any) -> None:
            told.append(meta)
            assert reader.read_blob("anything") is None

    session_of(Asker())
    assert told == [PluginSnapshotMeta(plugin_id="asker", plugin_version="1", revision=0, state=None)]


def test_state_of_a_newer_version_is_refused_and_names_the_plugin() -> None:
    """Seed: restoring the state of a newer version fails."""
    with pytest.raises(PluginStateLost, match=r"plugin 'rememberer' failed in restore: .*version 2"):
        restored(entry("rememberer", {"n": 3}, version="2"))


def test_state_of_another_version_is_migrated_and_then_rewritten() -> None:
    """Ours: `migrate` converts state of another version."""

    class Migrator(Rememberer):
        id = "rememberer"
        version = "2"

        def migrate(self, state: Any, version: str) -> Any:
            return {"from": version, **state}

    session = restored(entry("rememberer", {"n": 3}), plugin=Migrator())
    assert state_of(session)[0] == {"from": "1", "n": 3}
    snapshot, _ = session.snapshot()
    assert snapshot.plugins["rememberer"].meta.plugin_version == "2"
    assert snapshot.plugins["rememberer"].meta.state == {"from": "1", "n": 3}


def test_the_state_of_an_unknown_plugin_is_kept_and_written_back() -> None:
    """Seed: restoring keeps the state of a plugin that is not installed."""
    ear = Ear()
    unknown = entry("gone", {"precious": 1}, revision=5)
    session = restored(unknown, entry("rememberer", {"n": 1}), ear=ear)
    assert ear.reports == [("gone", "restore", "it is not installed; its stored state is kept")]
    snapshot, _ = session.snapshot()
    assert snapshot.plugins["gone"] == unknown
    assert session.snapshot_is_current(snapshot)
    assert session.fork_for_session("s2").snapshot()[0].plugins["gone"] == unknown


def test_a_plugin_missing_from_the_snapshot_starts_empty() -> None:
    """Seed: a plugin without an entry in the snapshot starts empty."""
    assert state_of(restored(entry("other", 1))) == (None, 0)


def test_larger_values_are_stored_as_blobs() -> None:
    """Seed: a plugin can write and read artifacts."""

    class Hoarder(Plugin):
        heap = b""

        def snapshot(self, writer: Any) -> PluginSnapshotMeta:
            writer.write_blob("heap", self.heap)
            return super().snapshot(writer)

        def restore(self, meta: PluginSnapshotMeta, reader: Any) -> None:
            super().restore(meta, reader)
            self.heap = reader.read_blob("heap") or b""

    session = session_of(Hoarder())
    plugin = session.plugins[1]
    assert isinstance(plugin, Hoarder)
    plugin.heap = b"x" * 1000
    plugin.touch()
    other = session.fork_for_session("s2").plugins[1]
    assert isinstance(other, Hoarder)
    assert other.heap == plugin.heap


@pytest.mark.parametrize(
    "state", [object(), b"bytes", {1, 2}, float("nan"), "\ud800", {"x": {"y": object()}}]
)
def test_state_that_is_not_json_is_refused(state: Any) -> None:
    """Bug: bytes and sets were restored as other types."""
    session = session_of(Rememberer())
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = state
    with pytest.raises(PluginStateLost, match="plugin 'rememberer' failed in snapshot"):
        session.snapshot()


def test_a_tolerant_snapshot_keeps_the_last_written_state() -> None:
    """Ours: a failed turn must be stored even if a plugin cannot snapshot."""
    ear = Ear()
    session = restored(entry("rememberer", {"n": 3}), ear=ear)
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = object()
    snapshot, _ = session.snapshot(tolerant=True)
    assert snapshot.plugins["rememberer"] == entry("rememberer", {"n": 3})
    assert [(one[0], one[1]) for one in ear.reports] == [("rememberer", "snapshot")]


def test_written_state_does_not_change_with_the_plugins_own_copy() -> None:
    """Bug: changing the state in place, without `touch`, altered a stored value."""
    session = session_of(Rememberer())
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = {"list": [1]}
    snapshot, _ = session.snapshot()
    plugin.state["list"].append(2)
    assert snapshot.plugins["rememberer"].meta.state == {"list": [1]}


def test_only_changed_states_are_reported() -> None:
    """Ours: a plugin's state is journaled when its revision has risen."""
    session = session_of(Rememberer(), Quiet())
    assert session.changed() == {}
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = {"n": 1}
    assert list(session.changed()) == ["rememberer"]
    assert session.changed() == {}


def test_state_journaled_in_the_middle_of_a_turn_is_restored() -> None:
    """Ours: a turn that resumes in another process gets the state of its plugins back."""
    session = session_of(Rememberer(), Quiet())
    session.restore_changed({"rememberer": entry("rememberer", {"n": 9}, revision=4)}, {})
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    assert (plugin.state, plugin.revision) == ({"n": 9}, 4)


# Forks


def test_a_fork_has_the_state_but_no_parent_and_no_restrictions() -> None:
    """Seed: fork_for_session copies the state but neither parent nor restrictions."""
    authority = SessionAuthority(
        tool_access=SessionToolAccess(tools=("a",)), subagent=SubagentContext(parent_session_id="p")
    )
    overlay = ToolCatalogContribution(hidden=frozenset({"a"}))
    session = session_of(
        Rememberer(),
        build={"authority": authority, "overlay": overlay, "parent_session_id": "p"},
    )
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = {"n": [1]}
    fork = session.fork_for_session("s2")
    assert fork.session_id == "s2"
    assert state_of(fork) == ({"n": [1]}, 1)
    assert fork.tool_access == SessionToolAccess()
    assert fork.subagent_context is None
    assert fork.tool_catalog_overlay == overlay
    copy = fork.plugins[1]
    assert isinstance(copy, Rememberer)
    assert copy.session.parent_session_id is None
    copy.state["n"].append(2)
    assert plugin.state == {"n": [1]}


def test_a_fork_may_have_another_overlay() -> None:
    """Seed: fork_for_session_with_tool_catalog replaces the overlay."""
    session = session_of(Rememberer(), build={"overlay": ToolCatalogContribution(hidden=frozenset({"a"}))})
    other = ToolCatalogContribution({"b": ToolAvailability.OFF})
    assert session.fork_for_session_with_tool_catalog("s2", other).tool_catalog_overlay == other


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SessionToolAccess(), ["a", "b"]),
        (SessionToolAccess(tools=("b", "c")), ["b"]),
        (SessionToolAccess(tools=("c",)), []),
        (SessionToolAccess(tools=("a", "b", "c", "d"), hidden_tools=("a",)), ["b"]),
    ],
)
def test_a_child_never_has_more_tools_than_its_parent(wanted: SessionToolAccess, expected: list[str]) -> None:
    """Seed: fork_for_child_session gives no more tools than the parent has."""
    mine = SessionAuthority(tool_access=SessionToolAccess(tools=("a", "b", "c"), hidden_tools=("c",)))
    session = session_of(
        Rememberer(),
        tools=[tool(name=name)(_empty) for name in "abcd"],
        build={"authority": mine},
    )
    subagent = SubagentContext(parent_session_id="s", task="dig")
    child = session.fork_for_child_session("kid", "s", SessionAuthority(wanted, subagent))
    assert child.subagent_context == subagent
    told = child.plugins[1]
    assert isinstance(told, Rememberer)
    assert told.session.parent_session_id == "s"
    catalog = child.resolve_tool_catalog(
        ToolCatalogContext(
            session_id="kid",
            tools=child.tool_registry.manifests(),
            tool_access=child.tool_access,
            extensions=child.extensions,
        )
    )
    assert list(catalog.names) == expected


def test_a_grandchild_is_limited_by_its_grandparents_permissions() -> None:
    """Ours: permissions only shrink from parent to child."""
    mine = SessionAuthority(tool_access=SessionToolAccess(hidden_tools=("a",)))
    child = session_of(build={"authority": mine}).fork_for_child_session("kid", "s", SessionAuthority())
    grandchild = child.fork_for_child_session(
        "grandkid", "kid", SessionAuthority(SessionToolAccess(tools=("a", "b")))
    )
    assert grandchild.tool_access.select(["a", "b"]) == ["b"]


def test_a_fork_has_the_tool_settings_of_its_source() -> None:
    """Seed: a fork inherits the exported tool state."""
    session = session_of(tools=[tool(name=name)(_empty) for name in "ab"])
    registry = session.tool_registry
    registry.apply_state(registry.export_state().with_availability(["a"], ToolAvailability.OFF))
    fork = session.fork_for_session("s2").tool_registry
    assert fork.export_state() == registry.export_state()


def test_a_plugin_that_cannot_snapshot_cannot_be_forked() -> None:
    """Ours: a fork without the state would be a different session."""
    session = session_of(Rememberer())
    plugin = session.plugins[1]
    assert isinstance(plugin, Rememberer)
    plugin.state = object()
    with pytest.raises(PluginStateLost, match="'rememberer'"):
        session.fork_for_session("s2")


# Failures name the plugin


def test_the_failure_of_a_hook_names_the_plugin_and_the_hook() -> None:
    """Ours: the error shows which plugin is at fault."""

    class Broken(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> None:
            raise ValueError("boom")

    with pytest.raises(
        PluginFailed, match=re.escape("plugin 'broken' failed in before_turn: ValueError: boom")
    ):
        asyncio.run(session_of(Quiet(), Broken()).before_turn(turn_context()))


# Persistence


class Turns(Plugin):
    """A plugin that counts the turns of a session."""

    version = "1"

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.state = (self.state or 0) + 1

    @hook
    async def prompt_contributor(self, ctx: Any) -> str:
        return f"turn {self.state}"


def test_state_outlives_the_runtime_and_the_plugin(place: Place) -> None:
    """Seed: state is restored in a new process; the state of a missing plugin is kept."""

    async def main() -> list[str]:
        model = Actor()
        for plugins in ([Turns()], [Turns()], [], [Turns()]):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=Agent(model, plugins=plugins))
                await session.turn("go")
        return [one.instructions for one in model.requests]

    assert asyncio.run(main()) == ["turn 1", "turn 2", "", "turn 3"]


def test_state_of_a_newer_version_is_not_changed(place: Place) -> None:
    """Seed: state of a newer version is refused in a new process, and nothing is lost."""

    class Newer(Turns):
        id = "turns"
        version = "2"

    async def main() -> None:
        model = Actor()
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=Agent(model, plugins=[Newer()]))).turn("go")
        async with place.runtime() as runtime:
            with pytest.raises(PluginStateLost, match="'turns'"):
                await runtime.session("s", agent=Agent(model, plugins=[Turns()]))
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=Agent(model, plugins=[Newer()]))).turn("go")
        assert [one.instructions for one in model.requests] == ["turn 1", "turn 2"]

    asyncio.run(main())


def test_a_forked_session_starts_with_the_state_of_its_source(place: Place) -> None:
    """Seed: a fork keeps the state."""

    async def main() -> None:
        model = Actor()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, plugins=[Turns()]))
            await session.turn("go")
            fork = await session.fork("s2")
            await fork.turn("go")
            await session.turn("go")
        assert [one.instructions for one in model.requests] == ["turn 1", "turn 2", "turn 2"]

    asyncio.run(main())
