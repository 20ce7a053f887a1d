"""Conditions over the arguments of a call, as data: `{"cents": {"gt": 100}, "currency": "EUR"}`.

All tests of a table must pass. A plain value means equality. `default` stands for a missing argument:
`{"limit": {"gt": 100, "default": 10}}`.

Rule: what cannot be compared raises.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json

Table = Mapping[str, Mapping[str, Any]]
"""For each argument its tests: the name of the operator and its operand."""

OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "in": lambda value, wanted: value in wanted,
    "not_in": lambda value, wanted: value not in wanted,
    "contains": operator.contains,
    "matches": lambda value, pattern: re.search(pattern, value) is not None,
}


def holds(table: Table, arguments: Mapping[str, Json]) -> bool:
    """Return whether the arguments pass every test; raise if a test cannot be made."""
    for name, tests in table.items():
        if name not in arguments and "default" not in tests:
            raise LookupError(f"the argument {name!r} is not given")
        value = arguments.get(name, tests.get("default"))
        if not all(OPERATORS[test](value, wanted) for test, wanted in tests.items() if test != "default"):
            return False
    return True


def read_table(given: object, where: str) -> Table:
    """Check a table and return it; errors name it *where*."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{where}: a condition is neither a function nor a table")
    return {str(name): _tests(tests, where) for name, tests in given.items()}


def _tests(given: object, where: str) -> dict[str, Any]:
    tests = dict(given) if isinstance(given, Mapping) else {"eq": given}
    for name, wanted in tests.items():
        if name not in OPERATORS and name != "default":
            raise InvalidArgument(f"{where}: there is no test {name!r}", hint=f"use {', '.join(OPERATORS)}")
        if name in ("in", "not_in") and not isinstance(wanted, (list, tuple, set, frozenset)):
            raise InvalidArgument(f"{where}: {name!r} takes a list")
        if name == "matches":
            try:
                re.compile(wanted)  # type: ignore[type-var]
            except (re.error, TypeError) as error:
                raise InvalidArgument(f"{where}: {wanted!r} is not a regular expression: {error}") from None
    return tests
