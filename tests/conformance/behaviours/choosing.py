"""How a session on `auto` moves from one engine to another, and access to the outside."""

from __future__ import annotations

from behaviours.behaviour import Behaviour, gives
from behaviours.stage import Stage

NEEDS_MORE = "class Base:\n    pass\nclass Derived(Base):\n    pass\n"


def _notes(stage: Stage) -> list[str]:
    return [item.message for item in stage.ended.diagnostics if item.severity == "info"]


def _moves_with_its_variables(stage: Stage) -> None:
    make, use = stage.texts
    stage.value(make)
    assert _notes(stage) == []
    assert stage.value(use) == [[1, 2], 4, True]
    assert any("CPython" in note for note in _notes(stage)), stage.ended.diagnostics


def _moves_once(stage: Stage) -> None:
    stage.value(stage.code)
    assert _notes(stage) != []
    for _ in range(2):
        stage.value(stage.code)
        assert _notes(stage) == []


def _not_after_a_call(stage: Stage) -> None:
    refused = stage.run(stage.code)
    assert refused.status != "ok"
    assert stage.done == [("add", 1, 1)]


def _elsewhere(stage: Stage) -> None:
    code, read = stage.texts
    here, there = stage.here(), stage.there()
    (asked,) = here.waits(code)
    assert there.box.approve(asked.approval_id).result == "paid 100 for A"
    assert there.value(read) == "Derived"


def _refused_or_absent(stage: Stage) -> None:
    ended = stage.run(stage.code)
    assert ended.error is not None, ended.result
    assert ended.error.code in ("RUNTIME_ERROR", "PERMISSION_DENIED", "UNKNOWN_TOOL", "UNSUPPORTED_FEATURE")
    assert stage.value("1 + 1") == 2


CHOOSING = [
    Behaviour(
        name="a session moves with its variables, functions and modules, and a diagnostic says so",
        check=_moves_with_its_variables,
        py=(
            "import math\nx = [1]\ndef f(n):\n    return n * 2\n",
            NEEDS_MORE + "x.append(2)\n[x, f(2), math.pi > 3]",
        ),
        unpromised=("monty", "cpython"),
    ),
    Behaviour(
        name="instances of the session's classes move with it",
        check=gives(7),
        py=("class A:\n    def __init__(self):\n        self.v = 7\na = A()", NEEDS_MORE + "a.v"),
        refused={"auto": "RUNTIME_ERROR"},
        unpromised=("monty", "cpython"),
    ),
    Behaviour(
        name="instances of library classes move with it",
        check=gives("2.5"),
        py=("import decimal\nd = decimal.Decimal('2.5')", NEEDS_MORE + "str(d)"),
        refused={"auto": "RUNTIME_ERROR"},
        unpromised=("monty", "cpython"),
    ),
    Behaviour(
        name="two names of one list share it after the move",
        check=gives([1, 2]),
        py=("x = [1]\ny = x", NEEDS_MORE + "x.append(2)\ny"),
        bugs={"auto": "each name gets its own copy of the list, without a diagnostic"},
        unpromised=("monty", "cpython"),
    ),
    Behaviour(name="a session moves once", check=_moves_once, py=NEEDS_MORE, unpromised=("monty", "cpython")),
    Behaviour(
        name="a run that has made a call does not move",
        check=_not_after_a_call,
        py="add(1)\nimport heapq",
        unpromised=("monty", "cpython"),
    ),
    Behaviour(
        name="a run that moved waits and resumes elsewhere",
        check=_elsewhere,
        py=(NEEDS_MORE + "d = Derived()\nrefund('A')", "type(d).__name__"),
        unpromised=("monty", "cpython"),
    ),
]

OUTSIDE = [
    Behaviour(
        name="files of the host cannot be read",
        check=_refused_or_absent,
        py="open('/etc/passwd').read()",
        ts="const text = require('fs').readFileSync('/etc/passwd')",
    ),
    Behaviour(
        name="the environment of the host cannot be read",
        check=_refused_or_absent,
        py="import os\nos.environ['PATH']",
        ts="process.env.PATH",
    ),
    Behaviour(
        name="the network cannot be reached",
        check=_refused_or_absent,
        py="import socket\nsocket.create_connection(('127.0.0.1', 80), 1)",
        ts="await fetch('http://127.0.0.1')",
    ),
    Behaviour(
        name="no process can be started",
        check=_refused_or_absent,
        py="import subprocess\nsubprocess.run(['id'])",
        ts="require('child_process').execSync('id')",
    ),
    Behaviour(
        name="a file may be written in a private directory and read again",
        check=gives("text"),
        py="import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write('text')\n    f.seek(0)\n"
        "    result = f.read()",
        ts="require('fs').writeFileSync('/tmp/x', 'text')",
        refused={"monty": "RUNTIME_ERROR", "quickjs": "UNKNOWN_TOOL"},
    ),
]
