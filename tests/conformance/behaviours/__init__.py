"""The table: every group of behaviours, in the order in which it is shown."""

from __future__ import annotations

from typing import Final

from behaviours.approvals import APPROVALS
from behaviours.behaviour import ENGINES, Behaviour
from behaviours.calls import CALLS
from behaviours.chance import CHANCE
from behaviours.choosing import CHOOSING, OUTSIDE
from behaviours.errors import ERRORS
from behaviours.inputs import INPUTS
from behaviours.limits import LIMITS
from behaviours.python_features import PYTHON_FEATURES
from behaviours.python_library import PYTHON_LIBRARY
from behaviours.results import RESULTS
from behaviours.shared_features import SHARED_FEATURES
from behaviours.snapshots import SNAPSHOTS
from behaviours.state import STATE
from behaviours.typescript_features import TYPESCRIPT_FEATURES
from behaviours.typescript_globals import TYPESCRIPT_GLOBALS
from behaviours.validation import VALIDATION

GROUPS: Final[dict[str, list[Behaviour]]] = {
    "results": RESULTS,
    "state": STATE,
    "inputs": INPUTS,
    "calls": CALLS,
    "approvals": APPROVALS,
    "limits": LIMITS,
    "errors": ERRORS,
    "checks before a run": VALIDATION,
    "snapshots": SNAPSHOTS,
    "time and randomness": CHANCE,
    "isolation": OUTSIDE,
    "choosing an engine": CHOOSING,
    "language": SHARED_FEATURES,
    "Python": PYTHON_FEATURES,
    "TypeScript": TYPESCRIPT_FEATURES,
    "Python standard library": PYTHON_LIBRARY,
    "TypeScript globals": TYPESCRIPT_GLOBALS,
}

__all__ = ["ENGINES", "GROUPS", "Behaviour"]
