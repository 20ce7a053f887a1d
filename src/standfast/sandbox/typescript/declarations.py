"""Rewriting of declarations that JavaScript lacks, or that would end with their program, on the same lines.

An enum becomes a function that fills an object, a namespace becomes a function that returns its exports, and
a parameter property becomes an assignment at the beginning of its constructor.

The programs of a session share the global object, and a later program may redeclare a name in any way.
JavaScript allows that only for `var` and `function`, so `const`, `let` and `class` at the top level become
`var`. So, unlike in TypeScript, a top-level name can be read before its declaration (its value is undefined
or that of an earlier program), and a top-level constant can be assigned to.

Rule: expressions stay where they are written, so that errors in them are reported at the right position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from standfast.errors import Code
from standfast.model.code import Diagnostic
from standfast.model.run import RESERVED
from standfast.sandbox.run_errors import diagnose
from standfast.sandbox.typescript.source import Source, SourceEdits, names_in_declaration, names_in_pattern

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
        """The ids of declarations whose name an earlier statement of the program has already bound."""
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
                self.refused.append(
                    diagnose(Code.UNSUPPORTED_FEATURE, message, self._source.span(inner), hint)
                )
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
                    ends = name.end_byte == node.end_byte  # the semicolon is written into the blanked type
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
                    self.refused.append(
                        diagnose(Code.SYNTAX_ERROR, "return outside of a function", span, hint)
                    )
            pending += [part for part in node.named_children if part.type not in _FUNCTIONS]


def assigns_result(source: Source) -> bool:
    """Return whether a program that does not declare `result` assigns to the top-level name `result`."""

    def holds_result(pattern: Node | None) -> bool:
        return pattern is not None and any(source.text(name) == RESULT for name in names_in_pattern(pattern))

    def declares_result(node: Node | None) -> bool:
        return node is not None and RESULT in names_in_declaration(source, node)

    def hides_result(node: Node) -> bool:
        """Return whether a block, a function, a loop or a `catch` declares its own `result`."""
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


_PROPERTY_MARKS: Final = frozenset({"accessibility_modifier", "override_modifier", "readonly"})
_TYPES_ONLY: Final = frozenset({
    "interface_declaration", "type_alias_declaration", "ambient_declaration", "comment", "function_signature",
})  # fmt: skip


class NotSupported(Exception):
    """A namespace that cannot be rewritten."""


class Lowering:
    """Rewrites single nodes of one program. `top` knows the declarations of its top level."""

    def __init__(self, source: Source, edits: SourceEdits, top: TopLevel) -> None:
        self._source = source
        self._text = source.text
        self._edits = edits
        self._top = top

    def enum(self, node: Node) -> Iterator[Node]:
        """Rewrite an enum, and yield the expressions in it."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        enum = self._text(name)
        keyword = "var" if node.id in self._top.declared else "let"
        self._edits.replace(node.start_byte, body.start_byte + 1, f"{keyword} {enum} = (({enum}) => {{")
        following, last = "0", body.start_byte + 1
        for part in body.children:
            if part.type == ",":
                self._edits.replace(part.start_byte, part.end_byte, ";")
            elif part.is_named and part.type != "comment":
                value = part.child_by_field_name("value") if part.type == "enum_assignment" else None
                following = self._member(enum, part, value, following)
                last = part.end_byte
                if value is not None:
                    yield value
        self._edits.insert(last, ";")
        given = enum if node.id in self._top.repeated else "{}"
        self._edits.replace(body.end_byte - 1, body.end_byte, f"return {enum}; }})({given});")

    def _member(self, enum: str, member: Node, value: Node | None, following: str) -> str:
        """Rewrite a member of an enum, and return the default value of the next member."""
        name = member.child_by_field_name("name") or member
        if name.type == "computed_property_name":
            name = name.named_children[0]
        text = self._text(name)
        key, local = (text, text[1:-1]) if name.type == "string" else (json.dumps(text), text)
        item = f"{enum}[{key}]"
        is_plain = local.isidentifier() and local not in RESERVED and local != enum
        target = f"const {local} = {item}" if is_plain else item  # other members may use its name
        if value is None:
            text = f"{target} = {following}; {enum}[{item}] = {key}"
            self._edits.replace(member.start_byte, member.end_byte, text)
        else:
            self._edits.replace(member.start_byte, value.start_byte, f"{target} = ")
            if value.type not in ("string", "template_string"):
                reverse = f'; if (typeof {item} === "number") {enum}[{item}] = {key}'
                self._edits.insert(value.end_byte, reverse)
            following = self._text(value)
        try:
            return str(int(following) + 1)
        except ValueError:
            return f"{item} + 1"

    def namespace(self, node: Node) -> list[Node]:
        """Rewrite a namespace, and return the statements in it; raise `NotSupported` if it cannot be."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        statements = body.named_children if body is not None else []
        others = [part for part in statements if part.type != "export_statement"]
        exports = [part for one in statements if one not in others for part in one.named_children]
        if body is None or all(part.type in _TYPES_ONLY for part in [*exports, *others]):
            self._edits.blank_with(node.start_byte, node.end_byte, ";")
            return []
        if name is None or name.type != "identifier":
            raise NotSupported("a namespace with a dotted name is not supported")
        label = self._text(name)
        if node.id in self._top.repeated:
            raise NotSupported(f"declaring {label} in several parts is not supported")
        keyword = "var" if node.id in self._top.declared else "let"
        self._edits.replace(node.start_byte, body.start_byte + 1, f"{keyword} {label} = (() => {{")
        exported: list[str] = []
        for part in exports:  # getters, because variables may change
            changes = part.type in ("lexical_declaration", "variable_declaration")
            names = names_in_declaration(self._source, part)
            exported += [f"get {name}() {{ return {name}; }}" if changes else name for name in names]
        returned = f"; return {{ {', '.join(exported)} }}; }})();"
        self._edits.replace(body.end_byte - 1, body.end_byte, returned)
        return statements

    def parameter_properties(self, members: Node) -> None:
        """Declare and assign the parameters of a constructor that are also properties."""
        for method in members.named_children:
            name, body = method.child_by_field_name("name"), method.child_by_field_name("body")
            parameters = method.child_by_field_name("parameters")
            if name is None or body is None or parameters is None or self._text(name) != "constructor":
                continue
            names = [
                self._text(pattern)
                for part in parameters.named_children
                if any(mark.type in _PROPERTY_MARKS for mark in part.children)
                and (pattern := part.child_by_field_name("pattern")) is not None
            ]
            if names:
                assigned = "".join(f"; this.{name} = {name}" for name in names)
                self._edits.insert(members.start_byte + 1, "".join(f" {name};" for name in names))
                self._edits.insert(_after_super(body), f"{assigned};")


def _after_super(body: Node) -> int:
    """Return the offset from which `this` may be used: after the call of `super`, or the start of *body*."""
    for statement in body.named_children:
        if statement.type == "expression_statement":
            call = statement.named_children[0]
            function = call.child_by_field_name("function") if call.type == "call_expression" else None
            if function is not None and function.type == "super":
                return statement.end_byte
    return body.start_byte + 1
