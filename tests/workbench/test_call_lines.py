"""The lines of code that made the calls of a cell."""

from __future__ import annotations

import pytest

from standfast.workbench.call_lines import CallText, find_lines

CASES = {
    "one line after the other": ("a = f(1)\nb = f(2)\nc = f(x)", "f f f", [1, 2, 3]),
    "a cell that stopped after its first call": ("f(x)\nf(y)\nf(z)", "f", [1]),
    "the body of a loop": (
        "for x in y:\n    a = f(x)\n    g(a)\n    f(a)",
        "f g f f g f f",
        [2, 3, 4, 2, 3, 4, 2],
    ),
    "a branch that another call tells": (
        "if f(x):\n    g(1)\n    h(x)\nelse:\n    g(2)\nf(y)",
        "f g h f",
        [1, 2, 3, 6],
    ),
    "a branch that nothing tells": ("if x:\n    f(x)\nelse:\n    f(y)", "f", [None]),
    "an argument is evaluated before the call": ("g(\n  f(x),\n)\nf(y)", "f g f", [2, 1, 4]),
    "a comprehension": ("a = [f(x) for x in y]\nf(z)\ng(z)", "f f g", [1, 2, 3]),
    "a function that is called from elsewhere": (
        "def k():\n    f(x)\nf(y)\nk()\ng(z)",
        "f f g",
        [None, None, 5],
    ),
    "a call in a try may be the last one of it": (
        "try:\n    f(x)\n    f(y)\nexcept ValueError:\n    g(x)",
        "f g",
        [None, 5],
    ),
    "a method": ("shop.order(x)\nshop.order(y)", "shop.order shop.order", [1, 2]),
    "a name that the code does not have": ("f(x)\nf(y)", "f other f", [1, None, None]),
    "no Python": ("const a = f(1);", "f", [None]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_placed_only_if_the_order_of_calls_leaves_one_possible_line(name: str) -> None:
    """Ours: each call is shown at the line that made it, never at one that may be wrong."""
    code, made, lines = CASES[name]
    assert find_lines(code, [CallText(one, "") for one in made.split()]) == lines


def test_literal_arguments_distinguish_lines() -> None:
    """Ours: a line with other literal arguments cannot have made the call."""
    code = "if x:\n    f('A1')\nelse:\n    f('B2')"
    assert find_lines(code, [CallText("f", 'order_id="B2"')]) == [4]
    assert find_lines(code, [CallText("f", 'order_id="A…"')]) == [None]
