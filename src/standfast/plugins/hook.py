"""Every place where a plugin can have a say, as one table, and the decorator that takes a method there.

Rule: the name of a hook is stable, and is the name of the method that implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, overload

import msgspec

from standfast.errors import InvalidPlugin

F = TypeVar("F", bound=Callable[..., Any])

Order = Literal["in order", "by priority", "chained", "all at once"]
OnFailure = Literal[
    "the turn fails", "that call fails", "the model call fails", "never fatal", "the catalog build fails"
]


class HookKind(msgspec.Struct, frozen=True):
    """One row of the table. `takes` are the parameters after `self`."""

    name: str
    takes: tuple[str, ...]
    answers: str
    order: Order
    on_failure: OnFailure
    plain: bool = False
    """A plain function: it is called where nothing can be awaited."""


_DIRECTIVES: Final = "directives, or None"

HOOKS: Final[dict[str, HookKind]] = {
    kind.name: kind
    for kind in (
        HookKind(
            "prompt_contributor",
            ("PromptHookContext",),
            "text, PromptContribution, a list of them, or None",
            "in order",
            "the turn fails",
        ),
        HookKind(
            "context_transform",
            ("TurnTransformContext", "list[Message]"),
            "the messages that the model is shown",
            "by priority",
            "the turn fails",
        ),
        HookKind(
            "compactor",
            ("CompactionContext",),
            "ContextCompaction, or None",
            "by priority",
            "the turn fails",
        ),
        HookKind("before_turn", ("TurnHookContext",), _DIRECTIVES, "in order", "the turn fails"),
        HookKind("checkpoint", ("CheckpointHookContext",), _DIRECTIVES, "in order", "the turn fails"),
        HookKind("after_turn", ("TurnResultHookContext",), _DIRECTIVES, "in order", "the turn fails"),
        HookKind("before_tool_call", ("ToolCallHookContext",), _DIRECTIVES, "in order", "that call fails"),
        HookKind("after_tool_call", ("ToolResultHookContext",), _DIRECTIVES, "in order", "that call fails"),
        HookKind(
            "assistant_stream",
            ("AssistantStreamHookContext",),
            "text, or AssistantStreamTransform",
            "chained",
            "the model call fails",
        ),
        HookKind(
            "assistant_response",
            ("AssistantResponseHookContext",),
            "ReplyEnded, or AssistantResponseTransform",
            "chained",
            "the model call fails",
        ),
        HookKind("turn_finalized", ("TurnFinalized",), "nothing", "all at once", "never fatal"),
        HookKind("turn_persisted", ("TurnPersisted",), "nothing", "all at once", "never fatal"),
        HookKind("session_restored", ("SessionRestored",), "nothing", "all at once", "never fatal"),
        HookKind(
            "session_config_changed", ("SessionConfigChanged",), "nothing", "all at once", "never fatal"
        ),
        HookKind(
            "session_config_mutator",
            ("SessionConfigChanged", "SessionPolicy"),
            "the SessionPolicy to run with",
            "chained",
            "never fatal",
        ),
        HookKind(
            "tool_catalog",
            ("ToolCatalogContext",),
            "ToolCatalogContribution, or None",
            "in order",
            "the catalog build fails",
            plain=True,
        ),
        HookKind(
            "trigger_catalog",
            (),
            "a list of TriggerEvent",
            "in order",
            "the catalog build fails",
            plain=True,
        ),
    )
}

LIFECYCLE: Final = ("turn_finalized", "turn_persisted", "session_restored", "session_config_changed")

SLOTS: Final = (
    "protocol_session",
    "protocol_driver",
    "code_executor",
    "prose_projector",
    "tool_result_projector",
)
"""What only one plugin of a session can be."""


class HookMark(msgspec.Struct, frozen=True):
    """What the decorator leaves on a method."""

    kind: str
    priority: int = 0


@overload
def hook(function: F, /) -> F: ...
@overload
def hook(kind: str | None = None, /, *, priority: int = 0) -> Callable[[F], F]: ...
def hook(target: Any = None, /, *, priority: int = 0) -> Any:
    """Make a method of a plugin a hook: the one it is named after, or the one that is named here.

    `priority` matters to the hooks that the table orders by it: higher ones come first.
    """
    if callable(target):
        return _marked(target, target.__name__, priority)
    return lambda function: _marked(function, target or function.__name__, priority)


def mark_of(function: object) -> HookMark | None:
    mark = getattr(function, "__standfast_hook__", None)
    return mark if isinstance(mark, HookMark) else None


def require_kind(name: str) -> HookKind:
    """The row of the table, or an error that suggests one."""
    kind = HOOKS.get(name)
    if kind is None:
        import difflib

        close = difflib.get_close_matches(name, HOOKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(HOOKS)}"
        raise InvalidPlugin(f"there is no hook {name!r}", hint=hint)
    return kind


def _marked(function: F, kind: str, priority: int) -> F:
    require_kind(kind)
    function.__standfast_hook__ = HookMark(kind, priority)  # type: ignore[attr-defined]
    return function
