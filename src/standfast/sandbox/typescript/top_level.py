"""Makes what a program declares at its top level part of the session.

Theory of operation
-------------------
Programs of one session share the global object, and a later one may declare again what an earlier one
declared, in whatever way. JavaScript allows that for `var` and `function` alone, so `const`, `let` and
`class` of the top level become `var`. What is declared in a block or in the head of a loop stays as it is.

What differs from TypeScript then: a top-level name may be read before its declaration (it is undefined, or
what an earlier program left), and a top-level constant may be assigned to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors import Code
from standfast.model.diagnostic import Diagnostic
from standfast.sandbox.typescript.edits import Edits
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
    """The names that a program binds, and how its declarations are written."""

    def __init__(self, source: Source, edits: Edits) -> None:
        self.bound: set[str] = set()
        self.declared: set[int] = set()
        """The ids of the declarations."""
        self.repeated: set[int] = set()
        """The ids of those among them whose name the program has bound before."""
        self.refused: list[Diagnostic] = []
        self._source = source
        self._edits = edits

    def rewrite(self) -> None:
        """Look at each statement of the top level."""
        for statement in self._source.root.named_children:
            parts = statement.named_children if statement.type == "export_statement" else [statement]
            for part in parts:
                self._statement(part)
        if b"var" in self._source.data or b"return" in self._source.data:
            self._look_into_blocks()

    def _statement(self, node: Node) -> None:
        if node.type == "expression_statement" and node.named_children:
            inner = node.named_children[0]
            if inner.type == "internal_module":
                node = inner
            elif inner.type == "assignment_expression" and inner.children[0].type == "using":
                self._refuse_using(inner)
        self.declared.add(node.id)
        names = set(names_in_declaration(self._source, node))
        if not names.isdisjoint(self.bound):
            self.repeated.add(node.id)
        self.bound |= names
        if node.type == "lexical_declaration":
            self._variables(node)
        elif node.type in _CLASSES:
            self._class(node)

    def _variables(self, node: Node) -> None:
        keyword = node.children[0]
        self._edits.replace(
            keyword.start_byte, keyword.end_byte, "var".ljust(keyword.end_byte - keyword.start_byte)
        )
        for part in node.named_children:
            if part.type == "variable_declarator" and part.child_by_field_name("value") is None:
                self._unset(part, node.end_byte)

    def _unset(self, part: Node, end: int) -> None:
        """A variable without a value is undefined, whatever an earlier program left in it."""
        name = part.child_by_field_name("name")
        if name is not None:
            open_end = name.end_byte == end  # a type behind the name becomes a blank with a semicolon
            self._edits.insert(name.end_byte, " = undefined;" if open_end else " = undefined")

    def _class(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        if name is not None:
            self._edits.insert(node.start_byte, f"var {self._source.text(name)} = ")
            self._edits.insert(node.end_byte, ";")

    def _look_into_blocks(self) -> None:
        """Find names declared with `var`, and returns out of no function."""
        pending = [node for node in self._source.root.named_children if node.type not in _FUNCTIONS]
        while pending:
            node = pending.pop()
            match node.type:
                case "variable_declaration":
                    self.bound.update(names_in_declaration(self._source, node))
                case "for_in_statement":
                    self._loop(node)
                case "return_statement":
                    self._refuse_return(node)
            pending.extend(part for part in node.named_children if part.type not in _FUNCTIONS)

    def _loop(self, node: Node) -> None:
        kind, left = node.child_by_field_name("kind"), node.child_by_field_name("left")
        if kind is not None and kind.type == "var" and left is not None:
            self.bound.update(self._source.text(name) for name in names_in_pattern(left))

    def _refuse_return(self, node: Node) -> None:
        message = "return outside of a function"
        hint = "end with the value as an expression, or bind it to `result`"
        self.refused.append(error(Code.SYNTAX_ERROR, message, self._source.span(node), hint))

    def _refuse_using(self, node: Node) -> None:
        message = "`using` is not supported at the top level"
        hint = "put it into a function, or use try and finally"
        self.refused.append(error(Code.UNSUPPORTED_FEATURE, message, self._source.span(node), hint))


def assigns_result(source: Source) -> bool:
    """Whether a program that does not declare `result` assigns to it, as a name of the top level."""
    pending = list(source.root.named_children)
    while pending:
        node = pending.pop()
        if node.type in _ASSIGNMENTS:
            left = node.child_by_field_name("left")
            if left is not None and _holds_result(source, left):
                return True
        if not _hides_result(source, node):
            pending.extend(node.named_children)
    return False


def _holds_result(source: Source, pattern: Node) -> bool:
    return any(source.text(name) == RESULT for name in names_in_pattern(pattern))


def _hides_result(source: Source, node: Node) -> bool:
    """Whether a node has a `result` of its own inside: a block, a function, a loop or a `catch`."""
    if node.type == "statement_block":
        return any(RESULT in names_in_declaration(source, part) for part in node.named_children)
    bound = [node.child_by_field_name("parameter")]
    if node.type == "for_in_statement" and node.child_by_field_name("kind") is not None:
        bound.append(node.child_by_field_name("left"))
    elif node.type == "for_statement" and (start := node.child_by_field_name("initializer")) is not None:
        return RESULT in names_in_declaration(source, start)
    if (parameters := node.child_by_field_name("parameters")) is not None:
        bound += [part.child_by_field_name("pattern") for part in parameters.named_children]
    return any(pattern is not None and _holds_result(source, pattern) for pattern in bound)
