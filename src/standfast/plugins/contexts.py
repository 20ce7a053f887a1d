"""The contexts that hooks receive, and the types of return values other than directives.

Rule: a context is read-only; a hook acts by its return value, and through the services of its role (`host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from standfast.errors import ErrorObject, InvalidArgument, PluginConflict
from standfast.machine.inputs import CheckpointKind
from standfast.model.canonical import Json
from standfast.model.capability import ExternalCallRecord, SessionToolAccess, SideEffect, ToolManifest
from standfast.model.limits import Usage
from standfast.model.message import Message, UserMessage
from standfast.model.outcome import Ended
from standfast.model.session import SessionPolicy
from standfast.ports.model_provider import ReplyEnded
from standfast.tools.context import AsksModel, Attachments
from standfast.tools.no_host import NO_HOST

if TYPE_CHECKING:
    from standfast.ports import host as ports

StreamKind = Literal["text", "reasoning"]


class PluginStorage(Protocol):
    """A plugin's storage beyond one session: values by key, in scopes, separate for each plugin."""

    async def put(self, scope: str, key: str, body: bytes | None) -> None: ...

    async def get(self, scope: str, key: str) -> bytes | None: ...

    async def list(self, scope: str) -> list[tuple[str, bytes]]: ...


Completer = AsksModel
"""A function that requests text from the session's model and charges the usage to *source*."""


class SessionHosts(Protocol):
    """The runtime services of a session's plugins, for each role."""

    prompt: ports.PromptHookHost
    turn: ports.TurnHookHost
    checkpoint: ports.CheckpointHookHost
    turn_result: ports.TurnResultHookHost
    history: ports.HistoryHost
    tool: ports.ToolHookHost
    action: ports.PluginActionHost
    sessions: ports.SessionStateService
    session_graph: ports.SessionGraphHost
    processes: ports.ProcessService
    completions: ports.DirectCompletionHost
    session: ports.PluginActionHost
    """All services outside of hooks; within a hook, only those of the hook's role."""


class NoHosts:
    """The services of a session without a runtime: none."""

    prompt = turn = checkpoint = turn_result = history = tool = action = session = NO_HOST
    sessions = session_graph = processes = completions = NO_HOST


class PluginExtensions(msgspec.Struct):
    """Named values that the plugins of a session share."""

    values: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        self.values[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)


class HookContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of every hook within a turn."""

    session_id: str
    turn_id: str
    extensions: PluginExtensions
    extension: Json = None
    """The turn's extension for the protocol."""
    deps: Any = None
    """The `RunContext.deps` of the turn's tools."""


class PromptHookContext(HookContext, frozen=True, kw_only=True):
    """The model is about to be called."""

    iteration: int
    host: ports.PromptHookHost = NO_HOST


class TurnTransformContext(HookContext, frozen=True, kw_only=True):
    """The messages of the next model call. The last `turn_messages` of them belong to this turn.

    `prompt_tokens` is the size of the last call's prompt as its provider counted; 0 before the first call.
    """

    turn_messages: int
    prompt_tokens: int = 0
    overflowed: bool = False
    host: ports.HistoryHost = NO_HOST


class CompactionContext(HookContext, frozen=True, kw_only=True):
    """The messages of earlier turns, which a summary may replace."""

    messages: Sequence[Message]
    turn_messages: Sequence[Message]
    complete: Completer
    prompt_tokens: int = 0
    overflowed: bool = False
    host: ports.HistoryHost = NO_HOST


class TurnHookContext(HookContext, frozen=True, kw_only=True):
    """A turn begins."""

    input: UserMessage
    messages: Sequence[Message]
    complete: Completer
    host: ports.TurnHookHost = NO_HOST


class CheckpointHookContext(HookContext, frozen=True, kw_only=True):
    """A round of calls is over (`after_work`), or the model gave its `answer` (`before_completion`)."""

    checkpoint: CheckpointKind
    messages: Sequence[Message]
    usage: Usage
    complete: Completer
    answer: str = ""
    host: ports.CheckpointHookHost = NO_HOST


class TurnResultHookContext(HookContext, frozen=True, kw_only=True):
    """A turn is about to end with this outcome."""

    outcome: Ended
    messages: Sequence[Message]
    usage: Usage
    complete: Completer
    host: ports.TurnResultHookHost = NO_HOST


class ToolCallHookContext(HookContext, frozen=True, kw_only=True):
    """A call is about to be executed. To change its `arguments`, return `ReplaceToolArgs`."""

    call_id: int
    tool_name: str
    arguments: dict[str, Json]
    side_effect: SideEffect | None = None
    """The tool's side effect; None if there is no such tool."""
    parent: int = 0
    """The id of the cell that made this call; 0 if the model requested it."""
    host: ports.ToolHookHost = NO_HOST


class ToolResultHookContext(HookContext, frozen=True, kw_only=True):
    """A call has its result, before the model or the code that made the call sees it.

    `parent` is the id of the cell that made the call. If `is_cell`, the call is itself a cell that has ended
    and `value` is its `CellReport` as JSON; if the code answers the turn, the answer is read from the
    report's `result` after the hooks. The model reads `texts` in addition to the value; a `ShortCircuitTool`
    drops them unless it repeats them.
    """

    call_id: int
    tool_name: str
    arguments: dict[str, Json]
    attachments: Attachments
    value: Json = None
    error: ErrorObject | None = None
    texts: tuple[str, ...] = ()
    record: ExternalCallRecord | None = None
    parent: int = 0
    is_cell: bool = False
    host: ports.ToolHookHost = NO_HOST


class ToolResultProjectionContext(HookContext, frozen=True, kw_only=True):
    """A result is about to be rendered as the text that the model reads instead of the value and `texts`."""

    call_id: int
    tool_name: str
    value: Json = None
    error: ErrorObject | None = None
    texts: tuple[str, ...] = ()


class AssistantStreamHookContext(HookContext, frozen=True, kw_only=True):
    """A piece of the reply arrived: of its text, or of the model's reasoning.

    `number` is the number of the model call; each attempt has its own. If `last`, no more pieces of this kind
    follow and `chunk` is empty: a hook that has held back text must return it now.
    """

    chunk: str
    kind: StreamKind = "text"
    number: int = 1
    last: bool = False


class AssistantResponseHookContext(HookContext, frozen=True, kw_only=True):
    """The whole reply has arrived and has not been processed yet."""

    response: ReplyEnded


class AssistantStreamTransform(msgspec.Struct, frozen=True):
    """The text to show instead of a piece of the reply."""

    chunk: str


class AssistantResponseTransform(msgspec.Struct, frozen=True):
    """The reply that replaces the model's."""

    response: ReplyEnded


class ContextCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that replace earlier turns. If there are none, nothing is replaced."""

    seed: tuple[Message, ...] = ()
    reason: str = "compaction"

    @property
    def is_empty(self) -> bool:
        return not self.seed


class SwitchAgentFrame(msgspec.Struct, frozen=True):
    """A return value of `before_llm_call`: the turn ends, and a turn with *task* starts in a new frame."""

    frame_id: str
    task: str


class ToolCatalogContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a catalog that is being built. `found` are those that the model has found."""

    session_id: str
    tools: Sequence[ToolManifest]
    tool_access: SessionToolAccess
    extensions: PluginExtensions
    subagent: SubagentContext | None = None
    found: frozenset[str] = frozenset()


class SubagentContext(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a subagent's session below its parent."""

    parent_session_id: str
    depth: int = 1
    task: str = ""


class TurnFinalized(msgspec.Struct, frozen=True, kw_only=True):
    """A turn is about to be committed."""

    session_id: str
    turn_id: str
    outcome: Ended


class TurnPersisted(msgspec.Struct, frozen=True, kw_only=True):
    """A turn was committed."""

    session_id: str
    turn_id: str
    outcome: Ended
    leaf: str | None


class SessionRestored(msgspec.Struct, frozen=True, kw_only=True):
    """A session was opened with its stored state."""

    session_id: str
    leaf: str | None


class SessionConfigChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A session's settings have changed; `before` is None if it was just opened."""

    session_id: str
    before: SessionPolicy | None
    after: SessionPolicy


LifecycleEvent = TurnFinalized | TurnPersisted | SessionRestored | SessionConfigChanged


class TriggerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of occurrence. `name` is its source; payloads must match `payload_schema`."""

    name: str
    description: str = ""
    payload_schema: dict[str, Any] = {}


class TriggerEventCatalog(msgspec.Struct):
    """The trigger events of a session, under unique names, with their owners."""

    events: dict[str, TriggerEvent] = msgspec.field(default_factory=dict)
    owners: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, plugin_id: str, event: TriggerEvent) -> None:
        if event.name in self.events:
            raise PluginConflict(f"trigger {event.name!r}", self.owners[event.name], plugin_id)
        self.events[event.name] = event
        self.owners[event.name] = plugin_id

    def check(self, source: str, payload: Json) -> None:
        """Raise `InvalidArgument` if *payload* does not match the schema announced for *source*."""
        event = self.events.get(source)
        if event is None or not event.payload_schema:
            return
        import jsonschema_rs  # slow to import, and needed only if a plugin has a schema

        try:
            jsonschema_rs.validator_for(event.payload_schema).validate(payload)
        except jsonschema_rs.ValidationError as error:
            where = "".join(f"[{part!r}]" for part in error.instance_path)
            raise InvalidArgument(
                f"the payload of {source!r} does not match its schema: {error.message}"
                f"{' at ' + where if where else ''}",
                hint=f"plugin {self.owners[source]!r} announces the schema of its payload",
            ) from None
