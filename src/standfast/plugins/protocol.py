"""What a protocol is made of: the plugins that decide how a model acts.

A protocol is a plugin like any other that fills two exclusive slots. Its *session plugin* looks after the
protocol's own state and may answer instead of the model; its *driver* makes, once for each catalog of tools,
a preamble, and from that the `EffectHost` of each turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from standfast.durable.effects import EffectHost
from standfast.errors import ErrorObject, ProtocolError, TaskExists
from standfast.machine.inputs import OutputCheck, ToolSettled
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.cell import CellReport
from standfast.model.frame import FrameSwitch
from standfast.model.language import EngineName
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import ProtocolTurnOptions, SessionState
from standfast.model.prompt import PromptContribution
from standfast.model.session import Payload, SessionPolicy
from standfast.model.task import TaskKind, TaskRecord, TaskSpec
from standfast.plugins.contexts import Completer, PluginExtensions, SwitchAgentFrame
from standfast.plugins.triggers import TriggerEventCatalog
from standfast.ports.code_engine import CallAnswer, CellCall, CellFunctions, CodeEngine
from standfast.ports.host import (
    DirectCompletionHost,
    DirectLlmCompletion,
    ProcessService,
    SessionGraphHost,
    SessionStateService,
    SessionTask,
)
from standfast.ports.model_provider import ModelRequest
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog
from standfast.tools.threads import DaemonThreads

T = TypeVar("T")


class ProtocolSessionContext(msgspec.Struct, frozen=True):
    """Which session it is about."""

    session_id: str


class SessionReadView(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the middle of a turn, to be looked at.

    `history` is what the frame had before the turn, `turn_messages` what the turn has said, and `usage` what
    the turn has used so far.
    """

    session_id: str
    turn_id: str
    frame_id: str
    policy: SessionPolicy
    history: Sequence[Message]
    turn_messages: Sequence[Message]
    usage: Usage
    model_calls: int


class ProcessScope(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that were begun for one model call, under names that a second attempt would choose again."""

    session_id: str
    parent_invocation: str
    processes: ProcessService

    def task_id(self, name: str) -> str:
        return f"{self.parent_invocation}.{name}"

    async def spawn(
        self, name: str, task: SessionTask, *, kind: TaskKind = TaskKind.OTHER, label: str = ""
    ) -> TaskRecord:
        """Run a task of this call; if it runs already, its record."""
        spec = TaskSpec(id=self.task_id(name), kind=kind, label=label or name)
        try:
            return await self.processes.spawn_managed_task(self.session_id, spec, task)
        except TaskExists:
            return next(one for one in await self.tasks() if one.id == spec.id)

    async def tasks(self) -> list[TaskRecord]:
        """The tasks of this call, the oldest first."""
        found = await self.processes.list_background_tasks(self.session_id)
        return [one for one in found if one.id.startswith(f"{self.parent_invocation}.")]

    async def cancel(self, name: str) -> TaskRecord:
        return await self.processes.cancel_background_task(self.session_id, self.task_id(name))


class ProtocolBeforeLlmCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The model is about to be asked; it need not be.

    `latest_prompt_usage` is what the last reply of the session used; None before the first one. `sessions`,
    `session_graph` and `processes` are what the protocol may ask of the runtime here.
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
    sessions: SessionStateService
    session_graph: SessionGraphHost
    processes: ProcessService
    completions: DirectCompletionHost

    async def direct_llm_completion(self, request: ModelRequest, usage_source: str) -> DirectLlmCompletion:
        """Ask the session's model with a request of one's own, on the turn's account."""
        return await self.completions.direct_llm_completion(request, usage_source)

    def process_scope(self) -> ProcessScope:
        """Return the scope of tasks that belong to this model call."""
        return ProcessScope(
            session_id=self.session_id, parent_invocation=self.invocation, processes=self.processes
        )


class ProtocolSessionMaterialization(msgspec.Struct, frozen=True, kw_only=True):
    """A session is opened: with these options, as a root or as a child."""

    plugin_options: PluginOptions
    is_root_session: bool = True


class ProtocolRuntimeContext(Protocol):
    """The durable options of the protocol, for the session and for its frames."""

    def protocol_turn_options(self) -> ProtocolTurnOptions | None: ...

    def set_protocol_turn_options(self, options: ProtocolTurnOptions) -> None:
        """For the session, and for its current frame."""

    def set_protocol_turn_options_all_frames(self, options: ProtocolTurnOptions) -> None: ...


class ProtocolSessionPlugin:
    """A protocol's part in the life of a session. Everything may be left as it is."""

    turn_options_version: int = 1
    """The `schema_version` of the protocol's options. Others are refused when they are set, and when a
    session that has kept them is opened, unless `configure_runtime_on_materialize` sets them anew."""

    async def initialize_session(self, ctx: ProtocolSessionContext) -> None:
        """The session is opened in this process."""

    async def restore_session(self, ctx: ProtocolSessionContext, state: SessionState) -> None:
        """The session has kept *state*. Called also after a frame switch was committed."""

    async def append_session_nodes(self, ctx: ProtocolSessionContext, nodes: Sequence[Payload]) -> None:
        """The host has added nodes to the history."""

    async def apply_session_extension(self, extension: Json) -> None:
        """The host hands something over for the session."""
        raise ProtocolError("the protocol of this session takes no session extensions")

    async def validate_turn_extension(self, extension: Json) -> None:
        """The host hands something over for one turn; raise to refuse it."""

    def configure_runtime_on_materialize(
        self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
    ) -> None:
        """The session is opened: read and set the protocol's options."""

    async def before_llm_call(
        self, ctx: ProtocolBeforeLlmCallContext, request: ModelRequest
    ) -> SwitchAgentFrame | None:
        """The model is about to be asked. With a frame to switch to, it is not."""
        return None


class CodeExecutionContext(Protocol):
    """What a cell may ask of its turn.

    `reply` is the reply that the cell stands in. `now_ms` and `seed` are the same whenever the cell is run.
    """

    session_id: str
    turn_id: str
    call_id: int
    now_ms: int
    seed: str
    functions: CodeFunctions
    threads: DaemonThreads
    output: OutputContract | None

    def engine(self, name: EngineName) -> CodeEngine:
        """The engine of this name; `CodeExecutionUnavailable` if it is not installed."""

    @property
    def reply(self) -> AssistantMessage: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    async def read_blob(self, digest: str) -> bytes | None: ...

    def heard(self, count: int) -> None:
        """The cell goes on from where it had this many answers."""

    def ask(self, calls: Sequence[CellCall], hear: Callable[[int, CallAnswer], None]) -> None:
        """The cell stands still, and has made *calls* since it last did.

        *hear* is told, once, the number of a call and what came of it: later, or at once if that is known.
        """

    def made(self) -> Sequence[tuple[ToolCall, ToolSettled | None]]:
        """The calls of the cell, and what the cell has heard of each."""


class CodeFunctions(CellFunctions, Protocol):
    """What code may call: the tools of the session, and functions that only code has."""

    def own(self, name: str) -> RegisteredTool | None:
        """A function that only code has, by its name; and the tool that runs the code itself."""


class CodeExecutorPlugin(Protocol):
    """Runs the code that a model writes, and keeps its variables.

    An executor must have `execute_code`; what else it lacks is as in `executor_defaults`.
    """

    @property
    def cell_tool(self) -> str:
        """The name of the call that runs code."""

    @property
    def language(self) -> str:
        """What the session's code is written in."""

    def cell_language(self, reply: AssistantMessage, code: str) -> str:
        """Tell what this cell of a reply is written in; it may be another language."""

    @property
    def accepts_finish(self) -> bool:
        """Whether code may end the turn."""

    def functions(self, catalog: ToolCatalog, resolve: Callable[[str], RegisteredTool]) -> CodeFunctions: ...

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse: ...

    async def park(self) -> ErrorObject | None:
        """Suspend the running cell and free its resources, because the turn is about to wait.

        Returns the error that ends the cell if it can neither be suspended nor run again.
        """

    def turn_over(self, messages: Sequence[Message]) -> None:
        """The turn is about to be committed: no code of it is in the middle of anything any more.

        *messages* are those of the frame and of the turn: what they bring for code to read stays readable.
        """

    def execution_state_dirty(self) -> bool:
        """Whether there is something to remember that `snapshot_execution_state` has not given yet."""

    def snapshot_execution_state(self) -> bytes: ...

    def referenced_blobs(self) -> Mapping[str, str]:
        """The blobs that the state names, by what they are: they are kept as long as the state is."""

    def restore_execution_state(self, data: bytes) -> None:
        """Take in what was remembered; nothing but empty bytes if there is nothing."""


class AssistantProseProjectorPlugin(Protocol):
    """What of a reply is prose, to be shown to a person."""

    def project_assistant_prose(self, text: str) -> str: ...


class ExecRequest(msgspec.Struct, frozen=True):
    """Code to run, and what it is written in. `accept_finish`: it may end the turn."""

    language: str
    code: str
    accept_finish: bool = True


def _nothing() -> None:
    """The code has left nothing."""


def _kept_as_it_is(report: CellReport, keep: object) -> tuple[Json, tuple[AttachmentPart, ...]]:
    return msgspec.to_builtins(report), ()


def _as_text(report: CellReport) -> str:
    """Render what a cell printed and returned, or how it failed."""
    told = [report.stdout, report.stderr, *report.notes]
    if report.error is not None:
        told.append(f"{report.error.code}: {report.error.message}")
    elif report.result is not None:
        told.append(msgspec.json.encode(report.result).decode())
    return "\n".join(filter(None, told)) or "(nothing)"


class ExecResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Plugins may change the report. After that `keep` makes of it what is kept with the result (given something
    that keeps bytes), `render` what the model reads, and `ending`, if the code ends the turn, makes of its
    result what the turn ends with: an answer, or a frame. `stored`, if it is there, is awaited before any of
    that counts: what the code has left may still be on its way, and if it cannot be kept, that is another
    response. `adopt` is called when the result is taken in: only then the executor's state is what the code
    has left. With the report alone, it is kept as it is, and the model reads it as text.
    """

    report: CellReport
    keep: Callable[
        [CellReport, Callable[[bytes], AttachmentPart]], tuple[Json, tuple[AttachmentPart, ...]]
    ] = _kept_as_it_is
    render: Callable[[CellReport], str] = _as_text
    ending: Callable[[Json], str | FrameSwitch] | None = None
    stored: Callable[[], Awaitable[ExecResponse | None]] | None = None
    adopt: Callable[[], None] = _nothing


class ProtocolBuildInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a preamble is made of; when one of these changes, a new one is made."""

    tool_catalog: ToolCatalog
    resolve: Callable[[str], RegisteredTool]
    extensions: PluginExtensions
    triggers: TriggerEventCatalog
    extra_prompt_contributions: tuple[PromptContribution, ...] = ()


class TurnDriverPreamble(msgspec.Struct, frozen=True, kw_only=True):
    """What turns have in common until the catalog changes.

    `tools` are offered to the model by its provider, `prompt` goes into the system prompt, and `host` makes
    of a turn's `TurnContext` the `EffectHost` that carries out its commands. `warns_of_budget`: the model is
    told when a turn's budget runs out. `own` are tools by name that the protocol brings itself, beside those
    of the catalog. `found` are those of the `tools` that the model has found by searching: they are offered
    in the turn that runs.
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
    """What an agent promises to answer with."""

    @property
    def schema(self) -> dict[str, Any]: ...

    @property
    def runs_code(self) -> bool:
        """Whether `check` runs Python code of the user, which may block."""
        ...

    def check(self, text: str) -> OutputCheck: ...


def read_turn_options(options: ProtocolTurnOptions | None, version: int, kind: type[T]) -> T | None:
    """The payload as the protocol wants it; an error if it was written for another version."""
    if options is None:
        return None
    check_turn_options(options, version)
    try:
        return msgspec.convert(options.payload, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the protocol's options do not fit: {error}") from None


def check_turn_options(options: ProtocolTurnOptions, version: int) -> None:
    """Raise `ProtocolError` if the options are not of *version*."""
    if options.schema_version != version:
        raise ProtocolError(
            f"the protocol's options have version {options.schema_version}, this protocol reads {version}",
            hint="open the session with the protocol that wrote them, or set them again",
        )
