"""The states of a session's plugins: capture, compare with the stored ones, restore.

Theory of operation
-------------------
A state is journaled with the inputs that led to it (`durable/driver.py`, rule 2). Calls and their hooks run
concurrently, while a plugin has one state for all of them. So the hooks around a call form a `CallStage`,
which records the plugin states when its hooks ended, and the other stages whose changes those states contain.
These states are journaled with the outcome of the stage, and only when all those other stages are over.

Rules
-----
1. Only changed states are written; a change is detected by the plugin's revision.
2. A written state is a copy, whose size and JSON form were checked.
3. A plugin whose hooks run on a separate thread is asked for its state only on that thread.
4. If no stage has changed a plugin, its newest state is written with the next input.
5. The state of a plugin that is no longer installed is kept until it is installed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from standfast.errors import PluginStateLost
from standfast.model.canonical import to_json
from standfast.model.plugin_state import (
    PluginSessionSnapshot,
    PluginSnapshotEntry,
    PluginSnapshotMeta,
)
from standfast.plugins.running import BuildStep, NoAnswer, PluginPlace, at_once, within
from standfast.plugins.snapshot import NO_ARTIFACTS, SnapshotReader, SnapshotWriter
from standfast.plugins.stored_states import StoredEntry
from standfast.ports.session_store import Blob
from standfast.tools.tracebacks import described

_MAX_STATE_BYTES: Final = 16 << 20
"""The largest state of a plugin, not counting its blobs."""

Report = Callable[[str, str, str], None]
"""A function that reports a non-fatal problem: plugin id, hook, message."""

revision_of: Final[Callable[[StatefulPlugin], int]] = attrgetter("revision")


class StatefulPlugin(Protocol):
    """The part of a plugin that concerns its state."""

    @property
    def id(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def revision(self) -> int:
        """A number that increases whenever the plugin's state changes."""

    def snapshot(self, writer: SnapshotWriter) -> PluginSnapshotMeta: ...

    def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
        """Adopt the stored state, which is None if there is none."""


class CallStage:
    """The hooks before or after one call, until their outcome is journaled."""

    __slots__ = ("changes", "deliver", "is_over", "states", "within")

    def __init__(self) -> None:
        self.changes: set[str] = set()
        """The plugins whose state the stage's hooks have changed so far."""
        self.states: dict[str, TakenState] = {}
        self.within: frozenset[CallStage] = frozenset()
        """The stages whose changes are in `states`."""
        self.is_over = False
        self.deliver: Callable[[], None] | None = None
        """The function that delivers the stage's outcome, once that is known."""


STAGE: Final[ContextVar[CallStage | None]] = ContextVar("standfast_call_stage", default=None)
"""The stage that this code runs in, if it is a hook around a call."""


class TakenState(msgspec.Struct, frozen=True):
    """A captured state of a plugin. `order` counts the states captured from the plugin."""

    order: int
    version: str
    revision: int
    entry: PluginSnapshotEntry
    blobs: tuple[Blob, ...]

    def is_of(self, plugin: StatefulPlugin) -> bool:
        return self.revision == plugin.revision and self.version == plugin.version


class PluginMemory:
    """The states captured from one plugin in one session. *unwritten* are the session's open stages.

    A plugin whose revision does not announce changes (`Plugin.touch`) counts as changed by each of its hooks.
    """

    __slots__ = ("_says_changes", "_seen", "_unwritten", "latest", "order", "plugin", "problem")

    def __init__(self, plugin: StatefulPlugin, unwritten: set[CallStage], *, says_changes: bool) -> None:
        self.plugin = plugin
        self.latest: TakenState | None = None
        """The newest state that was captured outside of any stage."""
        self.problem: PluginStateLost | None = None
        """Why the newest state could not be captured."""
        self.order = 0
        """How many states were captured."""
        self._unwritten = unwritten
        self._says_changes = says_changes
        self._seen = -1

    @property
    def is_seen(self) -> bool:
        """Whether the current state has been captured, within a stage or outside."""
        return self.plugin.revision == self._seen

    def restored(self) -> None:
        """Mark the current state as captured, because it was just restored."""
        self._seen, self.latest = self.plugin.revision, None

    def changed_by(self) -> list[CallStage]:
        """Return the stages that have changed the plugin and are not written yet."""
        return [stage for stage in list(self._unwritten) if self.plugin.id in stage.changes]

    def hook_begins(self) -> None:
        if not self._says_changes and (stage := STAGE.get()) is not None:
            stage.changes.add(self.plugin.id)

    def hook_ended(self) -> None:
        """Capture the state if the hook that has just ended changed it. Never raises."""
        stage, plugin_id = STAGE.get(), self.plugin.id
        if stage is None:
            # This change is indistinguishable from one by a call whose outcome is not journaled yet.
            if not self.is_seen and not self.changed_by():
                self.refresh()
        elif plugin_id in stage.changes and (taken := self._take()) is not None:
            stage.states[plugin_id] = taken
            stage.within |= frozenset(one for one in self.changed_by() if one is not stage)

    def refresh(self) -> None:
        """Capture the current state. Never raises."""
        self.latest = self._take() or self.latest

    def _take(self) -> TakenState | None:
        plugin = self.plugin
        version, revision = plugin.version, plugin.revision  # read before the state: a tool may change both
        try:
            entry, blobs = snapshot_of(plugin)
        except PluginStateLost as error:
            self.problem = error
            return None
        self.order, self._seen, self.problem = self.order + 1, revision, None
        return TakenState(self.order, version, revision, entry, tuple(blobs))


def snapshot_of(plugin: StatefulPlugin) -> tuple[PluginSnapshotEntry, list[Blob]]:
    """Copy and check the plugin's current state; raise `PluginStateLost` if it cannot be stored."""
    writer = SnapshotWriter()
    try:
        meta = at_once(plugin.snapshot(writer))
        state, size = to_json(meta.state)  # a copy, because the plugin continues to change its own
        if size > _MAX_STATE_BYTES:
            raise ValueError(f"its state is {size} bytes, the limit is {_MAX_STATE_BYTES}: use blobs")
        entry = PluginSnapshotEntry(
            meta=msgspec.structs.replace(meta, state=state), artifacts=writer.artifacts
        )
        msgspec.json.decode(msgspec.json.encode(entry), type=PluginSnapshotEntry)
    except PluginStateLost:
        raise
    except BaseException as error:
        raise PluginStateLost(plugin.id, "snapshot", described(error)) from error
    return entry, writer.blobs


@lru_cache(maxsize=256)
def _fingerprint(plugins: tuple[tuple[str, str, int], ...]) -> int:
    """Return the plugin revision: a digest of the id, version and revision of each plugin, in order."""
    hasher = hashlib.sha256()
    for plugin_id, version, revision in plugins:
        hasher.update(
            b"%b\x00%b\x00%b\xff" % (plugin_id.encode(), version.encode(), revision.to_bytes(8, "little"))
        )
    return int.from_bytes(hasher.digest()[:8], "little")


@lru_cache(maxsize=256)
def _no_states(plugins: tuple[tuple[str, str], ...]) -> PluginSessionSnapshot:
    """Return empty entries for plugins with these ids and versions, shared by the sessions that have them."""
    return PluginSessionSnapshot(
        plugins={
            name: PluginSnapshotEntry(
                meta=PluginSnapshotMeta(plugin_id=name, plugin_version=version, revision=0)
            )
            for name, version in plugins
        }
    )


class PluginStates:
    """The states of a session's plugins."""

    __slots__ = (
        "_absent", "_away", "_noted", "_places", "_report", "_timeout_s",
        "_written", "plugins", "step", "unwritten",
    )  # fmt: skip

    def __init__(
        self,
        plugins: Sequence[StatefulPlugin],
        places: Mapping[str, PluginPlace],
        report: Report,
        step: BuildStep,
        timeout_s: float,
    ) -> None:
        self.plugins = tuple(plugins)
        self.unwritten: set[CallStage] = set()
        """The hooks around calls whose outcome is not journaled yet."""
        self.step = step
        self._places = places
        self._away = tuple(one for one in self.plugins if places[one.id].away is not None)
        """The plugins whose hooks run on a separate thread."""
        self._report = report
        self._timeout_s = timeout_s
        self._written: dict[str, TakenState] = {}
        self._absent: dict[str, PluginSnapshotEntry] = {}
        self._noted: list[int] | None = None

    def _memory(self, plugin: StatefulPlugin) -> PluginMemory:
        memory = self._places[plugin.id].memory
        assert isinstance(memory, PluginMemory)
        return memory

    def snapshot(self, *, tolerant: bool = False) -> tuple[PluginSessionSnapshot, tuple[Blob, ...]]:
        """Return all states and their new blobs.

        Raise `PluginStateLost` if a plugin cannot snapshot; if *tolerant*, use its last known state.
        """
        entries = dict(self._absent)
        blobs: list[Blob] = []
        for plugin in self.plugins:
            kept = self._written.get(plugin.id)
            if kept is None or not kept.is_of(plugin):
                memory = self._memory(plugin)
                self._refresh_here(plugin, memory)
                if memory.problem is not None and not tolerant:
                    problem, memory.problem = memory.problem, None
                    raise problem
                self._report_problem(memory)
                latest = memory.latest
                if latest is not None and (kept is None or latest.order > kept.order):
                    blobs += self._write(plugin, latest)
                    kept = latest
            if kept is not None:
                entries[plugin.id] = kept.entry
        return PluginSessionSnapshot(plugins=entries), tuple(blobs)

    def copied(self, step: BuildStep | None = None) -> tuple[PluginSessionSnapshot, dict[str, bytes]]:
        """Return the current states of all plugins, and their blobs by digest."""
        step = step or BuildStep()
        entries = dict(self._absent)
        pieces: dict[str, bytes] = {}
        for plugin in self.plugins:
            step.begin(plugin.id, "snapshot")
            entries[plugin.id], blobs = snapshot_of(plugin)
            pieces.update({blob.digest: blob.data for blob in blobs})
        return PluginSessionSnapshot(plugins=entries), pieces

    def written(self) -> PluginSessionSnapshot:
        """Return the states as they were last written."""
        entries = {name: taken.entry for name, taken in self._written.items()}
        return PluginSessionSnapshot(plugins={**self._absent, **entries})

    def changed(self, stage: CallStage | None = None) -> dict[str, StoredEntry]:
        """Return the states that are not written yet, and mark them as written.

        These are the states at the end of *stage*, whose outcome is written now, and those of plugins that no
        unwritten stage has changed.
        """
        if stage is not None:
            self.unwritten.discard(stage)
        states = {} if stage is None else stage.states
        revisions = list(map(revision_of, self.plugins))
        if not states and revisions == self._noted:
            return {}
        found = {}
        for plugin in self.plugins:
            if not self._is_written(plugin):
                newest = self._newest(plugin, states.get(plugin.id))
                if newest is not None:
                    found[plugin.id] = (newest.entry, self._write(plugin, newest))
        # A plugin that could not snapshot is asked again after its next change.
        is_all = not self.unwritten and all(
            self._places[one.id].away is None or self._is_written(one) for one in self.plugins
        )
        self._noted = revisions if is_all else None
        return found

    def _newest(self, plugin: StatefulPlugin, staged: TakenState | None) -> TakenState | None:
        """Return the newest state that may be written now, if it is newer than the written one."""
        memory, written, latest = self._memory(plugin), self._written.get(plugin.id), None
        if not memory.changed_by():
            self._refresh_here(plugin, memory)
            self._report_problem(memory)
            latest = memory.latest
        known = [one for one in (staged, latest, written) if one is not None]
        newest = max(known, key=lambda one: one.order, default=None)
        return None if newest is written else newest

    def _refresh_here(self, plugin: StatefulPlugin, memory: PluginMemory) -> None:
        """Capture the state if necessary, unless the plugin's hooks run on a separate thread."""
        if self._places[plugin.id].away is None and not self._is_known(plugin):
            memory.refresh()

    def _write(self, plugin: StatefulPlugin, taken: TakenState) -> tuple[Blob, ...]:
        """Mark a state as written; return its new blobs."""
        kept = self._written.get(plugin.id)
        stored = set() if kept is None else set(kept.entry.artifacts.values())
        self._written[plugin.id] = taken
        return tuple(blob for blob in taken.blobs if blob.digest not in stored)

    def _report_problem(self, memory: PluginMemory) -> None:
        problem, memory.problem = memory.problem, None
        if problem is not None:
            self._report(memory.plugin.id, "snapshot", problem.message)

    def _is_written(self, plugin: StatefulPlugin) -> bool:
        kept = self._written.get(plugin.id)
        return plugin.revision == 0 if kept is None else kept.is_of(plugin)

    def _is_known(self, plugin: StatefulPlugin) -> bool:
        kept, latest = self._written.get(plugin.id), self._memory(plugin).latest
        return any(one is not None and one.is_of(plugin) for one in (kept, latest))

    @property
    def has_plugins_away(self) -> bool:
        """Whether there are plugins whose hooks run on a separate thread."""
        return bool(self._away)

    @property
    def has_unknown_states(self) -> bool:
        """Whether a plugin on a separate thread has changed since its state was last captured."""
        return any(one.revision and not self._memory(one).is_seen for one in self._away)

    async def take_states(self) -> None:
        """Capture the changed states of plugins whose hooks run on a separate thread, on that thread."""
        for plugin in self.plugins:
            away, memory = self._places[plugin.id].away, self._memory(plugin)
            if away is None or self._is_known(plugin):
                continue

            async def refresh(memory: PluginMemory = memory) -> None:
                memory.refresh()

            try:
                await within(self._timeout_s, away.run(refresh))
            except NoAnswer as problem:
                memory.problem = PluginStateLost(plugin.id, "snapshot", str(problem))

    def snapshot_is_current(self, previous: PluginSessionSnapshot | None) -> bool:
        """Return whether *previous* has exactly these plugins, with their versions and revisions."""
        if previous is None or len(previous.plugins) != len(self.plugins) + len(self._absent):
            return False
        for plugin in self.plugins:
            entry = previous.plugins.get(plugin.id)
            if entry is None:
                return False
            if (entry.meta.plugin_version, entry.meta.revision) != (plugin.version, plugin.revision):
                return False
        return not self._absent or all(
            previous.plugins.get(name) == entry for name, entry in self._absent.items()
        )

    def filled_up(self, stored: PluginSessionSnapshot) -> PluginSessionSnapshot:
        """Return *stored* with empty entries for the plugins that had no state."""
        empty = _no_states(tuple([(it.id, it.version) for it in self.plugins if it.id not in stored.plugins]))
        if not stored.plugins:
            return empty
        return PluginSessionSnapshot(plugins={**stored.plugins, **empty.plugins}) if empty.plugins else stored

    def snapshot_revision_fingerprint(self) -> int:
        """Return a number that changes whenever a plugin, its version or its revision does."""
        return _fingerprint(tuple([(it.id, it.version, it.revision) for it in self.plugins]))

    def restore(self, snapshot: PluginSessionSnapshot, fetched: Mapping[str, bytes] | None = None) -> None:
        """Give each plugin its stored state, or none if it has never had one."""
        known = {plugin.id for plugin in self.plugins}
        self._absent = {name: entry for name, entry in snapshot.plugins.items() if name not in known}
        for name in self._absent:
            self._report(name, "restore", "it is not installed; its stored state is kept")
        for plugin in self.plugins:
            self._restore_one(plugin, snapshot.plugins.get(plugin.id), fetched or {})

    def restore_changed(
        self, entries: Mapping[str, PluginSnapshotEntry], fetched: Mapping[str, bytes]
    ) -> None:
        """Restore the plugin states that an unfinished turn has journaled."""
        absent = dict(entries)
        for plugin in self.plugins:
            if plugin.id in entries:
                self._restore_one(plugin, absent.pop(plugin.id), fetched)
        self._absent.update(absent)

    def _restore_one(
        self, plugin: StatefulPlugin, entry: PluginSnapshotEntry | None, fetched: Mapping[str, bytes]
    ) -> None:
        self.step.begin(plugin.id, "restore")
        memory = self._memory(plugin)
        if entry is None:
            revision = plugin.revision
            meta = PluginSnapshotMeta(plugin_id=plugin.id, plugin_version=plugin.version, revision=revision)
            reader = NO_ARTIFACTS
        else:
            meta, reader = entry.meta, SnapshotReader(entry.artifacts, fetched)
        try:
            at_once(plugin.restore(meta, reader))  # type: ignore[func-returns-value]  # may be `async def`
        except PluginStateLost:
            raise
        except BaseException as error:
            raise PluginStateLost(
                plugin.id,
                "restore",
                described(error),
                hint="open the session with the plugin version that wrote the state, which is unchanged",
            ) from error
        if meta.plugin_version == plugin.version:
            memory.restored()
            if entry is not None:
                taken = TakenState(memory.order, plugin.version, plugin.revision, entry, ())
                self._written[plugin.id] = taken
