"""The calls of one cell, in their order: what was made, what was answered, what is waited for.

Theory of operation
-------------------
The guest makes calls and is given answers; between two answers it does what its code says. So the calls, in
short, and the answers, in full, are all that is needed to bring another process to the same place: it runs
the code again, every call is compared with the recorded one, and the recorded answers are handed over again.

Rules
-----
1. The guest is given one answer at a time. One that it cannot take yet, because it stands at another call, is
   kept and handed over, in the order of the answers, as soon as every task waits.
2. A call that is answered on the spot has no number and is not counted, but it is recorded like the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from standfast.errors import Code, SnapshotRefused
from standfast.ports.code_engine import CallAnswer
from standfast.sandbox.cpython.messages import Called
from standfast.sandbox.cpython.state import MadeCall


class Diverged(Exception):
    """The code that was run again did something else."""


Answered = tuple[int, CallAnswer]


@dataclass(slots=True)
class Ledger:
    """`made` and `answers` are the record; the rest is where the cell stands.

    `calls` are the guest's ids of calls without an answer, by their numbers. `ready` are answers that wait to
    be handed over, by the guest's ids. `at` is the number of the call that the code stands at.
    """

    made: list[MadeCall] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    at: int | None = None
    count: int = 0
    calls: dict[int, int] = field(default_factory=dict)
    ready: list[Answered] = field(default_factory=list)
    seen: int = 0
    replays: bool = False

    def rewind(self) -> None:
        """Begin again, to be compared with the record."""
        self.calls, self.ready, self.waiting = {}, [], set()
        self.seen = self.count = 0
        self.at = None
        self.replays = True

    def arrive(self, at: int | None, waiting: set[int]) -> None:
        """The record has been followed: the cell must stand where it stood."""
        if self.seen != len(self.made) or self.at != at or self.waiting != waiting:
            raise Diverged("it waits for other calls than before")
        self.replays = False

    def note(self, call: Called) -> CallAnswer | None:
        """Compare a call with the record; its answer, if it was answered on the spot. Only in a replay."""
        if self.seen >= len(self.made):
            raise Diverged(f"{call.name}() was not called before")
        recorded = self.made[self.seen]
        if recorded.digest != digest_of(call):
            raise Diverged(f"call {self.seen + 1} is another one, now of {call.name}()")
        self.seen += 1
        return None if recorded.answer is None else decode_answer(recorded.answer)

    def record(self, call: Called, answer: CallAnswer | None) -> None:
        self.made.append(MadeCall(digest_of(call), None if answer is None else msgspec.json.encode(answer)))
        self.seen += 1

    def number(self, call: Called) -> int:
        """Give a call its number."""
        self.count += 1
        self.calls[self.count] = call.id
        self.waiting.add(self.count)
        return self.count

    def take_ready(self) -> Answered | None:
        """The first answer that waits to be handed over."""
        return self.ready.pop(0) if self.ready else None


def decode_answer(data: bytes) -> CallAnswer:
    """An answer as it was recorded."""
    try:
        return msgspec.json.decode(data, type=CallAnswer)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"a recorded answer cannot be read: {error}") from None


def digest_of(call: Called) -> bytes:
    """Name and arguments of a call, in short."""
    text = b"\0".join(
        [
            call.name.encode(),
            b"1" if call.later else b"0",
            call.args,
            call.kwargs,
            (call.problem or "").encode(),
        ]
    )
    return hashlib.blake2b(text, digest_size=16).digest()
