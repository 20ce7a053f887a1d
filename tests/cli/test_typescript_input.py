"""When a TypeScript entry is complete, and which names it declares."""

from __future__ import annotations

import pytest

from standfast.cli.typescript_input import bound_names, is_complete


@pytest.mark.parametrize(
    ("source", "complete"),
    [
        ("1 + 1", True),
        ("const x = 1;", True),
        ("function f() {", False),
        ("function f() {\n  return 1;\n}", True),
        ("f(1,", False),
        ("[1, 2", False),
        ("({a: [1, (2)]})", True),
        ("'a { b'", True),
        ('"it\'s ("', True),
        ("'not closed", True),
        ("'continues\\", False),
        ("'continues\\\nhere'", True),
        ("`a", False),
        ("`a\nb`", True),
        ("`a ${f({b: `c ${d}`})} e`", True),
        ("`a ${f({b: `c ${d}`}) e`", False),
        ("`a ${b", False),
        ("`\\``", True),
        ("`\\${`", True),
        ("// {", True),
        ("x // (", True),
        ("/* {", False),
        ("/* { */ 1", True),
        ("x = 1 /* done */", True),
        ("/[(]/.test('(')", True),
        ("s.replace(/\\//g, '{')", True),
        ("a / b / c", True),
        ("(a) / (b)", True),
        ("x =", False),
        ("const f = (a) =>", False),
        ("a &&", False),
        ("a +", False),
        ("i++", True),
        ("i--", True),
        ("a ?", False),
        ("xs.map((n) => n * 2)\n  .filter(Boolean)", True),
        ("xs.", False),
        ("}", True),
        ("f(1))", True),
        ("type A = {x: number}", True),
        ("interface A {\n  x: number", False),
        ("await f()", True),
    ],
)
def test_an_entry_is_complete_when_nothing_is_left_open(source: str, complete: bool) -> None:
    """Ours: brackets, strings, templates, comments and operators may be open; invalid code is complete."""
    assert is_complete(source) is complete


def test_names_declared_by_an_entry_are_completed() -> None:
    """Ours: names are completed if they can be found without a parser."""
    source = "const a = 1; let b = 2\nvar c = `const no = 1`\nfunction d() {}\nclass E {} // let no2"
    source += "\nconst {f, g: h} = x"
    assert {"a", "b", "c", "d", "E", "f", "h"} <= bound_names(source)
    assert bound_names(source).isdisjoint({"no", "no2"})
    assert bound_names("const [i, , j] = [1, 2, 3]") == {"i", "j"}
