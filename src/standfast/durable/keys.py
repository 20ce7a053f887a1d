"""The stable name of each input in its turn's journal.

Rule: a name says which effect it is the outcome of, not when it came. So calls that run at once may finish
in any order, and no order of recovery gives one the result of another.
"""

from __future__ import annotations

from typing import assert_never

from standfast.machine.inputs import (
    Aborted,
    CallPrepared,
    CallRuled,
    CallTimedOut,
    CancelRequested,
    CellPaused,
    CheckpointPassed,
    DeadlinePassed,
    FinishRequested,
    FrameSwitchRequested,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    Resumed,
    ToolSettled,
    TurnStarted,
    WaitEnded,
    WaitOpened,
)
from standfast.machine.turn_machine import TurnMachine


def task_input_id(turn_id: str) -> str:
    """The id of the queued input with which the turn *turn_id* starts the next one, in a new frame."""
    return f"{turn_id}.task"


def key_of(given: Input, machine: TurnMachine, fence: int) -> str:
    """The key of an input that *machine* is about to be fed."""
    match given:  # what comes most often comes first
        case ToolSettled(call_id=call_id):
            return f"tool.{call_id}"
        case ModelReplied() | ModelFailed():
            return f"model.{machine.model_calls}"
        case CellPaused(call_id=call_id, number=number):
            return f"cell.{call_id}.{number}"
        case FinishRequested(call_id=call_id):
            return f"finish.{call_id}"
        case HooksRan(stage=stage, number=number):
            return f"hooks.{stage}.{number}"
        case CallPrepared(number=number):
            return f"prepare.{number}"
        case CallRuled(call_id=call_id):
            return f"ruled.{call_id}"
        case CallTimedOut(call_id=call_id, attempt=attempt):
            return f"timeout.{call_id}.{attempt}"
        case WaitOpened(wait=wait):
            return f"wait.{wait.wait_id}"
        case WaitEnded(wait_id=wait_id):
            return f"waited.{wait_id}"
        case CheckpointPassed():
            return f"checkpoint.{machine.checkpoints}"
        case Resumed():
            return f"resumed.{fence}"
        case TurnStarted() | FrameSwitchRequested() | CancelRequested() | DeadlinePassed() | Aborted():
            return str(type(given).__struct_config__.tag)
        case _:
            assert_never(given)
