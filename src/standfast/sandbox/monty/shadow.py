"""Names that a run borrows: its inputs, and `result` while it is not yet known to be bound.

The engine has neither `del` nor a way to list globals, but it unbinds the name of an `except` clause as
Python does. Earlier values wait under a name of ours and are put back when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable

_KEPT = "__standfast_kept_{}"


def keep(names: Iterable[str], *, unbind: Iterable[str] = ()) -> str:
    """Code that puts the present values of *names* aside, and unbinds some of them."""
    lines = [f"try:\n    {_KEPT.format(name)} = {name}\nexcept NameError:\n    pass" for name in names]
    return "\n".join([*lines, *(_unbind(name) for name in unbind)])


def put_back(kept: Iterable[str], unbound: Iterable[str]) -> str:
    """Code that gives *kept* names their earlier values and unbinds the others."""
    lines = []
    for name in kept:
        aside = _KEPT.format(name)
        lines += [_unbind(name), f"try:\n    {name} = {aside}\nexcept NameError:\n    pass", _unbind(aside)]
    return "\n".join([*lines, *(_unbind(name) for name in unbound)])


def forget(names: Iterable[str]) -> str:
    """Code that drops what `keep` put aside."""
    return "\n".join(_unbind(_KEPT.format(name)) for name in names)


def _unbind(name: str) -> str:
    return f"try:\n    raise ValueError\nexcept ValueError as {name}:\n    pass"
