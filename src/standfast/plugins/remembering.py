"""What the plugins of a session remember: written down, compared with what was, and given back to them.

Rules
-----
1. Nothing is written down that has not changed; what has is told by a plugin's revision.
2. What is written down is a copy, checked for its size and that it can be read back.
3. What a plugin that is not installed had kept is kept for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from standfast.errors import PluginStateLost
from standfast.model.plugin_state import PluginSessionSnapshot, PluginSnapshotEntry, PluginSnapshotMeta
from standfast.plugins.plugin import SessionPlugin
from standfast.plugins.plugin_memory import CallStage, PluginMemory, TakenState, snapshot_of
from standfast.plugins.running import BuildStep, PluginPlace, at_once, described
from standfast.plugins.snapshot import NO_ARTIFACTS, ArtifactReader
from standfast.ports.session_store import Blob

Report = Callable[[str, str, str], None]
"""Hears of what was not fatal: a plugin, a hook, a problem."""


class RememberingPlugins:
    """The plugins of a session, as far as their memory goes."""

    def __init__(
        self,
        plugins: Sequence[SessionPlugin],
        places: Mapping[str, PluginPlace],
        report: Report,
        step: BuildStep,
    ) -> None:
        self.plugins = tuple(plugins)
        self.unwritten: set[CallStage] = set()
        """The hooks around calls whose outcome is not written down yet."""
        self._places = places
        self.step = step
        self._report = report
        self._written: dict[str, TakenState] = {}
        self._absent: dict[str, PluginSnapshotEntry] = {}
        self._noted: list[int] | None = None
        self._fingerprint = 0
        self._fingerprinted: list[int] | None = None

    def snapshot(self, *, tolerant: bool = False) -> tuple[PluginSessionSnapshot, tuple[Blob, ...]]:
        """What all plugins remember, and the blobs of it that are new.

        A plugin that cannot say raises `PluginStateLost`; if *tolerant*, it keeps what it last had.
        """
        entries = dict(self._absent)
        blobs: list[Blob] = []
        for plugin in self.plugins:
            entry = self._written_down(plugin, blobs, tolerant)
            if entry is not None:
                entries[plugin.id] = entry
        return PluginSessionSnapshot(plugins=entries), tuple(blobs)

    def copied(self, step: BuildStep | None = None) -> tuple[PluginSessionSnapshot, dict[str, bytes]]:
        """What all plugins remember now, and every piece of it that an installed one has, by its digest.

        *step* is told which plugin is asked.
        """
        step = step or BuildStep()
        entries = dict(self._absent)
        pieces: dict[str, bytes] = {}
        for plugin in self.plugins:
            step.begin(plugin.id, "snapshot")
            entries[plugin.id], blobs = snapshot_of(plugin)
            pieces.update({blob.digest: blob.data for blob in blobs})
        return PluginSessionSnapshot(plugins=entries), pieces

    def written(self) -> PluginSessionSnapshot:
        """What was last written down of all plugins."""
        entries = {name: taken.entry for name, taken in self._written.items()}
        return PluginSessionSnapshot(plugins={**self._absent, **entries})

    def changed(
        self, stage: CallStage | None = None
    ) -> dict[str, tuple[PluginSnapshotEntry, tuple[Blob, ...]]]:
        """What plugins remember that was not written down yet, and with that is.

        That is what the hooks of *stage*, whose outcome is written now, made them remember; and what they
        remember otherwise, unless a stage that is still to be written has changed it.
        """
        if stage is not None:
            self.unwritten.discard(stage)
        states = {} if stage is None else stage.states
        revisions = [plugin.revision for plugin in self.plugins]
        if not states and revisions == self._noted:
            return {}
        found = {}
        for plugin in self.plugins:
            if not self._is_written(plugin):
                newest = self._newest(plugin, states.get(plugin.id))
                if newest is not None:
                    found[plugin.id] = (newest.entry, self._write(plugin, newest))
        # A plugin that cannot say what it remembers is asked again when it has changed again.
        is_all = not self.unwritten and all(
            self._places[one.id].away is None or self._is_written(one) for one in self.plugins
        )
        self._noted = revisions if is_all else None
        return found

    def _newest(self, plugin: SessionPlugin, staged: TakenState | None) -> TakenState | None:
        """The newest state of a plugin that may be written now, if it is newer than what is written."""
        memory = self._memory(plugin)
        latest = None
        if not memory.changed_by():
            if self._places[plugin.id].away is None and not self.is_known(plugin):
                memory.refresh()
            self._report_problem(memory)
            latest = memory.latest
        known = [one for one in (staged, latest, self._written.get(plugin.id)) if one is not None]
        newest = max(known, key=lambda one: one.order, default=None)
        return None if newest is self._written.get(plugin.id) else newest

    def _write(self, plugin: SessionPlugin, taken: TakenState) -> tuple[Blob, ...]:
        """Take a state for written down; the blobs of it that are new."""
        kept = self._written.get(plugin.id)
        stored = set() if kept is None else set(kept.entry.artifacts.values())
        self._written[plugin.id] = taken
        return tuple(blob for blob in taken.blobs if blob.digest not in stored)

    def _memory(self, plugin: SessionPlugin) -> PluginMemory:
        memory = self._places[plugin.id].memory
        assert isinstance(memory, PluginMemory)
        return memory

    def _report_problem(self, memory: PluginMemory) -> None:
        problem, memory.problem = memory.problem, None
        if problem is not None:
            self._report(memory.plugin.id, "snapshot", problem.message)

    def _is_written(self, plugin: SessionPlugin) -> bool:
        kept = self._written.get(plugin.id)
        return plugin.revision == 0 if kept is None else kept.is_of(plugin)

    def is_known(self, plugin: SessionPlugin) -> bool:
        """Whether the state of a plugin as it is now was taken."""
        kept, latest = self._written.get(plugin.id), self._memory(plugin).latest
        return any(one is not None and one.is_of(plugin) for one in (kept, latest))

    def _written_down(
        self, plugin: SessionPlugin, blobs: list[Blob], tolerant: bool
    ) -> PluginSnapshotEntry | None:
        kept = self._written.get(plugin.id)
        if kept is not None and self._is_written(plugin):
            return kept.entry
        memory = self._memory(plugin)
        if self._places[plugin.id].away is None and not self.is_known(plugin):
            memory.refresh()
        if memory.problem is not None:
            if not tolerant:
                problem, memory.problem = memory.problem, None
                raise problem
            self._report_problem(memory)
        latest = memory.latest
        if latest is not None and (kept is None or latest.order > kept.order):
            blobs += self._write(plugin, latest)
            return latest.entry
        return None if kept is None else kept.entry

    def snapshot_is_current(self, previous: PluginSessionSnapshot | None) -> bool:
        """Whether *previous* is what the plugins remember: as many, of these versions and revisions."""
        if previous is None or len(previous.plugins) != len(self.plugins) + len(self._absent):
            return False
        for plugin in self.plugins:
            entry = previous.plugins.get(plugin.id)
            if entry is None:
                return False
            if (entry.meta.plugin_version, entry.meta.revision) != (plugin.version, plugin.revision):
                return False
        return all(previous.plugins.get(name) == entry for name, entry in self._absent.items())

    def filled_up(self, stored: PluginSessionSnapshot) -> PluginSessionSnapshot:
        """Return what was *stored*, with the plugins that had nothing to remember then."""
        silent = {
            plugin.id: PluginSnapshotEntry(
                meta=PluginSnapshotMeta(plugin_id=plugin.id, plugin_version=plugin.version, revision=0)
            )
            for plugin in self.plugins
            if plugin.id not in stored.plugins
        }
        return PluginSessionSnapshot(plugins={**stored.plugins, **silent}) if silent else stored

    def snapshot_revision_fingerprint(self) -> int:
        """A number that changes whenever a plugin, its version or its revision does."""
        revisions = [plugin.revision for plugin in self.plugins]
        if revisions != self._fingerprinted:
            self._fingerprint, self._fingerprinted = self._fingerprint_now(), revisions
        return self._fingerprint

    def _fingerprint_now(self) -> int:
        hasher = hashlib.sha256()
        for plugin in self.plugins:
            hasher.update(
                b"%b\x00%b\x00%b\xff"
                % (plugin.id.encode(), plugin.version.encode(), plugin.revision.to_bytes(8, "little"))
            )
        return int.from_bytes(hasher.digest()[:8], "little")

    def restore(self, snapshot: PluginSessionSnapshot, fetched: Mapping[str, bytes] | None = None) -> None:
        """Give each plugin what it remembers, or nothing if it has never said anything."""
        known = {plugin.id for plugin in self.plugins}
        self._absent = {name: entry for name, entry in snapshot.plugins.items() if name not in known}
        for name in self._absent:
            self._report(name, "restore", "it is not installed; what it remembers is kept for it")
        for plugin in self.plugins:
            self.restore_one(plugin, snapshot.plugins.get(plugin.id), fetched or {})

    def restore_one(
        self, plugin: SessionPlugin, entry: PluginSnapshotEntry | None, fetched: Mapping[str, bytes]
    ) -> None:
        self.step.begin(plugin.id, "restore")
        memory = self._memory(plugin)
        if entry is None:
            meta = PluginSnapshotMeta(
                plugin_id=plugin.id, plugin_version=plugin.version, revision=plugin.revision
            )
            _restore(plugin, meta, NO_ARTIFACTS)
            memory.stands()
            return
        _restore(plugin, entry.meta, ArtifactReader(entry.artifacts, fetched))
        if entry.meta.plugin_version == plugin.version:
            memory.stands()
            self._written[plugin.id] = TakenState(memory.order, plugin.version, plugin.revision, entry, ())

    def restore_changed(
        self, entries: Mapping[str, PluginSnapshotEntry], fetched: Mapping[str, bytes]
    ) -> None:
        """Give plugins what they remembered in the middle of a turn."""
        absent = dict(entries)
        for plugin in self.plugins:
            if plugin.id in entries:
                self.restore_one(plugin, absent.pop(plugin.id), fetched)
        self._absent.update(absent)


def _restore(plugin: SessionPlugin, meta: PluginSnapshotMeta, reader: ArtifactReader) -> None:
    try:
        at_once(plugin.restore(meta, reader))  # type: ignore[func-returns-value]  # unless it is `async def`
    except PluginStateLost:
        raise
    except BaseException as error:
        raise PluginStateLost(
            plugin.id,
            "restore",
            described(error),
            hint="the session was not changed; open it with the version of the plugin that wrote its state",
        ) from error
