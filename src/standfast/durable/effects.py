"""The port through which the driver executes a turn's commands.

Each protocol provides a host; that of the standard protocol calls models and native tools. The host acts on
the driver's behalf. Every decision it makes that must be journaled is part of a value it returns.
"""

from __future__ import annotations

from typing import Any, Protocol, final

import msgspec

from standfast.machine import inputs
from standfast.machine.commands import CallModel, ContinueCell, PrepareCall, RunHooks, RunTool
from standfast.model.approval import Approval
from standfast.model.outcome import Approved, Ended, Wait
from standfast.model.plugin_state import PluginSnapshotEntry, encode_entry
from standfast.ports.session_store import Blob, JournalEntry, StateRecord


@final
class EffectReady(msgspec.Struct, frozen=True):
    """A call that may be executed. If it is not idempotent, the driver journals an intent first.

    A `pure` call has no external effect of its own (a cell, or a tool that only computes), so it may start
    before the journal is written.
    """

    command: RunTool
    idempotent: bool
    call: Any
    ruled: inputs.CallRuled | None = None
    pure: bool = False


@final
class EffectSettled(msgspec.Struct, frozen=True):
    """A call whose result is known without executing anything."""

    settled: inputs.ToolSettled
    ruled: inputs.CallRuled | None = None


@final
class EffectWaits(msgspec.Struct, frozen=True):
    """A call that has to wait, with its approval request if it waits for a person.

    If a grant approved the request immediately, `granted` is that approval and the wait is already over.
    """

    wait: Wait
    approval: Approval | None = None
    ruled: inputs.CallRuled | None = None
    granted: Approved | None = None


class Deliver(Protocol):
    """The callback that receives an effect's outcome, on the turn's event loop."""

    def __call__(self, given: inputs.Input | EffectWaits, /, *, at_once: bool = False) -> None:
        """Queue an input for the machine.

        An effect's last call may pass *at_once*: the turn may then continue within this call.
        """


Prepared = EffectReady | EffectSettled | EffectWaits
"""A call checked before its execution; `ruled` is the plugins' ruling on it, if they have just made one."""


class KeptState(msgspec.Struct, frozen=True):
    """The session state to write when the turn ends, if it has changed, and the blobs it needs."""

    state: StateRecord | None = None
    blobs: tuple[Blob, ...] = ()


class ChangedState(msgspec.Struct, frozen=True):
    """The changed variables of code, encoded only if they are journaled: most turns end right after that."""

    key: str
    state: PluginSnapshotEntry

    def entry(self) -> JournalEntry:
        return JournalEntry(key=self.key, kind="state", body=encode_entry(self.state))


class EffectHost(Protocol):
    async def run_hooks(self, command: RunHooks) -> inputs.HooksRan:
        """Run the plugins' hooks for a stage. Their errors become part of the ruling and are never raised."""

    async def prepare_call(self, command: PrepareCall) -> inputs.CallPrepared:
        """Let plugins prepare the next model call."""

    async def finalizing(self, outcome: Ended) -> None:
        """Notify plugins that the turn is about to be committed. They cannot change anything any more."""

    def settled(self, given: inputs.ToolSettled) -> None:
        """Note a result that is about to be fed, and adopt the state of the cell that produced it."""

    def changed_states(self, given: inputs.Input | None = None) -> tuple[JournalEntry | ChangedState, ...]:
        """Return the plugin states changed since the last call: those changed by *given*, if it is passed."""

    def take_blobs(self) -> tuple[Blob, ...]:
        """Return the attachments that no earlier call has returned."""

    async def kept(self, *, tolerant: bool) -> KeptState:
        """Return the state to store. Raise if a plugin cannot snapshot; if *tolerant*, use its last state."""

    async def call_model(self, command: CallModel) -> inputs.ModelReplied | inputs.ModelFailed:
        """Call the model and publish the events it streams. Cancelling the task ends the call."""

    def ready_at_once(self, command: RunTool) -> EffectReady | None:
        """Return a call whose checks need not wait for anything, checked; None if `prepare` must check it.

        Its intent must not have been journaled by a process that died.
        """

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        """Check a call before it is executed. *begun*: a process that died had journaled its intent."""

    def start(self, ready: EffectReady, deliver: Deliver) -> None:
        """Execute a call; its `ToolSettled` or `WaitOpened` is delivered once, never from within `start`."""

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        """Resume a paused cell, or rerun it up to its pause. Its outcome is delivered as by `start`."""

    @property
    def parks_at_once(self) -> bool:
        """Whether `parking` would do nothing, because no cell has to be suspended."""

    async def parking(self) -> inputs.ToolSettled | None:
        """Suspend the turn's cell before the turn parks; if this returns a result, the turn does not park."""

    async def check_output(self, text: str) -> inputs.OutputCheck:
        """Check the model's answer against the agent's output type. Cancelling abandons the check."""

    def stop(self) -> None:
        """Cancel all running effects and deliver no more outcomes."""
