"""Analysis of guest code before it runs.

The engine returns the value of the last expression. It does not know about `result`, inputs that are removed
after the run, and whether guest code will await a call. These are determined from the syntax tree:

* *result*: code that binds `result` at its top level gets `result` as its last expression; code that may
  bind it (in a branch, a loop, a function) is probed after the run; other code keeps its last expression,
  which stays reachable under a name until the next run.
* *awaited calls*: `await f(x)`, `gather(f(1), f(2))`, and calls whose value reaches them through lists or
  names. Such a call is answered with a future, any other with its value, so guest code may await a call or
  not.
* *bound names*: the names that the session has afterwards, so that later checks do not report them as
  unknown.
* *last call*: if the code ends with a call that never returns, only the argument is fed to the engine, and
  the driver of the run makes the call, which saves a round trip to the engine.
* *changes*: code that only computes values does not change the session, so its state need not be stored.

Rules: nothing here runs guest code; for code that this Python cannot parse, the analysis is less precise.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from standfast.errors import Span
from standfast.model.code import Diagnostic
from standfast.sandbox.monty import syntax

ResultMode = Literal["always", "maybe", "never"]

VALUE_NAME: Final = "__standfast_value"
MARK_NAME: Final = "__standfast_bound"
MARK: Final = f"{MARK_NAME}.append(1)"
_BINDS: Final = (
    r"^[ \t]{0,99}(?:async[ \t]{1,9})?(?:def|class)[ \t]{1,9}(\w+)"
    r"|^[ \t]{0,99}(\w[\w, \t]{0,200}?)[ \t]{0,9}(?::[^=\n]{0,200})?(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)"
    r"|\bfor[ \t]{1,9}(\w[\w, \t]{0,200}?)[ \t]{1,9}in\b"
    r"|^[ \t]{0,99}(?:from[ \t]{1,9}[\w.]{1,200}[ \t]{1,9})?import[ \t]{1,9}(\w[\w, \t]{0,200})"
    r"|\bas[ \t]{1,9}(\w+)"
)
"""Every repetition is bounded, because this expression runs in the host on untrusted code."""
_RESULT: Final = r"^result[ \t]{0,9}(:[^=\n]{1,200})?=[^=]"
_MAX_ROUNDS: Final = 16
"""The number of assignments through which an awaited value is traced back."""
_OPEN: Final = f"({VALUE_NAME}:=("
_CLOSE: Final = "))"
WAITERS: Final = frozenset(
    {"gather", "wait", "wait_for", "create_task", "ensure_future", "shield", "as_completed"}
)
"""Functions of asyncio that take awaitables."""
_HARMLESS: Final = frozenset({
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List,
    ast.Set, ast.Dict, ast.Subscript, ast.Slice, ast.JoinedStr, ast.Call, ast.FormattedValue, ast.keyword,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.comprehension, ast.Starred,
})  # fmt: skip
_HARMLESS_FUNCTIONS: Final = frozenset({
    "abs", "all", "any", "bin", "bool", "chr", "dict", "divmod", "enumerate", "finish", "float", "hex", "int",
    "isinstance", "len", "list", "max", "min", "oct", "ord", "pow", "print", "range", "repr", "reversed",
    "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Guest code, the text that is fed to the engine, and the results of the analysis."""

    code: str
    fed: str
    result_mode: ResultMode = "never"
    reads_result: bool = False
    bound: frozenset[str] = frozenset()
    awaited: frozenset[syntax.Site] | None = None
    defines_functions: bool = True
    rebinds_result_later: bool = False
    inserted: tuple[tuple[int, int, int], ...] = ()
    """Line, column and length of each text that was inserted into the code, in order."""
    reads_only: frozenset[str] | None = None
    """The functions that the code calls, if it consists of expressions that change nothing; else None."""
    defines_classes: bool = True
    refused: Diagnostic | None = None
    """The reason why the code must not run: the engine would execute it differently from Python."""
    last_call: tuple[str, Span] | None = None
    """The call that the code ends with, if only its argument was fed."""
    ends_with_value: bool = True
    """Whether the last statement is an expression whose value can be read again."""
    unnamed: str | None = None
    """The text to feed if the engine rejects `fed`, in which the last line is assigned to a name."""
    plain_keys: bool = False
    """Whether the code can hash only values that have no parts (`syntax.has_plain_keys`)."""

    def column(self, line: int, column: int) -> int:
        """Convert a column of the fed text into a column of the user's code."""
        for at_line, at_column, length in self.inserted:
            if line == at_line and column > at_column:
                column = max(at_column, column - length)
        return column


@functools.lru_cache(maxsize=256)
def read_program(
    code: str, *, result_may_be_bound: bool = False, last: frozenset[str] = frozenset()
) -> Program:
    """Analyse *code*. With *result_may_be_bound*, functions of earlier runs may bind `result`."""
    # If the code ends with a call of a function in *last*, only the argument of that call is fed.
    tree = syntax.parse(code)
    if tree is None:
        return _unread_program(code)
    called = called_if_pure(tree)
    refused, plain_keys = next(syntax.misread(code, tree), None), syntax.has_plain_keys(tree)
    if called is not None:
        return Program(
            code=code,
            fed=code,
            awaited=frozenset(),
            defines_functions=False,
            reads_only=called,
            defines_classes=False,
            ends_with_value=bool(tree.body),
            plain_keys=plain_keys,
            refused=refused,
        )
    names = syntax.names_in(code, tree)
    mode: ResultMode = "never"
    if names.always_result:
        mode = "always"
    elif names.maybe_result or names.global_result or (result_may_be_bound and names.calls):
        mode = "maybe"
    lines = syntax.SourceLines(code)
    edits = _edits(lines, mode, names)
    ending = tree.body[-1] if tree.body else None
    data, last_call = _without_last_call(lines, ending, last - names.at_top if mode == "never" else ())
    awaited = AwaitMarker(tree).calls if "await" in code else set()
    return Program(
        code=code,
        fed=edits.apply(data) + ("\nresult" if mode == "always" else ""),
        last_call=last_call,
        result_mode=mode,
        reads_result=names.reads_result,
        bound=frozenset(names.at_top),
        awaited=frozenset(edits.shift(map(lines.site, awaited))),
        defines_functions=names.defines_functions,
        rebinds_result_later=names.global_result,
        inserted=tuple(edits.insertions(lines.data)),
        defines_classes=names.defines_classes,
        refused=refused,
        ends_with_value=isinstance(ending, ast.Expr),
        plain_keys=plain_keys,
    )


def _without_last_call(
    lines: syntax.SourceLines, ending: ast.stmt | None, last: Collection[str]
) -> tuple[bytes, tuple[str, Span] | None]:
    """If the code ends with a call of a function in *last*, blank the function's name; nothing moves."""
    match ending:
        case ast.Expr(
            value=ast.Call(func=ast.Name(id=name) as function, args=[argument], keywords=[]) as call
        ) if name in last and not isinstance(argument, ast.Starred):
            start, end = lines.site(function)
            if start == lines.site(call)[0]:
                data = lines.data[:start] + b" " * (end - start) + lines.data[end:]
                return data, (name, lines.span(call))
    return lines.data, None


def _unread_program(code: str) -> Program:
    """Return the program for code that is too long to parse, or that this Python cannot parse."""
    always = re.search(_RESULT, code, re.M) is not None
    before, newline, last = code.rstrip().rpartition("\n")
    named = None
    if not always and last and not last[0].isspace() and not before.endswith("\\") and _is_balanced(last):
        named = f"{before}{newline}{_OPEN}{last}\n{_CLOSE}"
    bound = (re.findall(r"\w+", match[match.lastindex or 0]) for match in re.finditer(_BINDS, code, re.M))
    return Program(
        code=code,
        fed=f"{code}\nresult" if always else named or code,
        result_mode="always" if always else "never",
        bound=frozenset(itertools.chain.from_iterable(bound)),
        ends_with_value=named is not None,
        refused=next(syntax.misread(code, None), None),
        unnamed=code if named is not None else None,
        inserted=((code.rstrip().count("\n") + 1, 1, len(_OPEN)),) if named is not None else (),
    )


def _is_balanced(line: str) -> bool:
    """Return whether the brackets in a line are balanced."""
    depth = 0
    for character in line:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def called_if_pure(tree: ast.Module) -> frozenset[str] | None:
    """Return the functions that the code calls, if it only computes values; else None."""
    called: set[str] = set()
    pending: list[Any] = []
    for statement in tree.body:
        if type(statement) is not ast.Expr:
            return None
        pending.append(statement.value)
    while pending:
        node = pending.pop()
        if node is None:
            continue
        if type(node) not in _HARMLESS:
            return None
        if type(node) is ast.Call:
            if not isinstance(node.func, ast.Name) or node.func.id not in _HARMLESS_FUNCTIONS:
                return None
            called.add(node.func.id)
        pending += syntax.children(node)
    return frozenset(called)


def last_expression(code: str) -> str:
    """Return the source of the last statement, which is an expression."""
    tree = syntax.parse(code)
    if tree is None or not tree.body:
        return "None"
    return ast.get_source_segment(code, tree.body[-1]) or "None"


def _edits(lines: syntax.SourceLines, mode: ResultMode, names: syntax.Names) -> Edits:
    """Return edits that assign the last expression to a name, and mark where the code binds `result`."""
    found: list[tuple[int, str]] = []
    last = names.tree.body[-1] if names.tree.body else None
    if mode != "always" and isinstance(last, ast.Expr):
        start, end = lines.site(last)
        found += [(start, _OPEN), (end, _CLOSE)]
    if mode == "maybe" and names.reads_result:
        found += [
            (lines.site(node)[1], f";{MARK}")
            for node in ast.walk(names.tree)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
            and "result" in syntax.bound_directly(node)
        ]
        found.sort()
    return Edits(found)


class Edits:
    """Texts to be inserted into code, by byte offset, in order."""

    def __init__(self, items: list[tuple[int, str]]) -> None:
        self._items = items

    def apply(self, data: bytes) -> str:
        """Return the text of *data* with the insertions."""
        parts: list[bytes] = []
        at = 0
        for offset, text in self._items:
            parts += [data[at:offset], text.encode()]
            at = offset
        return b"".join([*parts, data[at:]]).decode()

    def shift(self, sites: Iterable[syntax.Site]) -> Iterator[syntax.Site]:
        """Convert positions in the code into positions in the fed text."""
        offsets = [offset for offset, _ in self._items]
        added = [0, *itertools.accumulate(len(text) for _, text in self._items)]
        for left, right in sites:
            yield left + added[bisect_right(offsets, left)], right + added[bisect_left(offsets, right)]

    def insertions(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield line, column and length of each edit. The engine counts only `\\n` as the end of a line."""
        for offset, text in self._items:
            start = data.rfind(b"\n", 0, offset) + 1
            yield data.count(b"\n", 0, offset) + 1, len(data[start:offset].decode()) + 1, len(text)


class AwaitMarker:
    """Finds the calls whose value is awaited, directly or through lists, names and helper functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: set[ast.Call] = set()
        self._names: set[str] = set()
        self._functions: set[str] = set()
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Await):
                self._mark(node.value)
            elif isinstance(node, ast.Call) and called_name(node) in WAITERS:
                self._mark(*node.args)
        known = -1
        for _ in range(_MAX_ROUNDS):
            if known == (known := len(self.calls) + len(self._names) + len(self._functions)):
                break
            for node in nodes:
                self._follow(node)

    def _mark(self, *roots: ast.expr) -> None:
        """Mark the calls, names and functions from which the value of each root may come."""
        pending = list(roots)
        while pending:
            match pending.pop():
                case ast.Call() as call:
                    self.calls.add(call)
                    match call.func:
                        case ast.Name(id="map" | "list" | "tuple"):
                            pending.extend(call.args)
                        case ast.Name(id=name):
                            self._functions.add(name)
                        case ast.Attribute(value=ast.Name(id=owner), attr="values" | "items" | "pop"):
                            self._names.add(owner)
                case ast.Name(id=name):
                    self._names.add(name)
                case (
                    ast.List(elts=parts)
                    | ast.Tuple(elts=parts)
                    | ast.Set(elts=parts)
                    | ast.Dict(values=parts)
                ):
                    pending.extend(parts)
                case (
                    ast.ListComp(elt=part)
                    | ast.SetComp(elt=part)
                    | ast.GeneratorExp(elt=part)
                    | ast.DictComp(value=part)
                    | ast.Starred(value=part)
                    | ast.Subscript(value=part)
                    | ast.NamedExpr(value=part)
                    | ast.Lambda(body=part)
                ):
                    pending.append(part)
                case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
                    pending.extend((left, right))

    def _follow(self, node: ast.AST) -> None:
        """Mark the values assigned to an awaited name, or returned by a function whose calls are awaited."""
        match node:
            case ast.Assign(targets=targets, value=value) if self._awaits(targets):
                self._mark(value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.AugAssign(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
            ) if self._awaits([target]):
                self._mark(value)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="append" | "add" | "extend" | "insert")
            ):
                if owner in self._names:
                    self._mark(*node.args)
            case ast.FunctionDef(name=name) if name in self._functions:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        self._mark(inner.value)

    def _awaits(self, targets: list[ast.expr]) -> bool:
        for target in targets:
            base = target.value if isinstance(target, ast.Subscript) else target
            if any(isinstance(part, ast.Name) and part.id in self._names for part in ast.walk(base)):
                return True
        return False


def called_name(call: ast.Call) -> str:
    """Return the last part of the name that is called: `b` for `a.b()`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
