"""The parts of TypeScript that are more than types, written as JavaScript on the same lines.

An enum becomes a function that fills an object, a namespace one that returns what it exports, and a parameter
property an assignment at the beginning of its constructor.

Rule: expressions stay where they are written; only what is around them changes, so that an error inside has
its right place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from standfast.sandbox.typescript.edits import Edits
from standfast.sandbox.typescript.source import Source, names_in_declaration
from standfast.sandbox.typescript.top_level import TopLevel

if TYPE_CHECKING:
    from tree_sitter import Node

_PROPERTY_MARKS: Final = frozenset({"accessibility_modifier", "override_modifier", "readonly"})
_TYPES_ONLY: Final = frozenset({
    "interface_declaration", "type_alias_declaration", "ambient_declaration", "comment", "function_signature",
})  # fmt: skip
_WORDS: Final = """
    arguments await break case catch class const continue debugger default delete do else enum eval export
    extends false finally for function if implements import in instanceof interface let new null package
    private protected public return static super switch this throw true try typeof var void while with yield
"""
_RESERVED: Final = frozenset(_WORDS.split())


class Lowering:
    """Rewrites single nodes of one program. `top` tells what its top level declares."""

    def __init__(self, source: Source, edits: Edits, top: TopLevel) -> None:
        self._source = source
        self._edits = edits
        self._top = top

    def enum(self, node: Node) -> Iterator[Node]:
        """Rewrite an enum; what it gives are the expressions in it, which may hold types."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        enum = self._source.text(name)
        keyword = "var" if node.id in self._top.declared else "let"
        self._edits.replace(node.start_byte, body.start_byte + 1, f"{keyword} {enum} = (({enum}) => {{")
        yield from self._members(enum, body)
        given = enum if node.id in self._top.repeated else "{}"
        self._edits.replace(body.end_byte - 1, body.end_byte, f"return {enum}; }})({given});")

    def _members(self, enum: str, body: Node) -> Iterator[Node]:
        """Each member as statements, and the commas between them as semicolons."""
        following = "0"
        last = body.start_byte + 1
        for part in body.children:
            if part.type == ",":
                self._edits.replace(part.start_byte, part.end_byte, ";")
            elif part.type == "enum_assignment":
                following, value = self._valued(enum, part)
                last = part.end_byte
                yield value
            elif part.is_named and part.type != "comment":
                following = self._counted(enum, part, following)
                last = part.end_byte
        self._edits.insert(last, ";")

    def _counted(self, enum: str, name: Node, value: str) -> str:
        """A member without a value: one more than the member before."""
        key, local = self._names(enum, name)
        start = f"const {local} = " if local else ""
        item = f"{enum}[{key}]"
        text = f"{start}{item} = {value}; {enum}[{item}] = {key}"
        self._edits.replace(name.start_byte, name.end_byte, text)
        return _next(item, value)

    def _valued(self, enum: str, member: Node) -> tuple[str, Node]:
        name, value = member.child_by_field_name("name"), member.child_by_field_name("value")
        if name is None or value is None:
            raise AssertionError("an enum_assignment has a name and a value")
        key, local = self._names(enum, name)
        item = f"{enum}[{key}]"
        start = f"const {local} = " if local else ""
        self._edits.replace(name.start_byte, value.start_byte, f"{start}{item} = ")
        if value.type not in ("string", "template_string"):
            self._edits.insert(value.end_byte, f'; if (typeof {item} === "number") {enum}[{item}] = {key}')
        return _next(item, self._source.text(value)), value

    def _names(self, enum: str, name: Node) -> tuple[str, str | None]:
        """A member's key as a string literal, and the name by which its neighbours may use it."""
        if name.type == "computed_property_name":
            name = name.named_children[0]
        text = self._source.text(name)
        if name.type == "string":
            inner = text[1:-1]
            return text, inner if _is_plain_name(inner, enum) else None
        return json.dumps(text), text if _is_plain_name(text, enum) else None

    def namespace(self, node: Node, pending: list[Node]) -> str | None:
        """Rewrite a namespace. The answer is why that cannot be done, if it cannot."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if body is None or _holds_types_only(body):
            self._edits.blank_with(node.start_byte, node.end_byte, ";")
            return None
        if name is None or name.type != "identifier":
            return "a namespace with a name of several parts is not supported"
        label = self._source.text(name)
        if node.id in self._top.repeated:
            return f"declaring {label} in several parts is not supported"
        keyword = "var" if node.id in self._top.declared else "let"
        self._edits.replace(node.start_byte, body.start_byte + 1, f"{keyword} {label} = (() => {{")
        exports = ", ".join(self._exported(body))
        self._edits.replace(body.end_byte - 1, body.end_byte, f"; return {{ {exports} }}; }})();")
        pending.extend(body.named_children)
        return None

    def _exported(self, body: Node) -> Iterator[str]:
        """What a namespace exports, as parts of an object; variables by getters, since they change."""
        for statement in body.named_children:
            if statement.type != "export_statement":
                continue
            for part in statement.named_children:
                for name in names_in_declaration(self._source, part):
                    changes = part.type in ("lexical_declaration", "variable_declaration")
                    yield f"get {name}() {{ return {name}; }}" if changes else name

    def parameter_properties(self, members: Node) -> None:
        """Declare and assign the parameters of a constructor that are properties too."""
        for method in members.named_children:
            if method.type != "method_definition":
                continue
            name, body = method.child_by_field_name("name"), method.child_by_field_name("body")
            parameters = method.child_by_field_name("parameters")
            if name is None or body is None or parameters is None or self._source.text(name) != "constructor":
                continue
            if names := self._properties(parameters):
                self._edits.insert(members.start_byte + 1, "".join(f" {name};" for name in names))
                self._edits.insert(
                    _after_super(body), "".join(f"; this.{name} = {name}" for name in names) + ";"
                )

    def _properties(self, parameters: Node) -> list[str]:
        return [
            self._source.text(pattern)
            for part in parameters.named_children
            if any(mark.type in _PROPERTY_MARKS for mark in part.children)
            and (pattern := part.child_by_field_name("pattern")) is not None
        ]


def _next(item: str, value: str) -> str:
    """The value of the member that follows, computed here if it is plain."""
    try:
        return str(int(value) + 1)
    except ValueError:
        return f"{item} + 1"


def _is_plain_name(text: str, enum: str) -> bool:
    return text.isidentifier() and text not in _RESERVED and text != enum


def _holds_types_only(body: Node) -> bool:
    for statement in body.named_children:
        parts = statement.named_children if statement.type == "export_statement" else [statement]
        if any(part.type not in _TYPES_ONLY for part in parts):
            return False
    return True


def _after_super(body: Node) -> int:
    """Where `this` may be used: behind the call of `super`, or at the beginning."""
    for statement in body.named_children:
        if statement.type == "expression_statement":
            call = statement.named_children[0]
            function = call.child_by_field_name("function") if call.type == "call_expression" else None
            if function is not None and function.type == "super":
                return statement.end_byte
    return body.start_byte + 1
