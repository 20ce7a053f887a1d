"""Tool calls while they arrive, in pieces or whole.

Theory of operation
-------------------
A piece belongs to the call of its index. Some servers send whole calls without an index, or all of them with
index 0: then another name with another id, after arguments that are whole, begins another call. Some repeat
id and name in every piece: that begins nothing.

Rules
-----
1. A call is given out when the reply has ended, and not before.
2. Pieces that can be of no call, or would be of two, are a failure that is worth another try: better no call
   than one that nobody asked for.
3. A call without arguments has `{}`; one that the end of the reply cut off has what there is, even nothing.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from standfast.errors import ModelError
from standfast.model.message import RequestedCall
from standfast.providers.openai_compatible.chunk import CallDelta, FunctionDelta

_NOTHING: Final = FunctionDelta()
_LEGACY: Final = -1


class _Call:
    """One call so far."""

    __slots__ = ("id", "name", "pieces")

    def __init__(self, name: str, id: str) -> None:
        self.name = name
        self.id = id
        self.pieces: list[str] = []

    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object, so that nothing can follow."""
        text = "".join(self.pieces)
        if not text.rstrip().endswith("}"):
            return False
        try:
            return isinstance(msgspec.json.decode(text), dict)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False


class CallsArriving:
    """The calls of one reply. `call_number` goes into the ids of calls that have none."""

    def __init__(self, call_number: int) -> None:
        self._call_number = call_number
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, delta: CallDelta) -> None:
        """Add a piece to its call, or begin one with it."""
        function = delta.function or _NOTHING
        call = self._found(delta, function.name)
        if call is None:
            call = self._begun(function.name or "", delta)
        elif function.name and function.name != call.name:
            _name(call, function.name)
        if function.arguments is not None:
            call.pieces.append(_text_of(function.arguments))

    def take_function(self, function: FunctionDelta) -> None:
        """Add a piece of the one call that servers of an older kind make."""
        self.take(CallDelta(index=_LEGACY, function=function))

    def ended(self, *, cut_off: bool) -> tuple[RequestedCall, ...]:
        """All calls, as the end of the reply leaves them. If that cut it off, the last may not be whole."""
        ids: set[str] = set()
        found: list[RequestedCall] = []
        for place, call in enumerate(self._calls, 1):
            last = cut_off and call is self._calls[-1]
            if not call.name and last:
                continue
            found.append(self._requested(call, place, ids, whole=not last))
        return tuple(found)

    def _found(self, delta: CallDelta, name: str | None) -> _Call | None:
        """The call that a piece belongs to; None if it begins one."""
        if delta.index is not None:
            call = self._by_index.get(delta.index)
        else:
            call = self._of_id(delta.id) or (None if name or not self._calls else self._calls[-1])
        if call is None or not name or (delta.id and delta.id == call.id):
            return call
        return self._told_apart(call, delta)

    def _told_apart(self, call: _Call, delta: CallDelta) -> _Call | None:
        """The call, or None where a piece with a name of its own is the start of another one."""
        if call.is_whole():
            return None
        if delta.id and call.id and call.pieces and any(call.pieces):
            raise _confused("a call begins in the middle of another")
        return call

    def _of_id(self, id: str | None) -> _Call | None:
        return next((call for call in self._calls if call.id == id), None) if id else None

    def _begun(self, name: str, delta: CallDelta) -> _Call:
        call = _Call(name, delta.id or "")
        self._calls.append(call)
        if delta.index is not None:
            self._by_index[delta.index] = call
        return call

    def _requested(self, call: _Call, place: int, ids: set[str], *, whole: bool) -> RequestedCall:
        if not call.name:
            raise _confused("a call has arguments and no name")
        text = "".join(call.pieces)
        if "}{" in text and _goes_on_after_its_end(text):
            raise _confused("the arguments of a call go on after their end")
        provider_id = call.id if call.id and call.id not in ids else f"call_{self._call_number}_{place}"
        ids.add(provider_id)
        arguments = "{}" if whole and not text.strip() else text
        return RequestedCall(name=call.name, arguments=arguments, provider_id=provider_id)


def _name(call: _Call, name: str) -> None:
    """Give a call its name, which must come before its arguments and is never another."""
    if call.name or any(call.pieces):
        raise _confused(f"a call of {call.name!r} is one of {name!r} now")
    call.name = name


def _text_of(arguments: str | dict[str, object]) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _goes_on_after_its_end(text: str) -> bool:
    """Whether the text is a whole JSON object with another one behind it: pieces that came twice."""
    try:
        _, end = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    return text.lstrip()[end:].lstrip().startswith("{")


def _confused(what: str) -> ModelError:
    return ModelError(f"the server's reply makes no sense: {what}", retryable=True)
