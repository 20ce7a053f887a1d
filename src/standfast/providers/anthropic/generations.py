"""Which Claude models take what, as far as their names tell.

Rules
-----
1. A version is read from a name where it has one; a name without one is taken for a current Claude.
2. A name that is no Claude's at all belongs to somebody else's server that speaks this format. It gets the
   forms that have been there longest.
"""

from __future__ import annotations

import re
from typing import Final

_ADAPTIVE: Final = (4, 7)
_NATIVE_OUTPUT: Final = (4, 5)
_SHORT_REPLIES: Final = (3, 5)
_NEWEST: Final = (99, 0)
_VERSION: Final = re.compile(r"(?<![0-9])([0-9]{1,2})(?:[-.]([0-9]{1,2}))?(?![0-9])")


def version_of(model: str) -> tuple[int, int] | None:
    """The major and minor version of a Claude; None of a model that is not one."""
    if "claude" not in model:
        return None
    found = _VERSION.search(model)
    return _NEWEST if found is None else (int(found[1]), int(found[2] or 0))


def thinks_adaptively(model: str) -> bool:
    """Whether the model decides itself how much it thinks; it then refuses a budget of tokens."""
    version = version_of(model)
    return version is not None and version >= _ADAPTIVE


def takes_output_format(model: str) -> bool:
    """Whether the model can be held to a JSON schema."""
    version = version_of(model)
    return version is None or version >= _NATIVE_OUTPUT


def usual_max_tokens(model: str) -> int:
    """How long a reply may be if nobody says it; the vendor wants a number."""
    version = version_of(model)
    return 4096 if version is not None and version < _SHORT_REPLIES else 8192
