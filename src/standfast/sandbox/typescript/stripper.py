"""Removal of types from TypeScript.

The tree is walked once, with a list of nodes to visit instead of recursion. A node that consists of types is
blanked and not entered. Enums, namespaces and parameter properties, which have an effect at run time, are
rewritten by `declarations`.

The JavaScript has the same meaning, statement by statement: where a blank would join two statements or split
one, a semicolon or a parenthesis is written into it. Syntax without an equivalent in JavaScript is rejected,
with its position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from standfast.errors import Code
from standfast.model.code import Diagnostic
from standfast.sandbox.run_errors import diagnose
from standfast.sandbox.typescript.declarations import Lowering, NotSupported, TopLevel
from standfast.sandbox.typescript.source import CASTS, Source, SourceEdits, first_row, last_row

if TYPE_CHECKING:
    from tree_sitter import Node

BUILT_IN_HINT: Final = (
    "the standard objects of JavaScript (Math, JSON, Map, Date, ...) are there without it; everything else "
    "is a function of the host that can be called"
)
_MAX_REFUSED: Final = 20
_SEMICOLON: Final = 0x3B
_MODIFIERS: Final = frozenset(
    {"abstract", "accessibility_modifier", "override_modifier", "readonly", "?", "!"}
)
_NAMELESS: Final = ("class", "function_expression", "generator_function", "object")
_LEAVES: Final = frozenset({
    "identifier", "property_identifier", "number", "comment", "string", "regex", "true", "false", "null",
    "this", "super", "shorthand_property_identifier", "undefined",
})  # fmt: skip
_MARK: Final = "0?0<0:"
_PATTERN_MARK: Final = "{}=0<0,"
_CALM: Final = frozenset({
    "number", "string", "true", "false", "null", "undefined", "identifier", "this", "super", "regex",
    "comment", "arrow_function", "function_expression", "generator_function", "class", "type_arguments",
    "import", "property_identifier", "string_fragment", "escape_sequence", "method_definition",
    "meta_property", "shorthand_property_identifier", "private_property_identifier", "statement_block",
    "predefined_type", "type_identifier", "optional_chain",
})  # fmt: skip
"""Nodes that cannot fail, or only after the engine has recorded a position."""
_ACCESS: Final = ("member_expression", "subscript_expression")
_BUILT_IN: Final = frozenset({
    b"Math", b"JSON", b"Object", b"Array", b"Number", b"String", b"Boolean", b"Promise", b"Date", b"Symbol",
    b"Reflect", b"BigInt", b"Map", b"Set", b"console", b"globalThis",
})  # fmt: skip
_LOGICAL: Final = ("&&", "||", "??")


class Stripper:
    """Removes the types of one program. `refused` lists the syntax in it that cannot be run."""

    def __init__(self, source: Source, edits: SourceEdits, top: TopLevel) -> None:
        self.refused: list[Diagnostic] = []
        self._edits = edits
        self._source = source
        self._data = source.data
        self._ends: set[int] = set()
        self._pending: list[Node] = []
        self._lowering = Lowering(source, edits, top)
        self._landmarks = PositionMarkers(source, edits)

    def strip(self) -> None:
        """Visit the whole tree."""
        pending, handlers = self._pending, _HANDLERS
        pending.extend(self._source.root.named_children)
        while pending:
            node = pending.pop()
            kind = node.type
            if (handler := handlers.get(kind)) is not None:
                handler(self, node)
            elif kind not in _LEAVES:
                pending.extend(node.named_children)
        self._edits.end_statements(self._ends)

    def blank(self, node: Node) -> None:
        self._edits.blank(node.start_byte, node.end_byte)

    def blank_statement(self, node: Node) -> None:
        """Keep the statements before and after `node` apart."""
        self._edits.blank_with(node.start_byte, node.end_byte, ";")

    def statement(self, node: Node) -> None:
        """Record the end of a statement that has no semicolon."""
        end = node.end_byte
        if self._source.parsed[end - 1] == _SEMICOLON != self._data[end - 1]:  # only the parser got it
            end -= 1
            while self._data[end - 1] in b" \t\r\n":
                end -= 1
        if self._data[end - 1 : end] != b";":
            self._ends.add(end)
        self._pending.extend(node.named_children)

    def return_(self, node: Node) -> None:
        self._landmarks.before(node.named_children[0] if node.named_child_count else None)
        self.statement(node)

    def condition(self, node: Node) -> None:
        """Visit `if`, `while`, `do` and `switch`."""
        head = node.child_by_field_name("condition") or node.child_by_field_name("value")
        if head is not None and head.type == "parenthesized_expression":
            self._landmarks.before(head.named_children[0])
        self._pending.extend(node.named_children)

    def for_each(self, node: Node) -> None:
        self._landmarks.before(node.child_by_field_name("right"))
        self._pending.extend(node.named_children)

    def list_(self, node: Node) -> None:
        self._landmarks.inside(node)
        self._pending.extend(node.named_children)

    def cast(self, node: Node) -> None:
        """Keep the expression of `x as T`, `x satisfies T`, `x!` and `f<T>`."""
        expression = next(part for part in node.named_children if part.type != "comment")
        if node.type in CASTS and self._source.breaks(expression.end_byte, node.end_byte):
            pending = [node.named_children[-1]]
            while pending:
                part = pending.pop()
                pending += part.named_children
                if part.type in ("array_type", "lookup_type"):
                    bracket = next(token for token in part.children if token.type == "[")
                    if self._source.breaks(part.children[0].end_byte, bracket.start_byte):
                        self._refuse_cast(node)  # a bracket on the next line would begin a statement
                        break
        self._edits.blank(expression.end_byte, node.end_byte)
        self._pending.append(expression)

    def call(self, node: Node) -> None:
        """Visit a call.

        If the parser reports a call of a cast, these are two statements without a semicolon.
        """
        parts = node.named_children
        if parts[0].type in CASTS:
            if not self._source.breaks(parts[0].end_byte, parts[1].start_byte):
                self._refuse_cast(parts[0])
            self._ends.add(parts[0].end_byte)
        self._pending.extend(parts)

    def member(self, node: Node) -> None:
        """Visit a member access. If the parser reports a member of a cast, it has misread a type."""
        parts = node.named_children
        if parts[0].type in CASTS:
            self._refuse_cast(parts[0])
        self._pending.extend(parts)

    def _refuse_cast(self, node: Node) -> None:
        hint = "put the cast into parentheses, or give its type a name: type T = ..."
        self._refuse(node, "it is not clear where the type of this cast ends", hint, Code.SYNTAX_ERROR)

    def binary(self, node: Node) -> None:
        """Visit a comparison; `f < T > (x)` is not a comparison but a call with a type argument."""
        left, operator, right = node.child(0), node.child(1), node.child(2)
        if operator is not None and operator.type == ">" and left is not None and right is not None:
            inner = left.child(1) if left.type == "binary_expression" else None
            if inner is not None and inner.type == "<" and self._data[right.start_byte] in b"(`":
                self._edits.blank(inner.start_byte, operator.end_byte)
                self._pending += [part for part in (left.child(0), right) if part is not None]
                return
        self._pending.extend(node.named_children)

    def assertion(self, node: Node) -> None:
        """Visit `<T>x`. After `return`, a line break would end the statement, so parentheses are added."""
        parts = [part for part in node.named_children if part.type != "comment"]
        types, expression = parts[0], parts[-1]
        if self._source.breaks(types.start_byte, expression.start_byte):
            self._edits.blank_with(types.start_byte, types.end_byte, "(")
            self._edits.insert(node.end_byte, ")")
        else:
            self.blank(types)
        self._pending.append(expression)

    def arrow(self, node: Node) -> None:
        """Visit an arrow function.

        No line break may precede `=>`, or separate `async` or `return` from it.
        """
        types = node.child_by_field_name("type_parameters")
        returns = node.child_by_field_name("return_type")
        parameters = node.child_by_field_name("parameters")
        self._landmarks.before(node.child_by_field_name("body"))
        special = {part.id for part in (types, returns) if part is not None}
        self._pending.extend(part for part in node.named_children if part.id not in special)
        if parameters is None:
            return
        if types is not None:
            if self._source.breaks(types.start_byte, parameters.start_byte):
                self._edits.blank_with(types.start_byte, types.end_byte, "(")
                self._edits.blank(parameters.start_byte, parameters.start_byte + 1)
            else:
                self.blank(types)
        if returns is not None:
            if self._source.breaks(parameters.end_byte, returns.end_byte):
                self._edits.blank(parameters.end_byte - 1, returns.end_byte - 1)
                self._edits.replace(returns.end_byte - 1, returns.end_byte, ")")
            else:
                self.blank(returns)

    def without_modifiers(self, node: Node, *, is_member: bool = False) -> None:
        """Blank the modifiers, `?` and `!`. A first one leaves a semicolon, which ends the member before."""
        for index, part in enumerate(node.children):
            if part.type in _MODIFIERS:
                self.blank_statement(part) if is_member and index == 0 else self.blank(part)
            elif part.is_named:
                self._pending.append(part)

    def class_member(self, node: Node) -> None:
        self.without_modifiers(node, is_member=True)

    def parameters(self, node: Node) -> None:
        """Visit parameters. A first parameter named `this` is only a type, and is removed."""
        parts = node.children
        for index, part in enumerate(parts):
            pattern = part.child_by_field_name("pattern") if part.type == "required_parameter" else None
            if pattern is not None and pattern.type == "this":
                comma = next((other for other in parts[index:] if other.type == ","), None)
                self._edits.blank(part.start_byte, part.end_byte if comma is None else comma.end_byte)
            elif part.is_named:
                self._pending.append(part)

    def declarator(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None and value is not None:
            if name.type != "identifier":
                self._landmarks.before_pattern(name)
            self._landmarks.before(value)
        self.without_modifiers(node)

    def class_body(self, node: Node) -> None:
        self._lowering.parameter_properties(node)
        self._pending.extend(node.named_children)

    def field(self, node: Node) -> None:
        """Visit a field. `declare` and `abstract` fields are removed; other fields lose their types."""
        kinds = {part.type for part in node.children if not part.is_named}
        if "declare" in kinds or "abstract" in kinds:
            self.blank_statement(node)
            return
        if "accessor" in kinds:
            self._refuse(node, "accessor fields are not supported", "write a getter and a setter")
        self._ends.add(node.end_byte)
        self._landmarks.before(node.child_by_field_name("value"))
        self.class_member(node)

    def enum(self, node: Node) -> None:
        self._pending.extend(self._lowering.enum(node))

    def namespace(self, node: Node) -> None:
        try:
            self._pending.extend(self._lowering.namespace(node))
        except NotSupported as problem:
            self._refuse(node, str(problem), "write an object or plain functions instead")

    def export(self, node: Node) -> None:
        """Blank `export`, and keep the declaration; blank a list of names altogether."""
        kinds = {part.type for part in node.children}
        if node.child_by_field_name("source") is not None:
            self.import_(node)
        elif "export_clause" in kinds:
            self.blank_statement(node)
        elif "=" in kinds or "namespace_export" in kinds or "as" in kinds:
            hint = "an export is not needed: leave it out"
            self._refuse(node, "this form of export is not supported", hint)
        else:
            for part in node.children:
                if part.type == "export":
                    self.blank_statement(part)
                elif part.type == "default":
                    self.blank(part)
                elif part.is_named:
                    if part.type in _NAMELESS and not part.child_by_field_name("name"):
                        self._edits.insert(part.start_byte, "(")  # keep it an expression
                        self._edits.insert(part.end_byte, ");")
                    elif part.type not in _DECLARATIONS and self._data[node.end_byte - 1] != _SEMICOLON:
                        self._ends.add(node.end_byte)
                    self._pending.append(part)

    def import_(self, node: Node) -> None:
        if any(part.type == "type" for part in node.children):
            self.blank_statement(node)
        else:
            self.dynamic_import(node)

    def dynamic_import(self, node: Node) -> None:
        self._refuse(node, "there are no modules here: nothing can be imported", BUILT_IN_HINT)

    def decorator(self, node: Node) -> None:
        hint = "call the function on the class or the method instead"
        self._refuse(node, "decorators are not supported", hint)

    def _refuse(self, node: Node, message: str, hint: str, code: Code = Code.UNSUPPORTED_FEATURE) -> None:
        if len(self.refused) < _MAX_REFUSED:
            self.refused.append(diagnose(code, message, self._source.span(node), hint))


class PositionMarkers:
    """Inserts code that makes the engine record positions of expressions that would otherwise have none.

    The engine records a position only for expression statements, calls, binary operators and `throw`. If a
    property of undefined is read elsewhere, as in `const x = a.b.c` or `return a.b`, it reports the last
    recorded position. `0?0<0:` before an expression (a *landmark*) makes it record one: the operator in the
    branch that is never taken has a position, and the compiler removes the branch. A pattern is compiled
    before the value that it destructures, so an empty pattern with a position is inserted before it. Each
    line of an expression gets at most one landmark.
    """

    def __init__(self, source: Source, edits: SourceEdits) -> None:
        self._data = source.data
        self._edits = edits

    def before(self, expression: Node | None) -> None:
        """Insert a landmark before an expression, if it needs one."""
        if expression is None or self._data.startswith(_MARK.encode(), expression.start_byte):
            return
        row, pending = first_row(expression), [expression]
        while pending:  # a part on the first line that may fail without a position
            node = pending.pop()
            kind = node.type
            if kind in _CALM or first_row(node) != row:
                continue
            if kind in _ACCESS:
                base = node.named_children[0]
                text = self._data[base.start_byte : base.end_byte]
                if base.type != "identifier" or text not in _BUILT_IN:
                    self._edits.insert(expression.start_byte, _MARK)
                    return
            elif kind == "binary_expression":  # the operands that run before its position is recorded
                left, operator, right, *_ = (part for part in node.children if part.type != "comment")
                pending.extend([left, right] if operator.type in _LOGICAL else [left])
            elif kind in ("call_expression", "new_expression"):
                pending.append(node.named_children[0])
            else:
                pending.extend(node.named_children)

    def before_pattern(self, pattern: Node) -> None:
        """Insert a position before a pattern, because its value may be one that cannot be destructured."""
        start = pattern.start_byte
        if pattern.named_child_count and not self._data.endswith(_PATTERN_MARK.encode(), 0, start):
            self._edits.insert(start, _PATTERN_MARK)

    def inside(self, node: Node) -> None:
        """Insert a landmark before each part of a list, object or `a ? b : c` that begins on another line."""
        row = first_row(node)
        if row == last_row(node):
            return
        for part in node.named_children:
            if first_row(part) != row and part.type != "spread_element":
                self.before(part.child_by_field_name("value") if part.type == "pair" else part)


_DECLARATIONS: Final = frozenset({
    "class_declaration", "abstract_class_declaration", "function_declaration", "enum_declaration", "comment",
    "generator_function_declaration", "interface_declaration", "type_alias_declaration", "function_signature",
    "lexical_declaration", "variable_declaration", "ambient_declaration", "internal_module", "module",
})  # fmt: skip

_HANDLERS: Final[dict[str, Callable[[Stripper, Node], None]]] = {
    **dict.fromkeys(
        ("type_annotation", "type_arguments", "type_parameters", "type_predicate_annotation",
         "asserts_annotation", "implements_clause", "accessibility_modifier", "override_modifier",
         "hash_bang_line"),
        Stripper.blank,
    ),
    **dict.fromkeys(
        ("interface_declaration", "type_alias_declaration", "ambient_declaration", "function_signature",
         "method_signature", "abstract_method_signature", "index_signature"),
        Stripper.blank_statement,
    ),
    **dict.fromkeys(
        ("expression_statement", "lexical_declaration", "variable_declaration", "throw_statement"),
        Stripper.statement,
    ),
    **dict.fromkeys(
        (*CASTS, "non_null_expression", "instantiation_expression"),
        Stripper.cast,
    ),
    **dict.fromkeys(("member_expression", "subscript_expression"), Stripper.member),
    **dict.fromkeys(
        ("required_parameter", "optional_parameter", "class", "class_declaration",
         "abstract_class_declaration"),
        Stripper.without_modifiers,
    ),
    **dict.fromkeys(("internal_module", "module"), Stripper.namespace),
    **dict.fromkeys(("import_statement", "import_alias"), Stripper.import_),
    "call_expression": Stripper.call,
    "binary_expression": Stripper.binary,
    **dict.fromkeys(
        ("if_statement", "while_statement", "do_statement", "switch_statement"), Stripper.condition
    ),
    **dict.fromkeys(("object", "array", "arguments", "ternary_expression"), Stripper.list_),
    "return_statement": Stripper.return_,
    "for_in_statement": Stripper.for_each,
    "type_assertion": Stripper.assertion,
    "arrow_function": Stripper.arrow,
    "formal_parameters": Stripper.parameters,
    "variable_declarator": Stripper.declarator,
    "public_field_definition": Stripper.field,
    "class_body": Stripper.class_body,
    "method_definition": Stripper.class_member,
    "enum_declaration": Stripper.enum,
    "export_statement": Stripper.export,
    "import": Stripper.dynamic_import,
    "decorator": Stripper.decorator,
}  # fmt: skip
