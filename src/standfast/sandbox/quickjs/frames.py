"""The messages between an engine and its worker processes.

The engine asks and the worker answers, one at a time. While it answers, the worker may want a value: then it
sends a `Wanted`, and gets a `Given`. A run that has ended is answered twice if the engine asks for an `early`
reply: first with its result, then with its state (`GuestReply.more`). An `Open` comes before each `Run`, so
that the worker makes its guest ready while the engine still reads the code; it has no answer of its own (a
failure is the answer to the run), and neither has a `Drop`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """What a guest may still use."""

    memory_bytes: int
    cpu_ms: int
    wall_ms: int
    depth: int
    stdout_chars: int


class Image(msgspec.Struct, frozen=True, array_like=True):
    """A guest at rest: what its memory holds beyond the boot image that has this digest.

    Between the processes `data` comes behind the frame and `size` is its length, because a worker has no
    memory for copies of a guest's memory.
    """

    boot: bytes = b""
    data: bytes = b""
    size: int = 0


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Make ready the guest that the worker holds, or one made of `image`: empty for a new session."""

    image: Image | None
    functions: bytes
    now_ms: int
    seed: str
    bounds: Bounds


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Run code in the guest that was opened. `inputs` are as the bridge reads them, `lazy` may be wanted."""

    code: str
    inputs: dict[str, str]
    lazy: list[str]
    binds_result: bool
    bounds: Bounds
    early: bool = False


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Settle calls, in this order, and continue. With `image`, the guest is made of that first."""

    answers: list[bytes]
    image: Image | None
    now_ms: int
    seed: str
    bounds: Bounds
    early: bool = False


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """End the run where it stands."""

    image: Image | None
    bounds: Bounds


class Dump(msgspec.Struct, frozen=True, array_like=True, tag="dump"):
    """Return the guest as an image, and forget it."""


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """Forget the guest: the worker may get another session."""


class Given(msgspec.Struct, frozen=True, array_like=True, tag="given"):
    """The value that was wanted, as the bridge reads it; empty if there is none."""

    text: str


Entry = Run | Settle | Finish
Question = Open | Run | Settle | Finish | Dump | Drop | Given


class Wanted(msgspec.Struct, frozen=True, array_like=True, tag="wanted"):
    """The code reads a name whose value is outside."""

    name: str


Stop = Literal[
    "", "syntax", "cpu", "wall", "memory", "stack", "flood", "corrupt", "version", "broken", "gone"
]  # fmt: skip


class GuestReply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """Where the guest stands, or how it ended.

    `poll` is the report of the bridge, as JSON. A run that has ended has an `image`, and `names` (JSON) if it
    was ended from outside; with `more`, they come in another reply. `stop` is why the guest was stopped, with
    a `detail`; "gone" is a guest that the worker does not hold.
    """

    stop: Stop = ""
    detail: list[str] = msgspec.field(default_factory=list)
    poll: bytes = b""
    names: bytes = b""
    image: Image | None = None
    memory_bytes: int = 0
    instructions: int = 0
    cpu_us: int = 0
    more: bool = False


Call = tuple[int, str | None, msgspec.Raw, str | None, str]
"""Id, name (none for a timer), arguments (seconds, for a timer), what is wrong with them, the stack."""


class Poll(msgspec.Struct, frozen=True, array_like=True):
    """The bridge's report after an entry. `names` are those that are bound when the run has ended."""

    calls: list[Call]
    stdout: str
    stderr: str
    printed: int
    outcome: Literal["waits", "stuck", "value", "foreign", "error"]
    detail: msgspec.Raw = msgspec.Raw(b"null")
    names: list[str] | None = None


class Thrown(msgspec.Struct, frozen=True, array_like=True):
    """An uncaught exception; `known` is the error of a call that it stands for."""

    name: str
    message: str
    stack: str
    known: msgspec.Raw = msgspec.Raw(b"null")


encode: Final = msgspec.msgpack.Encoder().encode
decode_question: Final = msgspec.msgpack.Decoder(Question).decode
decode_answer: Final = msgspec.msgpack.Decoder(Wanted | GuestReply).decode
decode_poll: Final = msgspec.json.Decoder(Poll).decode
