"""Code that cannot be parsed, or that uses unsupported features."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import CallerError, Code, EngineFailed, ErrorObject, ScriptRefused
from standfast.sandbox.typescript.script import read_script


def refusal(code: str) -> ScriptRefused:
    with pytest.raises(ScriptRefused) as caught:
        read_script(code)
    return caught.value


def problems(code: str) -> list[ErrorObject]:
    """Return the problems reported for the code."""
    try:
        read_script(code).position(1, 7)
    except ScriptRefused as refused:
        return list(refused.problems)
    return []


@pytest.mark.parametrize(
    ("code", "place", "message"),
    [
        ("let q = (;", (1, 9), "'(' is never closed"),
        ("const x = 1;\nconst y = (2 + 3;\nconst z = 4;", (2, 11), "'(' is never closed"),
        ("x = {", (1, 5), "'{' is never closed"),
        ("f(1))", (1, 5), "unexpected ')'"),
        ("class A { foo( }", (1, 16), "unexpected '}'"),
        ("let 1a = 3", (1, 6), "unexpected 'a'"),
        ("const = 5", (1, 7), "unexpected '='"),
        ("const x = 5 6", (1, 13), "unexpected '6'"),
        ("const o = {\n a: 1\n b: 2\n};", (3, 2), "unexpected 'b'"),
        ("x = 1 +", (1, 8), "the code ends in the middle of a statement"),
        ("x = 1;\nlet s = 'abc", (2, 9), "the string is never closed"),
        ("let s = `abc", (1, 9), "the string is never closed"),
        ("/* abc", (1, 1), "the comment is never closed"),
        ("let ä = '€𝒳'; x = = 3", (1, 19), "unexpected '='"),
        ("for (const x of) {}", (1, 16), "an expression is missing"),
        ("let x = 1;\nreturn x", (2, 1), "return outside of a function"),
        ("x = 'a\ud800'", (1, 7), "the code holds half of a surrogate pair"),
        ("a\n b\0c", (2, 3), "the code holds a NUL character"),
        ("x as any(y)", (1, 1), "it is not clear where the type of this cast ends"),
    ],
)
def test_a_syntax_error_is_reported_with_its_position(
    code: str, place: tuple[int, int], message: str
) -> None:
    """Seed: the line and the column are those of the TypeScript, and lines and characters count from 1."""
    (found,) = refusal(code).problems
    assert (found.code, found.message) == (Code.SYNTAX_ERROR, message)
    assert found.span is not None
    assert (found.span.line, found.span.column) == place


def test_python_code_is_recognized_and_reported() -> None:
    """Ours: the error tells a model that mixes up the languages which one the session has."""
    assert refusal("def f(x):\n  return x").hint == "the code is parsed as TypeScript"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import x from 'y'", "there are no modules here: nothing can be imported"),
        ("import 'y'", "there are no modules here: nothing can be imported"),
        ("import { type A, b } from 'y'", "there are no modules here: nothing can be imported"),
        ("import x = require('y')", "there are no modules here: nothing can be imported"),
        ("const y = await import('y')", "there are no modules here: nothing can be imported"),
        ("export * from 'y'", "there are no modules here: nothing can be imported"),
        ("export = x", "this form of export is not supported"),
        ("@d class A {}", "decorators are not supported"),
        ("class A { @d() m() {} }", "decorators are not supported"),
        ("class A { accessor x = 1 }", "accessor fields are not supported"),
        ("const a = <div>x</div>", "JSX is not supported"),
        ("namespace A.B { export const x = 1 }", "a namespace with a dotted name is not supported"),
        ("namespace A { export const x = 1 } namespace A { export const y = 1 }",
         "declaring A in several parts is not supported"),
        ("using x = f()", "`using` is not supported at the top level"),
    ],
)  # fmt: skip
def test_unsupported_features_are_refused_with_a_hint(code: str, message: str) -> None:
    """Seed: an unsupported feature is reported before anything runs, with what to do instead."""
    refused = refusal(code)
    assert isinstance(refused, CallerError)
    assert (refused.code, refused.message) == (Code.UNSUPPORTED_FEATURE, message)
    assert refused.hint


def test_all_unsupported_features_are_reported_together() -> None:
    """Ours: one repair can fix all of them."""
    found = refusal("import a from 'a'\nconst b = 1\n@c class D {}").problems
    assert [item.span.line for item in found if item.span] == [1, 3]


N = 20_000
DEEP = {
    "parentheses": "(" * N + "1" + ")" * N,
    "open parentheses": "(" * N,
    "open braces": "{" * N,
    "objects": "x=" + "{a:" * N + "1" + "}" * N,
    "generics": "let x: " + "A<" * 2000 + "B" + ">" * 2000,
    "arrows": "x=>" * N + "1",
    "ternaries": "a?" * N + "1" + ":2" * N,
    "sums": "1+" * N + "1",
    "members": "a" + ".b" * N,
    "calls": "f" + "()" * N,
    "casts": "x" + " as any" * N,
    "templates": "`${" * N + "1" + "}`" * N,
    "open templates": "`${" * N,
    "long string": '"' + "a" * 250_000,
    "long comment": "/*" + "a" * 250_000,
    "statements": "const a: number = b.c.d;\n" * 10_000,
    "blocks": "{let a: number = 1;" * N + "}" * N,
    "classes": "class A { m() {" * N + "}}" * N,
    "enums": "enum E { A }\n" * 5000,
    "patterns": "let " + "{a:" * N + "b" + "}" * N,
    "comparisons": "a<b,c<d," * N,
    "angles": "f<" * N,
    "junk": "@#$%^&*" * N,
    "quotes": '"' * N,
    "cases": "case 1: " * N,
    "python": "def f():\n  pass\n" * N,
    "decorators": "@d " * N + "class A {}",
    "namespaces": "namespace A { export const x = 1;" * 5000 + "}" * 5000,
    "line breaks": "\n" * 250_000,
    "casts of many parts": "x as a.b.c " * N,
    "spaces": "as" + " " * 250_000,
}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", DEEP)
def test_no_code_breaks_the_reader_or_keeps_it_busy(name: str) -> None:
    """Bug: the parser's error recovery takes quadratic time and memory."""
    began = time.process_time()
    assert len(problems(DEEP[name])) <= 20
    assert time.process_time() - began < 5


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.text(max_size=60) | st.text("(){}[]<>`'\"/*${}=>:;,.!?@# \n\rab1\\", max_size=80))
def test_reading_raises_nothing_but_a_refusal(code: str) -> None:
    """Ours: code comes from a model and may be anything."""
    assert all(item.code and item.span for item in problems(code))


def test_the_error_names_the_extra_if_its_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: the parser is an optional extra."""
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    found: list[BaseException] = []
    thread = threading.Thread(target=lambda: found.append(caught(lambda: read_script("fresh = 'code'"))))
    thread.start()
    thread.join()
    (error,) = found
    assert isinstance(error, EngineFailed)
    assert error.hint is not None
    assert "standfast[typescript]" in error.hint


def test_many_threads_can_read_concurrently() -> None:
    """Bug: a parser that requests its text piece by piece must not be used by two threads."""
    codes = [f"const a{n}: number = {n};\n" * 300 for n in range(24)]
    with ThreadPoolExecutor(8) as pool:
        scripts = list(pool.map(read_script, codes))
    assert [script.bound for script in scripts] == [frozenset({f"a{n}"}) for n in range(24)]


def caught(do: Callable[[], object]) -> BaseException:
    with pytest.raises(EngineFailed) as raised:
        do()
    return raised.value
