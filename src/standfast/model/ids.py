"""Names that are checked when they are made."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from standfast.errors import InvalidArgument, InvalidSessionId
from standfast.model.canonical import digest_bytes

SESSION_ID_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"
_session_id = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_readable = re.compile(r"[a-zA-Z0-9_]+", re.ASCII)
_DIGEST_CHARS: Final = 32
# What `session_id_from` makes. A text of this form is digested like any other, or it could be another's id.
_derived = re.compile(rf"[a-zA-Z0-9_-]+-[0-9a-f]{{{_DIGEST_CHARS}}}", re.ASCII)


class SessionId(str):
    """The name of a session. Checked on construction; `default` if nothing is said.

    A new type for the type checker alone: what comes back is a plain string, which every codec can write.
    """

    __slots__ = ()

    def __new__(cls, value: str = "default") -> SessionId:
        if not isinstance(value, str) or _session_id.fullmatch(value) is None:
            raise InvalidSessionId(value)
        return str(value)  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def check_session_id(value: str) -> None:
    """Raise `InvalidSessionId` if *value* is no session id.

    The same few ids are decoded over and over, so those that passed are remembered.
    """
    SessionId(value)


def session_id_from(text: str) -> SessionId:
    """A valid session id made from any *text*: the same id for the same text, another one for any other.

    A text that is a valid id is its own id. Otherwise the id is what can be kept of the text, for people to
    read, and a digest of the text: `user@example.com/42` becomes
    `user-example-com-42-335485f5ac733fe37b0ae52f594f0654`.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"a session id is made from text, not from {type(text).__name__}")
    if _session_id.fullmatch(text) is not None and _derived.fullmatch(text) is None:
        return SessionId(text)
    digest = digest_bytes(text.encode("utf-8", "surrogatepass"))[:_DIGEST_CHARS]
    readable = "-".join(_readable.findall(text))[: 63 - _DIGEST_CHARS].strip("-")
    return SessionId(f"{readable or 'id'}-{digest}")


SessionIdField = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": SESSION_ID_PATTERN})]
"""How a struct declares a session id. Its `__post_init__` calls `check_session_id`: decoding checks too."""
