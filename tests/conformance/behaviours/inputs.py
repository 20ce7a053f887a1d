"""Values that are passed to a run."""

from __future__ import annotations

from typing import Any

from behaviours.behaviour import Behaviour, fails, gives, sharing
from behaviours.stage import Stage

LARGE = "x" * (4 << 20)
EXACT = {"f": 0.1, "g": 1e300, "m": -(2**53) + 1, "s": "é\0😀", "n": None, "t": True, "e": []}


def _gone_after_the_run(stage: Stage) -> None:
    assert stage.value(stage.texts[0], inputs={"a": 1, "b": {"c": [2]}}) == 3
    for name in ("a", "b"):
        assert stage.fails(name) == "RUNTIME_ERROR"


def _by_value(stage: Stage) -> None:
    given: dict[str, Any] = {"items": [1], "table": {"k": [1]}}
    assert stage.value(stage.code, inputs=given) == [1, 2]
    assert given == {"items": [1], "table": {"k": [1]}}
    assert stage.value(stage.code, inputs=given) == [1, 2]


def _hides_for_a_run(stage: Stage) -> None:
    bind, read = stage.texts
    stage.value(bind)
    assert stage.value(read, inputs={"x": "given"}) == "given"
    assert stage.value(read) == "mine"


def _comes_back_after_an_error(stage: Stage) -> None:
    bind, failing, read = stage.texts
    stage.value(bind)
    assert stage.fails(failing, inputs={"x": 1, "y": 2}) == "RUNTIME_ERROR"
    assert stage.value(read) == "mine"
    assert stage.fails("y") == "RUNTIME_ERROR"


def _hides_a_tool(stage: Stage) -> None:
    first, second = stage.texts
    assert stage.value(first, inputs={"add": 5}) == [5]
    assert stage.value(second) == 2


def _not_json(stage: Stage) -> None:
    for bad in (float("nan"), b"x", {1}, object()):
        assert stage.fails(stage.code, inputs={"x": bad}) == "INVALID_ARGUMENT"


def _copied_values_persist(stage: Stage) -> None:
    keep, read = stage.texts
    stage.value(keep, inputs={"x": {"a": [1]}})
    assert stage.value(read) == [1]


INPUTS = sharing(
    Behaviour(
        name="inputs are variables of this run alone",
        check=_gone_after_the_run,
        py="a + b['c'][0]",
        ts="a + b.c[0]",
    ),
    Behaviour(
        name="inputs are given by value",
        check=_by_value,
        py="items.append(2)\ntable['k'].append(2)\nitems",
        ts="items.push(2)\ntable.k.push(2)\nitems",
    ),
    Behaviour(
        name="a variable that an input hides comes back",
        check=_hides_for_a_run,
        py=("x = 'mine'", "x"),
        ts=("const x = 'mine'", "x"),
    ),
    Behaviour(
        name="a hidden variable comes back after an exception too",
        check=_comes_back_after_an_error,
        py=("x = 'mine'", "1 / 0", "x"),
        ts=("const x = 'mine'", "(null as any).f()", "x"),
    ),
    Behaviour(
        name="an input may have the name of a tool",
        check=_hides_a_tool,
        py=("[add]", "add(1)"),
        ts=("[add]", "await add(1)"),
    ),
    Behaviour(
        name="values that a run copies from an input persist",
        check=_copied_values_persist,
        py=("kept = x['a']", "kept"),
        ts=("const kept = x.a", "kept"),
    ),
    Behaviour(
        name="code may assign to the name of an input",
        check=gives(2, inputs={"x": 1}),
        py="x = x + 1\nx",
        ts="x = x + 1\nx",
        refused={"quickjs": "RUNTIME_ERROR"},
    ),
    Behaviour(
        name="values arrive exactly",
        check=gives(list(EXACT.values()), inputs=EXACT),
        py="[f, g, m, s, n, t, e]",
        ts="[f, g, m, s, n, t, e]",
    ),
    Behaviour(
        name="integers of any size arrive exactly",
        check=gives(True, inputs={"n": 2**60 + 1, "text": str(2**60 + 1)}),
        py="str(n) == text",
        ts="String(n) === text",
        bugs={"quickjs": "integers above `2**53` are silently rounded, both in inputs and in tool results"},
    ),
    Behaviour(
        name="an input may be several megabytes",
        check=gives(4 << 20, inputs={"text": LARGE}),
        py="len(text)",
        ts="text.length",
    ),
    Behaviour(
        name="an input that is not JSON is refused",
        check=_not_json,
        py="1",
        ts="1",
    ),
    Behaviour(
        name="an input must have a name that code can read",
        check=fails("INVALID_ARGUMENT", "validation_error", options={"inputs": {"class": 1}}),
        py="1",
        ts="1",
    ),
)
