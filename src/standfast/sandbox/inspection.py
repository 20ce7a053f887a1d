"""Inspection of a session's variables: their names, types and short texts, on every engine.

Theory of operation
-------------------
The engine knows the names that a state binds. A cell that describes each of them runs on a copy of the state,
in the sandbox and under its own limits; its resulting state is discarded. A `__repr__` of guest code thus
runs as guest code, never in the host. A variable that cannot be described is listed by its name only.

Rule: at most `MAX_VARIABLES` variables are described, each with at most `MAX_CHARS` characters.
"""

from __future__ import annotations

import secrets
from typing import Final

from standfast.errors import EngineFailed
from standfast.model.code import Language, Variable
from standfast.model.limits import SessionLimits
from standfast.plugins.executor_defaults import CatalogFunctions
from standfast.ports.code_engine import CellEnd, CellRequest, CodeEngine
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog

MAX_VARIABLES: Final = 200
MAX_CHARS: Final = 120
_LIMITS: Final = SessionLimits(memory_mb=256, cpu_ms=5_000, wall_ms=20_000, max_external_calls=0)
_FOUND: Final = "standfast_inspected"
NO_FUNCTIONS: Final = CatalogFunctions(ToolCatalog(), dict[str, RegisteredTool]().__getitem__, "")
"""The functions of a cell that the host runs: none."""

_PYTHON: Final = """
try:
    {found}.append([type({name}).__name__, repr({name})[:{chars}]])
except Exception:
    {found}.append(["", ""])
"""
_TYPESCRIPT: Final = """
try {{
  const value: any = {name};
  const kind = value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
  {found}.push([kind, String(kind === "object" || kind === "array" ? JSON.stringify(value) : value)
    .slice(0, {chars})]);
}} catch (error) {{ {found}.push(["", ""]); }}
"""


def inspect_state(engine: CodeEngine, state: bytes) -> tuple[Variable, ...]:
    """Return the variables of *state*, by name; raise `SnapshotRefused` if it is unreadable. Blocks."""
    names = sorted(engine.names(state)) if state else []
    shown = names[:MAX_VARIABLES]
    if not shown:
        return ()
    key = f"inspect.{secrets.token_hex(8)}"
    code = _cell(engine.language, shown)
    run = engine.open(
        CellRequest(key=key, code=code, state=state, limits=_LIMITS, functions=NO_FUNCTIONS, seed=key)
    )
    try:
        step = run.start()
    except EngineFailed:
        step = CellEnd(hard=True)
    finally:
        run.close()
        engine.forget(key)
    described = step.result if isinstance(step, CellEnd) and step.error is None else None
    if not isinstance(described, list) or len(described) != len(shown):
        described = [["", ""]] * len(shown)
    return tuple(
        Variable(name=name, type=str(one[0]), text=str(one[1]))
        if isinstance(one, list)
        else Variable(name=name)
        for name, one in zip(shown, described, strict=True)
    )


def _cell(language: Language, names: list[str]) -> str:
    """Return a cell whose result is a list with the type and the text of each variable."""
    part, begin = _PYTHON, f"{_FOUND} = []"
    if language is not Language.PYTHON:
        part, begin = _TYPESCRIPT, f"const {_FOUND}: any[] = [];"
    lines = [part.format(found=_FOUND, name=name, chars=MAX_CHARS) for name in names]
    return "\n".join([begin, *lines, _FOUND])
