"""What one plugin remembers, taken on the thread of its hooks when one of them has ended.

Theory of operation
-------------------
State is written down with the inputs that made a plugin remember it (`durable/driver.py`, rule 2). Calls run
side by side, and so do their hooks, while a plugin has one state for all of them. So the hooks around a call
are a `CallStage`: it keeps the states that its hooks ended with, and knows the stages whose changes are in
those states. They are written with what came of the stage, and not before all those other stages are over.

Rules
-----
1. A plugin whose hooks run on a thread of their own is asked for its state there, and nowhere else.
2. Where no stage has changed a plugin, its newest state is written with whatever is written next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec

from standfast.errors import PluginStateLost
from standfast.model.canonical import to_json
from standfast.model.plugin_state import PluginSnapshotEntry, PluginSnapshotMeta
from standfast.plugins.running import at_once, described
from standfast.plugins.snapshot import SnapshotWriter
from standfast.ports.session_store import Blob

_MAX_STATE_BYTES: Final = 16 << 20
"""The most that a plugin may remember, besides its blobs."""


class SnapshotSource(Protocol):
    """A plugin, as far as its state goes."""

    @property
    def id(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def revision(self) -> int:
        """Rises whenever what the plugin remembers changes."""

    def snapshot(self, writer: SnapshotWriter) -> PluginSnapshotMeta: ...


class CallStage:
    """The hooks before or after one call, until what came of them is written down."""

    __slots__ = ("changes", "deliver", "is_over", "states", "within")

    def __init__(self) -> None:
        self.changes: set[str] = set()
        """The plugins whose state its hooks have changed so far."""
        self.states: dict[str, TakenState] = {}
        self.within: frozenset[CallStage] = frozenset()
        """The stages whose changes are in `states`."""
        self.is_over = False
        self.deliver: Callable[[], None] | None = None
        """Hands on what came of the stage, once that is known."""


STAGE: Final[ContextVar[CallStage | None]] = ContextVar("standfast_call_stage", default=None)
"""The stage that this code runs in, if it is a hook around a call."""


class TakenState(msgspec.Struct, frozen=True):
    """A plugin's state as it was at one time. `order` counts the states that were taken of the plugin."""

    order: int
    version: str
    revision: int
    entry: PluginSnapshotEntry
    blobs: tuple[Blob, ...]

    def is_of(self, plugin: SnapshotSource) -> bool:
        return self.revision == plugin.revision and self.version == plugin.version


class PluginMemory:
    """The states of one plugin in one session. *unwritten* are the session's stages, as they come and go.

    A plugin that does not say when it changes (`Plugin.touch`) counts as changed by every hook of its own.
    """

    def __init__(self, plugin: SnapshotSource, unwritten: set[CallStage], *, says_changes: bool) -> None:
        self.plugin = plugin
        self.latest: TakenState | None = None
        """The newest state that was taken outside of all stages."""
        self.problem: PluginStateLost | None = None
        """Why the newest state could not be taken."""
        self._unwritten = unwritten
        self._says_changes = says_changes
        self._order = 0
        self._seen = -1

    @property
    def order(self) -> int:
        """How many states were taken."""
        return self._order

    @property
    def is_seen(self) -> bool:
        """Whether the state as it is now was taken, for a stage or for none."""
        return self.plugin.revision == self._seen

    def stands(self) -> None:
        """Take the plugin's state for known: it was restored just now."""
        self._seen, self.latest = self.plugin.revision, None

    def changed_by(self) -> list[CallStage]:
        """The stages that have changed the plugin and are not written yet."""
        return [stage for stage in list(self._unwritten) if self.plugin.id in stage.changes]

    def hook_begins(self) -> None:
        if not self._says_changes and (stage := STAGE.get()) is not None:
            stage.changes.add(self.plugin.id)

    def hook_ended(self) -> None:
        """Take the state if the hook that ends here has changed it. Raises nothing."""
        stage, plugin_id = STAGE.get(), self.plugin.id
        if stage is None:
            # A change beside calls is not to be told apart from that of a call whose outcome is to come.
            if not self.is_seen and not self.changed_by():
                self.refresh()
        elif plugin_id in stage.changes and (taken := self._taken()) is not None:
            stage.states[plugin_id] = taken
            stage.within |= frozenset(one for one in self.changed_by() if one is not stage)

    def refresh(self) -> None:
        """Take the state as it is now. Raises nothing."""
        self.latest = self._taken() or self.latest

    def _taken(self) -> TakenState | None:
        plugin = self.plugin
        version, revision = plugin.version, plugin.revision  # before the state: a tool may change both
        try:
            entry, blobs = snapshot_of(plugin)
        except PluginStateLost as error:
            self.problem = error
            return None
        self._order, self._seen, self.problem = self._order + 1, revision, None
        return TakenState(self._order, version, revision, entry, tuple(blobs))


def snapshot_of(plugin: SnapshotSource) -> tuple[PluginSnapshotEntry, list[Blob]]:
    """What the plugin remembers now, copied and checked; `PluginStateLost` if it cannot be kept."""
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
