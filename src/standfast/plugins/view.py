"""Views of messages: those that the model is shown, and those before a turn for plugins to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from standfast.graph.history import answered
from standfast.machine.inputs import Keep, View
from standfast.model.message import Message


class EarlierMessages(Sequence[Message]):
    """The messages before a turn, read only and not copied."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | Sequence[Message]:
        return self._messages[place]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def view_of(base: list[Message], shown: list[Message]) -> View | None:
    """Describe *shown* by stretches of *base* and the messages not in it; None if both are the same."""
    if shown is base or shown == base:
        return None
    places = {id(message): place for place, message in enumerate(base)}
    view: list[Any] = []
    for message in shown:
        place = places.get(id(message))
        if place is None:
            view.append(message)
        elif view and isinstance(view[-1], Keep) and view[-1].stop == place:
            view[-1] = Keep(start=view[-1].start, stop=place + 1)
        else:
            view.append(Keep(start=place, stop=place + 1))
    return tuple(view)


def apply_view(base: list[Message], view: View) -> list[Message]:
    """Return the messages that a view shows, every call answered."""
    found: list[Message] = []
    for one in view:
        if isinstance(one, Keep):
            found.extend(base[one.start : one.stop])
        else:
            found.append(one)
    return answered(found)
