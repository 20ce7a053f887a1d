"""Inference of the source line of each call that a cell made, from the order of the calls.

Theory of operation
-------------------
Each place in the code where a known function is called is a site. The structure of the code determines which
site can follow which: statements run in sequence, a loop's body can follow itself, one branch of an `if` is
taken. So the sites are the states of an automaton (Glushkov's construction), and the calls that were made are
its input. A call can come only from a site with the same name and matching literal arguments.

Rules
-----
1. The automaton accepts at least every order that the code can produce. A call gets a line only if every
   path that produces the calls in this order makes the call on the same line.
2. Code that is called from elsewhere (functions, lambdas) can precede and follow every site.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_MOST_STEPS: Final = 300_000
_JUMPS: Final = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_CUT: Final = "…"


class CallText(NamedTuple):
    """A call that was made, with its arguments as text."""

    name: str
    arguments: str


@dataclass(slots=True)
class _Site:
    name: str
    line: int
    literals: tuple[str, ...]


@dataclass(slots=True)
class _Part:
    """A piece of code: the sites at which it can begin and end, and whether it can make no call at all."""

    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    empty: bool = True


def find_lines(code: str, made: Sequence[CallText]) -> list[int | None]:
    """Return the source line of each call in *made*, None where it is ambiguous."""
    nothing: list[int | None] = [None] * len(made)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return nothing
    flow = _Flow({one.name for one in made})
    try:
        whole = flow.block(tree.body)
    except RecursionError:
        return nothing
    sites = flow.sites
    if len(made) * len(sites) * 4 > _MOST_STEPS:
        return nothing
    fitting = [{place for place, site in enumerate(sites) if _fits(site, one)} for one in made]
    begins = whole.first | flow.anywhere
    forward: list[set[int]] = []
    for place, fits in enumerate(fitting):
        before = forward[-1] if forward else None
        if before is None:
            reached = fits & begins
        elif not before:
            reached = set(fits)  # the previous call came from an unknown site
        else:
            reached = fits & set().union(*(flow.after[one] for one in before), flow.anywhere)
        forward.append(reached or set(fits) if place else reached)
    for place in range(len(made) - 2, -1, -1):
        following = forward[place + 1]
        if following:
            leads = {one for one in forward[place] if (flow.after[one] | flow.anywhere) & following}
            forward[place] = leads or forward[place]
    lines = [{sites[one].line for one in places} for places in forward]
    return [found.pop() if len(found) == 1 else None for found in lines]


def _fits(site: _Site, made: CallText) -> bool:
    if site.name != made.name:
        return False
    return (
        not made.arguments
        or _CUT in made.arguments
        or all(
            any(form in made.arguments for form in (text, text.replace("'", '"'))) for text in site.literals
        )
    )


class _Flow:
    """The sites of some code, and which site can follow which."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.sites: list[_Site] = []
        self.after: list[set[int]] = []
        self.anywhere: set[int] = set()

    def block(self, statements: Sequence[ast.stmt], *, broken: bool = False) -> _Part:
        """Return *statements* as a sequence; if *broken*, any of them may be skipped."""
        whole = _Part()
        for one in statements:
            part = self._statement(one)
            whole = self._then(whole, self._maybe(part) if broken else part)
        return whole

    def _then(self, left: _Part, right: _Part) -> _Part:
        for one in left.last:
            self.after[one] |= right.first
        return _Part(
            left.first | right.first if left.empty else left.first,
            left.last | right.last if right.empty else right.last,
            left.empty and right.empty,
        )

    def _either(self, *parts: _Part) -> _Part:
        return _Part(
            set().union(*(one.first for one in parts)),
            set().union(*(one.last for one in parts)),
            any(one.empty for one in parts),
        )

    def _maybe(self, part: _Part) -> _Part:
        return _Part(part.first, part.last, True)

    def _again(self, part: _Part) -> _Part:
        """Return *part* as code that runs zero or more times."""
        for one in part.last:
            self.after[one] |= part.first
        return self._maybe(part)

    def _statement(self, node: ast.stmt) -> _Part:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                return self._then(self._inside(test), self._either(self.block(body), self.block(orelse)))
            case (
                ast.For(iter=over, body=body, orelse=orelse)
                | ast.AsyncFor(iter=over, body=body, orelse=orelse)
            ):
                looped = self._again(self.block(body, broken=_jumps(node)))
                return self._then(self._then(self._inside(over), looped), self._maybe(self.block(orelse)))
            case ast.While(test=test, body=body, orelse=orelse):
                turn = self._then(self._inside(test), self.block(body, broken=_jumps(node)))
                return self._then(self._again(turn), self._maybe(self.block(orelse)))
            case ast.Try() | ast.TryStar():
                handled = self._either(_Part(), *(self.block(one.body) for one in node.handlers))
                tried = self._then(self.block(node.body, broken=True), handled)
                rest = self._then(self._maybe(self.block(node.orelse)), self.block(node.finalbody))
                return self._then(tried, rest)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                opened = [self._inside(one.context_expr) for one in items]
                whole = _Part()
                for one in opened:
                    whole = self._then(whole, one)
                return self._then(whole, self.block(body))
            case ast.Match(subject=subject, cases=cases):
                branches = [self.block(one.body) for one in cases]
                return self._then(self._inside(subject), self._either(_Part(), *branches))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self._elsewhere(node)
            case _:
                return self._inside(node)

    def _elsewhere(self, node: ast.AST) -> _Part:
        """Add the sites of code that can be called from anywhere."""
        begun = len(self.sites)
        for one in ast.walk(node):
            if isinstance(one, ast.Call):
                self._site(one)
        added = set(range(begun, len(self.sites)))
        self.anywhere |= added
        everything = set(range(1 << 12))
        for place in added:
            self.after[place] = everything
        return _Part()

    def _inside(self, node: ast.AST) -> _Part:
        """Return the calls of an expression or a simple statement, in evaluation order."""
        match node:
            case ast.Lambda():
                return self._elsewhere(node.body)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._then(self._inside(test), self._either(self._inside(body), self._inside(orelse)))
            case ast.BoolOp(values=[first, *others]):
                whole = self._inside(first)
                for one in others:
                    whole = self._then(whole, self._maybe(self._inside(one)))
                return whole
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case _:
                whole = _Part()
                for child in _in_order(node):
                    whole = self._then(whole, self._inside(child))
                if isinstance(node, ast.Call) and (site := self._site(node)) is not None:
                    whole = self._then(whole, _Part({site}, {site}, False))
                return whole

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> _Part:
        head, turn = _Part(), _Part()
        for place, loop in enumerate(node.generators):
            over = self._inside(loop.iter)
            if place == 0:
                head = over
            else:
                turn = self._then(turn, over)
            for test in loop.ifs:
                turn = self._then(turn, self._inside(test))
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for value in made:
            turn = self._then(turn, self._maybe(self._inside(value)))
        return self._then(head, self._again(turn))

    def _site(self, node: ast.Call) -> int | None:
        name = _name(node.func)
        if name is None or name not in self._names:
            return None
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        literals = tuple(ast.unparse(one) for one in given if _is_short_literal(one))
        self.sites.append(_Site(name, node.lineno, literals))
        self.after.append(set())
        return len(self.sites) - 1


def _is_short_literal(node: ast.expr) -> bool:
    """Return whether a literal is rendered identically in a call's arguments: an integer or plain words."""
    match node:
        case ast.Constant(value=str(text)):
            return len(text) <= 40 and text.isascii() and text.replace(" ", "").isalnum()
        case ast.Constant(value=int(number)):
            return not isinstance(number, bool)
        case _:
            return False


def _name(function: ast.expr) -> str | None:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            outer = _name(value)
            return None if outer is None else f"{outer}.{attr}"
        case _:
            return None


def _in_order(node: ast.AST) -> list[ast.AST]:
    """Return the children of a statement or an expression in evaluation order."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        others = [one for one in ast.iter_child_nodes(node) if one is not node.value]
        return [node.value, *others]
    return list(ast.iter_child_nodes(node))


def _jumps(loop: ast.AST) -> bool:
    return any(isinstance(one, _JUMPS) for one in ast.walk(loop))
