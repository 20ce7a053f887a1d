"""The names of public classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import standfast

SOURCE = Path(standfast.__file__).parent


def test_each_public_class_has_a_unique_name() -> None:
    """Ours: if two classes share a name, a reader must look up which one is meant."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
