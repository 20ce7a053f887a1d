"""The plugin `guard`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, results

from standfast import Agent, tool
from standfast.errors import Code, InvalidArgument, StandfastError
from standfast.model.capability import CallStatus
from standfast.plugins.contexts import PluginExtensions, ToolCallHookContext
from standfast.plugins.shipped import Guard
from standfast.plugins.shipped.guard import OPERATORS, GuardRule, holds, read_table


class Ledger:
    """Tools, and a log of their calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        def pay(cents: int) -> str:
            """Pay."""
            self.lines.append(f"pay {cents}")
            return f"paid {cents}"

        @tool(side_effect="read")
        def look() -> str:
            """Look."""
            self.lines.append("look")
            return "seen"

        return [pay, look]


def guarded(guard: Guard, *calls: tuple[str, dict[str, Any]], ledger: Ledger) -> Agent[Any, Any]:
    """Return an agent that makes these calls in one reply and then ends."""
    return agent_of(asks(*calls), "end", tools=ledger.tools(), plugins=[guard])


def verdict(guard: Guard, name: str = "pay", side_effect: Any = None, **arguments: Any) -> str:
    """Return the guard's verdict on a call."""
    call = ToolCallHookContext(
        session_id="s", turn_id="t", extensions=PluginExtensions(), call_id=1,
        tool_name=name, arguments=arguments, side_effect=side_effect,
    )  # fmt: skip
    answer = asyncio.run(guard.before_tool_call(call))
    if answer is None:
        return "allow"
    assert answer.error is not None
    return {Code.WAITING_FOR_APPROVAL: "ask", Code.PERMISSION_DENIED: "deny"}[Code(answer.error.code)]


# Which rule decides


def test_the_first_matching_rule_decides() -> None:
    """Ours: rules are tried in order, then deny, ask and allow, then the default."""
    guard = Guard(
        [
            {"tool": "pay", "when": {"cents": {"le": 10}}, "then": "allow"},
            GuardRule(tool="pay_*", then="ask"),
        ],
        deny=["pay*", "drop"],
        ask=["drop", "send"],
        allow=["look"],
        default="deny",
    )
    assert verdict(guard, "pay", cents=10) == "allow"
    assert verdict(guard, "pay", cents=11) == "deny"
    assert verdict(guard, "pay_late") == "ask"
    assert verdict(guard, "drop") == "deny"
    assert verdict(guard, "send") == "ask"
    assert verdict(guard, "look") == "allow"
    assert verdict(guard, "other") == "deny"
    assert verdict(Guard(), "other") == "allow"


def test_a_rule_may_select_tools_by_side_effect() -> None:
    """Ours: a new tool then needs no new rule."""
    guard = Guard([{"side_effect": "external_system", "then": "ask"}])
    assert verdict(guard, "pay", side_effect="external_system") == "ask"
    assert verdict(guard, "look", side_effect="read") == "allow"
    assert verdict(guard, "unknown") == "allow"


def test_patterns_are_case_sensitive() -> None:
    """Ours: tool names are case-sensitive on every system."""
    assert verdict(Guard(deny=["Pay"]), "pay") == "allow"


# Conditions


@pytest.mark.parametrize(
    ("test", "passes", "fails"),
    [
        ({"eq": 1}, 1, 2),
        ({"ne": 1}, 2, 1),
        ({"gt": 1}, 2, 1),
        ({"ge": 1}, 1, 0),
        ({"lt": 1}, 0, 1),
        ({"le": 1}, 1, 2),
        ({"in": ["a", "b"]}, "a", "c"),
        ({"not_in": ["a"]}, "c", "a"),
        ({"contains": "x"}, ["x"], ["y"]),
        ({"matches": "^/etc/"}, "/etc/passwd", "/home"),
        ({"gt": 1, "lt": 3}, 2, 3),
        ("EUR", "EUR", "USD"),
    ],
    ids=str,
)
def test_a_condition_table_compares_arguments(test: Any, passes: Any, fails: Any) -> None:
    """Ours: simple conditions are data, so they can come from a file."""
    table = read_table({"x": test}, "here")
    assert holds(table, {"x": passes})
    assert not holds(table, {"x": fails})


def test_every_operator_has_a_case_above() -> None:
    """Ours: a new operator needs a case in the test above."""
    (mark,) = [
        one for one in test_a_condition_table_compares_arguments.pytestmark if one.name == "parametrize"
    ]
    assert {name for case in mark.args[1] if isinstance(case[0], dict) for name in case[0]} == set(OPERATORS)


def test_all_conditions_of_a_table_must_hold_and_a_default_replaces_a_missing_value() -> None:
    """Ours: a rule about an optional argument needs a default in case it is omitted."""
    table = read_table({"a": 1, "limit": {"gt": 100, "default": 10}}, "here")
    assert holds(table, {"a": 1, "limit": 101})
    assert not holds(table, {"a": 2, "limit": 101})
    assert not holds(table, {"a": 1})


def explode(arguments: dict[str, Any]) -> bool:
    raise ValueError("broken rule")


@pytest.mark.parametrize("then", ["allow", "ask"])
@pytest.mark.parametrize(
    "when",
    [
        explode,
        lambda arguments: "yes",
        lambda arguments: None,
        {"euros": {"gt": 1}},
        {"cents": {"gt": "many"}},
    ],
    ids=["raises", "answers with text", "answers with nothing", "misses an argument", "cannot compare"],
)
def test_a_condition_that_cannot_be_evaluated_refuses_the_call(when: Any, then: str) -> None:
    """Ours: a guard that cannot evaluate its rule denies the call."""
    assert verdict(Guard([{"tool": "pay", "when": when, "then": then}]), "pay", cents=5) == "deny"


def test_a_condition_cannot_change_the_call() -> None:
    """Ours: a condition is given a copy of the arguments."""

    def meddle(arguments: dict[str, Any]) -> bool:
        arguments["to"].append("me")
        return True

    given = {"to": ["you"]}
    assert verdict(Guard([{"when": meddle, "then": "allow"}]), "send", **given) == "allow"
    assert given == {"to": ["you"]}


# Whole turns


def test_a_refused_call_is_not_made_and_the_model_is_given_the_reason(memory: Place) -> None:
    """Ours: a `deny` rule refuses a call with its reason."""
    ledger = Ledger()
    guard = Guard([{"tool": "pay", "when": lambda a: a["cents"] > 100, "then": "deny", "reason": "too much"}])

    async def main() -> None:
        async with memory.runtime() as runtime:
            calls = [("pay", {"cents": 500}), ("pay", {"cents": 5}), ("look", {})]
            session = await runtime.session("s", agent=guarded(guard, *calls, ledger=ledger))
            result = await session.turn("go")
            assert results(result.messages) == ["PERMISSION_DENIED", "paid 5", "seen"]
            assert "pay() is refused: too much" in str(result.messages)
            assert result.calls[0].status is CallStatus.DENIED
            assert sorted(ledger.lines) == ["look", "pay 5"]

    asyncio.run(main())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_with_an_ask_rule_waits_for_a_person_and_runs_once_approved(
    place: Place, restarted: bool
) -> None:
    """Ours: an `ask` rule waits for a person, even across a restart; the person's decision wins."""
    ledger = Ledger()
    guard = Guard([{"tool": "pay", "when": {"cents": {"gt": 100}}, "then": "ask", "reason": "a large sum"}])

    def agent() -> Agent[Any, Any]:
        return guarded(guard, ("pay", {"cents": 500}), ("look", {}), ledger=ledger)

    async def ask(runtime: Any) -> None:
        session = await runtime.session("s", agent=agent())
        assert (await session.turn("go")).status == "waiting"
        (asked,) = await session.approvals(pending=True)
        assert (asked.capability, asked.kwargs, asked.reason) == ("pay", {"cents": 500}, "a large sum")
        assert ledger.lines == ["look"]

    async def approve(runtime: Any) -> None:
        session = await runtime.session("s", agent=agent())
        (asked,) = await session.approvals(pending=True)
        result = await session.approve(asked.approval_id)
        assert (result.output, results(result.messages)) == ("end", ["paid 500", "seen"])
        assert ledger.lines == ["look", "pay 500"]

    async def in_turn(*steps: Any) -> None:
        async with place.runtime() as runtime:
            for step in steps:
                await step(runtime)

    for steps in ([ask], [approve]) if restarted else ([ask, approve],):
        asyncio.run(in_turn(*steps))


def test_a_call_with_an_ask_rule_is_refused_once_denied(place: Place) -> None:
    """Ours: the model reads the person's reason."""
    ledger = Ledger()

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = guarded(Guard(ask=["pay"]), ("pay", {"cents": 5}), ledger=ledger)
            session = await runtime.session("s", agent=agent)
            wait = (await session.turn("go")).waits[0]
            result = await session.deny(wait.wait_id, reason="not today")
            assert results(result.messages) == ["PERMISSION_DENIED"]
            assert "not today" in str(result.messages)
            assert ledger.lines == []

    asyncio.run(main())


def test_a_session_may_have_its_own_rules(memory: Place) -> None:
    """Ours: session options override the agent's and are validated."""
    ledger = Ledger()

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = guarded(Guard(), ("pay", {"cents": 5}), ledger=ledger)
            strict = {"guard": {"rules": [{"tool": "p*", "then": "deny"}]}}
            session = await runtime.session("s", agent=agent, options=strict)
            assert results((await session.turn("go")).messages) == ["PERMISSION_DENIED"]
            wrong = {"guard": {"rules": [{"tools": "p*", "then": "deny"}]}}
            with pytest.raises(StandfastError, match="tools"):
                await (await runtime.session("t", agent=agent, options=wrong)).turn("go")

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"rules": [{"tool": "pay"}]},
        {"rules": [{"tool": "pay", "then": "block"}]},
        {"rules": [{"tools": "pay", "then": "deny"}]},
        {"rules": [{"tool": "", "then": "deny"}]},
        {"rules": [{"side_effect": "danger", "then": "deny"}]},
        {"rules": [{"when": "cents > 100", "then": "deny"}]},
        {"rules": [{"when": {"cents": {"over": 1}}, "then": "deny"}]},
        {"rules": [{"when": {"cents": {"in": 1}}, "then": "deny"}]},
        {"rules": [{"when": {"path": {"matches": "("}}, "then": "deny"}]},
        {"rules": {"tool": "pay", "then": "deny"}},
        {"rules": [GuardRule(then="block")]},  # type: ignore[arg-type]
        {"deny": "pay"},
        {"deny": [5]},
        {"default": "maybe"},
    ],
    ids=str,
)
def test_an_invalid_rule_is_refused(options: dict[str, Any]) -> None:
    """Ours: a guard with a misspelt rule would protect nothing."""
    with pytest.raises(InvalidArgument):
        Guard(**options)
