"""The parts of a protocol: the plugins that decide how a model acts.

A protocol is a plugin that fills two exclusive slots. Its *session plugin* manages the protocol's own state
and may answer instead of the model; its *driver* builds a preamble for each tool catalog, and from the
preamble the `EffectHost` of each turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from standfast.durable.effects import EffectHost
from standfast.errors import ErrorObject, ProtocolError, TaskExists
from standfast.machine.inputs import OutputCheck, ToolSettled
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.code import CellReport
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import ProtocolTurnOptions, SessionState
from standfast.model.prompt import PromptContribution
from standfast.model.session import Payload, SessionPolicy
from standfast.model.task import TaskKind, TaskRecord, TaskSpec
from standfast.ports.code_engine import CallAnswer, CellCall, CellFunctions, CodeEngine
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog
from standfast.tools.threads import DaemonThreads

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


class CodeExecutionContext(Protocol):
    """The services of a turn for one cell of `reply`. `now_ms` and `seed` are the same in every rerun."""

    session_id: str
    turn_id: str
    call_id: int
    now_ms: int
    seed: str
    functions: CodeFunctions
    threads: DaemonThreads
    output: OutputContract | None

    def engine(self, name: str) -> CodeEngine:
        """Return the engine of this name; raise `CodeExecutionUnavailable` if it is not installed."""

    @property
    def reply(self) -> AssistantMessage: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    async def read_blob(self, digest: str) -> bytes | None: ...

    def heard(self, count: int) -> None:
        """Record that the cell was restored at the point where it had received *count* answers."""

    def ask(self, calls: Sequence[CellCall], hear: Callable[[int, CallAnswer], None]) -> None:
        """Pause the cell, which has made *calls* since its last pause.

        *hear* is called once, with the number and the result of one call: immediately if the result is
        already known, otherwise later.
        """

    def made(self) -> Sequence[tuple[ToolCall, ToolSettled | None]]:
        """Return the calls of the cell, each with its result if the cell has received it."""


class CodeFunctions(CellFunctions, Protocol):
    """The functions that code may call: the session's tools, and those that only code can call."""

    def own(self, name: str) -> RegisteredTool | None:
        """Return a function that only code can call, or the tool that runs the code itself."""


class KeepsVariables(Protocol):
    """Keeps the variables of a session's code."""

    def execution_state_dirty(self) -> bool:
        """Return whether the state has changed since `snapshot_execution_state`."""

    def snapshot_execution_state(self) -> bytes: ...

    def referenced_blobs(self) -> Mapping[str, str]:
        """Return the digests that the state refers to, by name; they are kept as long as the state is."""

    def restore_execution_state(self, data: bytes) -> None:
        """Restore the state; empty bytes if there is none."""


class CellExecutor(KeepsVariables, Protocol):
    """Runs the cells of a session and keeps their variables."""

    @property
    def cell_tool(self) -> str:
        """The name of the call that runs code."""

    @property
    def language(self) -> str:
        """The language of the session's code."""

    def cell_language(self, reply: AssistantMessage, code: str) -> str:
        """Return the language of one cell of a reply, which may differ from `language`."""

    @property
    def accepts_finish(self) -> bool:
        """Whether code may end the turn."""

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse: ...

    async def park(self) -> ErrorObject | None:
        """Release the running cell before the turn parks; return an error if it cannot be kept or rerun."""

    def turn_over(self, messages: Sequence[Message]) -> None:
        """Handle the end of the turn. No cell is running; later code may read inputs of *messages*."""


class CodeExecutorPlugin(CellExecutor, Protocol):
    """Runs code that a model wrote; `executor_defaults` has all members but `execute_code`."""

    def functions(self, catalog: ToolCatalog, resolve: Callable[[str], RegisteredTool]) -> CodeFunctions: ...


class AssistantProseProjectorPlugin(Protocol):
    """Selects the prose of a reply, which is shown to a person."""

    def project_assistant_prose(self, text: str) -> str: ...


class ExecRequest(msgspec.Struct, frozen=True):
    """Code to run, and its language. If `accept_finish`, the code may end the turn."""

    language: str
    code: str
    accept_finish: bool = True


def _as_text(report: CellReport) -> str:
    """Render the output and the result of a cell, or its error."""
    lines = [report.stdout, report.stderr, *report.notes]
    if report.error is not None:
        lines.append(f"{report.error.code}: {report.error.message}")
    elif report.result is not None:
        lines.append(msgspec.json.encode(report.result).decode())
    return "\n".join(filter(None, lines)) or "(nothing)"


class ExecResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a cell.

    Plugins may change the report. After that, `keep` returns the value to store with the result (it is passed
    a function that stores bytes), `render` the text that the model reads, and `ending`, if the code ends the
    turn, the answer or the frame made from its result. `stored` is awaited before any of these is used; it
    returns another response if the variables could not be stored. `adopt` is called when the result is
    accepted; only then does the executor's state change. A response that has only a report is stored
    unchanged and rendered as text.
    """

    report: CellReport
    keep: Callable[
        [CellReport, Callable[[bytes], AttachmentPart]], tuple[Json, tuple[AttachmentPart, ...]]
    ] = lambda report, keep: (msgspec.to_builtins(report), ())
    render: Callable[[CellReport], str] = _as_text
    ending: Callable[[Json], str | FrameSwitch] | None = None
    stored: Callable[[], Awaitable[ExecResponse | None]] | None = None
    adopt: Callable[[], None] = lambda: None


class ProtocolBuildInput(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs from which a preamble is built; if one of them changes, a new preamble is built."""

    tool_catalog: ToolCatalog
    resolve: Callable[[str], RegisteredTool]
    extensions: PluginExtensions
    triggers: TriggerEventCatalog
    extra_prompt_contributions: tuple[PromptContribution, ...] = ()


class TurnDriverPreamble(msgspec.Struct, frozen=True, kw_only=True):
    """The part of turns that stays the same until the catalog changes.

    `tools` are passed to the model's provider, `prompt` becomes part of the system prompt, and `host` makes
    the `EffectHost` of a turn from its `TurnContext`. If `warns_of_budget`, the model is warned when its
    budget runs out. `own` are the protocol's own tools by name. `found` are those of the `tools` that the
    model has found by searching; they are available within the running turn.
    """

    host: Callable[[Any], EffectHost]
    tools: tuple[Capability, ...] = ()
    prompt: tuple[PromptContribution, ...] = ()
    warns_of_budget: bool = False
    own: Mapping[str, RegisteredTool] = msgspec.field(default_factory=dict)
    found: tuple[Capability, ...] = ()


class ProtocolDriverPlugin(Protocol):
    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble: ...


class OutputContract(Protocol):
    """The type that an agent's answers must have."""

    @property
    def schema(self) -> dict[str, Any]: ...

    @property
    def runs_code(self) -> bool:
        """Whether `check` runs Python code of the user, which may block."""
        ...

    def check(self, text: str) -> OutputCheck: ...


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
