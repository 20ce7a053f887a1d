"""How a program uses names: what it binds, calls, assigns to and awaits, found in one walk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.sandbox.typescript.source import Source, names_in_pattern

if TYPE_CHECKING:
    from tree_sitter import Node

_TOP, _BLOCK, _ASYNC, _PLAIN = range(4)
"""Scopes: the top level, a block of it, an async function, another function."""
Call = tuple["Node", "Node"]
"""A call and the identifier that is called."""
_FUNCTIONS: Final = frozenset({
    "function_declaration", "function_expression", "arrow_function", "method_definition",
    "generator_function", "generator_function_declaration",
})  # fmt: skip
_BLOCKS: Final = frozenset(
    {"statement_block", "for_statement", "for_in_statement", "catch_clause", "switch_body"}
)
_BINDINGS: Final[dict[str, tuple[str, int | None]]] = {
    **dict.fromkeys(
        ("function_declaration", "generator_function_declaration", "class_declaration", "variable_declarator",
         "abstract_class_declaration", "enum_declaration", "internal_module", "function_signature"),
        ("name", None),
    ),
    **dict.fromkeys(("function_expression", "generator_function", "class"), ("name", _PLAIN)),
    **dict.fromkeys(("required_parameter", "optional_parameter"), ("pattern", _PLAIN)),
    "arrow_function": ("parameter", _PLAIN),
    "catch_clause": ("parameter", _BLOCK),
}  # fmt: skip
"""The field whose names a node binds, and in which scope; None is the scope that the node is in."""
_WITHOUT_USES: Final = frozenset({
    "type_annotation", "type_arguments", "type_parameters", "interface_declaration", "type_alias_declaration",
    "implements_clause", "type_predicate_annotation", "asserts_annotation", "comment", "string", "number",
    "property_identifier", "this", "true", "false", "null", "regex", "shorthand_property_identifier",
    "identifier",
})  # fmt: skip
_PROMISE_METHODS: Final = frozenset({"then", "catch", "finally", "constructor"})
_VALUE_OPERATORS: Final = frozenset(
    {"+", "-", "*", "/", "%", "**", "<", ">", "<=", ">=", "==", "!=", "===", "!=="}
)


class Usage:
    """What one program does with names."""

    def __init__(self, source: Source) -> None:
        self.bound: set[str] = set()
        """The names that the program binds, in any scope."""
        self.nested: set[str] = set()
        """Those of them that are bound below the top level."""
        self.top_level_bindings: list[Node] = []
        self.assigned: list[Node] = []
        self.calls: list[Call] = []
        self.unawaited: list[Call] = []
        """Calls whose result is used in a way that a promise does not allow."""
        self.stray_awaits: list[Node] = []
        self._source = source
        pending: list[tuple[Node, int]] = [(part, _TOP) for part in source.root.named_children]
        while pending:
            node, scope = pending.pop()
            kind = node.type
            if kind in _WITHOUT_USES:
                continue
            if (binding := _BINDINGS.get(kind)) is not None:
                field, own_scope = binding
                self._bind(node.child_by_field_name(field), scope if own_scope is None else own_scope)
            else:
                self._record_use(node, kind, scope)
            if kind in _FUNCTIONS:
                scope = _ASYNC if any(part.type == "async" for part in node.children) else _PLAIN
            elif kind in ("public_field_definition", "class_static_block"):
                scope = _PLAIN
            elif scope == _TOP and kind in _BLOCKS:
                scope = _BLOCK
            pending.extend([(part, scope) for part in node.named_children])

    def _bind(self, pattern: Node | None, scope: int) -> None:
        if pattern is None:
            return
        for node in [pattern] if pattern.type == "type_identifier" else names_in_pattern(pattern):
            name = self._source.text(node)
            self.bound.add(name)
            if scope == _TOP:
                self.top_level_bindings.append(node)
            else:
                self.nested.add(name)

    def _record_use(self, node: Node, kind: str, scope: int) -> None:
        match kind:
            case "call_expression":
                if (function := _called(node)) is not None:
                    self.calls.append((node, function))
            case "member_expression" | "subscript_expression":
                prop = node.child_by_field_name("property")
                if prop is None or self._source.text(prop) not in _PROMISE_METHODS:
                    self._use_value(node.named_children[0])
            case "binary_expression":
                operator = node.child_by_field_name("operator")
                if operator is not None and operator.type in _VALUE_OPERATORS:
                    self._use_value(node.child_by_field_name("left"))
                    self._use_value(node.child_by_field_name("right"))
            case "template_substitution" | "spread_element":
                self._use_value(next(iter(node.named_children), None))
            case "await_expression" if scope == _PLAIN:
                self.stray_awaits.append(node)
            case "assignment_expression" | "augmented_assignment_expression":
                if (left := node.child_by_field_name("left")) is not None:
                    self.assigned.extend(names_in_pattern(left))
            case "update_expression":
                argument = node.child_by_field_name("argument")
                if argument is not None and argument.type == "identifier":
                    self.assigned.append(argument)
            case "variable_declaration" if scope == _BLOCK:  # its names are bound at the top level, too
                for part in node.named_children:
                    if part.type == "variable_declarator":
                        self._bind(part.child_by_field_name("name"), _TOP)
            case "for_in_statement":
                self._record_loop(node, scope)
            case "ambient_declaration":
                for part in node.named_children:
                    if part.type == "function_signature":
                        self._bind(part.child_by_field_name("name"), _PLAIN)

    def _record_loop(self, node: Node, scope: int) -> None:
        left, keyword = node.child_by_field_name("left"), node.child_by_field_name("kind")
        if left is not None and keyword is not None:
            self._bind(left, _TOP if keyword.type == "var" and scope in (_TOP, _BLOCK) else _BLOCK)
        elif left is not None:
            self.assigned.extend(names_in_pattern(left))
        if not any(part.type == "await" for part in node.children):
            self._use_value(node.child_by_field_name("right"))

    def _use_value(self, node: Node | None) -> None:
        """Record `node` as unawaited if it is a call."""
        while node is not None and node.type in (
            "parenthesized_expression", "as_expression", "non_null_expression",
        ):  # fmt: skip
            node = node.named_children[0]
        if node is not None and node.type == "call_expression" and (function := _called(node)) is not None:
            self.unawaited.append((node, function))


def _called(call: Node) -> Node | None:
    """Return the identifier that `call` calls; None if it calls something else."""
    function = call.child_by_field_name("function")
    return function if function is not None and function.type == "identifier" else None
