"""What the driver asks of whoever carries a turn's commands out.

A protocol brings one: the standard protocol's calls models and native tools. The host does things; it decides
nothing that the journal would have to know, except by what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.machine.commands import CallModel, RunTool
from holdfast.machine.inputs import Input, ModelFailed, ModelReplied, OutputCheck, ToolSettled
from holdfast.model.approval import Approval
from holdfast.model.wait import Wait

Deliver = Callable[[Input], None]
"""Takes what came of an effect. Called on the loop of the turn."""


class Ready(msgspec.Struct, frozen=True):
    """A call that may be executed. One that is not idempotent is journaled as an intent first."""

    command: RunTool
    idempotent: bool
    call: Any


class Known(msgspec.Struct, frozen=True):
    """A call whose result is known without executing anything."""

    settled: ToolSettled


class Asks(msgspec.Struct, frozen=True):
    """A call that has to wait; with the request to a person, if it waits for one."""

    wait: Wait
    approval: Approval | None = None


Prepared = Ready | Known | Asks


class EffectHost(Protocol):
    async def call_model(self, command: CallModel) -> ModelReplied | ModelFailed:
        """Ask the model; what it streams is shown on the way. Cancelling ends the call."""

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        """Check a call before it is executed. `begun`: a process that died had journaled its intent."""

    def start(self, ready: Ready, deliver: Deliver) -> None:
        """Execute a call; its `ToolSettled` or `WaitOpened` is delivered once, never from within `start`."""

    def check_output(self, text: str) -> OutputCheck:
        """Check the model's answer against what the agent promises."""

    def stop(self) -> None:
        """End what is under way. Nothing is delivered any more."""
