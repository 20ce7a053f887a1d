"""Everything that a turn can ask for, as values. The shell carries them out; the machine does nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from standfast.machine.inputs import CheckpointKind, HookStage, ToolSettled
from standfast.model.canonical import Json
from standfast.model.message import ToolCall
from standfast.model.outcome import Ended, Waiting
from standfast.model.wait import Wait, WaitOutcome


class RunHooks(msgspec.Struct, frozen=True):
    """Let plugins have their say. `outcome` is how the turn ends, after it."""

    stage: HookStage
    number: int = 1
    outcome: Ended | None = None

    @property
    def key(self) -> str:
        return f"hooks.{self.stage}.{self.number}"


class PrepareCall(msgspec.Struct, frozen=True):
    """Let plugins prepare the next model call. `overflowed`: the last one did not fit the window."""

    number: int
    overflowed: bool = False

    @property
    def key(self) -> str:
        return f"prepare.{self.number}"


class CallModel(msgspec.Struct, frozen=True):
    """Ask the model. `number` counts the turn's model calls, failed ones included, from 1.

    `delay_ms` is to pass first, counted from when the attempt before this one failed.
    """

    number: int
    attempt: int = 1
    delay_ms: int = 0

    @property
    def key(self) -> str:
        return f"model.{self.number}"


class RunTool(msgspec.Struct, frozen=True):
    """Carry out a call. If it has waited, `waited` is what for and `granted` how that ended.

    `attempt` counts from 1 and rises with every wait and every time-out. `ruled` tells that plugins need not
    be asked (again), and `arguments` what they replaced the call's own with. `timeouts` counts the executions
    that timed out; `timed_out`: the last thing that happened to the call is one of them.
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
    """Let a cell go on: it has made these calls, and the first `count` answers are its to know, in order.

    Whoever runs the cell already needs the last of them; whoever does not runs it again and gives it all.
    """

    call: ToolCall
    arguments: dict[str, Json] | None
    made: Sequence[ToolCall]
    answers: Sequence[ToolSettled]
    count: int


class Checkpoint(msgspec.Struct, frozen=True):
    """Deliver what was injected; before completion, check the answer `text` as well.

    `held`: plugins have something to say, so the turn does not finish here. `closing`: they have yet to hear
    of its end, under this number.
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
    """End the model call and the tool calls under way; what they still bring is not wanted."""


class Park(msgspec.Struct, frozen=True):
    """Set the worker free; the turn goes on when a wait ends."""

    outcome: Waiting


class Commit(msgspec.Struct, frozen=True):
    """The turn is over: write what it said and how it ended."""

    outcome: Ended


Command = (
    RunHooks | PrepareCall | CallModel | RunTool | ContinueCell | Checkpoint | StopEffects | Park | Commit
)
