"""The names that declarations and patterns bind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from standfast.sandbox.typescript.source import Source

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMED: Final = frozenset({
    "function_declaration", "generator_function_declaration", "class_declaration", "enum_declaration",
    "abstract_class_declaration", "internal_module", "module",
})  # fmt: skip
_SKIPPED: Final = frozenset({"type_annotation", "comment"})


def names_in_declaration(source: Source, node: Node) -> Iterator[str]:
    """The names that a declaration binds; none if it is something else."""
    kind = node.type
    if kind in ("lexical_declaration", "variable_declaration"):
        for part in node.named_children:
            pattern = part.child_by_field_name("name") if part.type == "variable_declarator" else None
            if pattern is not None:
                yield from (source.text(name) for name in names_in_pattern(pattern))
    elif kind in _NAMED:
        name = node.child_by_field_name("name")
        if name is not None and name.type in ("identifier", "type_identifier"):
            yield source.text(name)
    elif kind == "expression_statement" and node.named_children[0].type == "internal_module":
        yield from names_in_declaration(source, node.named_children[0])


def names_in_pattern(pattern: Node) -> Iterator[Node]:
    """The identifiers that a pattern binds, in whatever order."""
    pending = [pattern]
    while pending:
        node = pending.pop()
        match node.type:
            case "identifier" | "shorthand_property_identifier_pattern":
                yield node
            case "assignment_pattern" | "object_assignment_pattern":
                left = node.child_by_field_name("left")
                if left is not None:
                    pending.append(left)
            case "pair_pattern":
                value = node.child_by_field_name("value")
                if value is not None:
                    pending.append(value)
            case "object_pattern" | "array_pattern" | "rest_pattern":
                pending.extend(part for part in node.named_children if part.type not in _SKIPPED)
