"""Checks before a run, which execute nothing."""

from __future__ import annotations

from behaviours.behaviour import Behaviour, Check, sharing
from behaviours.stage import Stage


def finds(code: str, line: int | None = None, hint: str = "") -> Check:
    """Return a check that validating the last text finds this; the texts before it are run."""

    def check(stage: Stage) -> None:
        *before, last = stage.texts
        for text in before:
            stage.value(text)
        checked = stage.box.validate(last, session=stage.session)
        assert checked.status == "validation_error", checked
        found = [item for item in checked.diagnostics if item.code == code]
        assert found, checked.diagnostics
        assert hint in (found[0].hint or "")
        assert line is None or (found[0].span and found[0].span.line) == line
        assert stage.done == []

    return check


def _clean(stage: Stage) -> None:
    *before, last = stage.texts
    for text in before:
        stage.value(text)
    checked = stage.box.validate(last, session=stage.session)
    assert (checked.status, checked.error) == ("ok", None)
    assert "error" not in [item.severity for item in checked.diagnostics]


def _runs_nothing(stage: Stage) -> None:
    bind, code, read = stage.texts
    stage.value(bind)
    assert stage.box.validate(code, session=stage.session).status == "ok"
    assert (stage.value(read), stage.done) == (1, [])


def _makes_no_session(stage: Stage) -> None:
    name = stage.other()
    assert stage.box.validate(stage.code, session=name).status == "ok"
    assert name not in [info.meta.id for info in stage.box.sessions()]


def _finds_all(stage: Stage) -> None:
    checked = stage.box.validate(stage.code, session=stage.session)
    found = [
        (item.code, item.span.line) for item in checked.diagnostics if item.span and item.severity == "error"
    ]
    assert [line for _, line in found] == [2, 4], checked.diagnostics
    assert {code for code, _ in found} == {"UNKNOWN_TOOL"}


def _says_what_it_checked(stage: Stage) -> None:
    checked = stage.box.validate(stage.code, session=stage.session)
    refused = [item for item in checked.diagnostics if item.code == "TYPE_ERROR"]
    said = [item for item in checked.diagnostics if item.severity != "error" and "types" in item.message]
    assert refused or said, "a type error was neither found nor was it said that types are not looked at"


def _known_inputs(stage: Stage) -> None:
    assert stage.box.validate(stage.code, session=stage.session, inputs={"rows": [1]}).status == "ok"


VALIDATION = sharing(
    Behaviour(
        name="a check runs nothing: no call, no binding",
        check=_runs_nothing,
        py=("x = 1", "x = 2\nnote('ran')\nresult = x", "x"),
        ts=("let x = 1", "x = 2\nawait note('ran')\nresult = x", "x"),
    ),
    Behaviour(
        name="a check runs no decorator, default value or class body",
        check=_runs_nothing,
        py=(
            "x = 1",
            "def d(f):\n    note('ran')\n    return f\n@d\ndef f(a=note('ran')):\n    pass\n"
            "class A:\n    y = note('ran')",
            "x",
        ),
        ts=(
            "let x = 1",
            "class A { static y = note('ran'); static { note('ran') } }\nfunction f(a = note('ran')) {}",
            "x",
        ),
    ),
    Behaviour(
        name="a check creates no session",
        check=_makes_no_session,
        py="1 + 1",
        ts="1 + 1",
    ),
    Behaviour(
        name="a check finds a syntax error",
        check=finds("SYNTAX_ERROR", 2),
        py="note('ran')\ny = (",
        ts="await note('ran')\nconst y = (",
    ),
    Behaviour(
        name="a check finds a call to an unknown name and suggests a similar one",
        check=finds("UNKNOWN_TOOL", 2, "add_later"),
        py="x = 1\nadd_latr(1)",
        ts="const x = 1\nawait add_latr(1)",
    ),
    Behaviour(
        name="a check finds everything at once",
        check=_finds_all,
        py="x = 1\nadd_latr(1)\ny = 2\nnoot(2)",
        ts="const x = 1\nawait add_latr(1)\nconst y = 2\nawait noot(2)",
    ),
    Behaviour(
        name="a check finds arguments that a tool does not accept",
        check=finds("TYPE_ERROR", 2),
        py="x = 1\nadd(1, c=3)",
        ts="const x = 1\nawait add(1, 2, 3)",
    ),
    Behaviour(
        name="a check finds a feature that the engine lacks",
        check=finds("UNSUPPORTED_FEATURE", 1),
        py="class A(dict):\n    pass",
        ts="import fs from 'fs'",
        unpromised=("cpython", "auto"),
    ),
    Behaviour(
        name="a check finds type errors, or reports that it does not check types",
        check=_says_what_it_checked,
        py="x: int = 'text'",
        ts="const x: number = 'text'",
    ),
    Behaviour(
        name="a check knows the session's variables",
        check=_clean,
        py=("def double(n):\n    return 2 * n\nx = 1", "double(x)"),
        ts=("function double(n: number) { return 2 * n }\nconst x = 1", "double(x)"),
    ),
    Behaviour(
        name="a check knows every name that the code binds",
        check=_clean,
        py="def f():\n    return g()\ndef g():\n    return [h for h in [len]][0]('x')\nf()",
        ts="const f = () => g()\nfunction g() { return [(x: string) => x.length].map(h => h('x')) }\nf()",
    ),
    Behaviour(
        name="a check knows the inputs",
        check=_known_inputs,
        py="len(rows)",
        ts="rows.length",
    ),
)
