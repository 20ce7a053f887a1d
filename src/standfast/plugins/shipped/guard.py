"""Guard: rules that allow tool calls, refuse them, or ask a person.

    Guard(
        deny=["delete_*"],
        rules=[
            {"tool": "pay", "when": {"cents": {"gt": 10_000}}, "then": "ask", "reason": "a large sum"},
            {"side_effect": "external_system", "when": lambda args: "test" in args, "then": "allow"},
        ],
        default="allow",
    )

A table of conditions such as `{"cents": {"gt": 100}, "currency": "EUR"}` matches if all its tests pass. A
plain value means equality. `default` is used for a missing argument: `{"limit": {"gt": 100, "default": 10}}`.

Rules
-----
1. The first rule that matches a call decides: `rules` in their order, then `deny`, `ask` and `allow`, then
   `default`.
2. If a condition raises, returns neither True nor False, or needs a missing argument, the call is denied,
   whatever the rule says. The model is given the reason, and can call again with that argument.
3. A person's approval is final: the guard does not check an approved call again.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, assert_never

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import SideEffect
from standfast.model.directive import ShortCircuitTool, ask_person, deny_call
from standfast.plugins.contexts import ToolCallHookContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.tools.tracebacks import described

Verdict = Literal["allow", "deny", "ask"]
Pattern = Annotated[str, msgspec.Meta(min_length=1)]


class GuardRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verdict on calls by name pattern, side effect and `when`: a table, or a function of the arguments."""

    then: Verdict
    tool: Pattern = "*"
    side_effect: SideEffect | None = None
    when: Any = None
    reason: str = ""

    def fits(self, call: ToolCallHookContext) -> bool:
        """Return whether the rule applies to the call; raise if that cannot be decided."""
        if not fnmatchcase(call.tool_name, self.tool):
            return False
        if self.side_effect is not None and call.side_effect != self.side_effect:
            return False
        if callable(self.when):
            answer = self.when(copy.deepcopy(call.arguments))
            if not isinstance(answer, bool):
                raise TypeError(f"a condition returned a {type(answer).__name__}, not True or False")
            return answer
        return holds(self.when or {}, call.arguments)


class Guard(Plugin):
    """A plugin for agents whose tools can do harm.

    Args:
        rules: `GuardRule`s, or JSON objects with the same fields; the first match decides.
        deny: name patterns of tools whose calls are denied, if no rule matches.
        ask: name patterns of tools whose calls need a person's approval.
        allow: name patterns of tools whose calls are allowed.
        default: the verdict on all other calls: "allow", "deny" or "ask".
    """

    id = "guard"
    summary = "Rules over tool calls: allow, deny, or ask a person."

    def __init__(
        self,
        rules: Sequence[GuardRule | Mapping[str, Any]] = (),
        *,
        deny: Sequence[str] = (),
        ask: Sequence[str] = (),
        allow: Sequence[str] = (),
        default: Verdict = "allow",
    ) -> None:
        self.rules = rules
        self.deny = deny
        self.ask = ask
        self.allow = allow
        self.default = default
        self.check_options()

    def check_options(self) -> None:
        """Validate all rules, and store them in the order in which they are tried."""
        given = {"rules": self.rules, "deny": self.deny, "ask": self.ask, "allow": self.allow}
        for name, value in given.items():
            if not isinstance(value, (list, tuple)):
                raise InvalidArgument(f"{name} of plugin 'guard' is not a list")
        read = [_rule(one, f"rule {number} of plugin 'guard'") for number, one in enumerate(self.rules, 1)]
        for verdict in ("deny", "ask", "allow"):
            read += [_rule({"tool": one, "then": verdict}, f"{verdict}=") for one in given[verdict]]
        self._rules = [*read, _rule({"then": self.default}, "default of plugin 'guard'")]

    @hook
    async def before_tool_call(self, ctx: ToolCallHookContext) -> ShortCircuitTool | None:
        try:
            rule = next(rule for rule in self._rules if rule.fits(ctx))
        except Exception as error:
            problem = described(error)
            return deny_call(f"{ctx.tool_name}() is refused: a rule could not be evaluated ({problem})")
        match rule.then:
            case "allow":
                return None
            case "deny":
                return deny_call(f"{ctx.tool_name}() is refused: {rule.reason or 'a rule forbids it'}")
            case "ask":
                return ask_person(rule.reason or "a rule requires a person's decision")
            case _:
                assert_never(rule.then)


def _rule(given: object, where: str) -> GuardRule:
    try:
        given = msgspec.structs.asdict(given) if isinstance(given, GuardRule) else given
        rule = msgspec.convert(given, GuardRule)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {error}") from None
    if rule.when is None or callable(rule.when):
        return rule
    return msgspec.structs.replace(rule, when=read_table(rule.when, where))


Table = Mapping[str, Mapping[str, Any]]
"""The tests of each argument: operands by the names of operators."""

OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "in": lambda value, wanted: value in wanted,
    "not_in": lambda value, wanted: value not in wanted,
    "contains": operator.contains,
    "matches": lambda value, pattern: re.search(pattern, value) is not None,
}


def holds(table: Table, arguments: Mapping[str, Json]) -> bool:
    """Return whether the arguments pass every test; raise if one cannot be evaluated."""
    for name, tests in table.items():
        if name not in arguments and "default" not in tests:
            raise LookupError(f"the argument {name!r} is not given")
        value = arguments.get(name, tests.get("default"))
        if not all(OPERATORS[test](value, wanted) for test, wanted in tests.items() if test != "default"):
            return False
    return True


def read_table(given: object, where: str) -> Table:
    """Validate a table and return it; errors refer to it as *where*."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{where}: a condition is neither a function nor a table")
    return {str(name): _tests(tests, where) for name, tests in given.items()}


def _tests(given: object, where: str) -> dict[str, Any]:
    tests = dict(given) if isinstance(given, Mapping) else {"eq": given}
    for name, wanted in tests.items():
        if name not in OPERATORS and name != "default":
            raise InvalidArgument(f"{where}: there is no test {name!r}", hint=f"use {', '.join(OPERATORS)}")
        if name in ("in", "not_in") and not isinstance(wanted, (list, tuple, set, frozenset)):
            raise InvalidArgument(f"{where}: {name!r} takes a list")
        if name == "matches":
            try:
                re.compile(wanted)  # type: ignore[type-var]
            except (re.error, TypeError) as error:
                raise InvalidArgument(f"{where}: {wanted!r} is not a regular expression: {error}") from None
    return tests
