"""Names that are checked when they are made."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from holdfast.errors import InvalidSessionId

SESSION_ID_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"
_session_id = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


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


SessionIdField = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": SESSION_ID_PATTERN})]
"""How a struct declares a session id. Its `__post_init__` calls `check_session_id`: decoding checks too."""
