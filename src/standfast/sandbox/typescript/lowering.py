"""Rewrites enums, namespaces and parameter properties as JavaScript on the same lines.

An enum becomes a function that fills an object, a namespace one that returns its exports, and a parameter
property an assignment at the beginning of its constructor.

Rule: expressions stay where they are written, so that an error inside of one has its right place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from standfast.sandbox.typescript.edits import SourceEdits
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
        """Rewrite a member of an enum, and return the value of the next one if it has none of its own."""
        name = member.child_by_field_name("name") or member
        if name.type == "computed_property_name":
            name = name.named_children[0]
        text = self._text(name)
        key, local = (text, text[1:-1]) if name.type == "string" else (json.dumps(text), text)
        item = f"{enum}[{key}]"
        is_plain = local.isidentifier() and local not in _RESERVED and local != enum
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
            raise NotSupported("a namespace with a name of several parts is not supported")
        label = self._text(name)
        if node.id in self._top.repeated:
            raise NotSupported(f"declaring {label} in several parts is not supported")
        keyword = "var" if node.id in self._top.declared else "let"
        self._edits.replace(node.start_byte, body.start_byte + 1, f"{keyword} {label} = (() => {{")
        exported: list[str] = []
        for part in exports:  # variables by getters, since they change
            changes = part.type in ("lexical_declaration", "variable_declaration")
            names = names_in_declaration(self._source, part)
            exported += [f"get {name}() {{ return {name}; }}" if changes else name for name in names]
        returned = f"; return {{ {', '.join(exported)} }}; }})();"
        self._edits.replace(body.end_byte - 1, body.end_byte, returned)
        return statements

    def parameter_properties(self, members: Node) -> None:
        """Declare and assign the parameters of a constructor that are properties too."""
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
    """Return the offset from which `this` may be used: after the call of `super`, or the beginning."""
    for statement in body.named_children:
        if statement.type == "expression_statement":
            call = statement.named_children[0]
            function = call.child_by_field_name("function") if call.type == "call_expression" else None
            if function is not None and function.type == "super":
                return statement.end_byte
    return body.start_byte + 1
