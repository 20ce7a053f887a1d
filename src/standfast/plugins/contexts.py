"""What a hook is told, and what it may answer with besides directives.

Rule: a context is read only. A hook changes its turn by what it returns; what it wants of the runtime beside
that, it asks the context's `host` for, which has the services of the hook's role and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from standfast.errors import ErrorObject
from standfast.machine.inputs import CheckpointKind
from standfast.model.canonical import Json
from standfast.model.capability import ExternalCallRecord, SessionToolAccess, SideEffect, ToolManifest
from standfast.model.limits import Usage
from standfast.model.message import Message, UserMessage
from standfast.model.outcome import Ended
from standfast.model.session import SessionPolicy
from standfast.ports.host import (
    CheckpointHookHost,
    DirectCompletionHost,
    HistoryHost,
    PluginActionHost,
    ProcessService,
    PromptHookHost,
    SessionGraphHost,
    SessionStateService,
    ToolHookHost,
    TurnHookHost,
    TurnResultHookHost,
)
from standfast.ports.model_provider import ReplyEnded
from standfast.tools.context import AsksModel, Attachments
from standfast.tools.no_host import NO_HOST

StreamKind = Literal["text", "reasoning"]


class Shelf(Protocol):
    """What a plugin keeps beyond one session, under keys, in scopes of its own."""

    async def put(self, scope: str, key: str, body: bytes | None) -> None: ...

    async def get(self, scope: str, key: str) -> bytes | None: ...

    async def list(self, scope: str) -> list[tuple[str, bytes]]: ...


Completer = AsksModel
"""Asks the session's model for a text. What that used is in the ledger, under *source*."""


class SessionHosts(Protocol):
    """What the plugins of one session may ask of the runtime, for each role as much as it has."""

    @property
    def prompt(self) -> PromptHookHost: ...

    @property
    def turn(self) -> TurnHookHost: ...

    @property
    def checkpoint(self) -> CheckpointHookHost: ...

    @property
    def turn_result(self) -> TurnResultHookHost: ...

    @property
    def history(self) -> HistoryHost: ...

    @property
    def tool(self) -> ToolHookHost: ...

    @property
    def action(self) -> PluginActionHost: ...

    @property
    def sessions(self) -> SessionStateService: ...

    @property
    def session_graph(self) -> SessionGraphHost: ...

    @property
    def processes(self) -> ProcessService: ...

    @property
    def completions(self) -> DirectCompletionHost: ...

    @property
    def session(self) -> PluginActionHost:
        """What a plugin has beside its hooks; within a hook, no more of it than the hook has itself."""


class NoHosts:
    """The plugins of a session without a runtime."""

    prompt = turn = checkpoint = turn_result = history = tool = action = session = NO_HOST
    sessions = session_graph = processes = completions = NO_HOST


class PluginExtensions:
    """What plugins of a session lay out for each other, under names."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        self.values[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)


class HookContext(msgspec.Struct, frozen=True, kw_only=True):
    """What every hook within a turn is told."""

    session_id: str
    turn_id: str
    extensions: PluginExtensions
    extension: Json = None
    """What the turn was given for the protocol."""
    deps: Any = None
    """What the turn's tools get as `RunContext.deps`."""


class PromptHookContext(HookContext, frozen=True, kw_only=True):
    """The model is about to be asked."""

    iteration: int
    host: PromptHookHost = NO_HOST


class TurnTransformContext(HookContext, frozen=True, kw_only=True):
    """The messages of the next model call. `turn_messages` of them, the last ones, belong to this turn.

    `prompt_tokens` is what the last model call was given, as its provider counted; 0 before the first one.
    """

    turn_messages: int
    prompt_tokens: int = 0
    overflowed: bool = False
    host: HistoryHost = NO_HOST


class CompactionContext(HookContext, frozen=True, kw_only=True):
    """What the model sees of earlier turns, and may see a summary of instead."""

    messages: Sequence[Message]
    turn_messages: Sequence[Message]
    complete: Completer
    prompt_tokens: int = 0
    overflowed: bool = False
    host: HistoryHost = NO_HOST


class TurnHookContext(HookContext, frozen=True, kw_only=True):
    """A turn begins."""

    input: UserMessage
    messages: Sequence[Message]
    complete: Completer
    host: TurnHookHost = NO_HOST


class CheckpointHookContext(HookContext, frozen=True, kw_only=True):
    """A round of calls is over (`after_work`), or the model gave its `answer` (`before_completion`)."""

    checkpoint: CheckpointKind
    messages: Sequence[Message]
    usage: Usage
    complete: Completer
    answer: str = ""
    host: CheckpointHookHost = NO_HOST


class TurnResultHookContext(HookContext, frozen=True, kw_only=True):
    """A turn is about to end like this."""

    outcome: Ended
    messages: Sequence[Message]
    usage: Usage
    complete: Completer
    host: TurnResultHookHost = NO_HOST


class ToolCallHookContext(HookContext, frozen=True, kw_only=True):
    """A call is about to be made. `arguments` are not to be changed: return ReplaceToolArgs."""

    call_id: int
    tool_name: str
    arguments: dict[str, Json]
    side_effect: SideEffect | None = None
    """None if there is no such tool."""
    parent: int = 0
    """The call that runs the code which makes this one; 0 if the model asked for it."""
    host: ToolHookHost = NO_HOST


class ToolResultHookContext(HookContext, frozen=True, kw_only=True):
    """A call has its result, and nobody has seen it yet: the model, or the code that made the call.

    `parent` is the call that runs that code. With `is_cell` it is code that has ended, and `value` is a
    `CellReport` as JSON; what it ends the turn with, if it does, is made of the report's `result` afterwards.
    """

    call_id: int
    tool_name: str
    arguments: dict[str, Json]
    attachments: Attachments
    value: Json = None
    error: ErrorObject | None = None
    record: ExternalCallRecord | None = None
    parent: int = 0
    is_cell: bool = False
    host: ToolHookHost = NO_HOST


class ToolResultProjectionContext(HookContext, frozen=True, kw_only=True):
    """A result is about to become what the model reads of it."""

    call_id: int
    tool_name: str
    value: Json = None
    error: ErrorObject | None = None


class AssistantStreamHookContext(HookContext, frozen=True, kw_only=True):
    """A piece of the reply arrived: of its text, or of the model's reasoning.

    `number` is that of the model call; another attempt has another one. With `last` nothing more of the kind
    comes, and `chunk` is empty: whoever has held something back gives it now.
    """

    chunk: str
    kind: StreamKind = "text"
    number: int = 1
    last: bool = False


class AssistantResponseHookContext(HookContext, frozen=True, kw_only=True):
    """The whole reply arrived, and nothing was made of it yet."""

    response: ReplyEnded


class AssistantStreamTransform(msgspec.Struct, frozen=True):
    """What is shown instead of a piece of the reply."""

    chunk: str


class AssistantResponseTransform(msgspec.Struct, frozen=True):
    """The reply that counts."""

    response: ReplyEnded


class ContextCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """What the model sees instead of earlier turns. Empty, it changes nothing."""

    seed: tuple[Message, ...] = ()
    reason: str = "compaction"

    @property
    def is_empty(self) -> bool:
        return not self.seed


class SwitchAgentFrame(msgspec.Struct, frozen=True):
    """An answer of `before_llm_call`: the turn ends here, *task* is taken up in a new frame."""

    frame_id: str
    task: str


class ToolCatalogContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a catalog is about to be made of. `found` are those that the model has found."""

    session_id: str
    tools: Sequence[ToolManifest]
    tool_access: SessionToolAccess
    extensions: PluginExtensions
    subagent: SubagentContext | None = None
    found: frozenset[str] = frozenset()


class SubagentContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a session that works for another one knows about that."""

    parent_session_id: str
    depth: int = 1
    task: str = ""


# Lifecycle


class TurnFinalized(msgspec.Struct, frozen=True, kw_only=True):
    """A turn is about to be committed."""

    session_id: str
    turn_id: str
    outcome: Ended


class TurnPersisted(msgspec.Struct, frozen=True, kw_only=True):
    """A turn is on disk."""

    session_id: str
    turn_id: str
    outcome: Ended
    leaf: str | None


class SessionRestored(msgspec.Struct, frozen=True, kw_only=True):
    """A session was opened with what it had kept."""

    session_id: str
    leaf: str | None


class SessionConfigChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A session runs with other settings from now on; with None before, it was just opened."""

    session_id: str
    before: SessionPolicy | None
    after: SessionPolicy


LifecycleEvent = TurnFinalized | TurnPersisted | SessionRestored | SessionConfigChanged
