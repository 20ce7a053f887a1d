"""What is wrong with a TypeScript program, as far as its syntax tree and the contracts of functions tell.

Rules
-----
1. No false alarms. Only what fails for certain is told: a name counts as bound if anything in the code
   binds it anywhere, a function that is bound by the code or the session is not looked at, and an argument
   is judged only where it is written out. What most likely is a mistake, but may be meant, is a warning.
2. Fast: one walk over the tree that running the code needs anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from standfast.errors import Code
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.typescript.arguments import argument_problems
from standfast.sandbox.typescript.declarations import signature_of
from standfast.sandbox.typescript.script import ScriptRefused, read_script
from standfast.sandbox.typescript.source import Source, Unreadable, error, parse
from standfast.sandbox.typescript.stripping import BUILT_IN_HINT
from standfast.sandbox.typescript.usage import Usage

if TYPE_CHECKING:
    from tree_sitter import Node

_STANDARD: Final = """
    Array BigInt Boolean Date Error AggregateError EvalError RangeError ReferenceError SyntaxError TypeError
    URIError Function Number Object Promise RegExp String Symbol Proxy Iterator DOMException atob btoa
    clearInterval clearTimeout clearImmediate decodeURI decodeURIComponent encodeURI encodeURIComponent
    escape
    eval isFinite isNaN parseFloat parseInt print queueMicrotask setImmediate setInterval setTimeout sleep
    structuredClone unescape super import
"""
STANDARD_FUNCTIONS: Final = frozenset(_STANDARD.split())
_ABSENT: Final = {
    "require": BUILT_IN_HINT,
    "fetch": "there is no network; whatever is needed of the world is a function that can be called",
    "alert": "console.log() writes text",
    "prompt": "nobody can be asked from here",
}
_LATE_BINDERS: Final = ("globalThis", "eval", "ReferenceError", "Function(")
"""Words that tell of names that no syntax shows, or of names that may be missing."""
_MAX_FOUND: Final = 50


def check_script(
    code: str, *, bound: Collection[str], functions: CellFunctions, inputs: Collection[str]
) -> list[Diagnostic]:
    """Everything that is wrong with the code, in the order of the lines. *inputs* are read-only."""
    try:
        source = read_script(code).source
    except ScriptRefused as refused:
        return refused.diagnostics
    if source is None:
        return []
    found = list(_Check(source, {*bound, *inputs}, functions).problems(inputs))[:_MAX_FOUND]
    return sorted(found, key=lambda item: (item.span.line, item.span.column) if item.span else (0, 0))


def touched_names(code: str, names: Collection[str]) -> dict[str, frozenset[str] | None]:
    """Which of *names* the code reads, with the literal keys if it reads nothing else of them."""
    try:
        source = parse(code)
    except Unreadable:
        return {}
    if not source.is_sound or not any(name in code for name in names):
        return {}
    return _Reads(source, names).found()


class _Check:
    """Looks at one program."""

    def __init__(self, source: Source, known: Collection[str], functions: CellFunctions) -> None:
        self._source = source
        self._functions = functions
        self._usage = Usage(source)
        self._known = {*known, *self._usage.bound}
        self._may_miss = any(word in source.code for word in _LATE_BINDERS)

    def problems(self, inputs: Collection[str]) -> Iterator[Diagnostic]:
        yield from self._rebound(inputs)
        for node in self._usage.stray_awaits:
            hint = "write `async` before the function's parameters, or use a for loop at the top level"
            yield error(
                Code.SYNTAX_ERROR, "await in a function that is not async", self._source.span(node), hint
            )
        for call, function in self._usage.calls:
            name = self._source.text(function)
            if name in self._known:
                continue
            if name in self._functions:
                yield from self._wrong_arguments(call, name)
            elif name not in STANDARD_FUNCTIONS and not self._may_miss:
                yield self._unknown(function, name)
        for call, function in self._usage.unawaited:
            name = self._source.text(function)
            if name in self._functions and name not in self._known:
                yield self._not_awaited(call, name)

    def _rebound(self, inputs: Collection[str]) -> Iterator[Diagnostic]:
        for node in self._usage.top_level_bindings:
            if (name := self._source.text(node)) in inputs:
                yield self._read_only(node, name)
        for node in self._usage.assigned:
            name = self._source.text(node)
            if name in inputs and name not in self._usage.nested:
                yield self._read_only(node, name)

    def _read_only(self, node: Node, name: str) -> Diagnostic:
        message = f"{name} is an input and read-only; bind another name"
        return error(Code.TYPE_ERROR, message, self._source.span(node))

    def _unknown(self, function: Node, name: str) -> Diagnostic:
        span = self._source.span(function)
        if name == "require":
            return error(
                Code.UNSUPPORTED_FEATURE,
                "there are no modules here: require() is not defined",
                span,
                BUILT_IN_HINT,
            )
        message = f"{name}() is neither defined nor a function that can be called"
        return error(Code.UNKNOWN_TOOL, message, span, self._functions.suggest(name) or _ABSENT.get(name))

    def _wrong_arguments(self, call: Node, name: str) -> Iterator[Diagnostic]:
        capability = self._functions.capability(name)
        for node, problem in argument_problems(self._source, call, name, capability.input_schema):
            yield error(Code.TYPE_ERROR, problem, self._source.span(node), signature_of(capability))

    def _not_awaited(self, call: Node, name: str) -> Diagnostic:
        return Diagnostic(
            severity=Severity.WARNING,
            code=Code.TYPE_ERROR,
            message=f"{name}() gives a promise, and its value is used here",
            hint=f"await it: (await {name}(...))",
            span=self._source.span(call),
        )


class _Reads:
    """Which names a program reads, and by which keys."""

    def __init__(self, source: Source, names: Collection[str]) -> None:
        self._source = source
        self._names = names
        self._keys: dict[str, set[str]] = {}
        self._whole: set[str] = set()

    def found(self) -> dict[str, frozenset[str] | None]:
        pending = [self._source.root]
        while pending:
            node = pending.pop()
            kind = node.type
            if kind in ("identifier", "shorthand_property_identifier"):
                self._whole_if_named(node)
            elif kind in _TYPES:
                continue
            elif kind in ("member_expression", "subscript_expression"):
                pending.extend(self._member(node))
            elif kind == "call_expression":
                pending.extend(self._call(node))
            elif kind == "variable_declarator":
                pending.extend(self._declared(node))
            else:
                pending.extend(_read_parts(node))
        return {**{name: frozenset(keys) for name, keys in self._keys.items()}, **dict.fromkeys(self._whole)}

    def _whole_if_named(self, node: Node) -> None:
        if (name := self._source.text(node)) in self._names:
            self._whole.add(name)

    def _member(self, node: Node) -> list[Node]:
        """`data.x` and `data["x"]` read one key."""
        base = node.named_children[0]
        name = self._source.text(base) if base.type == "identifier" else None
        if name is None or name not in self._names or (key := self._literal_key(node)) is None:
            return node.named_children
        self._keys.setdefault(name, set()).add(key)
        return []

    def _literal_key(self, node: Node) -> str | None:
        part = node.child_by_field_name("property") or node.child_by_field_name("index")
        if part is None:
            return None
        if part.type == "property_identifier":
            text = self._source.text(part)
            return None if text == "length" else text
        if part.type == "string" and all(inner.type == "string_fragment" for inner in part.named_children):
            return "".join(self._source.text(inner) for inner in part.named_children)
        return None

    def _call(self, node: Node) -> Iterator[Node]:
        """A method that is called on a name may look at all of it."""
        for part in node.named_children:
            if part.type == "member_expression":
                yield from part.named_children
            else:
                yield part

    def _declared(self, node: Node) -> list[Node]:
        """`const { x } = data` reads one key; the names that a declaration binds are not read."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        keys = self._pattern_keys(name) if name is not None else None
        read = self._source.text(value) if value is not None and value.type == "identifier" else None
        if read is not None and keys is not None and read in self._names:
            self._keys.setdefault(read, set()).update(keys)
            return []
        others = [] if name is None or name.type == "identifier" else name.named_children
        return [*others, *([value] if value is not None else [])]

    def _pattern_keys(self, pattern: Node) -> set[str] | None:
        """The keys that an object pattern takes, if they are all written out and nothing else is in it."""
        if pattern.type != "object_pattern":
            return None
        keys: set[str] = set()
        for part in pattern.named_children:
            key = part.child_by_field_name("key") if part.type == "pair_pattern" else part
            value = part.child_by_field_name("value")
            if (
                key is None
                or key.type not in _PATTERN_KEYS
                or (value is not None and value.type != "identifier")
            ):
                return None
            keys.add(self._source.text(key))
        return keys


_PATTERN_KEYS: Final = ("property_identifier", "shorthand_property_identifier_pattern")
_TYPES: Final = frozenset({
    "type_annotation", "type_arguments", "type_parameters", "interface_declaration", "type_alias_declaration",
    "ambient_declaration", "implements_clause", "type_predicate_annotation", "asserts_annotation",
    "function_signature", "method_signature", "abstract_method_signature", "index_signature",
})  # fmt: skip
_CASTS: Final = ("as_expression", "satisfies_expression")
_BINDING_FIELDS: Final = {
    "function_declaration": "name", "generator_function_declaration": "name", "class_declaration": "name",
    "abstract_class_declaration": "name", "function_expression": "name", "class": "name",
    "enum_declaration": "name", "catch_clause": "parameter", "internal_module": "name",
}  # fmt: skip


def _read_parts(node: Node) -> list[Node]:
    """The parts of a node in which names are read rather than bound."""
    kind = node.type
    if kind in _CASTS:
        return node.named_children[:1]
    if kind == "assignment_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        inside = [] if left is None else left.named_children  # of what is changed, all may be needed
        return [*inside, *([right] if right is not None else [])]
    if kind == "arrow_function":
        return [part for part in node.named_children if part != node.child_by_field_name("parameter")]
    if kind in ("required_parameter", "optional_parameter"):
        value = node.child_by_field_name("value")
        return [] if value is None else [value]
    if (field := _BINDING_FIELDS.get(kind)) is not None:
        bound = node.child_by_field_name(field)
        return [part for part in node.named_children if part != bound]
    return node.named_children
