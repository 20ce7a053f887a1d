"""The port through which the driver executes a turn's commands.

A protocol provides the host: that of the standard protocol calls models and native tools. The host does
things; it decides nothing that the journal would have to know, except by what it returns.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from standfast.machine import inputs
from standfast.machine.commands import CallModel, ContinueCell, PrepareCall, RunHooks, RunTool
from standfast.model.approval import Approval
from standfast.model.outcome import Approved, Ended, Wait
from standfast.ports.session_store import Blob, JournalEntry, StateRecord


class EffectReady(msgspec.Struct, frozen=True):
    """A call that may be executed. One that is not idempotent is journaled as an intent first.

    A `pure` one touches nothing by itself, so that nothing need be on disk before it: a cell is such a call,
    and a tool that only computes.
    """

    command: RunTool
    idempotent: bool
    call: Any
    ruled: inputs.CallRuled | None = None
    pure: bool = False


class EffectSettled(msgspec.Struct, frozen=True):
    """A call whose result is known without executing anything."""

    settled: inputs.ToolSettled
    ruled: inputs.CallRuled | None = None


class EffectWaits(msgspec.Struct, frozen=True):
    """A call that has to wait; with the request to a person, if it waits for one.

    `granted`: the request was approved by a grant as it was made, so that the wait is over at once.
    """

    wait: Wait
    approval: Approval | None = None
    ruled: inputs.CallRuled | None = None
    granted: Approved | None = None


class Deliver(Protocol):
    """Takes the outcome of an effect. Called on the loop of the turn."""

    def __call__(self, given: inputs.Input | EffectWaits, /, *, at_once: bool = False) -> None:
        """Note an input. With *at_once* the turn may continue within this call: it is the effect's last."""


Prepared = EffectReady | EffectSettled | EffectWaits
"""A call before its execution; `ruled` is what plugins have just decided about it."""


class Kept(msgspec.Struct, frozen=True):
    """The state that is written with the end of a turn, if it has changed, and the blobs it needs."""

    state: StateRecord | None = None
    blobs: tuple[Blob, ...] = ()


class EffectHost(Protocol):
    async def run_hooks(self, command: RunHooks) -> inputs.HooksRan:
        """Run the plugins' hooks of a stage. Their errors are part of the ruling, never raised."""

    async def prepare_call(self, command: PrepareCall) -> inputs.CallPrepared:
        """Let plugins prepare the next model call."""

    async def finalizing(self, outcome: Ended) -> None:
        """Tell plugins that the turn is about to be committed. Nothing follows from it."""

    def settled(self, given: inputs.ToolSettled) -> None:
        """Note a result that is about to be fed: from here on the state that a cell has left counts."""

    def changed_states(self, given: inputs.Input | None = None) -> tuple[JournalEntry, ...]:
        """Return the plugin states that changed since the last call: those that *given* changed, or all."""

    def take_blobs(self) -> tuple[Blob, ...]:
        """Return the attachments that were not returned before."""

    async def kept(self, *, tolerant: bool) -> Kept:
        """Return what is kept. Raise if a plugin cannot snapshot; if *tolerant*, keep its previous state."""

    async def call_model(self, command: CallModel) -> inputs.ModelReplied | inputs.ModelFailed:
        """Call the model and show what it streams. Cancelling ends the call."""

    def plain_cell(self, command: RunTool) -> EffectReady | None:
        """Return a cell that is executed without `prepare`, as it needs no check; None for any other call."""

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        """Check a call before it is executed. `begun`: a process that died had journaled its intent."""

    def start(self, ready: EffectReady, deliver: Deliver) -> None:
        """Execute a call; its `ToolSettled` or `WaitOpened` is delivered once, never from within `start`."""

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        """Continue a cell, or run it again up to there. Its outcome is delivered as with `start`."""

    @property
    def parks_at_once(self) -> bool:
        """Whether `parking` has nothing to do."""

    async def parking(self) -> inputs.ToolSettled | None:
        """Suspend the turn's cell before the turn waits; if it returns a result, the turn does not wait."""

    async def check_output(self, text: str) -> inputs.OutputCheck:
        """Check the model's answer against the agent's output type. Cancelling gives the check up."""

    def stop(self) -> None:
        """End the effects under way and deliver nothing more."""
