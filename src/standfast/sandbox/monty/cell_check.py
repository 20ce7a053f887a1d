"""Checks of a cell against its syntax tree and the contracts of functions.

Rules
-----
1. No false alarms. Only certain failures are reported: a name counts as bound if anything in the code binds
   it anywhere, a function that the code or the session binds is not checked, and an argument is judged only
   where it is written as a literal (`schema_fit`).
2. Fast: one walk over the tree. Features that the engine lacks are left to it; it refuses them before any
   code runs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from standfast.errors import Code
from standfast.model.code import Diagnostic
from standfast.ports.code_engine import CellFunctions, NamesRead
from standfast.sandbox.monty.failures import MODULES
from standfast.sandbox.monty.syntax import SourceLines, bound_by, modules_of, names_in, parse
from standfast.sandbox.run_errors import by_line, diagnose
from standfast.sandbox.schema_fit import OPEN, Schema, SchemaFit
from standfast.tools.stubs import capability_stub

_BUILTINS: Final = frozenset(dir(builtins))
_LATE_BINDERS: Final = frozenset({"exec", "eval", "globals", "locals", "vars", "__import__"})
"""Functions that can bind names without any syntax for it."""
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_GUARDS: Final = (*_SCOPES, ast.Try, ast.TryStar, ast.With, ast.If)
"""Statements in which an import may be expected to fail, or may never run."""
_SCALARS: Final = (str, bool, int, float, type(None))
_CONTAINERS: Final = {
    ast.List: "array", ast.Tuple: "array", ast.ListComp: "array",
    ast.Dict: "object", ast.DictComp: "object", ast.JoinedStr: "string",
}  # fmt: skip
_LITERALS: Final = frozenset({ast.Constant, ast.UnaryOp, *_CONTAINERS})
Problem = tuple[ast.AST, str]


class Modules(NamedTuple):
    """The modules that code can import, and the hint for one that imports another."""

    names: frozenset[str]
    hint: str

    def lack(self, module: str) -> bool:
        return module.partition(".")[0] not in self.names


MONTY_MODULES: Final = Modules(
    frozenset({*MODULES.split(", "), "__future__"}), f"the sandbox has these modules: {MODULES}"
)


class DeclaredFunctions:
    """A cell's functions for the type checker, without those that the session's own names hide."""

    def __init__(self, functions: CellFunctions, hidden: Collection[str]) -> None:
        self._functions = functions
        self._hidden = hidden
        self.suggest = functions.suggest

    def __contains__(self, name: object, /) -> bool:
        return name in self._functions and name not in self._hidden

    def stubs(self) -> str:
        names = [name for name in self._functions.names() if name in self]
        return "\n".join(capability_stub(self._functions.capability(name)) for name in names)


def check_calls(
    code: str,
    tree: ast.Module,
    bound: Collection[str],
    functions: CellFunctions,
    inputs: Collection[str],
    modules: Modules = MONTY_MODULES,
) -> list[Diagnostic]:
    """Find unknown functions, wrong arguments, missing modules and rebound inputs, ordered by line."""
    names = names_in(code, tree)
    lines = SourceLines(code)
    found: list[Diagnostic] = []

    def report(code: Code, node: ast.AST, message: str, hint: str | None = None) -> None:
        found.append(diagnose(code, message, lines.span(node), hint))

    if not names.anywhere.isdisjoint(inputs) or any(map(modules.lack, names.modules)):
        for node, name, is_input in _misbound(tree, inputs, modules):
            if is_input:
                report(Code.TYPE_ERROR, node, f"{name} is an input and read-only; bind another name")
            else:
                report(Code.UNSUPPORTED_FEATURE, node, f"there is no module {name!r}", modules.hint)
    known = {*bound, *inputs, *names.anywhere}
    binds_late = names.imports_all or any(name in _LATE_BINDERS for _, name in names.called)
    may_miss = binds_late or "NameError" in code
    for call, name in names.called:
        if name in known:
            continue
        if name in functions:
            capability = functions.capability(name)
            for node, problem in _argument_problems(call, name, capability.input_schema):
                report(Code.TYPE_ERROR, node, problem, capability_stub(capability).removesuffix(": ..."))
        elif name not in _BUILTINS and not may_miss:
            message = f"{name}() is neither defined nor a function that can be called"
            report(Code.UNKNOWN_TOOL, call.func, message, functions.suggest(name))
    return sorted(found, key=by_line)


def names_touched(code: str, names: Collection[str]) -> NamesRead:
    """Return which of *names* the code reads, with the literal keys if it reads nothing else of them."""
    keys: dict[str, set[str]] = {}
    whole: set[str] = set()
    keyed: set[ast.expr] = set()
    tree = parse(code)
    for node in ast.walk(tree) if tree is not None else ():  # a subscript comes before its value
        match node:
            case ast.Subscript(
                value=ast.Name(id=name) as base, slice=ast.Constant(value=str(key)), ctx=ast.Load()
            ) if name in names:
                keyed.add(base)
                keys.setdefault(name, set()).add(key)
            case ast.Name(id=name, ctx=ast.Load()) if name in names and node not in keyed:
                whole.add(name)
    return NamesRead({**{name: frozenset(seen) for name, seen in keys.items()}, **dict.fromkeys(whole)})


def _misbound(
    tree: ast.Module, inputs: Collection[str], modules: Modules
) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield where an input is bound as a global name (True), or a missing module is imported (False).

    A global name is bound at the top level, or in a function that declares it global. An import counts where
    its failure would end the cell.
    """
    pending: list[tuple[ast.AST, Collection[str], bool]] = [(node, inputs, False) for node in tree.body]
    while pending:
        node, watched, guarded = pending.pop()
        for name in bound_by(node):
            if name in watched:
                yield node, name, True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not guarded:
            for name in filter(modules.lack, modules_of(node)):
                yield node, name, False
        if isinstance(node, _SCOPES):
            watched = _declared_global(node) & set(inputs)
        guarded = guarded or isinstance(node, _GUARDS)
        binds_nothing = isinstance(node, ast.comprehension) or (
            isinstance(node, ast.AnnAssign) and node.value is None
        )
        target = getattr(node, "target", None) if binds_nothing else None
        pending += [(part, watched, guarded) for part in ast.iter_child_nodes(node) if part is not target]


def _declared_global(scope: ast.AST) -> set[str]:
    """Return the names that a function or class declares global for itself."""
    found: set[str] = set()
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Global):
            found.update(node.names)
        if not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)
    return found


def _argument_problems(call: ast.Call, name: str, schema: Schema) -> Iterator[Problem]:
    """Yield the problems with the arguments of `call`, each with its node."""
    properties = schema.get("properties")
    if schema.get("type") == "array" or not isinstance(properties, dict):
        return
    names = list(properties)
    spread = ast.Starred in map(type, call.args)
    if not spread and len(call.args) > len(names):
        takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        were = "was" if len(call.args) == 1 else "were"
        yield call, f"{name}() takes {takes}, {len(call.args)} {were} given"
        return
    values = [] if spread else list(zip(names, call.args, strict=False))
    by_position = {key for key, _ in values}
    by_name = [keyword for keyword in call.keywords if keyword.arg is not None]
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for keyword in by_name:
        if keyword.arg in by_position:
            yield keyword, f"{name}() got multiple values for {keyword.arg}"
        elif closed and keyword.arg not in properties:
            yield keyword, f"{name}() has no parameter {keyword.arg}"
        values.append((str(keyword.arg), keyword.value))
    if not spread and len(by_name) == len(call.keywords):
        given_names = {key for key, _ in values}
        if missing := [key for key in schema.get("required", ()) if key not in given_names]:
            yield call, f"{name}() is missing {', '.join(missing)}"
    fit = _PythonFit(schema)
    for key, node in values:
        if key in properties and (problem := fit.problem(node, properties[key])):
            yield node, f"{name}(): {key} {problem}"


class _PythonFit(SchemaFit[ast.expr]):
    """Reads the literals of Python."""

    def literal(self, node: ast.expr) -> ast.expr | None:
        return node if type(node) in _LITERALS else None

    def scalar(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if type(value) in _SCALARS:
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return OPEN if isinstance(value, bool) else -value
        return OPEN

    def container_type(self, node: ast.expr) -> str | None:
        return _CONTAINERS.get(type(node))

    def items(self, node: ast.expr) -> Iterable[ast.expr] | None:
        return node.elts if isinstance(node, (ast.List, ast.Tuple)) else None

    def pairs(self, node: ast.expr) -> dict[str, ast.expr] | None:
        if not isinstance(node, ast.Dict):
            return None
        names = [
            key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        return dict(zip(names, node.values, strict=True)) if len(names) == len(node.keys) else None

    def text(self, node: ast.expr) -> str:
        return ast.unparse(node)

    def quoted(self, value: Any) -> str:
        return repr(value)
