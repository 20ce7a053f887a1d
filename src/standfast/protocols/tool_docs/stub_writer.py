"""Capabilities as Python that a model reads.

A capability becomes a `def` with types, defaults and a docstring. A JSON Schema object becomes a `TypedDict`
class before the first function that needs it, named after its definition, its title, or the tool and the
parameter. What Python cannot express is `Any`.

Rule: the text is valid Python, whatever the names and descriptions in a schema are.

Not here: stubs for the type checker (`standfast.tools.stubs`), which have no classes and no docstrings.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable
from typing import Any, Final

from standfast.protocols.tool_docs.stub_parts import LINE_CHARS, Definitions, Writer
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.stub_words import (
    MAX_COMMENT_CHARS,
    camel,
    description,
    parameter_words,
    plain,
    summary,
    type_words,
)

_SIMPLE: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}
_MAX_DEPTH: Final = 12
_MAX_LITERALS: Final = 30
_MAX_DEFAULT_CHARS: Final = 40
_RESERVED: Final = frozenset(
    {"Any", "Literal", "NotRequired", "TypedDict", "Unpack", *dir(builtins), *keyword.kwlist}
)


class StubWriter(Writer):
    """Writes capabilities as Python, one after the other."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        super().__init__({*_RESERVED, *taken})

    def function(self, tool: RegisteredTool) -> str:
        capability = tool.capability
        types = _Types(self, capability.input_schema)
        parameters = self._arguments(tool, types)
        returns = _Types(self, capability.output_schema).text(
            capability.output_schema, f"{self.prefix}Result"
        )
        words = [f"{name}: {text}" for name, text in parameter_words(capability).items()]
        heading = f"def {tool.name}({', '.join(parameters)}) -> {returns}:"
        if len(heading) > LINE_CHARS and len(parameters) > 1:
            inside = "".join(f"    {parameter},\n" for parameter in parameters)
            heading = f"def {tool.name}(\n{inside}) -> {returns}:"
        return f"{heading}{_docstring([summary(capability), *words])}"

    def unsigned(self, tool: RegisteredTool) -> str:
        lines = [summary(tool.capability), f'describe_tool("{tool.name}") shows its parameters.']
        return f"def {tool.name}(*args: Any, **kwargs: Any) -> Any:{_docstring(lines)}"

    def is_name(self, text: str) -> bool:
        return _is_parameter(text)

    def _arguments(self, tool: RegisteredTool, types: _Types) -> list[str]:
        schema = tool.capability.input_schema
        properties = schema.get("properties") or {}
        if schema.get("type") == "array":
            return ["*args: Any"]
        if not properties:
            return ["**arguments: Any"] if schema.get("additionalProperties") else []
        if not all(_is_parameter(name) for name in properties):
            return [f"**arguments: Unpack[{types.text(schema, f'{self.prefix}Arguments')}]"]
        positional = tool.signature.positional if tool.signature else None
        required = set(schema.get("required", ()))
        parts: list[str] = []
        optional_seen = starred = False
        for index, (name, part) in enumerate(properties.items()):
            if not starred and (index == positional or (optional_seen and name in required)):
                parts.append("*")
                starred = True
            optional_seen |= name not in required
            kind = types.text(part, f"{self.prefix}{camel(name)}")
            default = "..."
            if (
                isinstance(part, dict)
                and "default" in part
                and len(repr(part["default"])) <= _MAX_DEFAULT_CHARS
            ):
                default = repr(part["default"])
            parts.append(f"{name}: {kind}" + ("" if name in required else f" = {default}"))
        return parts


class _Types:
    """The Python types of one schema. One that contains itself is a class, or `Any` if it cannot be."""

    def __init__(self, writer: StubWriter, root: dict[str, Any]) -> None:
        self._writer = writer
        self._definitions: dict[str, Any] = {**root.get("definitions", {}), **root.get("$defs", {})}
        self._known = Definitions(self._definitions)
        self._open: list[str] = []
        self._depth = 0

    def text(self, schema: Any, wanted: str) -> str:
        """Return the type that *schema* describes; an object without a name becomes the class *wanted*."""
        if not isinstance(schema, dict) or self._depth > _MAX_DEPTH:
            return "Any"
        self._depth += 1
        try:
            return self._text(schema, wanted)
        finally:
            self._depth -= 1

    def _text(self, schema: dict[str, Any], wanted: str) -> str:
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]).rsplit("/", 1)[-1])
        if isinstance(schema.get("enum"), list) or "const" in schema:
            values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]]
            if 0 < len(values) <= _MAX_LITERALS:
                return f"Literal[{', '.join(map(repr, values))}]"
            return "str" if values and all(isinstance(value, str) for value in values) else "Any"
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self._union(schema[key], wanted)
        if schema.get("allOf"):
            return self.text(schema["allOf"][0], wanted) if len(schema["allOf"]) == 1 else "Any"
        kind = schema.get("type", "object" if schema.get("properties") else None)
        if isinstance(kind, list):
            return self._union([{**schema, "type": each} for each in kind], wanted)
        return self._typed(schema, kind, wanted)

    def _typed(self, schema: dict[str, Any], kind: Any, wanted: str) -> str:
        if kind == "array" and isinstance(schema.get("prefixItems"), list):
            return f"list[{self._union(schema['prefixItems'], wanted)}]"
        if kind == "array":
            return f"list[{self.text(schema.get('items'), wanted)}]"
        if kind == "object" and schema.get("properties"):
            title = schema.get("title")
            name = camel(title) if isinstance(title, str) else wanted
            return self._class(schema, name, "")
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"dict[str, {self.text(schema['additionalProperties'], wanted)}]"
        return _SIMPLE.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _union(self, options: list[Any], wanted: str) -> str:
        texts = list(dict.fromkeys(self.text(option, wanted) for option in options))
        return "Any" if "Any" in texts or not texts else " | ".join(texts)

    def _reference(self, name: str) -> str:
        definition = self._definitions.get(name)
        if not isinstance(definition, dict) or name in self._open:
            return "Any"
        wanted = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        if definition.get("properties"):
            return self._class(definition, wanted, name)
        self._open.append(name)
        try:
            return self.text(definition, wanted)
        finally:
            self._open.pop()

    def _class(self, schema: dict[str, Any], wanted: str, definition: str) -> str:
        name, new = self._writer.name_of(self._known.identity(schema, definition), wanted)
        if new:
            self._writer.add(lambda: self._described(name, schema))
        return name

    def _described(self, name: str, schema: dict[str, Any]) -> str:
        required = set(schema.get("required", ()))
        fields: dict[str, tuple[str, Any]] = {}
        for key, part in schema["properties"].items():
            kind = self.text(part, f"{name}{camel(key)}")
            fields[key] = (kind if key in required else f"NotRequired[{kind}]", part)
        if not all(_is_parameter(key) for key in fields):
            inside = ", ".join(f"{key!r}: {kind}" for key, (kind, _) in fields.items())
            return f'{name} = TypedDict("{name}", {{{inside}}})'
        lines = [f"class {name}(TypedDict):"]
        if doc := type_words(schema):
            lines.append(f'    """{_quoted(doc)}"""')
        for key, (kind, part) in fields.items():
            comment = plain(description(part), MAX_COMMENT_CHARS)
            lines.append(f"    {key}: {kind}" + (f"  # {comment}" if comment else ""))
        return "\n".join(lines)


def _docstring(lines: list[str]) -> str:
    """Return the body of a stub. The first line may be empty."""
    quoted = [_quoted(line) for line in lines]
    if len(quoted) == 1:
        return f'\n    """{quoted[0]}"""' if quoted[0] else " ..."
    head, *others = quoted
    rows = "".join(f"    {line}\n" for line in others)
    return f'\n    """{head}\n\n{rows}    """' if head else f'\n    """\n{rows}    """'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f"{escaped} " if escaped.endswith('"') else escaped


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
