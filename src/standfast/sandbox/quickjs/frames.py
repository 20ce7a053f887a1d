"""The messages between an engine and its worker processes.

The engine sends one request at a time, and the worker replies. If the worker needs a value meanwhile, it
sends a `NameRequested` and receives a `Given`. If the engine asks for an `early` reply, a run that has ended
gets two replies: first its result, then its state (`GuestReply.more`). An `Open` precedes each `Run`, so that
the worker prepares its guest while the engine still parses the code. An `Open` has no reply (its failure is
the reply to the run), and neither has a `Drop`."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """The resources that a guest may still use."""

    memory_bytes: int
    cpu_ms: int
    wall_ms: int
    depth: int
    stdout_chars: int


class Image(msgspec.Struct, frozen=True, array_like=True):
    """A stored guest: how its memory differs from the boot image with the digest `boot`.

    Between the processes, `data` follows the frame and `size` is its length, because a worker has no room for
    a copy of the guest's memory.
    """

    boot: bytes = b""
    data: bytes = b""
    size: int = 0


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Prepare the guest that the worker holds, or one created from `image`: empty for a new session."""

    image: Image | None
    functions: bytes
    now_ms: int
    seed: str
    bounds: Bounds


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Run code in the opened guest.

    `inputs` are encoded for the bridge; the names in `lazy` may be `NameRequested`.
    """

    code: str
    inputs: dict[str, str]
    lazy: list[str]
    binds_result: bool
    bounds: Bounds
    early: bool = False


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Settle calls, in this order, and continue. With `image`, the guest is first created from it."""

    answers: list[bytes]
    image: Image | None
    now_ms: int
    seed: str
    bounds: Bounds
    early: bool = False


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """End the run where it is."""

    image: Image | None
    bounds: Bounds


class Dump(msgspec.Struct, frozen=True, array_like=True, tag="dump"):
    """Send the guest as an image, and drop it."""


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """Drop the guest, because the worker may get another session."""


class Given(msgspec.Struct, frozen=True, array_like=True, tag="given"):
    """The requested value, encoded for the bridge; empty if there is none."""

    text: str


Entry = Run | Settle | Finish
Question = Open | Run | Settle | Finish | Dump | Drop | Given


class NameRequested(msgspec.Struct, frozen=True, array_like=True, tag="wanted"):
    """A request for the value of a name that the code reads."""

    name: str


Stop = Literal[
    "", "syntax", "cpu", "wall", "memory", "stack", "flood", "corrupt", "version", "broken", "gone"
]  # fmt: skip


class GuestReply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The state of the guest after a request, or the reason why it was stopped.

    `poll` is the bridge's report, as JSON. A run that has ended has an `image`, and `names` (JSON) if it was
    ended from outside; with `more`, they follow in another reply. `stop` is the reason for stopping the
    guest, with a `detail`; "gone" means that the worker does not hold the guest.
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
"""Id, name (None for a timer), arguments (seconds, for a timer), the problem with them, and the stack."""


class Poll(msgspec.Struct, frozen=True, array_like=True):
    """The bridge's report after an entry. `names` are the bound names, once the run has ended."""

    calls: list[Call]
    stdout: str
    stderr: str
    printed: int
    outcome: Literal["waits", "stuck", "value", "foreign", "error"]
    detail: msgspec.Raw = msgspec.Raw(b"null")
    names: list[str] | None = None


class Thrown(msgspec.Struct, frozen=True, array_like=True):
    """An uncaught exception; `known` is the error if a failed call raised it."""

    name: str
    message: str
    stack: str
    known: msgspec.Raw = msgspec.Raw(b"null")


encode: Final = msgspec.msgpack.Encoder().encode
decode_question: Final = msgspec.msgpack.Decoder(Question).decode
decode_answer: Final = msgspec.msgpack.Decoder(NameRequested | GuestReply).decode
decode_poll: Final = msgspec.json.Decoder(Poll).decode
