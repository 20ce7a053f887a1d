"""The commands that the machine returns. The driver executes them; the machine itself executes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import msgspec

from standfast.machine.inputs import CheckpointKind, HookStage, ToolSettled
from standfast.model.canonical import Json
from standfast.model.message import ToolCall
from standfast.model.outcome import Ended, Wait, Waiting, WaitOutcome


class RunHooks(msgspec.Struct, frozen=True):
    """Run the plugins' hooks of a stage. For `after_turn`, `outcome` is how the turn ends."""

    stage: HookStage
    number: int = 1
    outcome: Ended | None = None

    @property
    def key(self) -> str:
        return f"hooks.{self.stage}.{self.number}"


class PrepareCall(msgspec.Struct, frozen=True):
    """Let plugins prepare the next model call. `overflowed`: the last call exceeded the context window."""

    number: int
    overflowed: bool = False

    @property
    def key(self) -> str:
        return f"prepare.{self.number}"


@final
class CallModel(msgspec.Struct, frozen=True):
    """Call the model. `number` counts the turn's model calls, failed ones included, from 1.

    Wait until `delay_ms` after the previous attempt failed.
    """

    number: int
    attempt: int = 1
    delay_ms: int = 0

    @property
    def key(self) -> str:
        return f"model.{self.number}"


@final
class RunTool(msgspec.Struct, frozen=True):
    """Execute a call. If it has waited, `waited` is the wait and `granted` its outcome.

    `attempt` counts from 1 and increases with every wait and every time-out. `ruled`: plugins need not be
    asked (again), and `arguments`, if any, replace the call's own. `timeouts` counts the executions that
    timed out; `timed_out`: the last execution did, and the call has not waited since.
    """

    call: ToolCall
    attempt: int = 1
    waited: Wait | None = None
    granted: WaitOutcome | None = None
    ruled: bool = True
    arguments: dict[str, Json] | None = None
    timeouts: int = 0
    timed_out: bool = False

    @property
    def key(self) -> str:
        return f"tool.{self.call.call_id}.{self.attempt}"


class ContinueCell(msgspec.Struct, frozen=True):
    """Continue a cell that has made the calls `made`, with the first `count` of `answers`, in order.

    A host in which the cell is still loaded passes it only the last of these answers; any other host runs the
    cell again and passes it all of them.
    """

    call: ToolCall
    arguments: dict[str, Json] | None
    made: Sequence[ToolCall]
    answers: Sequence[ToolSettled]
    count: int


@final
class Checkpoint(msgspec.Struct, frozen=True):
    """Deliver injected messages; before completion, check the answer `text` as well.

    `held`: plugins have messages for the model, so the turn does not finish here. If `closing` is not 0, the
    `after_turn` hooks must run, under this number, before the turn finishes.
    """

    kind: CheckpointKind
    number: int
    text: str = ""
    held: bool = False
    closing: int = 0

    @property
    def key(self) -> str:
        return f"checkpoint.{self.number}"


class StopEffects(msgspec.Struct, frozen=True):
    """End the running model call and tool calls, and discard their outcomes."""


class Park(msgspec.Struct, frozen=True):
    """Store the waiting turn and free its worker; the turn continues when a wait ends."""

    outcome: Waiting


class Commit(msgspec.Struct, frozen=True):
    """Write the turn's messages and outcome."""

    outcome: Ended


Command = (
    RunHooks | PrepareCall | CallModel | RunTool | ContinueCell | Checkpoint | StopEffects | Park | Commit
)
