"""Gives places to expressions of the JavaScript for which the engine would have none.

Theory of operation
-------------------
The engine records a place only for expression statements, calls, binary operators and `throw`. When a
property of undefined is read elsewhere, in `const x = a.b.c` or `return a.b`, it reports the last place that
it did record, some lines before. `0?0<0:` in front of an expression makes it record one: the operator in the
branch that is never taken has a place, and the compiler removes the branch, so that nothing of it runs. A
pattern is compiled before the value that it takes apart, so an empty pattern with a place is put before it.

Rules
-----
1. A landmark changes neither a value nor the order of evaluation, and costs no time when it runs.
2. There is one only where an error may arise that the engine cannot place, and at most one for each line of
   an expression.
3. Code that has its landmarks gets no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.sandbox.typescript.edits import Edits
from standfast.sandbox.typescript.source import Source, first_row, last_row

if TYPE_CHECKING:
    from tree_sitter import Node

_MARK: Final = "0?0<0:"
_PATTERN_MARK: Final = "{}=0<0,"
_CALM: Final = frozenset({
    "number", "string", "true", "false", "null", "undefined", "identifier", "this", "super", "regex",
    "comment", "arrow_function", "function_expression", "generator_function", "class", "type_arguments",
    "import", "property_identifier", "string_fragment", "escape_sequence", "method_definition",
    "meta_property", "shorthand_property_identifier", "private_property_identifier", "statement_block",
    "predefined_type", "type_identifier", "optional_chain",
})  # fmt: skip
"""Nodes that cannot fail, or not before the engine has recorded a place."""
_ACCESS: Final = ("member_expression", "subscript_expression")
_BUILT_IN: Final = frozenset({
    b"Math", b"JSON", b"Object", b"Array", b"Number", b"String", b"Boolean", b"Promise", b"Date", b"Symbol",
    b"Reflect", b"BigInt", b"Map", b"Set", b"console", b"globalThis",
})  # fmt: skip
_LOGICAL: Final = ("&&", "||", "??")


class Landmarks:
    """Writes landmarks into the edits of one program."""

    def __init__(self, source: Source, edits: Edits) -> None:
        self._data = source.data
        self._edits = edits

    def before(self, expression: Node | None) -> None:
        """Give an expression a place, if it needs one."""
        if expression is not None and expression.type not in _CALM and self._may_fail(expression):
            self._edits.insert(expression.start_byte, _MARK)

    def before_pattern(self, pattern: Node) -> None:
        """Give a pattern a place; its value may be one that cannot be taken apart."""
        start = pattern.start_byte
        if pattern.named_child_count and not self._data.endswith(_PATTERN_MARK.encode(), 0, start):
            self._edits.insert(start, _PATTERN_MARK)

    def inside(self, node: Node) -> None:
        """Give each part of a list, an object or `a ? b : c` that begins on another line a place."""
        row = first_row(node)
        if row == last_row(node):
            return
        for part in node.named_children:
            if first_row(part) != row and part.type != "spread_element":
                self.before(part.child_by_field_name("value") if part.type == "pair" else part)

    def _may_fail(self, expression: Node) -> bool:
        """Whether a part of an expression, on its first line, may fail without a place."""
        if self._data.startswith(_MARK.encode(), expression.start_byte):
            return False
        row = first_row(expression)
        pending = [expression]
        while pending:
            node = pending.pop()
            kind = node.type
            if kind in _CALM or first_row(node) != row:
                continue
            if kind in _ACCESS:
                base = node.named_children[0]
                text = self._data[base.start_byte : base.end_byte]
                if base.type != "identifier" or text not in _BUILT_IN:
                    return True
            elif kind == "binary_expression":  # the operands that run before the operator's place is recorded
                left, operator, right, *_ = (part for part in node.children if part.type != "comment")
                pending.extend([left, right] if operator.type in _LOGICAL else [left])
            elif kind in ("call_expression", "new_expression"):
                pending.append(node.named_children[0])
            else:
                pending.extend(node.named_children)
        return False
