"""The parts of a protocol: the plugins that decide how a model acts.

A protocol is a plugin that fills two exclusive slots. Its *session plugin* manages the protocol's own state
and may answer instead of the model; its *driver* builds a preamble for each tool catalog, and from the
preamble the `EffectHost` of each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from standfast.errors import ProtocolError, TaskExists
from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.message import Message
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import ProtocolTurnOptions, SessionState
from standfast.model.prompt import PromptContribution
from standfast.model.session import Payload, SessionPolicy
from standfast.model.task import TaskKind, TaskRecord, TaskSpec
from standfast.plugins.turn_protocol import CellExecutor, CodeFunctions, TurnDriverPreamble
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog

if TYPE_CHECKING:
    from standfast.plugins.contexts import Completer, PluginExtensions, SwitchAgentFrame, TriggerEventCatalog
    from standfast.ports import host as ports
    from standfast.ports.model_provider import ModelRequest

T = TypeVar("T")


class ProtocolSessionContext(msgspec.Struct, frozen=True):
    """The session that a protocol method is called for."""

    session_id: str


class SessionReadView(msgspec.Struct, frozen=True, kw_only=True):
    """A read-only view of a session in mid-turn: the frame's `history` and the turn's messages so far."""

    session_id: str
    turn_id: str
    frame_id: str
    policy: SessionPolicy
    history: Sequence[Message]
    turn_messages: Sequence[Message]
    usage: Usage
    model_calls: int


class ProcessScope(msgspec.Struct, frozen=True, kw_only=True):
    """The background tasks of one model call, under names that are the same in every attempt."""

    session_id: str
    parent_invocation: str
    processes: ports.ProcessService

    def task_id(self, name: str) -> str:
        return f"{self.parent_invocation}.{name}"

    async def spawn(
        self, name: str, task: ports.SessionTask, *, kind: TaskKind = TaskKind.OTHER, label: str = ""
    ) -> TaskRecord:
        """Start a task of this call and return its record; if it is running already, only return that."""
        spec = TaskSpec(id=self.task_id(name), kind=kind, label=label or name)
        try:
            return await self.processes.spawn_managed_task(self.session_id, spec, task)
        except TaskExists:
            return next(one for one in await self.tasks() if one.id == spec.id)

    async def tasks(self) -> list[TaskRecord]:
        """Return the tasks of this call, the oldest first."""
        found = await self.processes.list_background_tasks(self.session_id)
        return [one for one in found if one.id.startswith(f"{self.parent_invocation}.")]

    async def cancel(self, name: str) -> TaskRecord:
        return await self.processes.cancel_background_task(self.session_id, self.task_id(name))


class ProtocolBeforeLlmCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The model is about to be called, unless the protocol answers instead.

    `latest_prompt_usage` is the usage of the session's last reply; None before the first one. `sessions`,
    `session_graph`, `processes` and `completions` are runtime services.
    """

    session_id: str
    turn_id: str
    messages: Sequence[Message]
    prompt_tokens: int
    complete: Completer
    deps: Any = None
    state: SessionReadView
    latest_prompt_usage: Usage | None
    invocation: str
    sessions: ports.SessionStateService
    session_graph: ports.SessionGraphHost
    processes: ports.ProcessService
    completions: ports.DirectCompletionHost

    async def direct_llm_completion(
        self, request: ModelRequest, usage_source: str
    ) -> ports.DirectLlmCompletion:
        """Send another request to the session's model, charged to the turn."""
        return await self.completions.direct_llm_completion(request, usage_source)

    def process_scope(self) -> ProcessScope:
        """Return the scope of tasks that belong to this model call."""
        return ProcessScope(
            session_id=self.session_id, parent_invocation=self.invocation, processes=self.processes
        )


class ProtocolSessionMaterialization(msgspec.Struct, frozen=True, kw_only=True):
    """The options with which a session is opened, as a root or as a child."""

    plugin_options: PluginOptions
    is_root_session: bool = True


class ProtocolRuntimeContext:
    """The durable options of the protocol, for the session and for its frames."""

    def __init__(self, version: int) -> None:
        self._version = version
        self.session: ProtocolTurnOptions | None = None
        self.frames: dict[str, ProtocolTurnOptions] = {}
        self.frame = ""
        """The current frame."""

    def protocol_turn_options(self) -> ProtocolTurnOptions | None:
        return self.frames.get(self.frame, self.session)

    def set_protocol_turn_options(self, options: ProtocolTurnOptions) -> None:
        """Set the options of the session and of its current frame."""
        check_turn_options(options, self._version)
        self.session = options
        self.frames = {**self.frames, self.frame: options}

    def set_protocol_turn_options_all_frames(self, options: ProtocolTurnOptions) -> None:
        check_turn_options(options, self._version)
        self.session, self.frames = options, {}

    def check(self) -> None:
        """Raise `ProtocolError` if stored options are of a version that the protocol does not read."""
        for options in (*self.frames.values(), self.session):
            if options is not None:
                check_turn_options(options, self._version)


class ProtocolSessionPlugin:
    """A protocol's callbacks in the life of a session. Overriding them is optional."""

    turn_options_version: int = 1
    """The `schema_version` of the protocol's options. Options of another version are refused when they are
    set, and when a session that has stored them is opened, unless `configure_runtime_on_materialize` replaces
    them."""

    async def initialize_session(self, ctx: ProtocolSessionContext) -> None:
        """Handle the opening of the session in this process."""

    async def restore_session(self, ctx: ProtocolSessionContext, state: SessionState) -> None:
        """Handle the session's stored *state*. Also called after a frame switch was committed."""

    async def append_session_nodes(self, ctx: ProtocolSessionContext, nodes: Sequence[Payload]) -> None:
        """Handle nodes that the host has added to the history."""

    async def apply_session_extension(self, extension: Json) -> None:
        """Apply an extension that the host passes for the session."""
        raise ProtocolError("the protocol of this session does not support session extensions")

    async def validate_turn_extension(self, extension: Json) -> None:
        """Check an extension that the host passes for one turn; raise to refuse it."""

    def configure_runtime_on_materialize(
        self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
    ) -> None:
        """Read and set the protocol's options while the session is opened."""

    async def before_llm_call(
        self, ctx: ProtocolBeforeLlmCallContext, request: ModelRequest
    ) -> SwitchAgentFrame | None:
        """Return a frame to switch to instead of calling the model, or None."""
        return None


class CodeExecutorPlugin(CellExecutor, Protocol):
    """Runs code that a model wrote; `executor_defaults` has all members but `execute_code`."""

    def functions(self, catalog: ToolCatalog, resolve: Callable[[str], RegisteredTool]) -> CodeFunctions: ...


class AssistantProseProjectorPlugin(Protocol):
    """Selects the prose of a reply, which is shown to a person."""

    def project_assistant_prose(self, text: str) -> str: ...


class ProtocolBuildInput(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs from which a preamble is built; if one of them changes, a new preamble is built."""

    tool_catalog: ToolCatalog
    resolve: Callable[[str], RegisteredTool]
    extensions: PluginExtensions
    triggers: TriggerEventCatalog
    extra_prompt_contributions: tuple[PromptContribution, ...] = ()


class ProtocolDriverPlugin(Protocol):
    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble: ...


def read_turn_options(options: ProtocolTurnOptions | None, version: int, kind: type[T]) -> T | None:
    """Convert the payload; raise `ProtocolError` if it has another version or is invalid."""
    if options is None:
        return None
    check_turn_options(options, version)
    try:
        return msgspec.convert(options.payload, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the protocol's options are invalid: {error}") from None


def check_turn_options(options: ProtocolTurnOptions, version: int) -> None:
    """Raise `ProtocolError` if the options are not of *version*."""
    if options.schema_version != version:
        raise ProtocolError(
            f"the protocol's options have version {options.schema_version}, this protocol reads {version}",
            hint="open the session with the protocol that wrote them, or set them again",
        )
