"""State that a session keeps between runs."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, gives
from behaviours.stage import Stage


def _sessions_are_apart(stage: Stage) -> None:
    bind, read = stage.texts
    stage.value(bind)
    assert stage.fails(read, session=stage.other()) == "RUNTIME_ERROR"


def _an_exception_keeps_bindings(stage: Stage) -> None:
    failing, read, unbound = stage.texts
    failed = stage.run(failing)
    assert (failed.status, failed.error and failed.error.code) == ("runtime_error", "RUNTIME_ERROR")
    assert "SESSION_ROLLED_BACK" not in [item.code for item in failed.diagnostics]
    assert stage.value(read) == [1, [1]]
    assert stage.fails(unbound) == "RUNTIME_ERROR"


def _a_hard_stop_rolls_back(stage: Stage) -> None:
    bind, endless, read, unbound = stage.texts
    stage.value(bind)
    stopped = stage.run(endless, limits={"cpu_ms": 80})
    assert (stopped.status, stopped.error and stopped.error.code) == ("timeout", "TIMEOUT_CPU")
    assert [item.code for item in stopped.diagnostics] == ["TIMEOUT_CPU", "SESSION_ROLLED_BACK"]
    assert stage.value(read) == [1, [1]]
    assert stage.fails(unbound) == "RUNTIME_ERROR"


def _refused_code_changes_nothing(stage: Stage) -> None:
    bind, wrong, read = stage.texts
    stage.value(bind)
    assert stage.run(wrong).status == "validation_error"
    assert stage.value(read) == 1


def _reset_forgets(stage: Stage) -> None:
    bind, read = stage.texts
    stage.value(bind)
    stage.box.reset(stage.session)
    assert stage.fails(read) == "RUNTIME_ERROR"


def _another_language_is_refused(stage: Stage) -> None:
    stage.value(stage.code)
    other = "typescript" if stage.language == "python" else "python"
    assert stage.fails("1", language=other) == "INVALID_ARGUMENT"
    assert stage.value(stage.code) == 2


COUNTER_PY = """
def counter():
    n = 0
    def up():
        nonlocal n
        n += 1
        return n
    return up
up = counter()
up()
"""
COUNTER_TS = """
function counter() {
  let n = 0
  return () => ++n
}
const up = counter()
up()
"""

STATE = [
    Behaviour(
        name="variables persist, with changes made to their values",
        check=gives([1, 2]),
        py=("x = [1]", "x.append(2)", "x"),
        ts=("const x = [1]", "x.push(2)", "x"),
    ),
    Behaviour(
        name="functions persist and see later values of variables",
        check=gives(20),
        py=("n = 1\ndef f(m):\n    return n * m", "n = 2", "f(10)"),
        ts=("let n = 1\nfunction f(m: number) { return n * m }", "n = 2", "f(10)"),
    ),
    Behaviour(
        name="classes and their objects persist",
        check=gives([8, 7]),
        py=(
            "class A:\n    def __init__(self):\n        self.v = 7\n    def up(self):\n        self.v += 1\na = A()",
            "a.up()",
            "[a.v, A().v]",
        ),
        ts=("class A { v = 7; up() { this.v += 1 } }\nconst a = new A()", "a.up()", "[a.v, new A().v]"),
    ),
    Behaviour(
        name="a closure persists with what it encloses",
        check=gives(2),
        py=(COUNTER_PY, "up()"),
        ts=(COUNTER_TS, "up()"),
    ),
    Behaviour(
        name="an imported module persists",
        check=gives(2),
        py=("import math", "math.floor(2.5)"),
    ),
    Behaviour(
        name="names can be declared again in a later run",
        check=gives([2, 3, 4, 5]),
        py=(
            "x = 1\nclass A:\n    v = 1\ny = 1\ndef f():\n    return 1",
            "x = 2\nclass A:\n    v = 3\ny = 4\ndef f():\n    return 5",
            "[x, A.v, y, f()]",
        ),
        ts=(
            "const x = 1\nclass A { v = 1 }\nlet y = 1\nfunction f() { return 1 }",
            "const x = 2\nclass A { v = 3 }\nlet y = 4\nconst f = () => 5",
            "[x, new A().v, y, f()]",
        ),
    ),
    Behaviour(
        name="an instance keeps its class after the class is declared again",
        check=gives([1, 2]),
        py=(
            "class A:\n    def v(self):\n        return 1\na = A()",
            "class A:\n    def v(self):\n        return 2",
            "[a.v(), A().v()]",
        ),
        ts=(
            "class A { v() { return 1 } }\nconst a = new A()",
            "class A { v() { return 2 } }",
            "[a.v(), new A().v()]",
        ),
    ),
    Behaviour(
        name="two names of one list keep sharing it",
        check=gives([1, 2]),
        py=("a = [1]\nb = a", "a.append(2)", "b"),
        ts=("const a = [1]\nconst b = a", "a.push(2)", "b"),
    ),
    Behaviour(
        name="a running generator persists",
        check=gives([0, 1, 2]),
        py=(
            "def g():\n    yield from range(9)\nit = g()\nx = [next(it)]",
            "x.append(next(it))",
            "x + [next(it)]",
        ),
        ts=(
            "function* g() { for (let i = 0; i < 9; i++) yield i }\nconst it = g()\nconst x = [it.next().value]",
            "x.push(it.next().value)",
            "[...x, it.next().value]",
        ),
        refused={"monty": "UNSUPPORTED_FEATURE", "cpython": "RUNTIME_ERROR", "auto": "RUNTIME_ERROR"},
    ),
    Behaviour(
        name="sessions do not see each other",
        check=_sessions_are_apart,
        py=("x = 1", "x"),
        ts=("const x = 1", "x"),
    ),
    Behaviour(
        name="an exception keeps the bindings made before it",
        check=_an_exception_keeps_bindings,
        py=("x = 1\ny = [x]\n1 / 0\nz = 2", "[x, y]", "z + 1"),
        ts=("let x = 1\nconst y = [x]\n;(null as any).f()\nlet z = 2", "[x, y]", "z.length"),
    ),
    Behaviour(
        name="a hard stop rolls the session back and reports it",
        check=_a_hard_stop_rolls_back,
        py=("x = 1\ny = [1]", "x = 2\ny.append(2)\nw = 3\nwhile True:\n    pass", "[x, y]", "w"),
        ts=("let x = 1\nconst y = [1]", "x = 2\ny.push(2)\nlet w = 3\nwhile (true) {}", "[x, y]", "w"),
    ),
    Behaviour(
        name="rejected code changes nothing",
        check=_refused_code_changes_nothing,
        py=("x = 1", "x = 2\nx = (", "x"),
        ts=("let x = 1", "x = 2\nx = (", "x"),
    ),
    Behaviour(
        name="a session can be reset",
        check=_reset_forgets,
        py=("x = 1", "x"),
        ts=("const x = 1", "x"),
    ),
    Behaviour(
        name="a session keeps its language",
        check=_another_language_is_refused,
        py="1 + 1",
        ts="1 + 1",
    ),
]
