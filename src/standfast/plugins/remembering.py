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
from typing import Final

import msgspec

from standfast.errors import PluginStateLost
from standfast.model.canonical import to_json
from standfast.model.plugin_state import PluginSessionSnapshot, PluginSnapshotEntry, PluginSnapshotMeta
from standfast.plugins.plugin import SessionPlugin
from standfast.plugins.running import BuildStep, at_once, described
from standfast.plugins.snapshot import NO_ARTIFACTS, ArtifactReader, SnapshotWriter
from standfast.ports.session_store import Blob

Report = Callable[[str, str, str], None]
"""Hears of what was not fatal: a plugin, a hook, a problem."""

_MAX_STATE_BYTES: Final = 16 << 20
"""So much may a plugin remember, besides its blobs."""


class _Kept(msgspec.Struct):
    """A plugin's state as it was last written down."""

    version: str
    revision: int
    entry: PluginSnapshotEntry


class RememberingPlugins:
    """The plugins of a session, as far as their memory goes."""

    def __init__(self, plugins: Sequence[SessionPlugin], report: Report, step: BuildStep) -> None:
        self.plugins = tuple(plugins)
        self.step = step
        self._report = report
        self._written: dict[str, _Kept] = {}
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
            entries[plugin.id], blobs = _snapshot_of(plugin)
            pieces.update({blob.digest: blob.data for blob in blobs})
        return PluginSessionSnapshot(plugins=entries), pieces

    def changed(self) -> dict[str, tuple[PluginSnapshotEntry, tuple[Blob, ...]]]:
        """What plugins remember that was not written down yet, and with that is."""
        revisions = [plugin.revision for plugin in self.plugins]
        if revisions == self._noted:
            return {}
        self._noted = revisions
        found = {}
        for plugin in self.plugins:
            if not self._is_written(plugin):
                blobs: list[Blob] = []
                entry = self._written_down(plugin, blobs, True)
                if entry is not None:
                    found[plugin.id] = (entry, tuple(blobs))
        return found

    def _is_written(self, plugin: SessionPlugin) -> bool:
        kept = self._written.get(plugin.id)
        if kept is None:
            return plugin.revision == 0
        return kept.revision == plugin.revision and kept.version == plugin.version

    def _written_down(
        self, plugin: SessionPlugin, blobs: list[Blob], tolerant: bool
    ) -> PluginSnapshotEntry | None:
        kept = self._written.get(plugin.id)
        if kept is not None and self._is_written(plugin):
            return kept.entry
        revision = plugin.revision  # before the state: a hook on another thread may change both meanwhile
        try:
            entry, mine = _snapshot_of(plugin)
        except PluginStateLost as error:
            if not tolerant:
                raise
            self._report(plugin.id, "snapshot", error.message)
            return None if kept is None else kept.entry
        stored = set() if kept is None else set(kept.entry.artifacts.values())
        blobs += [blob for blob in mine if blob.digest not in stored]
        self._written[plugin.id] = _Kept(plugin.version, revision, entry)
        return entry

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
        if entry is None:
            meta = PluginSnapshotMeta(
                plugin_id=plugin.id, plugin_version=plugin.version, revision=plugin.revision
            )
            _restore(plugin, meta, NO_ARTIFACTS)
            return
        _restore(plugin, entry.meta, ArtifactReader(entry.artifacts, fetched))
        if entry.meta.plugin_version == plugin.version:
            self._written[plugin.id] = _Kept(plugin.version, plugin.revision, entry)

    def restore_changed(
        self, entries: Mapping[str, PluginSnapshotEntry], fetched: Mapping[str, bytes]
    ) -> None:
        """Give plugins what they remembered in the middle of a turn."""
        absent = dict(entries)
        for plugin in self.plugins:
            if plugin.id in entries:
                self.restore_one(plugin, absent.pop(plugin.id), fetched)
        self._absent.update(absent)


def _snapshot_of(plugin: SessionPlugin) -> tuple[PluginSnapshotEntry, list[Blob]]:
    writer = SnapshotWriter()
    try:
        meta = at_once(plugin.snapshot(writer))
        state, size = to_json(meta.state)  # a copy: the plugin goes on with its own
        if size > _MAX_STATE_BYTES:
            raise ValueError(f"its state is {size} bytes, the limit is {_MAX_STATE_BYTES}: write a blob")
        entry = PluginSnapshotEntry(
            meta=msgspec.structs.replace(meta, state=state), artifacts=writer.artifacts
        )
        msgspec.json.decode(msgspec.json.encode(entry), type=PluginSnapshotEntry)
    except PluginStateLost:
        raise
    except BaseException as error:
        raise PluginStateLost(plugin.id, "snapshot", described(error)) from error
    return entry, writer.blobs


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
