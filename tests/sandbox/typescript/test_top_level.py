"""The names that a program binds in its session."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.sandbox.typescript.script import read_script

pytestmark = pytest.mark.slow

DECLARATIONS = [
    "const x = 1", "let x = 1", "var x = 1", "function x() {}", "class x {}", "enum x { A }", "let x",
    "async function x() {}", "abstract class x {}", "const { x } = { x: 1 }", "const [x] = [1]",
    "namespace x { export const y = 1 }", "export const x = 1", "if (true) { var x = 1 }",
]  # fmt: skip


@pytest.mark.parametrize("first", DECLARATIONS)
def test_a_name_may_be_redeclared_in_any_way(guest: Any, first: str) -> None:
    """Seed: cells run one after another, and a declaration may be corrected by repeating it."""
    for second in DECLARATIONS:
        guest.run(first)
        guest.run(second)
        assert guest.run("'x' in globalThis") is True


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("const a = 1, b = 2; let c; var d", "a b c d"),
        ("const { a, b: { c = 1 }, ...d } = x; const [e, , f = 2, ...g] = y", "a c d e f g"),
        (
            "function f(p) { var q = 1 } async function* g() {} class C {} abstract class D {} enum E {}",
            "f g C D E",
        ),
        ("if (a) { var b = 1; let c = 2; const d = 3; function e() {} }", "b"),
        ("for (var i = 0; ;) {} for (var k in o) {} for (const z of y) {} for (let j = 0; ;) {}", "i k"),
        ("try { var a = 1 } catch (e) { var b = 2 } switch (x) { case 1: var c = 3 }", "a b c"),
        ("interface A {} type B = 1; declare const c: number; import type { D } from 'd'", ""),
        ("export const a = 1; export default function f() {} export enum E {}", "a f E"),
        ("namespace N { export const inner = 1 }", "N"),
        ("(() => { var hidden = 1 })(); a.b = 1", ""),
    ],
)
def test_top_level_names_are_bound(code: str, bound: str) -> None:
    """Ours: the names that a state binds are known without running anything."""
    assert read_script(code).bound == frozenset(bound.split())


@pytest.mark.parametrize(
    ("code", "binds"),
    [
        ("const result = 1", True),
        ("result = 1", True),
        ("if (a) { result += 1 }", True),
        ("({ result } = a)", True),
        ("function f() { result = 1 } f()", True),
        ("const { a: result } = b", True),
        ("function f() { let result = 0; result += 1; return result } f()", False),
        ("function f(result) { result = 1 } (result => { result = 2 })(1)", False),
        ("for (let result = 0; result < 2; result++) { result = 1 }", False),
        ("for (const result of a) { f(() => { result = 1 }) }", False),
        ("try {} catch (result) { result = 1 }", False),
        ("a.result = 1; result.x = 2; console.log(result)", False),
        ("'result = 1'", False),
    ],
)
def test_a_program_that_binds_result_is_recognized(code: str, binds: bool) -> None:
    """Seed: the result is the global `result` if the run binds it."""
    assert read_script(code).binds_result is binds


def test_result_need_not_be_declared(guest: Any) -> None:
    """Ours: models write `result = ...`, as in Python."""
    guest.run("result = 5; 7")
    assert guest.run("result") == 5


def test_the_value_is_that_of_the_last_expression(guest: Any) -> None:
    """Seed: an expression at the end is the result; declarations after it do not change it."""
    assert guest.run("1 + 1") == 2
    assert guest.run("3; const a = 1; class B {} enum E { A } type T = 1; function f() {}") == 3
    assert guest.run("result = 4") == 4


def test_a_variable_declared_without_a_value_is_undefined_again(guest: Any) -> None:
    """Bug: `let x` as `var x` would keep the value of an earlier program."""
    guest.run("let x = 1, y = 2")
    assert guest.run("let x: number\nlet y\n[typeof x, typeof y]") == ["undefined", "undefined"]


def test_functions_see_the_variables_of_later_programs(guest: Any) -> None:
    """Ours: top-level names form one scope for the whole session."""
    guest.run("const base = 1; function get(): number { return base }")
    assert guest.run("const base = 2; get()") == 2
