"""A static check of literal arguments in code against a JSON Schema.

Rules
-----
1. No false alarms: an expression that is not a literal fits, as does any value that the schema does not
   restrict. A schema with a `format` may accept values other than strings, and a pydantic model converts its
   properties (each has a `title`), so neither is checked.
2. An argument is checked by its JSON type, by `enum` and `const`, and part by part in an array or an object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

Schema = dict[str, Any]
N = TypeVar("N")

OPEN: Final = object()
"""The value of an expression that is not a literal."""
_JSON_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_MAX_DEPTH: Final = 8
_MAX_SHOWN_CHARS: Final = 60


class SchemaFit(ABC, Generic[N]):
    """Compares nodes of a syntax tree with the schemas of one contract; a subclass reads the language."""

    def __init__(self, root: Schema) -> None:
        self._definitions: dict[str, Any] = root.get("$defs") or {}

    @abstractmethod
    def literal(self, node: N) -> N | None:
        """Return `node` without casts around it; None if it is not a literal."""

    @abstractmethod
    def scalar(self, node: N) -> Any:
        """Return the value of a string, number, boolean or null; `OPEN` for everything else."""

    @abstractmethod
    def container_type(self, node: N) -> str | None:
        """Return the JSON type of a node that is not a scalar: "array", "object", "string" or None."""

    @abstractmethod
    def items(self, node: N) -> Iterable[N] | None:
        """Return the items of an array literal; None for everything else."""

    @abstractmethod
    def pairs(self, node: N) -> dict[str, N] | None:
        """Return the values of an object literal by key; None unless all keys are written out."""

    @abstractmethod
    def text(self, node: N) -> str:
        """Return the source text of `node`."""

    @abstractmethod
    def quoted(self, value: Any) -> str:
        """Return `value` as a literal of the language."""

    def problem(self, node: N, schema: Any, depth: int = 0) -> str | None:
        """Return why `node` cannot match `schema`; None if it can."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or "format" in schema:
            return None
        if (found := self.literal(node)) is None:
            return None
        if "$ref" in schema:
            return self.problem(found, self.definition(schema), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                problems = {self.problem(found, option, depth + 1) for option in options}
                if not problems or None in problems:
                    return None
                if len(problems) == 1:
                    return problems.pop()
                return f"{self._is(found)}, which fits none of its types"
        value = self.scalar(found)
        if value is None and (schema.get("nullable") or schema.get("default", OPEN) is None):
            return None
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        # 1 and 1.0 are the same value, 1 and True are not.
        known = isinstance(allowed, list) and [(isinstance(one, bool), one) for one in allowed]
        if known and value is not OPEN and (isinstance(value, bool), value) not in known:
            return f"{self._is(found)}, not one of {', '.join(self.quoted(one) for _, one in known)}"
        given = self.container_type(found) or _JSON_TYPES.get(type(value))
        types = schema.get("type") or given
        types = types if isinstance(types, list) else [types]
        fits = (
            given is None
            or given in types
            or (given == "integer" and "number" in types)
            or (given == "number" and "integer" in types and value.is_integer())
        )
        if not fits:
            return f"{self._is(found)}, not {' or '.join(map(str, types))}"
        return self._part_problem(found, schema, depth) if value is OPEN else None

    def definition(self, schema: Schema) -> Any:
        """Return the schema that `$ref` names."""
        return self._definitions.get(str(schema["$ref"]).removeprefix("#/$defs/"))

    def json_type(self, node: N) -> str | None:
        """Return the JSON type of `node`; None if it is unknown."""
        return self.container_type(node) or _JSON_TYPES.get(type(self.scalar(node)))

    def _is(self, node: N) -> str:
        text = self.text(node)
        return f"is {text if len(text) <= _MAX_SHOWN_CHARS else f'{text[:_MAX_SHOWN_CHARS]}…'}"

    def _part_problem(self, node: N, schema: Schema, depth: int) -> str | None:
        """Return the first problem among the parts of an array or object; None if there is none."""
        parts: Iterable[tuple[str, N, Any]] = ()
        if "prefixItems" not in schema and (items := self.items(node)) is not None:
            parts = ((f"[{index}]", item, schema.get("items")) for index, item in enumerate(items))
        elif (pairs := self.pairs(node)) is not None:
            properties = schema.get("properties") or {}
            if any(isinstance(part, dict) and "title" in part for part in properties.values()):
                return None
            if missing := [key for key in schema.get("required", ()) if key not in pairs]:
                return f"is missing {self.quoted(missing[0])}"
            others = None if schema.get("patternProperties") else schema.get("additionalProperties")
            if others is False and (unknown := [key for key in pairs if key not in properties]):
                return f"has no place for {self.quoted(unknown[0])}"
            parts = (
                (f"[{self.quoted(key)}]", part, properties.get(key, others)) for key, part in pairs.items()
            )
        for place, part, wanted in parts:
            if problem := self.problem(part, wanted, depth + 1):
                return f"at {place} {problem}"
        return None
