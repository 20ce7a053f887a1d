"""Capabilities as function stubs in Python and TypeScript, for type checkers, the compiler and models.

In Python a capability is a `def`. In TypeScript it takes one object and returns a promise, under a comment
that says what it is for::

    /** Look a place up. */
    declare function lookup(args: { x: number; y?: string }): Promise<string>;

`SchemaTypes` derives types from JSON Schemas, for any language. `TypeScriptTypes` writes objects inline; a
subclass that names them overrides `object_type`.

Rules
-----
1. The text is valid in its language, whatever names, values and descriptions a schema has.
2. A type that the language cannot express is widened, never narrowed, so that valid calls have no type error.
3. A recursive type without a name is `any`. So is everything after `_MAX_PARTS` parts, because definitions
   that refer to each other would be expanded repeatedly.
4. Descriptions are one line of printable text each.
"""

from __future__ import annotations

import json
import keyword
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from standfast.model.capability import Capability
from standfast.model.run import RESERVED
from standfast.tools.registered_tool import RegisteredTool

ANY: Final = "any"
RESERVED_WORDS: Final = RESERVED - {"NaN", "Infinity", "globalThis"}
"""Words that cannot be the name of a function or a type in TypeScript."""
_PYTHON: Final = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None",
    "object": "dict[str, Any]",
}  # fmt: skip
_TYPESCRIPT: Final = {
    "string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null",
    "object": f"Record<string, {ANY}>",
}  # fmt: skip
_MAX_DEPTH: Final = 12
_MAX_PARTS: Final = 5_000
MAX_LITERALS: Final = 30
MAX_DEFAULT_CHARS: Final = 40
MAX_COMMENT_CHARS: Final = 120
_MAX_PARAGRAPH_CHARS: Final = 600
_MAX_PARAMETER_CHARS: Final = 240
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)


# Words


def summary(capability: Capability) -> str:
    """Return the first paragraph of the description, and whether a person has to approve calls."""
    first = plain(_first_paragraph(capability.description), _MAX_PARAGRAPH_CHARS)
    policies = {"none": "", "manual": "A person is asked first."}
    asks = policies.get(str(capability.approval_policy), "May ask a person first.")
    return " ".join(part for part in (first, asks) if part)


def parameter_words(capability: Capability) -> dict[str, str]:
    """Return the descriptions of the parameters that have one."""
    properties = (capability.input_schema.get("properties") or {}).items()
    words = {name: plain(description(part), _MAX_PARAMETER_CHARS) for name, part in properties}
    return {plain(name, _MAX_PARAMETER_CHARS): text for name, text in words.items() if text}


def type_words(schema: dict[str, Any]) -> str:
    """Return the shortened description of a type."""
    return plain(_first_paragraph(schema.get("description")), MAX_COMMENT_CHARS)


def description(schema: Any) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return text if isinstance(text, str) else ""


def plain(text: str, max_chars: int) -> str:
    """Return *text* as one line of printable text."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * max_chars])
    line = " ".join(printable.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1].rstrip()}…"


def camel(name: str) -> str:
    """Convert a name such as `order_lines` to `OrderLines`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    return "".join(word[0].upper() + word[1:] for word in words)


def _first_paragraph(text: Any) -> str:
    return re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0] if isinstance(text, str) else ""


# Types of JSON Schemas


class SchemaTypes(ABC):
    """The types of one schema in one language. *wanted* is a name for an object that has none of its own."""

    any_type: ClassVar[str]
    null_type: ClassVar[str]

    def __init__(self, root: dict[str, Any]) -> None:
        self.definitions: dict[str, Any] = {**root.get("definitions", {}), **root.get("$defs", {})}
        self._open: list[str] = []
        self._depth = 0
        self._parts = 0

    def text(self, schema: Any, wanted: str = "") -> str:
        """The type that *schema* describes."""
        return " | ".join(self.options(schema, wanted))

    def options(self, schema: Any, wanted: str) -> list[str]:
        """Return the members of the union that *schema* describes."""
        self._parts += 1
        if not isinstance(schema, dict) or self._depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
            return [self.any_type]
        self._depth += 1
        try:
            found = self._options(schema, wanted)
        finally:
            self._depth -= 1
        if schema.get("nullable") is True and {self.any_type, self.null_type}.isdisjoint(found):
            return [*found, self.null_type]
        return found

    @abstractmethod
    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        """Return the type of an object with properties; *definition* is its name in the schema, if any."""

    @abstractmethod
    def literals(self, values: list[Any]) -> list[str]:
        """Return a type of these values; for very many, or for lists and objects, their common type."""

    @abstractmethod
    def all_of(self, schemas: list[Any], wanted: str) -> list[str]:
        """Return the intersection of several types."""

    @abstractmethod
    def typed(self, schema: dict[str, Any], kind: Any, wanted: str) -> str:
        """Return the type that JSON Schema calls *kind*, except for an object with properties."""

    def _options(self, schema: dict[str, Any], wanted: str) -> list[str]:
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]).rsplit("/", 1)[-1])
        if isinstance(schema.get("enum"), list):
            return self.literals(schema["enum"])
        if "const" in schema:
            return self.literals([schema["const"]])
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self.union(schema[key], wanted)
        if schema.get("allOf"):
            parts = schema["allOf"]
            return self.options(parts[0], wanted) if len(parts) == 1 else self.all_of(parts, wanted)
        guess = "object" if schema.get("properties") else "array" if "items" in schema else None
        kind = schema.get("type", guess)
        if isinstance(kind, list):
            return self.union([{**schema, "type": each} for each in kind], wanted)
        if kind == "object" and schema.get("properties"):
            title = schema.get("title")
            return [self.object_type(schema, camel(title) if isinstance(title, str) else wanted, None)]
        return [self.typed(schema, kind, wanted)]

    def union(self, schemas: list[Any], wanted: str) -> list[str]:
        found = [option for schema in schemas for option in self.options(schema, wanted)]
        return [self.any_type] if self.any_type in found or not found else list(dict.fromkeys(found))

    def _referred(self, name: str) -> list[str]:
        definition = self.definitions.get(name)
        if not isinstance(definition, dict) or name in self._open:
            return [self.any_type]
        wanted = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        if definition.get("properties"):
            return [self.object_type(definition, wanted, name)]
        self._open.append(name)
        try:
            return self.options(definition, wanted)
        finally:
            self._open.pop()


# Python


def stub_text(tools: Iterable[RegisteredTool]) -> str:
    """Return one `def` per capability."""
    return "\n".join(stub_of(tool) for tool in tools)


def stub_of(tool: RegisteredTool) -> str:
    return capability_stub(tool.capability, tool.signature.positional if tool.signature else None)


def capability_stub(capability: Capability, positional: int | None = None) -> str:
    """Return the `def` of a contract, of which only the first *positional* parameters are positional."""
    schema = capability.input_schema
    if schema.get("type") == "array":
        parameters = "*args: Any"
    elif any(not name.isidentifier() or keyword.iskeyword(name) for name in schema.get("properties", {})):
        parameters = "*args: Any, **kwargs: Any"
    else:
        parameters = _parameters(schema, positional)
    returns = PythonTypes(capability.output_schema).text(capability.output_schema)
    return f"def {capability.name}({parameters}) -> {returns}: ..."


class PythonTypes(SchemaTypes):
    """The Python types of one schema; `Any` if there is none or the type is recursive."""

    any_type, null_type = "Any", "None"

    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        return "dict[str, Any]"

    def literals(self, values: list[Any]) -> list[str]:
        if 0 < len(values) <= MAX_LITERALS:
            return [f"Literal[{', '.join(map(repr, values))}]"]
        return ["str" if values and all(isinstance(value, str) for value in values) else "Any"]

    def all_of(self, schemas: list[Any], wanted: str) -> list[str]:
        return ["Any"]

    def typed(self, schema: dict[str, Any], kind: Any, wanted: str) -> str:
        if kind == "array":
            first = schema.get("prefixItems")
            items = self.union(first if isinstance(first, list) else [schema.get("items")], wanted)
            return f"list[{' | '.join(items)}]"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"dict[str, {self.text(schema['additionalProperties'], wanted)}]"
        return _PYTHON.get(kind, "Any") if isinstance(kind, str) else "Any"


def _parameters(schema: dict[str, Any], positional: int | None) -> str:
    required = set(schema.get("required", ()))
    types = PythonTypes(schema)
    parts: list[str] = []
    optional_seen = False
    starred = False
    for index, (name, part) in enumerate(schema.get("properties", {}).items()):
        if not starred and (index == positional or (optional_seen and name in required)):
            parts.append("*")
            starred = True
        optional_seen |= name not in required
        parts.append(f"{name}: {types.text(part)}{'' if name in required else ' = ...'}")
    return ", ".join(parts)


# TypeScript


def declarations(capabilities: Iterable[Capability]) -> str:
    """Return a `.d.ts` of functions, except those with reserved names, which code cannot call by name."""
    named = (each for each in capabilities if each.name not in RESERVED_WORDS)
    return "\n".join(declaration_of(each) for each in named)


def declaration_of(capability: Capability) -> str:
    """Return the declaration of a contract, after a comment with its description."""
    words = function_words(capability, defaults=False)
    return f"{comment(words)}{function_text(signature_of(capability))}"


def brief_declaration_of(capability: Capability) -> str:
    """Return the declaration in one line, without the properties of objects."""
    return function_text(signature_of(capability, _BriefTypes))


def signature_of(capability: Capability, types: type[TypeScriptTypes] | None = None) -> str:
    """Return the signature of a contract in one line."""
    types = types or TypeScriptTypes
    inputs, outputs = capability.input_schema, capability.output_schema
    parameters = parameters_of(inputs, types(inputs).members(inputs, ""))
    return f"{capability.name}({parameters}): Promise<{types(outputs).text(outputs)}>"


def overloads_of(capability: Capability) -> str:
    """Return both overloads of a function for the compiler: with one object, and by position."""
    named = function_text(signature_of(capability))
    if capability.input_schema.get("type") == "array" or not capability.input_schema.get("properties"):
        return named
    returns = type_of(capability.output_schema)
    schema = capability.input_schema
    types, required, names = TypeScriptTypes(schema), set(schema.get("required", ())), [*schema["properties"]]
    last = max((index for index, name in enumerate(names) if name in required), default=-1)
    parts: list[str] = []
    for index, name in enumerate(names):  # an optional one before a required one is passed as `undefined`
        kind = types.text(schema["properties"][name])
        shown = kind if name in required or index > last else f"{kind} | undefined"
        parts.append(f"arg{index}{'' if index <= last else '?'}: {shown}")
    positional = f"{capability.name}({', '.join(parts)}): Promise<{returns}>"
    return f"{named}\n{function_text(positional)}"


def type_of(schema: Any) -> str:
    """The type that a JSON Schema describes."""
    return TypeScriptTypes(schema).text(schema) if isinstance(schema, dict) else ANY


def parameters_of(schema: dict[str, Any], members: list[str], *, in_lines: bool = False) -> str:
    """Return the parameters of a function: one object of *members*, none, or any number of values."""
    if schema.get("type") == "array":
        return f"...args: {ANY}[]"
    if not members:
        return f"args?: {{ [key: string]: {ANY} }}" if schema.get("additionalProperties") else ""
    mark = "" if schema.get("required") else "?"
    inside = "".join(f"  {member};\n" for member in members)
    return f"args{mark}: " + (f"{{\n{inside}}}" if in_lines else _object_text(members))


def function_words(capability: Capability, *, defaults: bool = True) -> list[str]:
    """Return the description of the function, then the description or default of each parameter."""
    words = parameter_words(capability)
    lines = [summary(capability)]
    for name, part in (capability.input_schema.get("properties") or {}).items():
        key, value = plain(name, MAX_COMMENT_CHARS), part.get("default") if isinstance(part, dict) else None
        default = "" if value is None or not defaults else json.dumps(value)
        if len(default) > MAX_DEFAULT_CHARS:
            default = ""
        if default or key in words:
            shown = f"[args.{key}={default}]" if default else f"args.{key}"
            lines.append(f"@param {shown} {words.get(key, '')}".rstrip())
    return lines


def comment(lines: list[str]) -> str:
    """Return a JSDoc comment of *lines*; empty if there are none."""
    said = [line.replace("*/", "* /") for line in lines if line]
    if not said:
        return ""
    if len(said) == 1:
        return f"/** {said[0]} */\n"
    return "\n".join(["/**", *(f" * {line}" for line in said), " */", ""])


def is_identifier(name: str) -> bool:
    return _IDENTIFIER.fullmatch(name) is not None


def function_text(signature: str) -> str:
    """Return a declaration; for a reserved name, one that shows how the function can be called."""
    name, bracket, rest = signature.partition("(")
    if name in RESERVED_WORDS:
        return f'declare const globalThis: {{ "{name}"{bracket}{rest} }};'
    return f"declare function {signature};"


def _object_text(members: list[str]) -> str:
    return f"{{ {'; '.join(members)} }}"


class TypeScriptTypes(SchemaTypes):
    any_type, null_type = ANY, "null"

    def members(self, schema: dict[str, Any], wanted: str) -> list[str]:
        """Return the properties of an object, each as `name: type` or `name?: type`."""
        required = set(schema.get("required", ()))
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        return [
            f"{key if is_identifier(key) else json.dumps(key)}{'' if key in required else '?'}: "
            f"{self.text(part, f'{wanted}{camel(key)}')}"
            for key, part in properties.items()
        ] + [f"[key: string]: {ANY}"] * bool(properties and (others is True or isinstance(others, dict)))

    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        if definition is None:
            return _object_text(self.members(schema, wanted))
        self._open.append(definition)
        try:
            return _object_text(self.members(schema, wanted))
        finally:
            self._open.pop()

    def all_of(self, schemas: list[Any], wanted: str) -> list[str]:
        parts = [self.options(part, wanted) for part in schemas]
        return [ANY] if [ANY] in parts else [" & ".join(dict.fromkeys(map(_grouped, parts)))]

    def literals(self, values: list[Any]) -> list[str]:
        kinds = {type(value) for value in values}
        if 0 < len(values) <= MAX_LITERALS and kinds <= {str, int, float, bool, type(None)}:
            return list(dict.fromkeys(map(json.dumps, values)))
        if kinds == {str}:
            return ["string"]
        return ["number"] if kinds and kinds <= {int, float} else [ANY]

    def typed(self, schema: dict[str, Any], kind: Any, wanted: str) -> str:
        if kind == "array":
            first, items = schema.get("prefixItems"), schema.get("items")
            if not isinstance(first, list) or not first:
                return f"{_grouped(self.options(items, wanted))}[]"
            parts = [self.text(item, wanted) for item in first]
            if items is not False and schema.get("maxItems") != len(first):
                parts.append(f"...{_grouped(self.options(items, wanted))}[]")
            return f"[{', '.join(parts)}]"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"Record<string, {self.text(schema['additionalProperties'], wanted)}>"
        if kind == "string" and schema.get("format") == "decimal":  # a number is taken for one as well
            return "string | number"
        return _TYPESCRIPT.get(kind, ANY) if isinstance(kind, str) else ANY


class _BriefTypes(TypeScriptTypes):
    """Types in which every object may have any properties."""

    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        return _TYPESCRIPT["object"]


def _grouped(options: list[str]) -> str:
    """Return a type that a suffix can follow: a union or an intersection in parentheses."""
    text = " | ".join(options)
    return f"({text})" if len(options) > 1 or " & " in text else text
