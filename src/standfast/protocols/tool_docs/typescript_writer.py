"""Capabilities as TypeScript that a model reads.

A capability becomes a `declare function` that takes one object and returns a promise, under a JSDoc comment.
A JSON Schema object becomes an `interface` before the first function that needs it, named after its
definition, its title, or the tool and the parameter; the object of the arguments is written inline. What
TypeScript cannot express is `any`.

Rule: the text is valid TypeScript, whatever the names and descriptions in a schema are.

Not here: declarations for the type checker (`standfast.tools.typescript_stubs`), without names and comments.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, Final

from standfast.protocols.tool_docs.stub_parts import LINE_CHARS, Definitions, Writer
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.stub_words import MAX_COMMENT_CHARS, description, plain, summary, type_words
from standfast.tools.typescript_stubs import (
    RESERVED_WORDS,
    TypeScriptTypes,
    comment,
    function_text,
    function_words,
    is_identifier,
    parameters_of,
)

_RESERVED: Final = RESERVED_WORDS | frozenset({
    "any", "unknown", "never", "string", "number", "boolean", "object", "symbol", "bigint", "Array",
    "ArrayBuffer", "BigInt", "Boolean", "Date", "Error", "Function", "Iterator", "JSON", "Map", "Math",
    "Number", "Object", "Partial", "Promise", "Proxy", "Readonly", "Record", "RegExp", "Set", "String",
    "Symbol", "URL", "Uint8Array", "WeakMap", "WeakSet",
})  # fmt: skip


class TypeScriptWriter(Writer):
    """Writes capabilities as TypeScript, one after the other."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        super().__init__({*_RESERVED, *taken})

    def function(self, tool: RegisteredTool) -> str:
        inputs, outputs = tool.capability.input_schema, tool.capability.output_schema
        members = _Types(self, inputs).members(inputs, self.prefix)
        returns = _Types(self, outputs).text(outputs, f"{self.prefix}Result")
        line = function_text(tool.name, parameters_of(inputs, members), returns)
        if len(line) > LINE_CHARS and len(members) > 1:
            line = function_text(tool.name, parameters_of(inputs, members, in_lines=True), returns)
        return f"{comment(function_words(tool.capability))}{line}"

    def unsigned(self, tool: RegisteredTool) -> str:
        look_up = f'await describe_tool({{name: "{tool.name}"}}) shows its parameters.'
        line = function_text(tool.name, "args: Record<string, any>", "any")
        return f"{comment([summary(tool.capability), look_up])}{line}"

    def is_name(self, text: str) -> bool:
        return is_identifier(text)


class _Types(TypeScriptTypes):
    """The types of one schema, its objects as interfaces."""

    def __init__(self, writer: TypeScriptWriter, root: dict[str, Any]) -> None:
        super().__init__(root)
        self._writer = writer
        self._known = Definitions(self.definitions)

    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        name, new = self._writer.name_of(self._known.identity(schema, definition or ""), wanted)
        if new:
            self._writer.add(lambda: self._interface(name, schema))
        return name

    def _interface(self, name: str, schema: dict[str, Any]) -> str:
        lines = [f"{comment([type_words(schema)])}interface {name} {{"]
        parts = schema["properties"].values()
        for member, part in zip_longest(self.members(schema, name), parts):  # others may be members too
            words = plain(description(part), MAX_COMMENT_CHARS)
            lines.append(f"  {member};" + (f"  // {words}" if words else ""))
        return "\n".join([*lines, "}"])
