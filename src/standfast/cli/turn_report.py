"""The outcome of a turn, as a document and for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from standfast.cli.options import Invocation
from standfast.cli.output import CommandOutput, cost_text, counted, error_console, moment, show_error
from standfast.cli.report import show_waiting
from standfast.errors import Code, ErrorObject
from standfast.model.outcome import Finished, FrameSwitched, Stopped, Waiting
from standfast.model.session import TurnRecord, TurnState

if TYPE_CHECKING:
    from standfast.model.approval import Approval
    from standfast.model.outcome import Outcome, Wait
    from standfast.runtime.agent_runtime import Runtime


@dataclass(frozen=True, slots=True)
class TurnReport:
    """A turn's record in the store, and the approvals that it waits for."""

    record: TurnRecord
    approvals: tuple[Approval, ...] = ()

    @property
    def outcome(self) -> Outcome | None:
        return None if self.record.summary is None else self.record.summary.outcome

    @property
    def status(self) -> str:
        """The tag of the outcome, or `running` for a turn that has none."""
        return "running" if self.outcome is None else str(type(self.outcome).__struct_config__.tag)

    @property
    def waits(self) -> tuple[Wait, ...]:
        return self.outcome.waits if isinstance(self.outcome, Waiting) else ()

    @property
    def other_waits(self) -> tuple[Wait, ...]:
        """The waits that a person cannot decide."""
        return tuple(wait for wait in self.waits if wait.kind != "approval")

    @property
    def ended(self) -> bool:
        return self.record.state is TurnState.ENDED

    @property
    def answered(self) -> bool:
        """Whether the turn ended successfully."""
        return isinstance(self.outcome, (Finished, FrameSwitched))

    def document(self) -> dict[str, Any]:
        summary, outcome = self.record.summary, self.outcome
        return {
            "session_id": self.record.session_id,
            "turn_id": self.record.turn_id,
            "status": self.status,
            "text": outcome.text if isinstance(outcome, Finished) else None,
            "error": outcome.error if isinstance(outcome, Stopped) else None,
            "waits": self.waits,
            "approvals": self.approvals,
            "usage": None if summary is None else summary.usage,
            "calls": () if summary is None else summary.calls,
        }

    def output(self, invocation: Invocation) -> CommandOutput:
        """Return the output of a command that has driven this turn to its end or its next wait."""
        return CommandOutput(self.document(), lambda: self.show(invocation), 0 if self.answered else 1)

    def show(self, invocation: Invocation) -> None:
        """Print what the streamed text does not contain: errors, waits and a status line."""
        from rich.text import Text

        self.show_problem()
        about = error_console()
        for approval in self.approvals:
            show_waiting(about, approval, invocation)
        self.show_other_waits()
        if self.other_waits:
            about.print(f"  resume  {invocation.command('recover')}", style="dim", soft_wrap=True)
        colours = {"finished": "green", "frame_switched": "green", "stopped": "red"}
        line = Text(self.status, colours.get(self.status, "yellow"))
        if (summary := self.record.summary) is not None:
            amounts = [
                counted(summary.usage.calls, "model call"),
                *([counted(len(summary.calls), "tool call")] if summary.calls else []),
                counted(summary.usage.total, "token"),
                *([cost_text(summary.usage)] if summary.usage.cost_nano_usd else []),
            ]
            line = Text.assemble(line, *(f" · {amount}" for amount in amounts))
        about.print(line, style="dim", soft_wrap=True)

    def show_problem(self) -> None:
        """Print why the turn ended without an answer, if it did."""
        if isinstance(self.outcome, Stopped):
            error = self.outcome.error
            show_error(error.code, error.message, error.hint)

    def show_other_waits(self) -> None:
        for wait in self.other_waits:
            error_console().print(wait_text(wait), style="yellow", soft_wrap=True)


def wait_text(wait: Wait) -> str:
    """Describe what a turn waits for."""
    match wait.kind:
        case "timer":
            return f"waits until {moment(wait.due_at)} (timer of call {wait.call_id})"
        case "completion":
            until = moment(wait.due_at)
            return f"waits for the result of call {wait.call_id} under {wait.wait_id}, until {until}"
        case "approval":
            return f"waits for approval {wait.wait_id}, until {moment(wait.due_at)}"
        case _:
            assert_never(wait.kind)


async def report_turn(runtime: Runtime, turn_id: str) -> TurnReport | None:
    """Read a turn and its pending approvals from the store; None if there is no such turn."""
    record = await runtime.store.turn(turn_id)
    if record is None:
        return None
    from standfast.runtime.session_views import pending_approvals

    return TurnReport(record, tuple(await pending_approvals(runtime, record)))


def left_unfinished(invocation: Invocation) -> CommandOutput:
    """Return the output of a command that was interrupted while a turn ran."""
    hint = f"resume it with `{invocation.command('recover')}`"
    message = "interrupted; the turn stays unfinished"
    return CommandOutput.failed(ErrorObject(code=Code.INTERRUPTED, message=message, hint=hint))
