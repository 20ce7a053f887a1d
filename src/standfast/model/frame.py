"""Context boundaries inside a session: the model sees only the current frame; older ones stay readable."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.message import Message

INITIAL: Final = "initial"
"""The frame that every session begins with."""


class FrameSwitch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame to open. `reason` is `continue_as`, `compaction` or a word that the host chooses.

    `seed` has the messages that the new frame begins with; `task`, if given, is the input of its first turn.
    """

    frame_id: str
    reason: str = "continue_as"
    task: str | None = None
    seed: tuple[Message, ...] = ()
