"""Where Gemini's thought signatures belong, kept with the reply and put back when it is sent again.

Theory of operation
-------------------
Gemini signs single parts of a reply: a call, a piece of text, a thought, or a part that is otherwise empty. A
message of ours has one text and its calls, so the reader keeps a *layout* in `Reasoning.opaque`: the parts in
their order, each with what it holds (characters of the text or of the thoughts, or the id of a call) and its
signature. From the layout and the message, the parts are made again as they came.

Rules
-----
1. A signature goes back in the very part that it came with, or not at all.
2. The layout is of use only for the words that it was made of: a digest tells. Where they were changed since,
   the calls keep their signatures and the words go without.
3. Thoughts that are not signed are not sent back; Gemini has no use for them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from standfast.model.canonical import digest_bytes
from standfast.model.message import AssistantMessage, Reasoning

WirePart = dict[str, Any]


class Place(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One part of a reply: the text or the thoughts from `start` to `end`, or a call by its id."""

    of: Literal["text", "thought", "call"]
    start: int = 0
    end: int = 0
    call: str = ""
    signature: str | None = None


class Layout(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The parts of a reply, and the digest of the words that they are cut from."""

    digest: str
    parts: list[Place]


class LayoutWriter:
    """Notes the parts of a reply as they arrive. Unsigned text costs nothing until something else comes."""

    __slots__ = ("_laid", "_places", "_signed")

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._laid = 0
        self._signed = False

    def call(self, call: str, text_end: int, signature: str | None) -> None:
        self._lay_text(text_end)
        self._add(Place(of="call", call=call, signature=signature))

    def text(self, start: int, end: int, signature: str) -> None:
        """A signed piece of text, which stays apart from what is around it."""
        self._lay_text(start)
        self._laid = end
        self._add(Place(of="text", start=start, end=end, signature=signature))

    def thought(self, start: int, end: int, text_end: int, signature: str) -> None:
        self._lay_text(text_end)
        self._add(Place(of="thought", start=start, end=end, signature=signature))

    def reasoning(self, origin: str, text: str, thoughts: str) -> tuple[Reasoning, ...]:
        """What is kept with the reply: nothing, if it has neither thoughts nor signatures."""
        if not self._signed:
            return (Reasoning(origin=origin, text=thoughts),) if thoughts else ()
        self._lay_text(len(text))
        layout = Layout(digest=_digest(text, thoughts), parts=self._places)
        return (Reasoning(origin=origin, text=thoughts, opaque=msgspec.to_builtins(layout)),)

    def _lay_text(self, end: int) -> None:
        """Lay the unsigned text that came since the last part."""
        if end > self._laid:
            self._places.append(Place(of="text", start=self._laid, end=end))
            self._laid = end

    def _add(self, place: Place) -> None:
        self._signed = self._signed or place.signature is not None
        self._places.append(place)


def placed_parts(message: AssistantMessage, calls: dict[str, WirePart], origin: str) -> list[WirePart]:
    """The parts of an earlier reply, signed where the signatures came from *origin*.

    *calls* are the parts of its calls by id, in order.
    """
    kept, layout = _kept(message, origin)
    if kept is None or layout is None:
        return _plain(message, calls)
    named = [place.call for place in layout.parts if place.of == "call"]
    if named == list(calls) and layout.digest == _digest(message.text, kept.text):
        return _laid_out(layout, message.text, kept.text, calls)
    signed = {place.call: place.signature for place in layout.parts if place.of == "call"}
    return _plain(message, {call: _signed(part, signed.get(call)) for call, part in calls.items()})


def _kept(message: AssistantMessage, origin: str) -> tuple[Reasoning | None, Layout | None]:
    """The reasoning that has a layout from *origin*."""
    for reasoning in message.reasoning:
        if reasoning.origin == origin and reasoning.opaque is not None:
            try:
                return reasoning, msgspec.convert(reasoning.opaque, Layout)
            except msgspec.ValidationError:
                continue
    return None, None


def _laid_out(layout: Layout, text: str, thoughts: str, calls: dict[str, WirePart]) -> list[WirePart]:
    parts: list[WirePart] = []
    for place in layout.parts:
        if place.of == "call":
            part = calls[place.call]
        elif place.of == "text":
            part = {"text": text[place.start : place.end]}
        else:
            part = {"text": thoughts[place.start : place.end], "thought": True}
        parts.append(_signed(part, place.signature))
    return parts


def _plain(message: AssistantMessage, calls: dict[str, WirePart]) -> list[WirePart]:
    return [*([{"text": message.text}] if message.text else ()), *calls.values()]


def _signed(part: WirePart, signature: str | None) -> WirePart:
    return part if signature is None else {**part, "thoughtSignature": signature}


def _digest(text: str, thoughts: str) -> str:
    return digest_bytes(f"{len(text)} {text}{thoughts}".encode(errors="surrogatepass"))
