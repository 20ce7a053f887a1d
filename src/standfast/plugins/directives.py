"""From what single plugins want to what is done.

Theory of operation
-------------------
Every hook of a stage is asked; what they want is added up. Adding up is monotone: one more plugin can make
the result stricter, never laxer. An abort beats a failing short circuit, which beats a question to a person,
which beats a successful one; among equals the first wins. Whoever loses is told in the trace, with both
plugins named.

Arguments are different, because they are passed on: a plugin sees what those before it made of them. Those
that have already spoken are asked once more about the final arguments. If one of them then wants others,
there is no order in which both would be content, and the call fails.

Rules
-----
1. A directive that has no meaning at a stage is an error of the plugin that wants it.
2. What a plugin answers is checked for its type and its size before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar, get_args

import msgspec

from standfast.errors import (
    Code,
    ErrorObject,
    InvalidArgument,
    PluginConflict,
    PluginFailed,
    TurnCode,
    ValueTooLarge,
)
from standfast.model.canonical import Json, check_bounds
from standfast.model.directive import (
    AbortTurn,
    CreateSession,
    EmitRuntimeEvents,
    EmitTrace,
    EnqueueMessages,
    PluginDirective,
    ReplaceToolArgs,
    SessionRequest,
    ShortCircuitTool,
)
from standfast.model.message import UserMessage
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.session import PluginNode
from standfast.plugins.contexts import ToolCallHookContext, ToolResultHookContext
from standfast.plugins.running import RegisteredHook

T = TypeVar("T")

MAX_BYTES: Final = 1 << 20
"""So much may a hook answer with, in all."""

MAX_CALL_BYTES: Final = 16 << 20
"""The same with the arguments or the result of a call in it, which may be as large as the tool allows."""

_OF_A_CALL: Final = (ReplaceToolArgs, ShortCircuitTool)
_ANYWHERE: Final = (EnqueueMessages, CreateSession, EmitRuntimeEvents, EmitTrace)

ALLOWED: Final[dict[str, tuple[type, ...]]] = {
    "before_turn": (*_ANYWHERE, AbortTurn),
    "checkpoint": (*_ANYWHERE, AbortTurn),
    "before_tool_call": (*_ANYWHERE, AbortTurn, ReplaceToolArgs, ShortCircuitTool),
    "after_tool_call": (*_ANYWHERE, AbortTurn, ShortCircuitTool),
    "after_turn": _ANYWHERE,
}
"""The directives that mean something at each stage."""

_KINDS: Final = get_args(PluginDirective)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[PluginDirective]).decode


class PluginOwned(msgspec.Struct, Generic[T], frozen=True):
    """Something, and the plugin it comes from."""

    plugin_id: str
    value: T


OwnedDirective = PluginOwned[PluginDirective]


class Conflict(msgspec.Struct, frozen=True):
    """Two plugins wanted what does not go together."""

    what: str
    winner: str
    loser: str


class Composed(msgspec.Struct):
    """What is done, and what does not concern the turn: traces, conflicts, sessions to make."""

    ruling: Ruling
    traces: list[PluginOwned[EmitTrace]] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)
    sessions: list[PluginOwned[SessionRequest]] = msgspec.field(default_factory=list)


def read_directives(hook: RegisteredHook, answer: object) -> list[OwnedDirective]:
    """The directives that a hook answered with; `PluginFailed` if they are none, or not for its stage."""
    if answer is None:
        return []
    given = [answer] if isinstance(answer, _KINDS) else answer
    if not isinstance(given, (list, tuple)):
        raise _refused(hook, f"it answered with {_named(answer)}, not with directives")
    for one in given:
        if not isinstance(one, _KINDS):
            raise _refused(hook, f"it answered with {_named(one)}, not with a directive")
        if not isinstance(one, ALLOWED[hook.kind]):
            raise _refused(hook, f"{type(one).__name__} means nothing there")
    return [PluginOwned(hook.plugin_id, one) for one in _written(hook, given)]


def _written(hook: RegisteredHook, given: Sequence[PluginDirective]) -> list[PluginDirective]:
    """The directives as they come back from being written down, so that a replay sees the same."""
    if not given:
        return []
    limit = MAX_CALL_BYTES if any(isinstance(one, _OF_A_CALL) for one in given) else MAX_BYTES
    try:
        check_bounds(given, limit)
        data = _encode(given)
        directives = _decode(data)
    except ValueTooLarge as error:
        raise _refused(hook, f"its directives are too large: {error.limit}") from None
    except (InvalidArgument, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise _refused(hook, f"its directives cannot be written down: {error}") from None
    if len(data) > limit:
        raise _refused(hook, f"its directives are {len(data)} bytes, the limit is {limit}")
    return directives


def compose(owned: Iterable[OwnedDirective]) -> Composed:
    """What the directives of a stage come to."""
    owned = list(owned)
    if not owned:
        return Composed(NOTHING_SAID)
    composed = Composed(Ruling())
    composed.ruling = Ruling(
        messages=_messages(owned),
        events=_events(owned),
        abort=_abort(owned, composed.conflicts),
    )
    composed.traces = [
        PluginOwned(one.plugin_id, one.value) for one in owned if isinstance(one.value, EmitTrace)
    ]
    composed.sessions = [
        PluginOwned(one.plugin_id, one.value.request) for one in owned if isinstance(one.value, CreateSession)
    ]
    return composed


def compose_call(owned: Iterable[OwnedDirective], arguments: dict[str, Json] | None) -> Composed:
    """The same around a call. *arguments* are those that replace the call's own, if any do."""
    owned = list(owned)
    composed = compose(owned)
    ruling = composed.ruling
    short = _short_circuit(owned, composed.conflicts)
    composed.ruling = CallRuling(
        messages=ruling.messages,
        events=ruling.events,
        abort=ruling.abort,
        arguments=arguments,
        settled=short is not None,
        value=None if short is None else short.value,
        error=None if short is None else short.error,
    )
    return composed


def _messages(owned: list[OwnedDirective]) -> tuple[UserMessage, ...]:
    return tuple(
        message for one in owned if isinstance(one.value, EnqueueMessages) for message in one.value.messages
    )


def _events(owned: list[OwnedDirective]) -> tuple[PluginNode, ...]:
    return tuple(
        PluginNode(plugin_id=one.plugin_id, kind=event.kind, body=event.body)
        for one in owned
        if isinstance(one.value, EmitRuntimeEvents)
        for event in one.value.events
    )


def _abort(owned: list[OwnedDirective], conflicts: list[Conflict]) -> ErrorObject | None:
    aborts = [(one.plugin_id, one.value) for one in owned if isinstance(one.value, AbortTurn)]
    if not aborts:
        return None
    winner, abort = aborts[0]
    conflicts += [Conflict("abort", winner, loser) for loser, _ in aborts[1:] if loser != winner]
    conflicts += [
        Conflict("short circuit", winner, one.plugin_id)
        for one in owned
        if isinstance(one.value, ShortCircuitTool) and one.plugin_id != winner
    ]
    code = abort.code or TurnCode.PLUGIN_ABORT
    return ErrorObject(code=str(code), message=f"plugin {winner!r}: {abort.message}", hint=abort.hint)


def _short_circuit(owned: list[OwnedDirective], conflicts: list[Conflict]) -> ShortCircuitTool | None:
    """The strictest of the short circuits, the first among equals."""
    wanted = [(one.plugin_id, one.value) for one in owned if isinstance(one.value, ShortCircuitTool)]
    if not wanted:
        return None
    winner, chosen = min(wanted, key=lambda one: _laxness(one[1]))
    conflicts += [
        Conflict("short circuit", winner, loser)
        for loser, other in wanted
        if loser != winner and other != chosen
    ]
    return chosen


def _laxness(short: ShortCircuitTool) -> int:
    """A refusal comes before a question, a question before a result."""
    if short.error is None:
        return 2
    return 1 if short.error.code == Code.WAITING_FOR_APPROVAL else 0


# Arguments


class CallReview(msgspec.Struct):
    """Asks the plugins about one call, until they agree on its arguments or it is clear that they cannot."""

    context: ToolCallHookContext
    ask: Callable[[RegisteredHook, ToolCallHookContext], Awaitable[list[OwnedDirective]]]
    directives: list[OwnedDirective] = msgspec.field(default_factory=list)
    replaced_by: str | None = None

    @property
    def arguments(self) -> dict[str, Json] | None:
        """What the arguments were replaced with, if they were."""
        return None if self.replaced_by is None else self.context.arguments

    async def run(self, hooks: Sequence[RegisteredHook]) -> None:
        last = -1
        for place, hook in enumerate(hooks):
            if await self._ask(hook):
                last = place
        final = self.replaced_by
        for hook in hooks[: max(last, 0)]:
            if await self._ask(hook):
                assert final is not None
                raise PluginConflict(
                    f"the arguments of {self.context.tool_name}()",
                    hook.plugin_id,
                    final,
                    hint="let one of them accept what the other makes of the arguments",
                )

    async def _ask(self, hook: RegisteredHook) -> bool:
        """Ask one plugin; tells whether it replaced the arguments."""
        wanted = await self.ask(hook, self.context)
        replaced = False
        for one in wanted:
            if isinstance(one.value, ReplaceToolArgs):
                replaced = self._replace(hook, one.value.arguments) or replaced
            elif one not in self.directives:  # said twice, it counts once
                self.directives.append(one)
        return replaced

    def _replace(self, hook: RegisteredHook, arguments: dict[str, Json]) -> bool:
        if arguments == self.context.arguments:
            return False
        self.context = msgspec.structs.replace(self.context, arguments=arguments)
        self.replaced_by = hook.plugin_id
        return True


# Results


class ResultReview(msgspec.Struct):
    """What becomes of one result, plugin by plugin. One that was made to fail stays a failure."""

    context: ToolResultHookContext
    directives: list[OwnedDirective] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)
    replaced: bool = False
    failed_by: str | None = None

    def take(self, wanted: list[OwnedDirective]) -> None:
        for one in wanted:
            self.directives.append(one)
            if isinstance(one.value, ShortCircuitTool):
                self._replace(one.plugin_id, one.value)

    def _replace(self, plugin_id: str, result: ShortCircuitTool) -> None:
        if self.failed_by is not None and result.error is None:
            self.conflicts.append(Conflict("result", self.failed_by, plugin_id))
            return
        if result.error is not None and self.context.error is None:
            self.failed_by = plugin_id
        self.replaced = True
        self.context = msgspec.structs.replace(self.context, value=result.value, error=result.error)


def _refused(hook: RegisteredHook, problem: str) -> PluginFailed:
    return PluginFailed(hook.plugin_id, hook.kind, problem)


def _named(value: object) -> str:
    return f"a {type(value).__name__}"


__all__ = [
    "ALLOWED",
    "CallReview",
    "Composed",
    "Conflict",
    "OwnedDirective",
    "PluginOwned",
    "ResultReview",
    "compose",
    "compose_call",
    "read_directives",
]
