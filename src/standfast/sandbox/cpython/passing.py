"""Values on their way into the jail. JSON is passed as it is; what else an input may hold is tagged.

See `guest.values.untag` for the other end. A tagged value is a list `[tag, content]`: so lists are tagged.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.bounds import check_bounds

_MAX_DEPTH: Final = 200
_sequences: Final = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_encoder: Final = msgspec.json.Encoder()


def tagged(value: Any, depth: int = 0) -> Any:
    """The value as JSON that `untag` reads; raises `InvalidArgument` if it has no such form."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", str(value)]
    if isinstance(value, str):
        return _checked_text(value)
    if depth > _MAX_DEPTH:
        raise InvalidArgument("the value is nested too deeply")
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, dict):
        items = value.items()
        return ["dict", [[tagged(key, depth + 1), tagged(item, depth + 1)] for key, item in items]]
    for kind, tag in _sequences.items():
        if isinstance(value, kind):
            return [tag, [tagged(item, depth + 1) for item in value]]
    raise InvalidArgument(f"a {type(value).__name__} has no place in guest code")


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def encode_tagged(value: Any) -> bytes:
    """The JSON of `tagged`. Raises `ValueTooLarge` before it looks at a value that exceeds a limit."""
    check_bounds(value)
    return _encoder.encode(tagged(value))


def _checked_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("a string holds a lone surrogate") from None
    return text
