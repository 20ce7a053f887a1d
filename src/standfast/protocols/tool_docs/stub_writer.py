"""Stubs of capabilities in Python or TypeScript, for a model to read.

A stub is a function, preceded by the types that it needs and that were not written before. In Python it is a
`def` with types, defaults and a docstring, and a JSON Schema object is a `TypedDict` class. In TypeScript it
is a `declare function` that takes one object and returns a promise, under a JSDoc comment, and an object is
an `interface`. A type is named after its definition, its title, or the tool and the parameter; a type that
the language cannot express is `Any`.

A type gets its name at its first use and is declared later, together with the function; its declaration may
use more types. So a recursive type is declared once.

Rules
-----
1. A name means the same type in everything that one writer writes.
2. A stub that is too long to be returned reserves no names.
3. The text is valid in its language, whatever names and descriptions a schema contains.

Not here: stubs for type checkers (`standfast.tools.stubs`), without names and comments.
"""

from __future__ import annotations

import builtins
import functools
import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from itertools import zip_longest
from typing import Any, ClassVar, Final

from standfast.tools import stubs
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.stubs import PythonTypes, SchemaTypes, TypeScriptTypes, camel, plain

LINE_CHARS: Final = 100


class Writer(ABC):
    """A writer of stubs, one tool after the other. Types never get a name in *taken*, such as a tool's."""

    reserved: ClassVar[frozenset[str]]

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*self.reserved, *taken}
        self._names: dict[Hashable, str] = {}
        self._fresh: list[Hashable] = []
        self._waiting: list[Callable[[], str]] = []
        self.prefix = ""
        """The prefix for types that have no name of their own."""

    def write(self, tool: RegisteredTool, *, max_chars: int | None = None) -> str:
        """Return the function after its new types; without parameters if it would exceed *max_chars*."""
        self._fresh, self._waiting, self.prefix = [], [], camel(tool.name)
        function = self.function(tool)
        types = [describe() for describe in self._waiting]  # describing one may add others
        text = "\n\n".join([*types, function])
        if max_chars is None or len(text) <= max_chars:
            return text
        for identity in self._fresh:
            self._taken.discard(self._names.pop(identity))
        return self.unsigned(tool)

    def name_of(self, identity: Hashable, wanted: str, describe: Callable[[str], str]) -> str:
        """Return the name of a type, prefixed by the tool's name if it is taken; have a new type declared."""
        if (known := self._names.get(identity)) is not None:
            return known
        plain = wanted if self.is_name(wanted) else f"{self.prefix}Object"
        number = 2
        name = plain if plain not in self._taken else f"{self.prefix}{plain}"
        while name in self._taken:
            name, number = f"{plain}{number}", number + 1
        self._names[identity] = name
        self._taken.add(name)
        self._fresh.append(identity)
        self._waiting.append(functools.partial(describe, name))
        return name

    @abstractmethod
    def function(self, tool: RegisteredTool) -> str:
        """Return the function alone."""

    @abstractmethod
    def unsigned(self, tool: RegisteredTool) -> str:
        """Return the function without its signature, which is too long."""

    @staticmethod
    @abstractmethod
    def is_name(name: str) -> bool:
        """Return whether *name* can name a type in this language."""


class Definitions:
    """The definitions of a schema. Two types are the same only if the definitions they refer to are equal."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._references: dict[str, set[str]] = {}
        self._written: dict[str, tuple[str, str]] = {}

    def identity(self, schema: dict[str, Any], name: str) -> Hashable:
        """Return the identity of a type: its own name, its text, and every definition it refers to."""
        found: set[str] = set()
        waiting = _references(schema)
        while waiting:
            one = waiting.pop()
            if one not in found and one in self._definitions:
                found.add(one)
                if one not in self._references:
                    self._references[one] = _references(self._definitions[one])
                    self._written[one] = (one, repr(self._definitions[one]))
                waiting |= self._references[one] - found
        return (name, repr(schema), frozenset(self._written[one] for one in found))


class _NamedObjects(SchemaTypes):
    """The types of one schema, whose objects get names from *writer*."""

    def __init__(self, writer: Writer, root: dict[str, Any]) -> None:
        super().__init__(root)
        self._writer = writer
        self._known = Definitions(self.definitions)

    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        identity = self._known.identity(schema, definition or "")
        return self._writer.name_of(identity, wanted, functools.partial(self.described, schema))

    @abstractmethod
    def described(self, schema: dict[str, Any], name: str) -> str:
        """Return the declaration of an object type."""


def _references(schema: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                found.add(part["$ref"].rsplit("/", 1)[-1])
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return found


_PYTHON_RESERVED: Final = frozenset(
    {"Any", "Literal", "NotRequired", "TypedDict", "Unpack", *dir(builtins), *keyword.kwlist}
)


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


class StubWriter(Writer):
    """A writer of Python stubs."""

    reserved = _PYTHON_RESERVED
    is_name = staticmethod(_is_parameter)

    def function(self, tool: RegisteredTool) -> str:
        capability = tool.capability
        types = _PythonClasses(self, capability.input_schema)
        parameters = self._arguments(tool, types)
        returns = _PythonClasses(self, capability.output_schema).text(
            capability.output_schema, f"{self.prefix}Result"
        )
        words = [f"{name}: {text}" for name, text in stubs.parameter_words(capability).items()]
        heading = f"def {tool.name}({', '.join(parameters)}) -> {returns}:"
        if len(heading) > LINE_CHARS and len(parameters) > 1:
            inside = "".join(f"    {parameter},\n" for parameter in parameters)
            heading = f"def {tool.name}(\n{inside}) -> {returns}:"
        return f"{heading}{_docstring([stubs.summary(capability), *words])}"

    def unsigned(self, tool: RegisteredTool) -> str:
        lines = [stubs.summary(tool.capability), f'describe_tool("{tool.name}") shows its parameters.']
        return f"def {tool.name}(*args: Any, **kwargs: Any) -> Any:{_docstring(lines)}"

    def _arguments(self, tool: RegisteredTool, types: _PythonClasses) -> list[str]:
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
            default = repr(part["default"]) if isinstance(part, dict) and "default" in part else "..."
            default = default if len(default) <= stubs.MAX_DEFAULT_CHARS else "..."
            parts.append(f"{name}: {kind}" + ("" if name in required else f" = {default}"))
        return parts


class _PythonClasses(_NamedObjects, PythonTypes):
    """The Python types of one schema. A recursive type is a class, or `Any` if it cannot be a class."""

    def described(self, schema: dict[str, Any], name: str) -> str:
        required = set(schema.get("required", ()))
        fields: dict[str, tuple[str, Any]] = {}
        for key, part in schema["properties"].items():
            kind = self.text(part, f"{name}{camel(key)}")
            fields[key] = (kind if key in required else f"NotRequired[{kind}]", part)
        if not all(_is_parameter(key) for key in fields):
            inside = ", ".join(f"{key!r}: {kind}" for key, (kind, _) in fields.items())
            return f'{name} = TypedDict("{name}", {{{inside}}})'
        lines = [f"class {name}(TypedDict):"]
        if doc := stubs.type_words(schema):
            lines.append(f'    """{_quoted(doc)}"""')
        for key, (kind, part) in fields.items():
            words = plain(stubs.description(part), stubs.MAX_COMMENT_CHARS)
            lines.append(f"    {key}: {kind}" + (f"  # {words}" if words else ""))
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


_TYPESCRIPT_RESERVED: Final = stubs.RESERVED_WORDS | frozenset({
    "any", "unknown", "never", "string", "number", "boolean", "object", "symbol", "bigint", "Array",
    "ArrayBuffer", "BigInt", "Boolean", "Date", "Error", "Function", "Iterator", "JSON", "Map", "Math",
    "Number", "Object", "Partial", "Promise", "Proxy", "Readonly", "Record", "RegExp", "Set", "String",
    "Symbol", "URL", "Uint8Array", "WeakMap", "WeakSet",
})  # fmt: skip


class TypeScriptWriter(Writer):
    """A writer of TypeScript stubs."""

    reserved = _TYPESCRIPT_RESERVED
    is_name = staticmethod(stubs.is_identifier)

    def function(self, tool: RegisteredTool) -> str:
        inputs, outputs = tool.capability.input_schema, tool.capability.output_schema
        members = _Interfaces(self, inputs).members(inputs, self.prefix)
        returns = _Interfaces(self, outputs).text(outputs, f"{self.prefix}Result")
        parameters = stubs.parameters_of(inputs, members)
        line = stubs.function_text(f"{tool.name}({parameters}): Promise<{returns}>")
        if len(line) > LINE_CHARS and len(members) > 1:
            parameters = stubs.parameters_of(inputs, members, in_lines=True)
            line = stubs.function_text(f"{tool.name}({parameters}): Promise<{returns}>")
        return f"{stubs.comment(stubs.function_words(tool.capability))}{line}"

    def unsigned(self, tool: RegisteredTool) -> str:
        look_up = f'await describe_tool({{name: "{tool.name}"}}) shows its parameters.'
        line = stubs.function_text(f"{tool.name}(args: Record<string, any>): Promise<any>")
        return f"{stubs.comment([stubs.summary(tool.capability), look_up])}{line}"


class _Interfaces(_NamedObjects, TypeScriptTypes):
    """The types of one schema, its objects as interfaces."""

    def described(self, schema: dict[str, Any], name: str) -> str:
        lines = [f"{stubs.comment([stubs.type_words(schema)])}interface {name} {{"]
        parts = schema["properties"].values()
        for member, part in zip_longest(self.members(schema, name), parts):  # others may be members too
            words = plain(stubs.description(part), stubs.MAX_COMMENT_CHARS)
            lines.append(f"  {member};" + (f"  // {words}" if words else ""))
        return "\n".join([*lines, "}"])
