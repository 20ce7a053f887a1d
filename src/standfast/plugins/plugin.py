"""The plugin interfaces of the kernel, and `Plugin`, a convenient base class that implements them.

Theory of operation
-------------------
A *factory* builds one *session plugin* for each session. A `Plugin` is both: the instance passed to an agent
is a template. Each session gets a copy of it, which registers its hooks, tools and actions, and then gets its
stored state.

Rules
-----
1. Sessions share nothing through a `Plugin`: its attributes are deep-copied. Create objects that must not be
   copied in `session_ready`.
2. A plugin's state is the JSON value `state`. It is stored whenever `revision` has increased. Assigning
   `state` increases it; code that changes the state in place must call `touch`.
3. `version` is the version of the state's format. State of another version is refused unless `migrate` can
   convert it.
4. The hooks of all plugins of a session run on one event loop separate from the runtime's, so that a hook
   that blocks does not delay other sessions. The hooks of a class that declares `loop = "runtime"` run on the
   runtime's loop; subclasses do not inherit the declaration.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from standfast.errors import InvalidArgument, InvalidPlugin, PluginStateLost
from standfast.model.canonical import Json
from standfast.model.plugin_options import NO_OPTIONS, PluginOptions
from standfast.model.plugin_state import PluginSnapshotMeta
from standfast.plugins.actions import action_mark
from standfast.plugins.contexts import PluginExtensions, PluginStorage, SubagentContext
from standfast.plugins.hook import mark_of
from standfast.plugins.plugin_states import STAGE, StatefulPlugin
from standfast.plugins.snapshot import SnapshotReader, SnapshotWriter
from standfast.tools.decorator import Tool, ToolMethod
from standfast.tools.no_host import NO_HOST

if TYPE_CHECKING:
    from standfast.plugins.registrar import PluginRegistrar
    from standfast.ports.host import PluginActionHost

P = TypeVar("P", bound="Plugin")

PluginLoop = Literal["own", "runtime"]
"""Where a plugin's hooks and actions run: on the event loop of the session's plugins, or on the runtime's."""

_NOT_OPTIONS = ("revision", "session")
_ID = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)


class PluginSessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The session that a plugin is built for. Within a hook, `host` has only the services of its context."""

    session_id: str
    extensions: PluginExtensions
    storage: PluginStorage
    options: PluginOptions = NO_OPTIONS
    parent_session_id: str | None = None
    subagent: SubagentContext | None = None
    read_attachment: Any = None
    """Reads an attachment by its digest: `await ctx.read_attachment(digest)`."""
    host: PluginActionHost = NO_HOST


@runtime_checkable
class SessionPlugin(StatefulPlugin, Protocol):
    """A plugin in one session, as the kernel sees it."""

    def register(self, registrar: PluginRegistrar) -> None: ...

    def session_ready(self, ctx: PluginSessionContext) -> None:
        """All plugins of the session have registered."""


@runtime_checkable
class PluginFactory(Protocol):
    """A factory of session plugins. `build` must be cheap."""

    @property
    def id(self) -> str: ...

    def build(self, ctx: PluginSessionContext) -> SessionPlugin: ...


class Plugin:
    """Subclass it, decorate methods with `@hook`, `@tool` and `@action`, and pass it to an agent."""

    id: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    summary: ClassVar[str] = ""
    loop: ClassVar[PluginLoop] = "own"

    session: PluginSessionContext
    """The session of this plugin. Not set on the template."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "id" not in cls.__dict__:  # the class name in lower case, words separated by `-`
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__.strip("_"))
            cls.id = words.lower()
        check_plugin_id(cls.id)
        if "loop" not in cls.__dict__:
            cls.loop = "own"
        if cls.loop not in ("own", "runtime"):
            raise InvalidPlugin(
                f"loop {cls.loop!r} of plugin {cls.id!r} is unknown", hint='use "own" or "runtime"'
            )

    @property
    def state(self) -> Json:
        return self.__dict__.get("_state")

    @state.setter
    def state(self, value: Json) -> None:
        self.__dict__["_state"] = value
        self.touch()

    revision: int = 0

    def touch(self) -> None:
        """Increase `revision`, so that a `state` changed in place is stored."""
        self.revision += 1
        if (stage := STAGE.get()) is not None:
            stage.changes.add(self.id)

    def migrate(self, state: Json, version: str) -> Json:
        """Convert state of another version; raises unless overridden."""
        raise PluginStateLost(
            self.id,
            "restore",
            f"its state was written by version {version}, this is version {self.version}",
            hint="install the version of the plugin that wrote it, or add a `migrate` method",
        )

    def build(self: P, ctx: PluginSessionContext) -> P:
        """Return a deep copy of this template for one session."""
        made = copy.deepcopy(self) if vars(self) else copy.copy(self)  # without attributes, the same
        made.session = ctx
        if (options := ctx.options.plugins.get(self.id)) is not None:
            made.configure(options)
        return made

    def configure(self, options: Json) -> None:
        """Set attributes from the session's options for this plugin, a JSON object."""
        if not isinstance(options, Mapping):
            raise InvalidArgument(f"the options of plugin {self.id!r} are not a JSON object")
        known = self.option_names()
        for name, value in options.items():
            if name not in known:
                hint = f"its options are {', '.join(known)}" if known else "it has no options"
                raise InvalidArgument(f"plugin {self.id!r} has no option {name!r}", hint=hint)
            setattr(self, name, value)
        self.check_options()

    def option_names(self) -> list[str]:
        """Return the names of the attributes that `configure` sets."""
        return [name for name in vars(self) if name not in _NOT_OPTIONS and not name.startswith("_")]

    def check_options(self) -> None:
        """Validate the attributes that `configure` has set; raise `InvalidArgument` if one is invalid."""

    def register(self, registrar: PluginRegistrar) -> None:
        """Register every decorated method. Override it to register more."""
        kind, names = type(self), dict[str, None]()  # in definition order, base classes first
        for base in reversed(kind.__mro__):
            if base not in (object, Plugin):
                names.update(dict.fromkeys(name for name in vars(base) if not name.startswith("__")))
        for name in names:
            if isinstance(getattr(kind, name, None), property):
                continue
            member = getattr(self, name)
            if (mark := mark_of(member)) is not None:
                registrar.hook(mark.kind, member, priority=mark.priority)
            elif (made := action_mark(member)) is not None:
                registrar.actions.add(member, made)
            elif isinstance(member, (Tool, ToolMethod)):
                registrar.tools.add(member)

    def session_ready(self, ctx: PluginSessionContext) -> None:
        """All plugins of the session have registered."""

    def snapshot(self, writer: SnapshotWriter) -> PluginSnapshotMeta:
        return PluginSnapshotMeta(
            plugin_id=self.id, plugin_version=self.version, revision=self.revision, state=self.state
        )

    def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
        if meta.state is not None:
            same = meta.plugin_version == self.version
            self.state = meta.state if same else self.migrate(meta.state, meta.plugin_version)
        self.revision = meta.revision

    def __repr__(self) -> str:
        return f"<plugin {self.id}>"


def check_plugin_id(plugin_id: object) -> str:
    if not isinstance(plugin_id, str) or _ID.fullmatch(plugin_id) is None:
        raise InvalidPlugin(
            f"{plugin_id!r} is not a plugin id",
            hint="use lower-case letters, digits, '-', '_' and '.', at most 64, beginning with a letter",
        )
    return plugin_id


def check_numbers(plugin: Plugin, hint: str | None = None, **least: int) -> None:
    """Raise `InvalidArgument` unless each of these options is an integer and at least the given minimum."""
    for name, minimum in least.items():
        value = getattr(plugin, name)
        if type(value) is not int or value < minimum:
            problem = f"{name} of plugin {plugin.id!r} must be at least {minimum}, got {value!r}"
            raise InvalidArgument(problem, hint=hint)


def loop_of(plugin: SessionPlugin) -> PluginLoop | None:
    """Return where a plugin's code runs; None for a shipped plugin, whose hooks never block."""
    if is_shipped(plugin):
        return None
    loop: PluginLoop = "runtime" if getattr(plugin, "loop", "own") == "runtime" else "own"
    return loop


def is_shipped(plugin: object) -> bool:
    """Return whether a plugin or a factory belongs to this package."""
    return type(plugin).__module__.partition(".")[0] == __name__.partition(".")[0]


def as_factory(given: object) -> PluginFactory:
    """Return *given* as a factory: it may be a factory, a `Plugin` instance or a `Plugin` class."""
    if isinstance(given, type) and issubclass(given, Plugin):
        try:
            given = given()
        except TypeError as error:
            raise InvalidPlugin(
                f"{error}", hint="pass an instance with its options instead of the class"
            ) from None
    if not isinstance(given, PluginFactory):
        raise InvalidPlugin(
            f"{given!r} is not a plugin", hint="subclass standfast.Plugin, or define `id` and `build`"
        )
    check_plugin_id(given.id)
    return given
