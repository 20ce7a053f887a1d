"""The base class of a host's services, and the views of the host that hooks and tools get.

Theory of operation
-------------------
The runtime has one host for each session, with every service. A hook gets a view: an object whose class is
generated from the role's protocol and has only its methods. A table in this module maps each view to its
host, so that no attribute of the view leads to the host. A plugin also has a view that outlives its hooks
(`PluginSessionContext.host`); at each call it checks from which hook it is called.

Rules
-----
1. A child session sees itself and the sessions below it, and may send messages and tasks to those above. A
   root session and the host program see all sessions. A session that may not be seen counts as missing.
2. The services of a closed runtime raise `ServiceUnavailable`.
3. A role's methods are read from `ports.host`; a view has no other attribute.
4. The plugin's own view raises `ServiceUnavailable` for methods that the calling hook's role lacks.
5. A view works on any event loop: the host runs on the runtime's loop, and functions passed by a caller on
   another loop, such as a task's, run on loops of their own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeVar, cast, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from standfast.errors import ServiceUnavailable, SessionNotFound
from standfast.model.session import SessionHead
from standfast.plugins.contexts import SessionHosts
from standfast.plugins.running import HOOK
from standfast.plugins.runtime_services import RuntimeServices
from standfast.ports import host as ports
from standfast.runtime.host.background import BackgroundServices
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.live_session import LiveSession
from standfast.tools.loop_threads import HomeIterator, at_home
from standfast.tools.no_host import SERVICES


class HostService:
    """The base class of the services of one session's host."""

    __slots__ = ("_background", "_directory", "_sees_all", "services", "session_id")

    def __init__(
        self,
        directory: SessionDirectory,
        background: BackgroundServices,
        session_id: str,
        *,
        sees_all: bool = False,
    ) -> None:
        self._directory = directory
        self._background = background
        self._sees_all = sees_all
        self.services = directory.services
        self.session_id = session_id

    @property
    def is_open(self) -> bool:
        """Whether the runtime is still open."""
        return self._directory.is_open

    def _require_open(self, method: str) -> None:
        """Raise `ServiceUnavailable` once the runtime is closed."""
        if not self._directory.is_open:
            raise ServiceUnavailable(SERVICES[method], "the runtime is closed")

    async def _head(self, method: str, session_id: str, *, upward: bool = False) -> SessionHead:
        """Return the session of this id; raise `SessionNotFound` if this session may not see it."""
        self._require_open(method)
        head = await self.services.store.head(session_id)
        if head is None or not await self._sees(head, upward):
            raise SessionNotFound(session_id)
        return head

    async def _live(self, method: str, session_id: str) -> LiveSession:
        """Return the session with its agent; raise `ServiceUnavailable` if the agent is not known here."""
        head = await self._head(method, session_id)
        live = await self._directory.at_work(head)
        if live is None:
            raise ServiceUnavailable(SERVICES[method], f"no agent is known here for session {session_id!r}")
        return live

    async def _sees(self, head: SessionHead, upward: bool) -> bool:
        if self._sees_all or head.session_id == self.session_id:
            return True
        own = await self._directory.store.head(self.session_id)
        if own is None:
            return False
        if parent_of(own) is None or await self._is_above(self.session_id, head):
            return True
        return upward and await self._is_above(head.session_id, own)

    async def _is_above(self, session_id: str, head: SessionHead) -> bool:
        """Return whether the session created the other one, directly or indirectly."""
        at: SessionHead | None = head
        while at is not None and (parent := parent_of(at)) is not None:
            if parent == session_id:
                return True
            at = await self._directory.store.head(parent)
        return False


def parent_of(head: SessionHead) -> str | None:
    """Return the id of the parent session, if there is one."""
    return None if head.charter is None else head.charter.parent_session_id


R = TypeVar("R")

ROLE_OF_HOOK: Final[dict[str, type | None]] = {
    "prompt_contributor": ports.PromptHookHost,
    "context_transform": ports.HistoryHost,
    "compactor": ports.HistoryHost,
    "before_turn": ports.TurnHookHost,
    "checkpoint": ports.CheckpointHookHost,
    "after_turn": ports.TurnResultHookHost,
    "before_tool_call": ports.ToolHookHost,
    "after_tool_call": ports.ToolHookHost,
    "action": ports.PluginActionHost,
    "assistant_stream": None,
    "assistant_response": None,
    "tool_result_projector": None,
    "session_config_mutator": None,
    "tool_catalog": None,
    "trigger_catalog": None,
}
"""The role of each kind of hook; None means that it may call no services."""

GetHost = Callable[[], object]
"""Returns the host of a session, which is created when a service is first called."""

_hosts: Final[WeakKeyDictionary[Any, GetHost]] = WeakKeyDictionary()


def view(get_host: GetHost, role: type[R]) -> R:
    """Return a view of a host with the methods of *role*."""
    kind: Any = role
    made: R = _view_class(kind, role.__name__, None)()
    _hosts[made] = get_host
    return made


def plugin_view(get_host: GetHost) -> ports.PluginActionHost:
    """Return a plugin's own view of the host; in a hook, only the methods of the hook's role work."""
    kind = _view_class(ports.PluginActionHost, "PluginHost", _require_role)
    made: ports.PluginActionHost = kind()
    _hosts[made] = get_host
    return made


class _View:
    """The base class of views, which have no attributes and are compared by identity."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


@cache
def methods_of(role: type) -> dict[str, Any]:
    """Return the methods of a role, those of all its services, by name."""
    found: dict[str, Any] = {}
    for base in reversed(role.__mro__):
        found |= {
            name: member
            for name, member in vars(base).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }
    return found


@cache
def _view_class(role: type, class_name: str, check: Callable[[str], None] | None) -> Any:
    members = {name: _forwarding(name, member, check) for name, member in methods_of(role).items()}
    return type(class_name, (_View,), {"__slots__": (), "__doc__": role.__doc__, **members})


def _forwarding(name: str, member: Any, check: Callable[[str], None] | None) -> Any:
    """Make a method that forwards to the view's host, on the runtime's loop."""

    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if check is not None:
            check(name)
        host: Any = _hosts[self]()
        method, services = getattr(host, name), host.services if isinstance(host, HostService) else None
        if services is None or not host.is_open or asyncio.get_running_loop() is services.home:
            return await method(*args, **kwargs)
        args = tuple(_run_away(services, value) for value in args)
        kwargs = {key: _run_away(services, value) for key, value in kwargs.items()}
        answer = await at_home(services.home, method, *args, **kwargs)
        if isinstance(answer, ports.SessionTurnHandle):
            return msgspec.structs.replace(answer, events=HomeIterator(services.home, answer.events))
        return answer

    call.__name__, call.__qualname__, call.__doc__ = name, name, member.__doc__
    call.__wrapped__ = member  # type: ignore[attr-defined]  # for `inspect.signature`
    return call


def _run_away(services: RuntimeServices, value: Any) -> Any:
    return partial(services.loops.run, value) if callable(value) else value


def _require_role(name: str) -> None:
    """Raise `ServiceUnavailable` if the calling hook's role lacks this method."""
    kind = HOOK.get()
    if kind not in ROLE_OF_HOOK:
        return
    role = ROLE_OF_HOOK[kind]
    if role is None or name not in methods_of(role):
        raise ServiceUnavailable(SERVICES[name], f"a hook of kind {kind} may not call it")


@cache
def _roles() -> dict[str, type]:
    return get_type_hints(SessionHosts, localns={"ports": ports})


class _SessionViews:
    """The `SessionHosts` of a session; each view is created at its first use."""

    def __init__(self, get_host: GetHost) -> None:
        self._get_host = get_host

    def __getattr__(self, name: str) -> Any:
        if (role := _roles().get(name)) is None:
            raise AttributeError(name)
        made = plugin_view(self._get_host) if name == "session" else view(self._get_host, role)
        setattr(self, name, made)
        return made


def session_views(get_host: GetHost) -> SessionHosts:
    """Return the views of one session's host: one for each role, and the plugin's own."""
    return cast(SessionHosts, _SessionViews(get_host))
