"""Makes the declarations of a program's top level part of the session.

Theory of operation
-------------------
Programs of one session share the global object, and a later one may declare a name again, in any way.
JavaScript allows that only for `var` and `function`, so `const`, `let` and `class` of the top level become
`var`. Declarations in a block or in the head of a loop stay as they are.

So, unlike in TypeScript, a top-level name may be read before its declaration (it is undefined, or has the
value of an earlier program), and a top-level constant may be assigned to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors import Code
from standfast.model.diagnostic import Diagnostic
from standfast.sandbox.typescript.edits import SourceEdits
from standfast.sandbox.typescript.source import Source, error, names_in_declaration, names_in_pattern

if TYPE_CHECKING:
    from tree_sitter import Node

RESULT: Final = "result"
_CLASSES: Final = ("class_declaration", "abstract_class_declaration")
_FUNCTIONS: Final = frozenset({
    "function_declaration", "function_expression", "arrow_function", "method_definition", "class",
    "generator_function", "generator_function_declaration", "class_declaration", "abstract_class_declaration",
    "internal_module", "module", "ambient_declaration", "interface_declaration", "type_alias_declaration",
})  # fmt: skip
_ASSIGNMENTS: Final = ("assignment_expression", "augmented_assignment_expression")


class TopLevel:
    """The names that a program binds at its top level; rewrites their declarations."""

    def __init__(self, source: Source, edits: SourceEdits) -> None:
        self.bound: set[str] = set()
        self.declared: set[int] = set()
        """The ids of the declarations."""
        self.repeated: set[int] = set()
        """The ids of the declarations of a name that the program has bound before."""
        self.refused: list[Diagnostic] = []
        self._source = source
        self._edits = edits

    def rewrite(self) -> None:
        """Rewrite every statement of the top level."""
        for statement in self._source.root.named_children:
            exports = statement.type == "export_statement"
            for part in statement.named_children if exports else [statement]:
                self._statement(part)
        if b"var" in self._source.data or b"return" in self._source.data:
            self._look_into_blocks()

    def _statement(self, node: Node) -> None:
        if node.type == "expression_statement" and node.named_children:
            inner = node.named_children[0]
            if inner.type == "internal_module":
                node = inner
            elif inner.type == "assignment_expression" and inner.children[0].type == "using":
                message = "`using` is not supported at the top level"
                hint = "put it into a function, or use try and finally"
                self.refused.append(error(Code.UNSUPPORTED_FEATURE, message, self._source.span(inner), hint))
        self.declared.add(node.id)
        names = set(names_in_declaration(self._source, node))
        if not names.isdisjoint(self.bound):
            self.repeated.add(node.id)
        self.bound |= names
        if node.type == "lexical_declaration":
            keyword = node.children[0]
            width = keyword.end_byte - keyword.start_byte
            self._edits.replace(keyword.start_byte, keyword.end_byte, "var".ljust(width))
            for part in node.named_children:
                name = part.child_by_field_name("name") if part.type == "variable_declarator" else None
                if name is not None and part.child_by_field_name("value") is None:  # it is reset
                    ends = name.end_byte == node.end_byte  # a blanked type gets the semicolon
                    self._edits.insert(name.end_byte, " = undefined;" if ends else " = undefined")
        elif node.type in _CLASSES and (name := node.child_by_field_name("name")) is not None:
            self._edits.insert(node.start_byte, f"var {self._source.text(name)} = ")
            self._edits.insert(node.end_byte, ";")

    def _look_into_blocks(self) -> None:
        """Find names declared with `var`, and `return` outside of a function."""
        pending = [node for node in self._source.root.named_children if node.type not in _FUNCTIONS]
        while pending:
            node = pending.pop()
            match node.type:
                case "variable_declaration":
                    self.bound.update(names_in_declaration(self._source, node))
                case "for_in_statement":
                    kind, left = node.child_by_field_name("kind"), node.child_by_field_name("left")
                    if kind is not None and kind.type == "var" and left is not None:
                        self.bound.update(map(self._source.text, names_in_pattern(left)))
                case "return_statement":
                    hint = "end with the value as an expression, or bind it to `result`"
                    span = self._source.span(node)
                    self.refused.append(error(Code.SYNTAX_ERROR, "return outside of a function", span, hint))
            pending += [part for part in node.named_children if part.type not in _FUNCTIONS]


def assigns_result(source: Source) -> bool:
    """Return whether a program that does not declare `result` assigns to it, as a name of the top level."""

    def holds_result(pattern: Node | None) -> bool:
        return pattern is not None and any(source.text(name) == RESULT for name in names_in_pattern(pattern))

    def declares_result(node: Node | None) -> bool:
        return node is not None and RESULT in names_in_declaration(source, node)

    def hides_result(node: Node) -> bool:
        """Return whether a block, a function, a loop or a `catch` has a `result` of its own."""
        if node.type == "statement_block":
            return any(map(declares_result, node.named_children))
        if node.type == "for_statement":
            return declares_result(node.child_by_field_name("initializer"))
        if node.type == "for_in_statement" and node.child_by_field_name("kind") is not None:
            return holds_result(node.child_by_field_name("left"))
        parameters = node.child_by_field_name("parameters")
        return holds_result(node.child_by_field_name("parameter")) or any(
            holds_result(part.child_by_field_name("pattern"))
            for part in (parameters.named_children if parameters is not None else ())
        )

    pending = list(source.root.named_children)
    while pending:
        node = pending.pop()
        if node.type in _ASSIGNMENTS and holds_result(node.child_by_field_name("left")):
            return True
        if not hides_result(node):
            pending.extend(node.named_children)
    return False
