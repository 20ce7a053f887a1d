"""Plugin actions: queries, commands and tasks that callers invoke by name, with JSON or typed values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_type_hints, overload

import msgspec

from standfast.errors import InvalidArgument, InvalidPlugin, MissingSession, PluginFailed, UnexpectedSession
from standfast.model.canonical import Json
from standfast.tools.no_host import NO_HOST

if TYPE_CHECKING:
    from standfast.ports.host import PluginActionHost

F = TypeVar("F", bound=Callable[..., Any])

ActionKind = Literal["query", "command", "task"]
SessionParam = Literal["required", "optional", "forbidden"]

_KINDS: Final = ("query", "command", "task")
_PARAMS: Final = ("required", "optional", "forbidden")


class PluginActionDef(msgspec.Struct, frozen=True, kw_only=True):
    """An action as callers see it."""

    name: str
    plugin_id: str
    kind: ActionKind = "query"
    description: str = ""
    session_param: SessionParam = "optional"
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] = {}


class ActionMark(msgspec.Struct, frozen=True):
    """The mark that the decorator puts on a method."""

    name: str | None
    kind: ActionKind
    session: SessionParam


class PluginActionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of an action's call, with the runtime services it may use (`host`)."""

    session_id: str | None
    host: PluginActionHost = NO_HOST


class RegisteredAction(msgspec.Struct, frozen=True):
    """An action with its handler, its argument type and its return type."""

    definition: PluginActionDef
    takes: Any
    gives: Any
    handler: Callable[..., Any]

    def session_for(self, given: str | None, current: str | None) -> str | None:
        """Return the session that the action works on; raise if one is missing or must not be passed."""
        session_id = given or current
        name, wanted = self.definition.name, self.definition.session_param
        if wanted == "required" and session_id is None:
            raise MissingSession(name, "needs a session", hint="pass session_id=...")
        if wanted == "forbidden" and session_id is not None:
            raise UnexpectedSession(name, "takes no session", hint="call it without session_id")
        return session_id

    def read(self, arguments: Json) -> Any:
        """Convert JSON arguments to the handler's argument type."""
        try:
            return msgspec.convert(arguments, self.takes)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"action {self.definition.name!r}: {error}") from None

    def check(self, answer: Json) -> Json:
        """Return the handler's answer; raise `PluginFailed` if it does not match the declared type."""
        try:
            msgspec.convert(answer, self.gives, str_keys=True)
        except msgspec.ValidationError as error:
            problem = f"its answer does not match its declared type: {error}"
            raise PluginFailed(self.definition.plugin_id, f"action {self.definition.name}", problem) from None
        return answer


@overload
def action(function: F, /) -> F: ...
@overload
def action(
    *, name: str | None = None, kind: ActionKind = "query", session: SessionParam = "optional"
) -> Callable[[F], F]: ...
def action(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    kind: ActionKind = "query",
    session: SessionParam = "optional",
) -> Any:
    """Declare a plugin's method an action: `async def status(self, ctx, args: Args) -> Answer`.

    Its name is `plugin_id.name`. `args` is optional. `session` says whether it works on a session.
    """
    if kind not in _KINDS or session not in _PARAMS:
        raise InvalidPlugin(
            f"an action cannot have kind {kind!r} and session {session!r}",
            hint=f"use a kind of {', '.join(_KINDS)} and a session of {', '.join(_PARAMS)}",
        )

    def mark(decorated: Any) -> Any:
        decorated.__standfast_action__ = ActionMark(name, kind, session)
        return decorated

    return mark(function) if function is not None else mark


def action_mark(function: object) -> ActionMark | None:
    mark = getattr(function, "__standfast_action__", None)
    return mark if isinstance(mark, ActionMark) else None


def make_action(plugin_id: str, method: Any, mark: ActionMark) -> RegisteredAction:
    """Return the action of a bound method. Its contract is built once and shared by all sessions."""
    is_bound = inspect.ismethod(method)
    function = method.__func__ if is_bound else method
    return RegisteredAction(*_contract(plugin_id, function, is_bound, mark), handler=method)


@functools.lru_cache(maxsize=256)
def _contract(
    plugin_id: str, method: Any, is_bound: bool, mark: ActionMark
) -> tuple[PluginActionDef, Any, Any]:
    """Return the definition of an action, its argument type and its return type."""
    try:
        hints = get_type_hints(method)
    except Exception as error:
        raise InvalidPlugin(
            f"the annotations of {method.__name__}() of plugin {plugin_id!r} cannot be read: {error}",
            hint="import its types in the module that defines the plugin",
        ) from None
    parameters = list(inspect.signature(method).parameters)[1 if is_bound else 0 :]
    if not 1 <= len(parameters) <= 2:
        raise InvalidPlugin(
            f"action {method.__name__}() of plugin {plugin_id!r} takes {len(parameters)} parameters",
            hint="write `async def name(self, ctx)` or `async def name(self, ctx, args)`",
        )
    takes = hints.get(parameters[1], Any) if len(parameters) == 2 else None
    gives = hints.get("return", Any)
    definition = PluginActionDef(
        name=mark.name or f"{plugin_id}.{method.__name__}",
        plugin_id=plugin_id,
        kind=mark.kind,
        description=(method.__doc__ or "").strip(),
        session_param=mark.session,
        input_schema=_schema_of(takes),
        output_schema=_schema_of(gives),
    )
    return definition, takes, gives


def _schema_of(kind: Any) -> dict[str, Any]:
    if kind is None or kind is type(None):
        return {"type": "null"}
    try:
        return msgspec.json.schema(kind)
    except TypeError as error:
        raise InvalidPlugin(f"{kind!r} has no JSON Schema: {error}") from None
