"""What can be known about a piece of guest code before it runs.

Theory of operation
-------------------
The engine answers with the value of the last expression and knows nothing of `result`, of inputs that
end with their run, or of whether guest code will await a host call. Those are read off the syntax tree:

* *result*: code that binds `result` at its top level gets `result` as its last expression; code that may
  bind it (in a branch, a loop, a function) is probed after the run; other code keeps its last expression,
  which stays reachable under a name until the next run.
* *awaited calls*: `await f(x)`, `gather(f(1), f(2))`, and lists or names that end up there. Such a call is
  answered with a future, any other with its value, so that guest code may await or not, as it likes.
* *bound names*: what the session knows afterwards, so that a later check does not call it unknown.
* *last call*: where the code ends with a call that never returns, its argument is fed in the place of the
  call: whoever drives the run makes the call then, and the engine is asked once less.
* *changes*: code that only computes values leaves the session as it was, so nothing need be stored.

Rules: nothing here runs guest code, and a tree that Python cannot read only costs precision.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal

import msgspec

from standfast.errors import Span
from standfast.model.diagnostic import Diagnostic
from standfast.sandbox.monty.syntax import (
    Names,
    bound_directly,
    children,
    has_plain_keys,
    misread,
    names_in,
    parse,
)

Site = tuple[int, int]
ResultMode = Literal["always", "maybe", "never"]

VALUE_NAME: Final = "__standfast_value"
MARK_NAME: Final = "__standfast_bound"
MARK: Final = f"{MARK_NAME}.append(1)"
_BINDS: Final = re.compile(
    r"^[ \t]{0,99}(?:async[ \t]{1,9})?(?:def|class)[ \t]{1,9}(\w+)"
    r"|^[ \t]{0,99}(\w[\w, \t]{0,200}?)[ \t]{0,9}(?::[^=\n]{0,200})?(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)"
    r"|\bfor[ \t]{1,9}(\w[\w, \t]{0,200}?)[ \t]{1,9}in\b"
    r"|^[ \t]{0,99}(?:from[ \t]{1,9}[\w.]{1,200}[ \t]{1,9})?import[ \t]{1,9}(\w[\w, \t]{0,200})"
    r"|\bas[ \t]{1,9}(\w+)",
    re.M,
)
"""Every repetition is bounded: this runs in the host, on code that is long because it wants to be."""
_NEWLINE: Final = re.compile(rb"\r\n?|\n")
_RESULT: Final = re.compile(r"^result[ \t]{0,9}(:[^=\n]{1,200})?=[^=]", re.M)
_MAX_ROUNDS: Final = 16
"""How far an awaited value is followed back through names; code could be written to follow for ever."""
_OPEN: Final = f"({VALUE_NAME}:=("
_CLOSE: Final = "))"
WAITERS: Final = frozenset(
    {"gather", "wait", "wait_for", "create_task", "ensure_future", "shield", "as_completed"}
)
"""Functions of asyncio that take what can be awaited."""
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
    """Guest code, as it is fed to the engine, and what was learnt about it."""

    code: str
    fed: str
    result_mode: ResultMode = "never"
    reads_result: bool = False
    bound: frozenset[str] = frozenset()
    awaited: frozenset[Site] | None = None
    defines_functions: bool = True
    rebinds_result_later: bool = False
    inserted: tuple[tuple[int, int, int], ...] = ()
    """Where the fed text holds more than the code: line, column and length of each insertion, in order."""
    reads_only: frozenset[str] | None = None
    """The names that expression-only code reads and calls, if it can change nothing; else None."""
    defines_classes: bool = True
    refused: Diagnostic | None = None
    """Why the code must not run, where the engine would run it and be wrong."""
    last_call: tuple[str, Span] | None = None
    """The call that the code ends with, if its argument was fed in its place."""
    ends_with_value: bool = True
    """Whether the last statement is an expression that can be named once more."""
    unnamed: str | None = None
    """What to feed if the engine refuses the code with a name around its last line."""
    plain_keys: bool = False
    """Whether the code can hash nothing but what has no parts; see `plain_keys`."""

    def changes_nothing(self, names: frozenset[str], classes: bool) -> bool:
        """Whether the run leaves a session as it was, given the session's names and whether it has classes.

        Operators are harmless on values whose classes are built in, and so are built-in functions that
        the session has not redefined.
        """
        return self.reads_only is not None and not classes and not (self.reads_only & names)

    def column(self, line: int, column: int) -> int:
        """A column of the fed text as a column of the user's code."""
        for at_line, at_column, length in self.inserted:
            if line == at_line and column > at_column:
                column = max(at_column, column - length)
        return column


@functools.lru_cache(maxsize=256)
def read_program(
    code: str, *, result_may_be_bound: bool = False, last: frozenset[str] = frozenset()
) -> Program:
    """Read *code*; `result_may_be_bound` tells that functions of earlier runs may bind `result`.

    Where the code ends with a call of one of *last*, it is fed without the call, as far as its argument.
    """
    tree = parse(code)
    if tree is None:
        return _unread_program(code)
    called = called_if_pure(tree)
    if called is not None:
        return Program(
            code=code,
            fed=code,
            awaited=frozenset(),
            defines_functions=False,
            reads_only=called,
            defines_classes=False,
            ends_with_value=bool(tree.body),
            plain_keys=has_plain_keys(tree),
            refused=next(misread(code, tree), None),
        )
    names = names_in(code, tree)
    mode = _result_mode(names, result_may_be_bound)
    ending = _last_call(tree, last - names.at_top) if mode == "never" else None
    lines = _Lines(code)
    edits = _edits(lines, mode, names)
    fed = lines.data if ending is None else _without_name(lines, ending)
    return Program(
        code=code,
        fed=_apply(fed, edits) + ("\nresult" if mode == "always" else ""),
        last_call=None if ending is None else (called_name(ending), lines.span(ending)),
        result_mode=mode,
        reads_result=names.reads_result,
        bound=frozenset(names.at_top),
        awaited=frozenset(_shifted(_awaited_sites(tree, lines), edits)) if "await" in code else frozenset(),
        defines_functions=names.defines_functions,
        rebinds_result_later=names.global_result,
        inserted=tuple(_insertions(lines.data, edits)),
        defines_classes=names.defines_classes,
        refused=next(misread(code, tree), None),
        ends_with_value=bool(tree.body) and isinstance(tree.body[-1], ast.Expr),
        plain_keys=has_plain_keys(tree),
    )


def _unread_program(code: str) -> Program:
    """Code that is too long to be read, or that this Python cannot read."""
    always = _RESULT.search(code) is not None
    named = None if always else _with_named_last_line(code)
    return Program(
        code=code,
        fed=f"{code}\nresult" if always else named or code,
        result_mode="always" if always else "never",
        bound=frozenset(_bound_by_text(code)),
        ends_with_value=named is not None,
        refused=next(misread(code, None), None),
        unnamed=code if named is not None else None,
        inserted=((code.rstrip().count("\n") + 1, 1, len(_OPEN)),) if named is not None else (),
    )


def _with_named_last_line(code: str) -> str | None:
    """The code with a name around its last line, which the engine refuses if that is no expression."""
    before, newline, last = code.rstrip().rpartition("\n")
    if not last or last[0].isspace() or before.endswith("\\") or not _is_balanced(last):
        return None
    return f"{before}{newline}{_OPEN}{last}\n{_CLOSE}"


def _is_balanced(line: str) -> bool:
    """Whether a line closes no bracket that it has not opened, and leaves none open."""
    depth = 0
    for character in line:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def _result_mode(names: Names, may_be_bound: bool) -> ResultMode:
    if names.always_result:
        return "always"
    if names.maybe_result or names.global_result or (may_be_bound and names.calls):
        return "maybe"
    return "never"


def _last_call(tree: ast.Module, names: AbstractSet[str]) -> ast.Call | None:
    """The call of one of *names*, with one value, that is all of the last statement."""
    match tree.body[-1] if tree.body else None:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) as call):
            return call if name in names and not isinstance(argument, ast.Starred) else None
    return None


def _without_name(lines: _Lines, call: ast.Call) -> bytes:
    """The code with parentheses alone where a function is called. Nothing else moves."""
    start = lines.site(call)[0]
    end = start + len(called_name(call))
    return lines.data[:start] + b" " * (end - start) + lines.data[end:]


def called_if_pure(tree: ast.Module) -> frozenset[str] | None:
    """The functions called, if all the code does is compute values from what is there."""
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
        pending += children(node)
    return frozenset(called)


def _bound_by_text(code: str) -> Iterator[str]:
    """The names that code seems to bind, where there is no tree to tell."""
    for match in _BINDS.finditer(code):
        yield from re.findall(r"\w+", match[match.lastindex or 0])


def last_expression(code: str) -> str:
    """The text of the last statement, which is an expression."""
    tree = parse(code)
    if tree is None or not tree.body:
        return "None"
    return ast.get_source_segment(code, tree.body[-1]) or "None"


Edit = tuple[int, str]
"""A byte offset of the code and the text that is put in there."""


def _edits(lines: _Lines, mode: ResultMode, names: Names) -> list[Edit]:
    """What is put into the code: a name around its last expression, or marks where it binds `result`."""
    edits: list[Edit] = []
    last = names.tree.body[-1] if names.tree.body else None
    if mode != "always" and isinstance(last, ast.Expr):
        start, end = lines.site(last)
        edits += [(start, _OPEN), (end, _CLOSE)]
    if mode == "maybe" and names.reads_result:
        edits += [(lines.site(statement)[1], f";{MARK}") for statement in _binding_statements(names.tree)]
        edits.sort()
    return edits


def _binding_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and "result" in bound_directly(node):
            yield node


def _apply(data: bytes, edits: list[Edit]) -> str:
    parts: list[bytes] = []
    at = 0
    for offset, text in edits:
        parts += [data[at:offset], text.encode()]
        at = offset
    return b"".join([*parts, data[at:]]).decode()


def _shifted(sites: set[Site], edits: list[Edit]) -> Iterator[Site]:
    """Places of the code as places of the fed text."""
    offsets = [offset for offset, _ in edits]
    added = [0, *itertools.accumulate(len(text) for _, text in edits)]
    for left, right in sites:
        yield left + added[bisect_right(offsets, left)], right + added[bisect_left(offsets, right)]


def _insertions(data: bytes, edits: list[Edit]) -> Iterator[tuple[int, int, int]]:
    """Line, column and length of each edit, as `Program.column` undoes them, one after the other.

    Lines as the engine counts them, which knows no carriage return.
    """
    for offset, text in edits:
        start = data.rfind(b"\n", 0, offset) + 1
        yield data.count(b"\n", 0, offset) + 1, len(data[start:offset].decode()) + 1, len(text)


class _Lines:
    """The code as bytes, and where its lines start, as Python counts them."""

    def __init__(self, code: str) -> None:
        self.data = code.encode()
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(self.data))]

    def site(self, node: ast.stmt | ast.expr) -> Site:
        """Where a node is, in bytes from the start, as the engine tells places."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def span(self, node: ast.expr) -> Span:
        start, end = self.site(node)
        end_line = node.end_lineno or node.lineno
        return Span(
            line=node.lineno,
            column=self._column(node.lineno, start),
            end_line=end_line,
            end_column=self._column(end_line, end),
        )

    def _column(self, line: int, offset: int) -> int:
        """A byte of a line as its character, from 1."""
        return len(self.data[self._starts[line - 1] : offset].decode()) + 1


def _awaited_sites(tree: ast.Module, lines: _Lines) -> set[Site]:
    return {lines.site(call) for call in AwaitMarker(tree).calls}


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
                self._mark_all(node.args)
        known = -1
        for _ in range(_MAX_ROUNDS):
            if known == (known := len(self.calls) + len(self._names) + len(self._functions)):
                break
            for node in nodes:
                self._follow(node)

    def _mark(self, root: ast.expr) -> None:
        pending: list[ast.expr] = [root]
        while pending:
            node = pending.pop()
            match node:
                case ast.Call():
                    self._mark_call(node, pending)
                case ast.Name(id=name):
                    self._names.add(name)
                case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                    pending.extend(parts)
                case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
                    pending.append(part)
                case ast.DictComp(value=part) | ast.Starred(value=part) | ast.Subscript(value=part):
                    pending.append(part)
                case ast.Dict(values=parts):
                    pending.extend(parts)
                case ast.IfExp(body=left, orelse=right):
                    pending.extend((left, right))
                case ast.NamedExpr(value=part) | ast.Lambda(body=part):
                    pending.append(part)
                case ast.BinOp(left=left, right=right):
                    pending.extend((left, right))

    def _mark_all(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            self._mark(node)

    def _mark_call(self, node: ast.Call, pending: list[ast.expr]) -> None:
        self.calls.add(node)
        match node.func:
            case ast.Name(id="map" | "list" | "tuple"):
                pending.extend(node.args)
            case ast.Name(id=name):
                self._functions.add(name)
            case ast.Attribute(value=ast.Name(id=owner), attr="values" | "items" | "pop"):
                self._names.add(owner)

    def _follow(self, node: ast.AST) -> None:
        """Mark what flows into a name that is awaited, or out of a function whose calls are."""
        match node:
            case ast.Assign(targets=targets, value=value) if self._awaits(targets):
                self._mark(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) if self._awaits([target]):
                self._mark(value)
            case ast.NamedExpr(target=target, value=value) if self._awaits([target]):
                self._mark(value)
            case ast.AugAssign(target=target, value=value) if self._awaits([target]):
                self._mark(value)
            case ast.For(target=target, iter=source) if self._awaits([target]):
                self._mark(source)
            case ast.comprehension(target=target, iter=source) if self._awaits([target]):
                self._mark(source)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="append" | "add" | "extend" | "insert")
            ):
                if owner in self._names:
                    self._mark_all(node.args)
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
    """The last part of the name of what is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
