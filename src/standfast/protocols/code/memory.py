"""The stored state of a session's code: its variables, and a suspended cell if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import PluginStateLost
from standfast.model.canonical import Json
from standfast.model.code import EngineName, Language
from standfast.model.frame import FrameSwitch
from standfast.model.message import InputPart, UserMessage

if TYPE_CHECKING:
    from standfast.plugins.turn_protocol import OutputContract

STATE_VERSION: Final = 1


class CellEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a cell ends its turn: with an answer, or with a task (and a seed) for a new frame."""

    value: Json
    frame_id: str | None = None

    def of(self, value: Json, output: OutputContract | None) -> str | FrameSwitch:
        """Return the answer or the frame for *value*, the result after plugins have changed it."""
        if self.frame_id is None:
            return answer_text(value, output)
        task, seed = (value.get("task"), value.get("seed")) if isinstance(value, dict) else (value, None)
        seeds = () if seed is None else (UserMessage(content=answer_text(seed, None)),)
        return FrameSwitch(frame_id=self.frame_id, task=answer_text(task, None), seed=seeds)


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """A suspended cell.

    `calls_made` and `wall_used_ms` are counted here if the engine does not count them.
    """

    turn_id: str
    call_id: int
    heard: int
    data: bytes
    ending: CellEnding | None = None
    calls_made: int = 0
    wall_used_ms: int = 0


class CodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a session's code."""

    version: int = STATE_VERSION
    language: Language = Language.PYTHON
    engine: str = EngineName.MONTY
    state: bytes = b""
    inputs: dict[str, InputPart] = msgspec.field(default_factory=dict)
    suspended: Suspended | None = None

    def suspended_in(self, turn_id: str, call_id: int) -> Suspended | None:
        """Return the suspended cell if it belongs to this call, otherwise None."""
        one = self.suspended
        return one if one is not None and (one.turn_id, one.call_id) == (turn_id, call_id) else None


def read_memory(data: bytes) -> CodeMemory:
    """Decode the stored state of a session's code; raise `PluginStateLost` if it cannot be read."""
    try:
        return msgspec.msgpack.decode(data, type=CodeMemory)
    except msgspec.DecodeError as error:
        problem = f"the stored variables of its code cannot be read: {error}"
        raise PluginStateLost("code", "restore", problem) from None


def answer_text(value: Json, output: OutputContract | None) -> str:
    """Return an answer as text: a string unchanged if there is no *output* contract, other values as JSON."""
    if output is None and (value is None or isinstance(value, str)):
        return value or ""
    return msgspec.json.encode(value).decode()
