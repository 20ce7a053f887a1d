"""What each role sees of the host: the methods of its protocol, and no way to the rest.

Theory of operation
-------------------
The runtime has one host for each session, with every service. What a hook is given is a view: an object of a
class that was made of the role's protocol, one method for each of the protocol's. A view holds nothing. Which
host it is of stands in a table of this module, so that neither an attribute of the view nor of its methods
leads there.

A plugin also has a view for itself (`PluginSessionContext.host`). It outlives every hook, so it looks at each
call which hook it is called from, and has no more than that hook's own view.

Rules
-----
1. A role's methods are read from `ports.host`; nothing here lists them a second time.
2. A view has no attribute that its role does not have: `AttributeError`, not a refusal.
3. The plugin's own view is refused what the hook under way has not: `ServiceUnavailable`.
4. A view works on any event loop: the host does its work on the runtime's, and the code that a caller on
   another loop hands over, such as that of a task, runs on a loop of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from standfast.errors import ServiceUnavailable
from standfast.plugins.contexts import SessionHosts
from standfast.plugins.running import HOOK
from standfast.plugins.runtime_services import RuntimeServices
from standfast.ports import host as ports
from standfast.runtime.host.service import HostService
from standfast.tools.home_loop import HomeIterator, at_home
from standfast.tools.no_host import SERVICES

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
"""Which role a hook has, by its kind; with None it may ask the runtime for nothing."""

_hosts: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()


def methods_of(role: type) -> tuple[str, ...]:
    """The methods of a role, those of each of its services together."""
    return tuple(_methods(role))


def view(host: object, role: type[R]) -> R:
    """What *role* sees of a host."""
    kind: Any = role
    made: R = _view_class(kind)()
    _hosts[made] = host
    return made


def plugin_view(host: object) -> ports.PluginActionHost:
    """What a plugin sees of the host wherever its code runs; in a hook, no more than the hook."""
    made: ports.PluginActionHost = _plugin_view_class()()
    _hosts[made] = host
    return made


class _View:
    """Compared by identity, and empty."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


@cache
def _methods(role: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(role.__mro__):
        found |= {
            name: member
            for name, member in vars(base).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }
    return found


@cache
def _view_class(role: type) -> Any:
    members = {name: _forwarding(name, member, None) for name, member in _methods(role).items()}
    return type(role.__name__, (_View,), {"__slots__": (), "__doc__": role.__doc__, **members})


@cache
def _plugin_view_class() -> Any:
    role = ports.PluginActionHost
    members = {name: _forwarding(name, member, _require_role) for name, member in _methods(role).items()}
    return type("PluginHost", (_View,), {"__slots__": (), "__doc__": role.__doc__, **members})


def _forwarding(name: str, member: Any, check: Callable[[str], None] | None) -> Any:
    """A method that passes its call on to the host that the view is of."""

    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if check is not None:
            check(name)
        host = _hosts[self]
        method, services = getattr(host, name), host.services if isinstance(host, HostService) else None
        if services is None or not host.is_open or asyncio.get_running_loop() is services.home:
            return await method(*args, **kwargs)
        return await _from_away(services, method, args, kwargs)

    call.__name__, call.__qualname__, call.__doc__ = name, name, member.__doc__
    call.__signature__ = inspect.signature(member)  # type: ignore[attr-defined]
    return call


async def _from_away(
    services: RuntimeServices, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call the host from another loop; functions among the arguments run on loops of their own."""
    args = tuple(_run_away(services, value) for value in args)
    kwargs = {name: _run_away(services, value) for name, value in kwargs.items()}
    answer = await at_home(services.home, method, *args, **kwargs)
    if isinstance(answer, ports.SessionTurnHandle):
        return dataclasses.replace(answer, events=HomeIterator(services.home, answer.events))
    return answer


def _run_away(services: RuntimeServices, value: Any) -> Any:
    return partial(services.loops.run, value) if callable(value) else value


def _require_role(name: str) -> None:
    """Refuse what the hook that this is called from has not."""
    kind = HOOK.get()
    if kind not in ROLE_OF_HOOK:
        return
    role = ROLE_OF_HOOK[kind]
    if role is None or name not in _methods(role):
        raise ServiceUnavailable(SERVICES[name], f"a hook of kind {kind} may not ask for it")


_ROLES: Final[dict[str, type]] = {
    "prompt": ports.PromptHookHost,
    "turn": ports.TurnHookHost,
    "checkpoint": ports.CheckpointHookHost,
    "turn_result": ports.TurnResultHookHost,
    "history": ports.HistoryHost,
    "tool": ports.ToolHookHost,
    "action": ports.PluginActionHost,
    "sessions": ports.SessionStateService,
    "session_graph": ports.SessionGraphHost,
    "processes": ports.ProcessService,
    "completions": ports.DirectCompletionHost,
}


class _SessionViews:
    """The `SessionHosts` of a session; each view is made when it is first wanted."""

    def __init__(self, host: ports.RuntimeSessionHost) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        if name != "session" and name not in _ROLES:
            raise AttributeError(name)
        made = plugin_view(self._host) if name == "session" else view(self._host, _ROLES[name])
        setattr(self, name, made)
        return made


def session_views(host: ports.RuntimeSessionHost) -> SessionHosts:
    """The views of one session's host, one for each role, and the plugin's own."""
    return cast(SessionHosts, _SessionViews(host))
