"""What the driver asks of whoever carries a turn's commands out.

A protocol brings one: the standard protocol's calls models and native tools. The host does things; it decides
nothing that the journal would have to know, except by what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from standfast.machine.commands import CallModel, ContinueCell, PrepareCall, RunHooks, RunTool
from standfast.machine.inputs import (
    CallPrepared,
    CallRuled,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    OutputCheck,
    ToolSettled,
)
from standfast.model.approval import Approval
from standfast.model.outcome import Ended
from standfast.model.wait import Wait
from standfast.ports.session_store import Blob, JournalEntry, StateRecord

Deliver = Callable[[Input], None]
"""Takes what came of an effect. Called on the loop of the turn."""


class Ready(msgspec.Struct, frozen=True):
    """A call that may be executed. One that is not idempotent is journaled as an intent first.

    A `pure` one touches nothing by itself, so that nothing need be on disk before it: a cell is such a call,
    and a tool that only computes.
    """

    command: RunTool
    idempotent: bool
    call: Any
    ruled: CallRuled | None = None
    pure: bool = False


class Known(msgspec.Struct, frozen=True):
    """A call whose result is known without executing anything."""

    settled: ToolSettled
    ruled: CallRuled | None = None


class Asks(msgspec.Struct, frozen=True):
    """A call that has to wait; with the request to a person, if it waits for one."""

    wait: Wait
    approval: Approval | None = None
    ruled: CallRuled | None = None


Prepared = Ready | Known | Asks
"""What became of a call before its execution; `ruled` is what plugins had to say about it just now."""


class Kept(msgspec.Struct, frozen=True):
    """The state that is written with the end of a turn, if it has changed, and the blobs it needs."""

    state: StateRecord | None = None
    blobs: tuple[Blob, ...] = ()


class EffectHost(Protocol):
    async def run_hooks(self, command: RunHooks) -> HooksRan:
        """Let plugins have their say. Nothing that they do escapes: it is in the ruling."""

    async def prepare_call(self, command: PrepareCall) -> CallPrepared:
        """Let plugins prepare the next model call."""

    async def finalizing(self, outcome: Ended) -> None:
        """Tell plugins that the turn is about to be committed. Nothing can come of it."""

    def settled(self, given: ToolSettled) -> None:
        """A result is being taken in: what a cell has left behind counts from here on."""

    def changed_states(self, given: Input | None = None) -> tuple[JournalEntry, ...]:
        """What plugins remember and did not when this was last asked: what *given* made them, or by now."""

    def take_blobs(self) -> tuple[Blob, ...]:
        """The attachments that came up and are not handed over yet."""

    async def kept(self, *, tolerant: bool) -> Kept:
        """What is to be kept with the end of the turn. A plugin that cannot say is an error, or stays."""

    async def call_model(self, command: CallModel) -> ModelReplied | ModelFailed:
        """Ask the model; what it streams is shown on the way. Cancelling ends the call."""

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        """Check a call before it is executed. `begun`: a process that died had journaled its intent."""

    def start(self, ready: Ready, deliver: Deliver) -> None:
        """Execute a call; its `ToolSettled` or `WaitOpened` is delivered once, never from within `start`."""

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        """Let a cell go on, or run it again up to there. What comes of it is delivered as with `start`."""

    async def parking(self) -> ToolSettled | None:
        """Suspend the turn's cell, because the turn is about to wait.

        Returns the failed result of a cell that cannot be suspended, and then the turn does not wait.
        """

    async def check_output(self, text: str) -> OutputCheck:
        """Check the model's answer against what the agent promises. Cancelling gives the check up."""

    def stop(self) -> None:
        """End what is under way. Nothing is delivered any more."""
