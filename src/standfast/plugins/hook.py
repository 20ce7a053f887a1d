"""The table of hooks and the decorator `@hook`. Hook names are stable; a method's name selects its hook."""

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
    """Whether the hook must be a plain function, because its caller cannot await it."""


_DIRECTIVES: Final = "directives, or None"
_TURN: Final = "the turn fails"
_CALL: Final = "that call fails"
_MODEL: Final = "the model call fails"
_NEVER: Final = "never fatal"
_CATALOG: Final = "the catalog build fails"

HOOKS: Final[dict[str, HookKind]] = {
    kind.name: kind
    for kind in (
        HookKind(
            "prompt_contributor", ("PromptHookContext",), "text, PromptContribution, a list of them, or None",
            "in order", _TURN,
        ),
        HookKind(
            "context_transform", ("TurnTransformContext", "list[Message]"),
            "the messages that the model is shown", "by priority", _TURN,
        ),
        HookKind("compactor", ("CompactionContext",), "ContextCompaction, or None", "by priority", _TURN),
        HookKind("before_turn", ("TurnHookContext",), _DIRECTIVES, "in order", _TURN),
        HookKind("checkpoint", ("CheckpointHookContext",), _DIRECTIVES, "in order", _TURN),
        HookKind("after_turn", ("TurnResultHookContext",), _DIRECTIVES, "in order", _TURN),
        HookKind("before_tool_call", ("ToolCallHookContext",), _DIRECTIVES, "in order", _CALL),
        HookKind("after_tool_call", ("ToolResultHookContext",), _DIRECTIVES, "in order", _CALL),
        HookKind(
            "assistant_stream", ("AssistantStreamHookContext",), "text, or AssistantStreamTransform",
            "chained", _MODEL,
        ),
        HookKind(
            "assistant_response", ("AssistantResponseHookContext",),
            "ReplyEnded, or AssistantResponseTransform", "chained", _MODEL,
        ),
        HookKind("turn_finalized", ("TurnFinalized",), "nothing", "all at once", _NEVER),
        HookKind("turn_persisted", ("TurnPersisted",), "nothing", "all at once", _NEVER),
        HookKind("session_restored", ("SessionRestored",), "nothing", "all at once", _NEVER),
        HookKind("session_config_changed", ("SessionConfigChanged",), "nothing", "all at once", _NEVER),
        HookKind(
            "session_config_mutator", ("SessionConfigChanged", "SessionPolicy"),
            "the SessionPolicy to run with", "chained", _NEVER,
        ),
        HookKind(
            "tool_catalog", ("ToolCatalogContext",), "ToolCatalogContribution, or None", "in order", _CATALOG,
            plain=True,
        ),
        HookKind("trigger_catalog", (), "a list of TriggerEvent", "in order", _CATALOG, plain=True),
    )
}  # fmt: skip

LIFECYCLE: Final = ("turn_finalized", "turn_persisted", "session_restored", "session_config_changed")

SLOTS: Final = (
    "protocol_session", "protocol_driver", "code_executor", "prose_projector", "tool_result_projector",
)  # fmt: skip
"""The roles that only one plugin of a session can have."""


class HookMark(msgspec.Struct, frozen=True):
    """The mark that the decorator puts on a method."""

    kind: str
    priority: int = 0


@overload
def hook(function: F, /) -> F: ...
@overload
def hook(kind: str | None = None, /, *, priority: int = 0) -> Callable[[F], F]: ...
def hook(target: Any = None, /, *, priority: int = 0) -> Any:
    """Declare a plugin's method a hook: the one it is named after, or the one named by the first argument.

    Where the table orders hooks by priority, those with a higher `priority` are called first.
    """
    if callable(target):
        return _marked(target, target.__name__, priority)
    return lambda function: _marked(function, target or function.__name__, priority)


def mark_of(function: object) -> HookMark | None:
    mark = getattr(function, "__standfast_hook__", None)
    return mark if isinstance(mark, HookMark) else None


def require_kind(name: str) -> HookKind:
    """Return the table row of a hook; raise `InvalidPlugin`, with a suggestion, if it does not exist."""
    kind = HOOKS.get(name)
    if kind is None:
        import difflib

        close = difflib.get_close_matches(name, HOOKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(HOOKS)}"
        raise InvalidPlugin(f"hook {name!r} does not exist", hint=hint)
    return kind


def _marked(function: F, kind: str, priority: int) -> F:
    require_kind(kind)
    function.__standfast_hook__ = HookMark(kind, priority)  # type: ignore[attr-defined]
    return function
