"""Capabilities as Python that a model reads.

Theory of operation
-------------------
A capability becomes a `def` with types, defaults and a docstring. What JSON Schema calls an object becomes a
`TypedDict` class in front of the first function that needs it, named after its definition, its title, or the
tool and the parameter. What cannot be said in Python is `Any`.

Rules
-----
1. A class name means one type in everything that one writer has written, and each class is written once.
2. The text is Python, whatever the names and descriptions in a schema are.
3. A type that contains itself is written, not followed for ever.

Not here: stubs for the type checker (`holdfast.tools.stubs`), which have no classes and no docstrings.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from holdfast.model.capability import Capability
from holdfast.tools.registered_tool import RegisteredTool

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
_MAX_PARAGRAPH_CHARS: Final = 600
_MAX_PARAMETER_CHARS: Final = 240
_MAX_COMMENT_CHARS: Final = 120
_LINE_CHARS: Final = 100
_RESERVED: Final = frozenset(
    {"Any", "Literal", "NotRequired", "TypedDict", "Unpack", *dir(builtins), *keyword.kwlist}
)


class StubWriter:
    """Writes capabilities one after the other. No class gets a name of *taken*, such as another tool's."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_RESERVED, *taken}
        self._classes: dict[Hashable, str] = {}
        self._fresh: list[Hashable] = []
        self._waiting: list[Callable[[], str]] = []
        self._prefix = ""

    def write(self, tool: RegisteredTool, *, max_chars: int | None = None) -> str:
        """The function, after the classes that it needs and that are not written yet.

        A text of more than *max_chars* is not given: in its place there is one that names no parameters.
        """
        self._fresh, self._waiting, self._prefix = [], [], _camel(tool.name)
        function = self._function(tool)
        classes = [describe() for describe in self._waiting]  # describing one may add others
        text = "\n\n".join([*classes, function])
        if max_chars is None or len(text) <= max_chars:
            return text
        for identity in self._fresh:
            self._taken.discard(self._classes.pop(identity))
        return _unsigned(tool)

    def _function(self, tool: RegisteredTool) -> str:
        capability = tool.capability
        types = _Types(self, capability.input_schema)
        parameters = self._arguments(tool, types)
        returns = _Types(self, capability.output_schema).text(
            capability.output_schema, f"{self._prefix}Result"
        )
        return f"{_heading(tool.name, parameters, returns)}{_docstring(_documentation(capability))}"

    def _arguments(self, tool: RegisteredTool, types: _Types) -> list[str]:
        schema = tool.capability.input_schema
        properties = schema.get("properties") or {}
        if schema.get("type") == "array":
            return ["*args: Any"]
        if not properties:
            return ["**arguments: Any"] if schema.get("additionalProperties") else []
        if not all(_is_parameter(name) for name in properties):
            return [f"**arguments: Unpack[{types.text(schema, f'{self._prefix}Arguments')}]"]
        return self._parameters(tool, types)

    def _parameters(self, tool: RegisteredTool, types: _Types) -> list[str]:
        schema = tool.capability.input_schema
        positional = tool.signature.positional if tool.signature else None
        required = set(schema.get("required", ()))
        parts: list[str] = []
        optional_seen = starred = False
        for index, (name, part) in enumerate(schema["properties"].items()):
            if not starred and (index == positional or (optional_seen and name in required)):
                parts.append("*")
                starred = True
            optional_seen |= name not in required
            kind = types.text(part, f"{self._prefix}{_camel(name)}")
            parts.append(f"{name}: {kind}" + ("" if name in required else f" = {_default(part)}"))
        return parts

    def name_of(self, identity: Hashable, wanted: str) -> tuple[str, bool]:
        """The class name of a type, and whether it is new. A taken name gets the tool's in front."""
        if (known := self._classes.get(identity)) is not None:
            return known, False
        plain = wanted if _is_parameter(wanted) else f"{self._prefix}Object"
        number = 2
        name = plain if plain not in self._taken else f"{self._prefix}{plain}"
        while name in self._taken:
            name, number = f"{plain}{number}", number + 1
        self._classes[identity] = name
        self._taken.add(name)
        self._fresh.append(identity)
        return name, True

    def add(self, describe: Callable[[], str]) -> None:
        """Put a class before the function that is being written. Its text is made when the function's is."""
        self._waiting.append(describe)


class _Types:
    """The Python types of one schema. One that contains itself is a class, or `Any` if it cannot be."""

    def __init__(self, writer: StubWriter, root: dict[str, Any]) -> None:
        self._writer = writer
        self._definitions: dict[str, Any] = {**root.get("definitions", {}), **root.get("$defs", {})}
        self._references: dict[str, set[str]] = {}
        self._written: dict[str, tuple[str, str]] = {}
        self._open: list[str] = []
        self._depth = 0

    def text(self, schema: Any, wanted: str) -> str:
        """The type that *schema* describes; an object without a name becomes the class *wanted*."""
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
        if (values := _values(schema)) is not None:
            return _literal(values)
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
            name = _camel(title) if isinstance(title, str) else wanted
            return self._class(schema, name, ("", repr(schema), self._closure(schema)))
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
            return self._class(definition, wanted, (name, repr(definition), self._closure(definition)))
        self._open.append(name)
        try:
            return self.text(definition, wanted)
        finally:
            self._open.pop()

    def _class(self, schema: dict[str, Any], wanted: str, identity: Hashable) -> str:
        name, new = self._writer.name_of(identity, wanted)
        if new:
            self._writer.add(lambda: self._described(name, schema))
        return name

    def _described(self, name: str, schema: dict[str, Any]) -> str:
        required = set(schema.get("required", ()))
        fields: dict[str, tuple[str, Any]] = {}
        for key, part in schema["properties"].items():
            kind = self.text(part, f"{name}{_camel(key)}")
            fields[key] = (kind if key in required else f"NotRequired[{kind}]", part)
        return _class_text(name, schema, fields)

    def _closure(self, schema: dict[str, Any]) -> frozenset[tuple[str, str]]:
        """Every definition that a schema refers to: two types are one only if these are the same too."""
        found: set[str] = set()
        waiting = _references(schema)
        while waiting:
            name = waiting.pop()
            if name not in found and name in self._definitions:
                found.add(name)
                if name not in self._references:
                    self._references[name] = _references(self._definitions[name])
                    self._written[name] = (name, repr(self._definitions[name]))
                waiting |= self._references[name] - found
        return frozenset(self._written[name] for name in found)


def _references(schema: Any) -> set[str]:
    """The names of the definitions that a schema refers to."""
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


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def _literal(values: list[Any]) -> str:
    """A type of these values; of very many, what they have in common."""
    if 0 < len(values) <= _MAX_LITERALS:
        return f"Literal[{', '.join(repr(value) for value in values)}]"
    return "str" if values and all(isinstance(value, str) for value in values) else "Any"


def _class_text(name: str, schema: dict[str, Any], fields: dict[str, tuple[str, Any]]) -> str:
    if not all(_is_parameter(key) for key in fields):
        inside = ", ".join(f"{key!r}: {kind}" for key, (kind, _) in fields.items())
        return f'{name} = TypedDict("{name}", {{{inside}}})'
    lines = [f"class {name}(TypedDict):"]
    if doc := _plain(_first_paragraph(schema.get("description")), _MAX_COMMENT_CHARS):
        lines.append(f'    """{_quoted(doc)}"""')
    for key, (kind, part) in fields.items():
        comment = _plain(_description(part), _MAX_COMMENT_CHARS)
        lines.append(f"    {key}: {kind}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines)


def _heading(name: str, parameters: list[str], returns: str) -> str:
    line = f"def {name}({', '.join(parameters)}) -> {returns}:"
    if len(line) <= _LINE_CHARS or len(parameters) < 2:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {name}(\n{inside}) -> {returns}:"


def _unsigned(tool: RegisteredTool) -> str:
    """The function without its signature, which is too long to show."""
    first, *_ = _documentation(tool.capability)
    lines = [first, f'describe_tool("{tool.name}") shows its parameters.']
    return f"def {tool.name}(*args: Any, **kwargs: Any) -> Any:{_docstring(lines)}"


def _documentation(capability: Capability) -> list[str]:
    """What the docstring says: the description's first paragraph, then a line for each parameter."""
    first = _plain(_first_paragraph(capability.description), _MAX_PARAGRAPH_CHARS)
    lines = [" ".join(part for part in (first, _asks(capability)) if part)]
    for name, part in (capability.input_schema.get("properties") or {}).items():
        if text := _plain(_description(part), _MAX_PARAMETER_CHARS):
            lines.append(f"{_plain(name, _MAX_PARAMETER_CHARS)}: {text}")
    return lines


def _asks(capability: Capability) -> str:
    match capability.approval_policy:
        case "none":
            return ""
        case "manual":
            return "A person is asked first."
        case _:
            return "May ask a person first."


def _docstring(lines: list[str]) -> str:
    """The body of a stub. The first line may be empty."""
    quoted = [_quoted(line) for line in lines]
    if len(quoted) == 1:
        return f'\n    """{quoted[0]}"""' if quoted[0] else " ..."
    head, *others = quoted
    rows = "".join(f"    {line}\n" for line in others)
    return f'\n    """{head}\n\n{rows}    """' if head else f'\n    """\n{rows}    """'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f"{escaped} " if escaped.endswith('"') else escaped


def _default(schema: Any) -> str:
    if not isinstance(schema, dict) or "default" not in schema:
        return "..."
    text = repr(schema["default"])
    return text if len(text) <= _MAX_DEFAULT_CHARS else "..."


def _description(schema: Any) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return text if isinstance(text, str) else ""


def _first_paragraph(text: Any) -> str:
    return re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0] if isinstance(text, str) else ""


def _plain(text: str, max_chars: int) -> str:
    """One line of printable text."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * max_chars])
    line = " ".join(printable.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1].rstrip()}…"


def _camel(name: str) -> str:
    """A name such as `order_lines` as `OrderLines`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    return "".join(word[0].upper() + word[1:] for word in words)


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
