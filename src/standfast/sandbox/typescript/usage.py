"""How a program uses names: what it binds, calls, assigns to and awaits, found in one walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from standfast.sandbox.typescript.patterns import names_in_pattern
from standfast.sandbox.typescript.source import Source

if TYPE_CHECKING:
    from tree_sitter import Node

_TOP, _BLOCK, _ASYNC, _PLAIN = range(4)
"""Where code stands: at the top level, in a block of it, in an async function, in another function."""
Call = tuple["Node", "Node"]
"""A call and the identifier that is called."""
_FUNCTIONS: Final = frozenset({
    "function_declaration", "function_expression", "arrow_function", "method_definition",
    "generator_function", "generator_function_declaration",
})  # fmt: skip
_BLOCKS: Final = frozenset(
    {"statement_block", "for_statement", "for_in_statement", "catch_clause", "switch_body"}
)
_TYPES: Final = frozenset({
    "type_annotation", "type_arguments", "type_parameters", "interface_declaration", "type_alias_declaration",
    "implements_clause", "type_predicate_annotation", "asserts_annotation", "comment", "string", "number",
    "property_identifier", "this", "true", "false", "null", "regex", "shorthand_property_identifier",
})  # fmt: skip
_PROMISE_METHODS: Final = frozenset({"then", "catch", "finally", "constructor"})
_PLAIN_OPERATORS: Final = frozenset(
    {"+", "-", "*", "/", "%", "**", "<", ">", "<=", ">=", "==", "!=", "===", "!=="}
)


class Usage:
    """What one program does with names."""

    def __init__(self, source: Source) -> None:
        self.bound: set[str] = set()
        """The names that anything in the program binds, in whatever scope."""
        self.nested: set[str] = set()
        """Those of them that are bound below the top level."""
        self.top_level_bindings: list[Node] = []
        self.assigned: list[Node] = []
        self.calls: list[Call] = []
        self.unawaited: list[Call] = []
        """Calls of which something is used that a promise does not have."""
        self.stray_awaits: list[Node] = []
        self._source = source
        self._pending: list[tuple[Node, int]] = [(part, _TOP) for part in source.root.named_children]
        while self._pending:
            node, place = self._pending.pop()
            kind = node.type
            if kind == "identifier" or kind in _TYPES:
                continue
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, node, place)
            inner = self._inside(node, kind, place)
            self._pending.extend([(part, inner) for part in node.named_children])

    def _inside(self, node: Node, kind: str, place: int) -> int:
        """Where the parts of a node stand."""
        if kind in _FUNCTIONS:
            return _ASYNC if any(part.type == "async" for part in node.children) else _PLAIN
        if kind in ("public_field_definition", "class_static_block"):
            return _PLAIN
        return _BLOCK if place == _TOP and kind in _BLOCKS else place

    def _bind(self, pattern: Node | None, place: int) -> None:
        if pattern is None:
            return
        if pattern.type == "type_identifier":
            self._bind_name(pattern, place)
            return
        for name in names_in_pattern(pattern):
            self._bind_name(name, place)

    def _bind_name(self, node: Node, place: int) -> None:
        name = self._source.text(node)
        self.bound.add(name)
        if place == _TOP:
            self.top_level_bindings.append(node)
        else:
            self.nested.add(name)

    def declarator(self, node: Node, place: int) -> None:
        self._bind(node.child_by_field_name("name"), place)

    def var(self, node: Node, place: int) -> None:
        """A `var` in a block of the top level is bound at the top level."""
        for part in node.named_children:
            if place == _BLOCK and part.type == "variable_declarator":
                self._bind(part.child_by_field_name("name"), _TOP)

    def named(self, node: Node, place: int) -> None:
        self._bind(node.child_by_field_name("name"), place)

    def own_name(self, node: Node, place: int) -> None:
        """A function expression's or class expression's name is bound inside of it."""
        self._bind(node.child_by_field_name("name"), _PLAIN)

    def parameter(self, node: Node, place: int) -> None:
        self._bind(node.child_by_field_name("pattern"), _PLAIN)

    def arrow(self, node: Node, place: int) -> None:
        self._bind(node.child_by_field_name("parameter"), _PLAIN)

    def catch(self, node: Node, place: int) -> None:
        self._bind(node.child_by_field_name("parameter"), _BLOCK)

    def loop(self, node: Node, place: int) -> None:
        left, kind = node.child_by_field_name("left"), node.child_by_field_name("kind")
        if left is not None and kind is not None:
            self._bind(left, _TOP if kind.type == "var" and place in (_TOP, _BLOCK) else _BLOCK)
        elif left is not None:
            self.assigned.extend(names_in_pattern(left))
        right = node.child_by_field_name("right")
        is_async = any(part.type == "await" for part in node.children)
        if right is not None and not is_async:
            self._used_plainly(right)

    def ambient(self, node: Node, place: int) -> None:
        """`declare function f(): void` says that there is an f."""
        for part in node.named_children:
            if part.type == "function_signature":
                self._bind(part.child_by_field_name("name"), _PLAIN)

    def signature(self, node: Node, place: int) -> None:
        self._bind(node.child_by_field_name("name"), place)

    def assignment(self, node: Node, place: int) -> None:
        left = node.child_by_field_name("left")
        if left is not None:
            self.assigned.extend(names_in_pattern(left))

    def update(self, node: Node, place: int) -> None:
        argument = node.child_by_field_name("argument")
        if argument is not None and argument.type == "identifier":
            self.assigned.append(argument)

    def call(self, node: Node, place: int) -> None:
        function = node.child_by_field_name("function")
        if function is not None and function.type == "identifier":
            self.calls.append((node, function))

    def await_(self, node: Node, place: int) -> None:
        if place == _PLAIN:
            self.stray_awaits.append(node)

    def member(self, node: Node, place: int) -> None:
        prop = node.child_by_field_name("property")
        if prop is None or self._source.text(prop) not in _PROMISE_METHODS:
            self._used_plainly(node.named_children[0])

    def binary(self, node: Node, place: int) -> None:
        operator = node.child_by_field_name("operator")
        if operator is not None and operator.type in _PLAIN_OPERATORS:
            for field in ("left", "right"):
                part = node.child_by_field_name(field)
                if part is not None:
                    self._used_plainly(part)

    def first_part(self, node: Node, place: int) -> None:
        """What stands in a template or is spread is used as it is."""
        if node.named_child_count:
            self._used_plainly(node.named_children[0])

    def _used_plainly(self, node: Node) -> None:
        while node.type in ("parenthesized_expression", "as_expression", "non_null_expression"):
            node = node.named_children[0]
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            if function is not None and function.type == "identifier":
                self.unawaited.append((node, function))


_HANDLERS: Final[dict[str, Callable[[Usage, Node, int], None]]] = {
    **dict.fromkeys(
        ("function_declaration", "generator_function_declaration", "class_declaration",
         "abstract_class_declaration", "enum_declaration", "internal_module"),
        Usage.named,
    ),
    **dict.fromkeys(("function_expression", "generator_function", "class"), Usage.own_name),
    **dict.fromkeys(("required_parameter", "optional_parameter"), Usage.parameter),
    **dict.fromkeys(("assignment_expression", "augmented_assignment_expression"), Usage.assignment),
    **dict.fromkeys(("member_expression", "subscript_expression"), Usage.member),
    **dict.fromkeys(("template_substitution", "spread_element"), Usage.first_part),
    "variable_declarator": Usage.declarator,
    "variable_declaration": Usage.var,
    "arrow_function": Usage.arrow,
    "catch_clause": Usage.catch,
    "for_in_statement": Usage.loop,
    "ambient_declaration": Usage.ambient,
    "function_signature": Usage.signature,
    "update_expression": Usage.update,
    "call_expression": Usage.call,
    "await_expression": Usage.await_,
    "binary_expression": Usage.binary,
}  # fmt: skip
