"""Combines the directives of several plugins into one ruling.

Theory of operation
-------------------
Every hook of a stage is called, and their directives are combined. An additional plugin can make the ruling
stricter but never laxer: an abort takes precedence over a short circuit with an error, that over a request
for approval, and that over a short circuit with a result; among equals the first wins. Each conflict is
traced with the names of both plugins.

Arguments are chained instead: each plugin sees the arguments as the plugins before it changed them. Plugins
that saw earlier arguments are then called once more with the final ones. If one of them replaces those again,
no order would satisfy both plugins, and the call fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from standfast.errors import Code, ErrorObject, PluginConflict, TurnCode
from standfast.model import directive
from standfast.model.canonical import Json
from standfast.model.message import UserMessage
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.session import PluginNode
from standfast.plugins.contexts import ToolCallHookContext, ToolResultHookContext
from standfast.plugins.running import RegisteredHook

T = TypeVar("T")


class PluginOwned(msgspec.Struct, Generic[T], frozen=True):
    """A value and the plugin it comes from."""

    plugin_id: str
    value: T


OwnedDirective = PluginOwned[directive.PluginDirective]


class Conflict(msgspec.Struct, frozen=True):
    """Two plugins with incompatible directives."""

    what: str
    winner: str
    loser: str


class ComposedRuling(msgspec.Struct):
    """A ruling, and the directives that are not part of it: traces, conflicts, sessions to create."""

    ruling: Ruling
    traces: list[PluginOwned[directive.EmitTrace]] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)
    sessions: list[PluginOwned[directive.SessionRequest]] = msgspec.field(default_factory=list)


def compose(owned: Iterable[OwnedDirective]) -> ComposedRuling:
    """Combine the directives of a stage."""
    owned = list(owned)
    if not owned:
        return ComposedRuling(NOTHING_SAID)
    composed = ComposedRuling(Ruling())
    messages: list[UserMessage] = []
    events: list[PluginNode] = []
    aborts: list[PluginOwned[directive.AbortTurn]] = []
    for one in owned:
        match one.value:
            case directive.EnqueueMessages():
                messages += one.value.messages
            case directive.EmitRuntimeEvents():
                events += [
                    PluginNode(plugin_id=one.plugin_id, kind=event.kind, body=event.body)
                    for event in one.value.events
                ]
            case directive.AbortTurn():
                aborts.append(PluginOwned(one.plugin_id, one.value))
            case directive.EmitTrace():
                composed.traces.append(PluginOwned(one.plugin_id, one.value))
            case directive.CreateSession():
                composed.sessions.append(PluginOwned(one.plugin_id, one.value.request))
    abort = None
    if aborts:
        winner, wanted = aborts[0].plugin_id, aborts[0].value
        code = str(wanted.code or TurnCode.PLUGIN_ABORT)
        abort = ErrorObject(code=code, message=f"plugin {winner!r}: {wanted.message}", hint=wanted.hint)
        losers = [("abort", one.plugin_id) for one in aborts[1:]]
        losers += [
            ("short circuit", one.plugin_id)
            for one in owned
            if isinstance(one.value, directive.ShortCircuitTool)
        ]
        composed.conflicts += [Conflict(what, winner, loser) for what, loser in losers if loser != winner]
    composed.ruling = Ruling(messages=tuple(messages), events=tuple(events), abort=abort)
    return composed


def compose_call(owned: Iterable[OwnedDirective], arguments: dict[str, Json] | None) -> ComposedRuling:
    """Combine the directives about a call. *arguments*, unless None, replace the call's own."""
    owned = list(owned)
    composed, short = compose(owned), None
    wanted = [
        (one.plugin_id, one.value) for one in owned if isinstance(one.value, directive.ShortCircuitTool)
    ]
    if wanted:
        winner, short = min(wanted, key=lambda one: _laxness(one[1]))
        composed.conflicts += [
            Conflict("short circuit", winner, loser)
            for loser, other in wanted
            if loser != winner and other != short
        ]
    ruling = composed.ruling
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


def _laxness(short: directive.ShortCircuitTool) -> int:
    """Return the rank of a short circuit: an error before a request for approval, that before a result."""
    if short.error is None:
        return 2
    return 1 if short.error.code == Code.WAITING_FOR_APPROVAL else 0


class CallReview(msgspec.Struct):
    """Asks the plugins about one call until they agree on its arguments or have shown that they cannot."""

    context: ToolCallHookContext
    ask: Callable[[RegisteredHook, ToolCallHookContext], Awaitable[list[OwnedDirective]]]
    directives: list[OwnedDirective] = msgspec.field(default_factory=list)
    replaced_by: str | None = None

    @property
    def arguments(self) -> dict[str, Json] | None:
        """The arguments that replace the call's own; None if they were not replaced."""
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
                    hint="change one of them so that it accepts the arguments that the other sets",
                )

    async def _ask(self, hook: RegisteredHook) -> bool:
        """Ask one plugin; return whether it replaced the arguments."""
        replaced = False
        for one in await self.ask(hook, self.context):
            if not isinstance(one.value, directive.ReplaceToolArgs):
                if one not in self.directives:  # the second call may repeat a directive of the first
                    self.directives.append(one)
            elif one.value.arguments != self.context.arguments:
                self.context = msgspec.structs.replace(self.context, arguments=one.value.arguments)
                self.replaced_by, replaced = hook.plugin_id, True
        return replaced


class ResultReview(msgspec.Struct):
    """The result of one call as plugins change it. A result that a plugin made fail stays a failure."""

    context: ToolResultHookContext
    directives: list[OwnedDirective] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)
    replaced: bool = False
    failed_by: str | None = None

    def take(self, wanted: list[OwnedDirective]) -> None:
        for one in wanted:
            self.directives.append(one)
            result = one.value
            if not isinstance(result, directive.ShortCircuitTool):
                continue
            if self.failed_by is not None and result.error is None:
                self.conflicts.append(Conflict("result", self.failed_by, one.plugin_id))
                continue
            if result.error is not None and self.context.error is None:
                self.failed_by = one.plugin_id
            self.replaced = True
            self.context = msgspec.structs.replace(
                self.context, value=result.value, error=result.error, texts=result.texts
            )
