"""Code of ours in the guest, and how sources are called there."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

from standfast.model.canonical import Json
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.steps import Unreadable, read_value
from standfast.sandbox.monty.workers import TINY_FRAME_BYTES, MontyWorker

UNREAD: Final = Unreadable()
_STUBS: dict[str, Callable[..., None]] = {}


def feed_through(
    worker: MontyWorker,
    code: str,
    inputs: dict[str, Json] | None = None,
    max_frame_bytes: int = TINY_FRAME_BYTES,
) -> object:
    """Run code of ours in the guest; it must call nothing. Names it does not find are not defined.

    A value that arrives in more than *max_frame_bytes* is not read: it is `UNREAD`.
    """
    worker.next_input += 1
    snapshot: Any = worker.feed(code, inputs=inputs, print_callback=_unheard)
    while isinstance(snapshot, engine.NameLookupSnapshot):
        snapshot = snapshot.resume()
    if not isinstance(snapshot, engine.MontyComplete):
        raise TypeError(f"the engine answered with {snapshot!r}")
    return UNREAD if worker.sent_bytes() > max_frame_bytes else read_value(lambda: snapshot.output)


SHOW: Final = "__standfast_show"


def show(worker: MontyWorker, expression: str, functions: Container[str] | None) -> Any:
    """Have the guest hand the value of an expression of ours to the host, as the argument of a call.

    Return the snapshot that stands at the call: its dump tells what its arguments are before they are read.
    A name that is not bound is that of a function if it is among *functions*, or if those are not known.
    """
    worker.next_input += 1
    snapshot: Any = worker.feed(f"{SHOW}({expression})", print_callback=_unheard)
    while isinstance(snapshot, engine.NameLookupSnapshot):
        name = snapshot.variable_name
        snapshot = (
            snapshot.resume(value=stub(name)) if functions is None or name in functions else snapshot.resume()
        )
    return snapshot


def source_name(number: int) -> str:
    """What the engine calls the source that it is fed as this number."""
    return f"<python-input-{number}>"


def source_number(name: str) -> int:
    return int(name.removeprefix("<python-input-").removesuffix(">"))


def stub(name: str) -> Callable[..., None]:
    """A function of this name; the engine keeps only the name."""
    if (known := _STUBS.get(name)) is None:

        def known() -> None: ...

        known.__name__ = name
        _STUBS[name] = known
    return known


def _unheard(stream: str, text: str) -> None:
    """What code of ours would print, nobody hears."""
