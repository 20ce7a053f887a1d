"""The part of a protocol that every turn uses, with or without plugins: its preamble, and how cells run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from standfast.durable.effects import EffectHost
from standfast.errors import ErrorObject
from standfast.machine.inputs import OutputCheck, ToolSettled
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.code import CellReport
from standfast.model.frame import FrameSwitch
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall
from standfast.ports.code_engine import CallAnswer, CellCall, CellFunctions, CodeEngine
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.threads import DaemonThreads

if TYPE_CHECKING:
    from standfast.model.prompt import PromptContribution


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


class OutputContract(Protocol):
    """The type that an agent's answers must have."""

    @property
    def schema(self) -> dict[str, Any]: ...

    @property
    def runs_code(self) -> bool:
        """Whether `check` runs Python code of the user, which may block."""
        ...

    def check(self, text: str) -> OutputCheck: ...
