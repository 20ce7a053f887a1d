"""The engine's Python package, imported when a session first needs it.

`from standfast.sandbox.monty import engine` costs nothing; `engine.MontyComplete` imports it, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_monty import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    import pydantic_monty

    value = globals()[name] = getattr(pydantic_monty, name)
    return value
