"""Faults that a check finds in a TypeScript program before it runs, and code that must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast.errors import Code
from standfast.model.code import Diagnostic, Severity
from standfast.sandbox.typescript.checks import check_script, touched_names

Found = Callable[..., list[Diagnostic]]
INPUTS = ("data", "history")


@pytest.fixture
def found(functions: Any) -> Found:
    def look(code: str, *, bound: tuple[str, ...] = ()) -> list[Diagnostic]:
        return check_script(code, bound=bound, functions=functions, inputs=INPUTS)

    return look


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("add()", "add() is missing a"),
        ("add({})", "add() is missing a"),
        ("add({ b: 2 })", "add() is missing a"),
        ("add(1, 2, 3)", "add() takes 2 arguments, 3 were given"),
        ("put({}, 1)", "put() takes 1 argument, 2 were given"),
        ("add({ a: 1, c: 2 })", "add() has no parameter c"),
        ("add('1')", "add(): a is '1', not integer"),
        ("add({ a: '1' })", "add(): a is '1', not integer"),
        ("add(`${data}`)", "add(): a is `${data}`, not integer"),
        ("add(1.5)", "add(): a is 1.5, not integer"),
        ("add(true)", "add(): a is true, not integer"),
        ("add(null as any)", "add(): a is null, not integer"),
        ("add([1])", "add(): a is [1], not integer"),
        ("const x = 1;\nif (x) {\n  console.log(await add({ a: {} }))\n}", "add(): a is {}, not integer"),
        ("order({ name: 'x' }, [], 'now')", 'order(): how is \'now\', not one of "fast", "slow"'),
        ("order({ item: { name: 5 } })", 'order(): item at ["name"] is 5, not string'),
        ("order({ count: 5 })", 'order(): item is missing "name"'),
        ("order({ item: { name: 'x' }, hw: 'slow' })", "order() has no parameter hw"),
        ("order('x')", "order(): item is 'x', not object"),
        ("order({ name: 'x' }, [1])", "order(): tags is [1], which fits none of its types"),
        ("book('2026-01-01', 1, 'half')", "book(): ratio is 'half', not number"),
        ("put({ a: 'x' })", "put(): values at [\"a\"] is 'x', not integer"),
        ("put({ values: { a: 'x' } })", "put(): values at [\"a\"] is 'x', not integer"),
        ("search(5)", "search(): query is 5, not string"),
        ("search('q', '5')", "search(): limit is '5', not integer or null"),
        ("search('q', null, 3)", "search(): filter is 3, not object"),
    ],
)
def test_arguments_that_a_function_does_not_accept_are_found(found: Found, code: str, message: str) -> None:
    """Seed: a wrong call is reported before the code has done anything."""
    (item,) = found(code)
    assert (item.code, item.message, item.severity) == (Code.TYPE_ERROR, message, Severity.ERROR)
    assert item.span is not None
    assert item.span.line == (3 if "\n" in code else 1)


def test_the_hint_shows_the_signature(found: Found) -> None:
    """Ours: the model can correct the call without asking."""
    (item,) = found("add({ a: 1, c: 2 })")
    assert item.hint == "add(args: { a: number; b?: number }): Promise<number>"


def test_an_unknown_function_is_found_with_a_suggestion(found: Found) -> None:
    """Seed: an unknown tool is reported with the name that was probably meant."""
    (item,) = found("const x = 'ä𝒳'; await serch('a')")
    assert (item.code, item.hint) == (Code.UNKNOWN_TOOL, "did you mean search?")
    assert item.message == "serch() is neither defined nor a function that can be called"
    assert item.span is not None
    assert (item.span.line, item.span.column, item.span.end_column) == (1, 23, 28)


def test_globals_of_other_runtimes_are_explained(found: Found) -> None:
    """Ours: models write `fetch` and `require` by habit."""
    fetch, require = found("await fetch('x');\nconst fs = require('fs')")
    assert (fetch.code, require.code) == (Code.UNKNOWN_TOOL, Code.UNSUPPORTED_FEATURE)
    assert fetch.hint is not None
    assert "no network" in fetch.hint


def test_a_check_knows_the_names_of_the_session(found: Found) -> None:
    """Ours: functions of earlier programs can be called, even if they shadow a tool."""
    assert found("mine(1)\nadd('a', 'b', 'c')", bound=("mine", "add")) == []
    assert [item.code for item in found("mine(1)")] == [Code.UNKNOWN_TOOL]


@pytest.mark.parametrize(
    "code",
    [
        "data = 1",
        "data += 'x'",
        "data++",
        "const data = 1",
        "let data: string",
        "for (data of [1]) {}",
        "for (var data of [1]) {}",
        "function data() {}",
        "class data {}",
        "enum data { A }",
        "const [a, { b: data }] = x",
        "[a, data] = x",
        "function f() { data = 1 }",
        "if (x) { while (y) { data = 2 } }",
        "if (x) { var data = 1 }",
    ],
)
def test_assigning_to_an_input_is_found(found: Found, code: str) -> None:
    """Ours: inputs are read-only, because they are not part of the state."""
    assert [(item.code, item.message) for item in found(code)] == [
        (Code.TYPE_ERROR, "data is an input and read-only; bind another name")
    ]


@pytest.mark.parametrize(
    "code",
    [
        "const n = add({ a: 1 }).x",
        "`${add(1)}`",
        "for (const x of search('q')) {}",
        "add(1) + 1",
        "[...search('q')]",
        "search('q')[0]",
        "if (add(1) > 2) {}",
    ],
)
def test_using_a_promise_as_its_value_is_a_warning(found: Found, code: str) -> None:
    """Ours: every call returns a promise, and a missing `await` is the most common mistake."""
    (item,) = found(code)
    assert (item.severity, item.code) == (Severity.WARNING, Code.TYPE_ERROR)
    assert "returns a promise" in item.message


@pytest.mark.parametrize("code", ["[1].map(x => await add({ a: x }))", "function f() { await add(1) } f()"])
def test_await_needs_an_async_function(found: Found, code: str) -> None:
    """Ours: the engine only reports an unexpected token."""
    (item,) = found(code)
    assert (item.code, item.message) == (Code.SYNTAX_ERROR, "await in a function that is not async")


def test_mistakes_are_reported_in_line_order(found: Found) -> None:
    """Ours: one check finds all mistakes."""
    items = found("add('1')\ndata = 1\nserch(1)\nadd(1).x")
    assert [item.span.line for item in items if item.span] == [1, 2, 3, 4]


def test_syntax_is_checked_first(found: Found) -> None:
    """Seed: for code that cannot be parsed, only the syntax error is reported."""
    assert [item.code for item in found("add('1'\nimport x from 'y'")] == [Code.SYNTAX_ERROR]
    assert [item.code for item in found("x = '\ud800'")] == [Code.SYNTAX_ERROR]
    assert [item.code for item in found("import x from 'y'")] == [Code.UNSUPPORTED_FEATURE]


@pytest.mark.parametrize(
    "code",
    [
        "await add(1); await add(1, 2); await add({ a: 1 }); await add({ a: 1, b: 2 }); add(...[1, 2])",
        "add(data); add(data.length); add(-1); add(5.0); add(data ? 1 : '2'); add({ ...data }); "
        "add({ a: data })",
        "order({ name: 'x', count: 2 }, ['a'], 'fast'); order({ item: { name: data } }); "
        "order({ [data]: 1 })",
        "book('2026-01-01', '1.5'); book({ day: '2026-01-01', price: 1.5, ratio: 1, note: null })",
        "put({}); put({ a: 1 }); put({ values: {} }); put({ values: { [data]: 'x' } }); put({ data })",
        "search('q', null); search({ query: 'q', filter: { n: '5' } }); "
        "search({ query: '\\u0041', limit: 3 as any })",
        "listed(1, 'a', null); listed(); listed(...data); listed({ any: 'thing' })",
        "function f(add: any) { return add('x', 1, 2, 3) } f(console.log)",
        "const add = String; add('x', 'y')",
        "[1].map(data => data); ((data) => { data = 1 })(2); "
        "for (const data of []) {} { let history = 1; history = 2 }",
        "data.x = 1; history[0].push(2); delete data.y",
        "try { maybe() } catch (e) { if (e instanceof ReferenceError) {} }",
        "globalThis.helper = () => 1; helper()",
        "for (const f of [String]) f('x'); const { g, h: [i] } = data; g(); i()",
        "try {} catch (error) { error() }",
        "class A extends Object { constructor() { super(); this.m() } m() {} }",
        "data.get('x')(); data['f'](); (() => 1)(); history.method(1); new Foo(1); data.bar?.()",
        "declare function q(): void; q()",
        "add({ a: 1 }).then(x => x).catch(() => 0); await Promise.all([add({ a: 1 })]); "
        "const p = add(1); (await p).x",
        "async function f() { for await (const x of search('q')) {} } const g = async x => await add(x)",
        "function* gen() { yield 1 } for (const x of gen()) {} [...gen()]",
        "parseInt('1'); setTimeout(() => {}, 1); String(1); Array(3); structuredClone({}); isNaN(1)",
        "let x; ({ x } = data); x(); var q = function me() { me() }; const { a = () => 1 } = {}; a()",
        "function outer() { function inner() {} inner() } outer(); outer2(); function outer2() {}",
        "interface I { serch(x: string): void } type T = typeof serch; const o = { serch() {} }; o.serch()",
        "if (await add(1)) {} const y = add(1) || 2; const z = add(1) && 3; const w = add(1) ?? 4; !add(1)",
        "",
        "// nothing",
    ],
)
def test_code_that_may_be_correct_is_accepted(found: Found, code: str) -> None:
    """Ours: a false alarm costs a model call, a missed fault costs nothing extra."""
    assert found(code) == []


def test_touched_names_are_the_names_that_code_reads() -> None:
    """Ours: only values that the code reads are loaded."""
    names = ("data", "history", "files", "other", "inputs")
    code = "a = data['x'] + data.y; history[0]; files['a'].b; files.get('c'); other = 1; `${inputs['q']}`"
    assert touched_names(code, names) == {
        "data": frozenset({"x", "y"}),
        "history": None,
        "files": None,
        "inputs": frozenset({"q"}),
    }


@pytest.mark.parametrize(
    ("code", "touched"),
    [
        ("data['x'] = 1", {"data": None}),
        ("data[", {}),
        ("const { a, b: c } = data", {"data": frozenset({"a", "b"})}),
        ("const { a, ...rest } = data", {"data": None}),
        ("const { a: { b } } = data", {"data": None}),
        ("data.length", {"data": None}),
        ("data.map(x => x)", {"data": None}),
        ("f({ data })", {"data": None}),
        ("data?.x", {"data": frozenset({"x"})}),
        ("data!.x as string", {"data": None}),
        ("function f(data) { return 1 } const g = data => 2; o.data; ({ data: 1 })", {}),
        ("let x: data.Type; type data = 1; 'data'; // data", {}),
        ("data = 5", {}),
        ("data += 5", {"data": None}),
        ("x = '\ud800'", {}),
    ],
)
def test_a_name_is_touched_only_where_it_is_read(code: str, touched: dict[str, Any]) -> None:
    """Ours: a constant key is loaded alone if nothing else of the value is read."""
    assert touched_names(code, ("data",)) == touched
