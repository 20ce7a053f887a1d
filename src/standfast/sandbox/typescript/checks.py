"""Checks of a TypeScript program against its syntax tree and the contracts of functions.

Rules
-----
1. No false alarms. Only what is certain to fail is an error: a name counts as bound if the code binds it
   anywhere, a function that the code or the session binds is not checked, and an argument is checked only if
   it is a literal. A likely mistake is a warning.
2. A single object whose keys are all parameters, including every required one, passes the arguments by name;
   anything else passes them by position. An object that is neither is reported as what it most likely was
   meant to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import Code, ScriptRefused
from standfast.model.code import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.run_errors import by_line, diagnose
from standfast.sandbox.schema_fit import OPEN, Schema, SchemaFit
from standfast.sandbox.typescript.script import read_script
from standfast.sandbox.typescript.source import CASTS, Source, UnreadableSource, names_in_pattern, parse
from standfast.sandbox.typescript.stripper import BUILT_IN_HINT
from standfast.tools.stubs import signature_of

if TYPE_CHECKING:
    from tree_sitter import Node

_STANDARD: Final = """
    Array BigInt Boolean Date Error AggregateError EvalError RangeError ReferenceError SyntaxError TypeError
    URIError Function Number Object Promise RegExp String Symbol Proxy Iterator DOMException atob btoa
    clearInterval clearTimeout clearImmediate decodeURI decodeURIComponent encodeURI encodeURIComponent escape
    eval isFinite isNaN parseFloat parseInt print queueMicrotask setImmediate setInterval setTimeout sleep
    structuredClone unescape super import
"""
STANDARD_FUNCTIONS: Final = frozenset(_STANDARD.split())
_ABSENT: Final = {
    "fetch": "there is no network; call a function of the host instead",
    "alert": "console.log() writes text",
    "prompt": "the sandbox has no user to ask",
}
_LATE_BINDERS: Final = ("globalThis", "eval", "ReferenceError", "Function(")
"""Words that indicate names which are bound without syntax for it, or which may be missing."""
_MAX_FOUND: Final = 50
_PATTERN_KEYS: Final = ("property_identifier", "shorthand_property_identifier_pattern")
_TYPES: Final = frozenset({
    "type_annotation", "type_arguments", "type_parameters", "interface_declaration", "type_alias_declaration",
    "ambient_declaration", "implements_clause", "type_predicate_annotation", "asserts_annotation",
    "function_signature", "method_signature", "abstract_method_signature", "index_signature",
})  # fmt: skip
_TOP, _BLOCK, _ASYNC, _PLAIN = range(4)
"""Kinds of scope: the top level, a block at the top level, an async function, another function."""
Call = tuple["Node", "Node"]
"""A call, and the identifier of the function it calls."""
_FUNCTIONS: Final = frozenset({
    "function_declaration", "function_expression", "arrow_function", "method_definition",
    "generator_function", "generator_function_declaration",
})  # fmt: skip
_BLOCKS: Final = frozenset(
    {"statement_block", "for_statement", "for_in_statement", "catch_clause", "switch_body"}
)
_BINDINGS: Final[dict[str, tuple[str, int | None]]] = {
    **dict.fromkeys(
        ("function_declaration", "generator_function_declaration", "class_declaration", "variable_declarator",
         "abstract_class_declaration", "enum_declaration", "internal_module", "function_signature"),
        ("name", None),
    ),
    **dict.fromkeys(("function_expression", "generator_function", "class"), ("name", _PLAIN)),
    **dict.fromkeys(("required_parameter", "optional_parameter"), ("pattern", _PLAIN)),
    "arrow_function": ("parameter", _PLAIN),
    "catch_clause": ("parameter", _BLOCK),
}  # fmt: skip
"""For each node type, the field with the names that it binds, and their scope; None for the current one."""
_WITHOUT_USES: Final = frozenset({
    "type_annotation", "type_arguments", "type_parameters", "interface_declaration", "type_alias_declaration",
    "implements_clause", "type_predicate_annotation", "asserts_annotation", "comment", "string", "number",
    "property_identifier", "this", "true", "false", "null", "regex", "shorthand_property_identifier",
    "identifier",
})  # fmt: skip
_PROMISE_METHODS: Final = frozenset({"then", "catch", "finally", "constructor"})
_VALUE_OPERATORS: Final = frozenset(
    {"+", "-", "*", "/", "%", "**", "<", ">", "<=", ">=", "==", "!=", "===", "!=="}
)


def check_script(
    code: str, *, bound: Collection[str], functions: CellFunctions, inputs: Collection[str]
) -> list[Diagnostic]:
    """Return the problems in the code, by line. *inputs* are read-only."""
    try:
        source = read_script(code).source
    except ScriptRefused as refused:
        return [Diagnostic.error(problem) for problem in refused.problems]
    found = list(_problems(source, {*bound, *inputs}, functions, inputs))[:_MAX_FOUND]
    return sorted(found, key=by_line)


def _problems(
    source: Source, known: Collection[str], functions: CellFunctions, inputs: Collection[str]
) -> Iterator[Diagnostic]:
    usage = NameUsage(source)
    known = {*known, *usage.bound}
    may_miss = any(word in source.code for word in _LATE_BINDERS)
    assigned = [node for node in usage.assigned if source.text(node) not in usage.nested]
    for node in [*usage.top_level_bindings, *assigned]:
        if (name := source.text(node)) in inputs:
            message = f"{name} is an input and read-only; bind another name"
            yield diagnose(Code.TYPE_ERROR, message, source.span(node))
    for node in usage.stray_awaits:
        hint = "write `async` before the function's parameters, or use a for loop at the top level"
        yield diagnose(Code.SYNTAX_ERROR, "await in a function that is not async", source.span(node), hint)
    for call, function in usage.calls:
        name = source.text(function)
        if name in known:
            continue
        if name in functions:
            capability = functions.capability(name)
            for node, problem in argument_problems(source, call, name, capability.input_schema):
                yield diagnose(Code.TYPE_ERROR, problem, source.span(node), signature_of(capability))
        elif name not in STANDARD_FUNCTIONS and not may_miss:
            if name == "require":
                message = "there are no modules here: require() is not defined"
                yield diagnose(Code.UNSUPPORTED_FEATURE, message, source.span(function), BUILT_IN_HINT)
            else:
                message = f"{name}() is neither defined nor a function that can be called"
                advice = functions.suggest(name) or _ABSENT.get(name)
                yield diagnose(Code.UNKNOWN_TOOL, message, source.span(function), advice)
    for call, function in usage.unawaited:
        name = source.text(function)
        if name in functions and name not in known:
            yield Diagnostic(
                severity=Severity.WARNING,
                code=Code.TYPE_ERROR,
                message=f"{name}() returns a promise, but its value is used here",
                hint=f"await it: (await {name}(...))",
                span=source.span(call),
            )


class NameUsage:
    """The names that a program binds and uses."""

    def __init__(self, source: Source) -> None:
        self.bound: set[str] = set()
        """The names that the program binds, in any scope."""
        self.nested: set[str] = set()
        """The names among them that are bound below the top level."""
        self.top_level_bindings: list[Node] = []
        self.assigned: list[Node] = []
        self.calls: list[Call] = []
        self.unawaited: list[Call] = []
        """Calls whose result is used in a way that a promise does not allow."""
        self.stray_awaits: list[Node] = []
        self._source = source
        pending: list[tuple[Node, int]] = [(part, _TOP) for part in source.root.named_children]
        while pending:
            node, scope = pending.pop()
            kind = node.type
            if kind in _WITHOUT_USES:
                continue
            if (binding := _BINDINGS.get(kind)) is not None:
                field, own_scope = binding
                self._bind(node.child_by_field_name(field), scope if own_scope is None else own_scope)
            else:
                self._record_use(node, kind, scope)
            if kind in _FUNCTIONS:
                scope = _ASYNC if any(part.type == "async" for part in node.children) else _PLAIN
            elif kind in ("public_field_definition", "class_static_block"):
                scope = _PLAIN
            elif scope == _TOP and kind in _BLOCKS:
                scope = _BLOCK
            pending.extend([(part, scope) for part in node.named_children])

    def _bind(self, pattern: Node | None, scope: int) -> None:
        if pattern is None:
            return
        for node in [pattern] if pattern.type == "type_identifier" else names_in_pattern(pattern):
            name = self._source.text(node)
            self.bound.add(name)
            if scope == _TOP:
                self.top_level_bindings.append(node)
            else:
                self.nested.add(name)

    def _record_use(self, node: Node, kind: str, scope: int) -> None:
        match kind:
            case "call_expression":
                if (function := _called(node)) is not None:
                    self.calls.append((node, function))
            case "member_expression" | "subscript_expression":
                prop = node.child_by_field_name("property")
                if prop is None or self._source.text(prop) not in _PROMISE_METHODS:
                    self._use_value(node.named_children[0])
            case "binary_expression":
                operator = node.child_by_field_name("operator")
                if operator is not None and operator.type in _VALUE_OPERATORS:
                    self._use_value(node.child_by_field_name("left"))
                    self._use_value(node.child_by_field_name("right"))
            case "template_substitution" | "spread_element":
                self._use_value(next(iter(node.named_children), None))
            case "await_expression" if scope == _PLAIN:
                self.stray_awaits.append(node)
            case "assignment_expression" | "augmented_assignment_expression":
                if (left := node.child_by_field_name("left")) is not None:
                    self.assigned.extend(names_in_pattern(left))
            case "update_expression":
                argument = node.child_by_field_name("argument")
                if argument is not None and argument.type == "identifier":
                    self.assigned.append(argument)
            case "variable_declaration" if scope == _BLOCK:  # its names also become names of the top level
                for part in node.named_children:
                    if part.type == "variable_declarator":
                        self._bind(part.child_by_field_name("name"), _TOP)
            case "for_in_statement":
                left, keyword = node.child_by_field_name("left"), node.child_by_field_name("kind")
                if left is not None and keyword is not None:
                    self._bind(left, _TOP if keyword.type == "var" and scope in (_TOP, _BLOCK) else _BLOCK)
                elif left is not None:
                    self.assigned.extend(names_in_pattern(left))
                if not any(part.type == "await" for part in node.children):
                    self._use_value(node.child_by_field_name("right"))
            case "ambient_declaration":
                for part in node.named_children:
                    if part.type == "function_signature":
                        self._bind(part.child_by_field_name("name"), _PLAIN)

    def _use_value(self, node: Node | None) -> None:
        """Record `node` as unawaited if it is a call."""
        while node is not None and node.type in (
            "parenthesized_expression", "as_expression", "non_null_expression",
        ):  # fmt: skip
            node = node.named_children[0]
        if node is not None and node.type == "call_expression" and (function := _called(node)) is not None:
            self.unawaited.append((node, function))


def _called(call: Node) -> Node | None:
    """Return the identifier that `call` calls; None if it calls something else."""
    function = call.child_by_field_name("function")
    return function if function is not None and function.type == "identifier" else None


def touched_names(code: str, names: Collection[str]) -> dict[str, frozenset[str] | None]:
    """Return which of `names` the code reads, with the literal keys if it reads nothing else of them."""
    try:
        source = parse(code)
    except UnreadableSource:
        return {}
    if not source.is_sound or not any(name in code for name in names):
        return {}
    return _Reads(source, names).found()


class _Reads:
    """The names that a program reads, and the keys that it reads from them."""

    def __init__(self, source: Source, names: Collection[str]) -> None:
        self._text = source.text
        self._root = source.root
        self._names = names
        self._keys: dict[str, set[str]] = {}

    def found(self) -> dict[str, frozenset[str] | None]:
        whole: set[str] = set()
        pending = [self._root]
        while pending:
            node = pending.pop()
            match node.type:
                case "identifier" | "shorthand_property_identifier":
                    if (name := self._text(node)) in self._names:
                        whole.add(name)
                case "member_expression" | "subscript_expression":
                    pending += self._read_by_member(node)
                case "call_expression":  # a method may read the whole object that it is called on
                    for part in node.named_children:
                        pending += part.named_children if part.type == "member_expression" else [part]
                case "variable_declarator":
                    pending += self._read_by_declarator(node)
                case kind if kind not in _TYPES:
                    pending += _parts_that_read(node, kind)
        return {**{name: frozenset(keys) for name, keys in self._keys.items()}, **dict.fromkeys(whole)}

    def _read_by_member(self, node: Node) -> list[Node]:
        """Record the key that `data.x` or `data["x"]` reads, or return the parts to visit."""
        base = node.named_children[0]
        name = self._text(base) if base.type == "identifier" else None
        key = node.child_by_field_name("property") or node.child_by_field_name("index")
        if name is None or name not in self._names or key is None:
            return node.named_children
        if key.type == "string" and all(part.type == "string_fragment" for part in key.named_children):
            text = "".join(map(self._text, key.named_children))
        elif key.type == "property_identifier" and (text := self._text(key)) != "length":
            pass
        else:
            return node.named_children
        self._keys.setdefault(name, set()).add(text)
        return []

    def _read_by_declarator(self, node: Node) -> list[Node]:
        """Record the keys that `const { x } = data` reads, or return the parts that it reads."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        read = self._text(value) if value is not None and value.type == "identifier" else None
        if name is not None and read in self._names and (keys := self._pattern_keys(name)) is not None:
            self._keys.setdefault(str(read), set()).update(keys)
            return []
        others = [] if name is None or name.type == "identifier" else name.named_children
        return [*others, *([value] if value is not None else [])]

    def _pattern_keys(self, pattern: Node) -> set[str] | None:
        """Return the keys of an object pattern if it consists of literal keys only; None otherwise."""
        if pattern.type != "object_pattern":
            return None
        keys: set[str] = set()
        for part in pattern.named_children:
            key = part.child_by_field_name("key") if part.type == "pair_pattern" else part
            value = part.child_by_field_name("value")
            if key is None or key.type not in _PATTERN_KEYS or (value and value.type != "identifier"):
                return None
            keys.add(self._text(key))
        return keys


def _parts_that_read(node: Node, kind: str) -> list[Node]:
    """Return the parts of a node in which names are read rather than bound."""
    if kind in CASTS:
        return node.named_children[:1]
    if kind == "assignment_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        inside = [] if left is None else left.named_children  # an object that is modified may be needed whole
        return [*inside, *([right] if right is not None else [])]
    if kind in ("required_parameter", "optional_parameter"):
        value = node.child_by_field_name("value")
        return [] if value is None else [value]
    if (binding := _BINDINGS.get(kind)) is not None:
        bound = node.child_by_field_name(binding[0])
        return [part for part in node.named_children if part != bound]
    return node.named_children


Problem = tuple["Node", str]
_MAX_DEPTH: Final = 8
_CONTAINERS: Final = {"array": "array", "object": "object", "string": "string", "template_string": "string"}
_WRAPPERS: Final = (*CASTS, "non_null_expression", "parenthesized_expression")
_NUMBER: Final = re.compile(r"(?:0|[1-9][\d_]*)(?:\.[\d_]*)?(?:[eE][+-]?\d+)?|\.\d+")
_MAX_NUMBER_CHARS: Final = 40


def argument_problems(source: Source, call: Node, name: str, schema: Schema) -> Iterator[Problem]:
    """Yield the problems with the arguments of *call*, each with its node."""
    properties = schema.get("properties")
    arguments = call.child_by_field_name("arguments")
    if schema.get("type") == "array" or not isinstance(properties, dict) or arguments is None:
        return
    if arguments.type != "arguments":
        return
    given = [part for part in arguments.named_children if part.type != "comment"]
    fit = _TypeScriptFit(source, schema)
    if len(given) != 1:
        if not any(part.type == "spread_element" for part in given):
            yield from _by_position(call, name, given, fit)
        return
    node = fit.literal(given[0])  # the argument may be an object with all of them
    parts = fit.pairs(node)
    if node.type != "object":
        if fit.json_type(node) is not None:
            yield from _by_position(call, name, given, fit)
    elif parts is None:
        return
    elif parts.keys() <= fit.properties.keys() and set(fit.required) <= parts.keys():
        yield from _judged(name, parts.items(), fit)
    elif by_position := list(_by_position(call, name, given, fit)):
        yield from _meant_by_name(call, name, parts, fit) or by_position


def _meant_by_name(call: Node, name: str, parts: dict[str, Node], fit: _TypeScriptFit) -> list[Problem]:
    """Return the problems of an object that was meant to pass the arguments by name."""
    first = next(iter(fit.properties.values()), None)
    if parts.keys().isdisjoint(fit.properties) and fit.may_be_object(first):
        return []
    unknown = [
        (node, f"{name}() has no parameter {key}") for key, node in parts.items() if key not in fit.properties
    ]
    missing = [key for key in fit.required if key not in parts]
    lacking = [(call, f"{name}() is missing {', '.join(missing)}")] if missing else []
    known = [(key, node) for key, node in parts.items() if key in fit.properties]
    return [*unknown, *lacking, *_judged(name, known, fit)]


def _by_position(call: Node, name: str, given: list[Node], fit: _TypeScriptFit) -> Iterator[Problem]:
    names = list(fit.properties)
    if len(given) > len(names):
        takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        yield call, f"{name}() takes {takes}, {len(given)} {'was' if len(given) == 1 else 'were'} given"
        return
    placed = list(zip(names, given, strict=False))
    missing = [key for key in fit.required if key not in names[: len(given)]]
    if missing:
        yield call, f"{name}() is missing {', '.join(missing)}"
    yield from _judged(name, placed, fit)


def _judged(name: str, parts: Iterable[tuple[str, Node]], fit: _TypeScriptFit) -> Iterator[Problem]:
    for key, node in parts:
        if problem := fit.problem(node, fit.properties[key]):
            yield node, f"{name}(): {key} {problem}"


class _TypeScriptFit(SchemaFit["Node"]):
    """Reads the literals of TypeScript, for one contract."""

    def __init__(self, source: Source, root: Schema) -> None:
        super().__init__(root)
        self.properties: dict[str, Any] = root["properties"]
        self.required: list[str] = [key for key in root.get("required", ()) if key in self.properties]
        self._source = source

    def may_be_object(self, schema: Any, depth: int = 0) -> bool:
        """Return whether a schema accepts objects of some kind."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return True
        if "$ref" in schema:
            return self.may_be_object(self.definition(schema), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                return any(self.may_be_object(option, depth + 1) for option in options)
        kinds = schema.get("type", "object")
        return "object" in (kinds if isinstance(kinds, list) else [kinds])

    def literal(self, node: Node) -> Node:
        while node.type in _WRAPPERS and node.named_children and node.named_children[0].type != "comment":
            node = node.named_children[0]
        return node

    def scalar(self, node: Node) -> Any:
        match node.type:
            case "string" if all(part.type == "string_fragment" for part in node.named_children):
                return "".join(self._source.text(part) for part in node.named_children)
            case "number":
                return _number(self._source.text(node))
            case "true" | "false" | "null":
                return {"true": True, "false": False, "null": None}[node.type]
            case "unary_expression":
                operator, operand = node.children[:2]
                if operator.type == "-" and operand.type == "number":
                    value = _number(self._source.text(operand))
                    return value if value is OPEN else -value
        return OPEN

    def container_type(self, node: Node) -> str | None:
        return _CONTAINERS.get(node.type)

    def items(self, node: Node) -> list[Node] | None:
        if node.type != "array":
            return None
        return [part for part in node.named_children if part.type not in ("comment", "spread_element")]

    def pairs(self, node: Node) -> dict[str, Node] | None:
        if node.type != "object":
            return None
        pairs: dict[str, Node] = {}
        for part in node.named_children:
            if part.type == "comment":
                continue
            if part.type == "shorthand_property_identifier":
                pairs[self._source.text(part)] = part
                continue
            key, value = part.child_by_field_name("key"), part.child_by_field_name("value")
            if part.type != "pair" or key is None or value is None:
                return None
            name = self._source.text(key) if key.type == "property_identifier" else None
            if key.type == "string":
                name = self.scalar(key)
            if not isinstance(name, str):
                return None
            pairs[name] = value
        return pairs

    def text(self, node: Node) -> str:
        return " ".join(self._source.text(node).split())

    def quoted(self, value: Any) -> str:
        return json.dumps(value)


def _number(text: str) -> Any:
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return OPEN
    value = float(text.replace("_", ""))
    return int(value) if value.is_integer() else value
