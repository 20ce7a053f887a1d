"""What a run reports as its result."""

from __future__ import annotations

from behaviours.behaviour import Behaviour, fails, gives, sharing
from behaviours.stage import Stage

NOT_JSON = "RESULT_NOT_SERIALIZABLE"


def _the_session_stays_usable(stage: Stage) -> None:
    first, last = stage.texts
    assert stage.fails(first) == NOT_JSON
    assert stage.value(last) == 5


RESULTS = sharing(
    Behaviour(
        name="the last expression is the result",
        check=gives(21),
        py="x = 20\nx + 1",
        ts="const x: number = 20\nx + 1",
    ),
    Behaviour(
        name="`result` is the result if the run binds it",
        check=gives(3),
        py="result = 3\n99",
        ts="result = 3\n99",
    ),
    Behaviour(
        name="`result` may be bound in a branch or a loop",
        check=gives(2),
        py="for i in range(5):\n    if i == 2:\n        result = i",
        ts="for (let i = 0; i < 5; i++) {\n  if (i === 2) result = i\n}",
    ),
    Behaviour(
        name="`result` bound to null is null, whatever the last expression is",
        check=gives(None),
        py="result = None\n5",
        ts="result = null\n5",
    ),
    Behaviour(
        name="`result` of an earlier run is not reported again",
        check=gives(None),
        py=("result = 41", "x = 1"),
        ts=("result = 41", "const x = 1"),
    ),
    Behaviour(
        name="`result` can be read in a later run",
        check=gives(42),
        py=("result = 41", "result + 1"),
        ts=("result = 41", "result + 1"),
    ),
    Behaviour(
        name="code may begin with a byte order mark",
        check=gives(3),
        py="\ufeffx = 3\nx",
        ts="\ufeffconst x = 3\nx",
    ),
    Behaviour(
        name="code that begins with a byte order mark and is one expression has its value",
        check=gives(1),
        py="\ufeff1",
        ts="\ufeff1",
    ),
    Behaviour(
        name="code that ends with a statement gives null",
        check=gives(None),
        py="x = 5",
        ts="const x = 5",
    ),
    Behaviour(
        name="code without a statement gives null",
        check=gives(None),
        py=("", "# only a comment"),
        ts=("", "// only a comment"),
    ),
    Behaviour(
        name="nested values arrive unchanged",
        check=gives({"a": [1, {"b": None}], "c": True, "d": "é😀\0", "e": 0.1, "f": {}}),
        py="{'a': [1, {'b': None}], 'c': True, 'd': 'é😀\\0', 'e': 0.1, 'f': {}}",
        ts="({a: [1, {b: null}], c: true, d: 'é😀\\0', e: 0.1, f: {}})",
    ),
    Behaviour(
        name="text that looks like the text of a function is text",
        check=gives("<function f at 0x7f>"),
        py="'<function f at 0x7f>'",
        ts="'<function f at 0x7f>'",
    ),
    Behaviour(
        name="tuples are lists and integer keys are text",
        check=gives([1, {"2": "two"}]),
        py="(1, {2: 'two'})",
    ),
    Behaviour(
        name="undefined becomes null, and is omitted from objects",
        check=gives([None, {"b": 1}]),
        ts="[undefined, {a: undefined, b: 1}]",
    ),
    Behaviour(
        name="a promise at the end is awaited",
        check=gives(5),
        ts="Promise.resolve(5)",
    ),
    Behaviour(
        name="a date becomes its JSON text",
        check=gives("1970-01-01T00:00:00.000Z"),
        ts="new Date(0)",
    ),
    Behaviour(
        name="an integer of any size is a valid result",
        check=gives(10**30),
        py="10 ** 30",
        ts="10n ** 30n",
        refused={"quickjs": NOT_JSON},
    ),
    Behaviour(
        name="a function is not a valid result",
        check=fails(NOT_JSON, "validation_error", hint="function"),
        py="def f():\n    pass\nf",
        ts="function f() {}\nf",
    ),
    Behaviour(
        name="a set or a map is not a valid result",
        check=fails(NOT_JSON, hint="s"),
        py="{1, 2}",
        ts="new Set([1, 2])",
    ),
    Behaviour(
        name="an instance of a class is not a valid result, and the hint names the class",
        check=fails(NOT_JSON, hint="Point"),
        py="class Point:\n    pass\n[Point()]",
        ts="class Point { x = 1 }\n[new Point()]",
    ),
    Behaviour(
        name="NaN is not a valid result",
        check=fails(NOT_JSON),
        py="[1, float('nan')]",
        ts="[1, NaN]",
    ),
    Behaviour(
        name="an integer of more than 4300 digits is not a valid result, and the hint says so",
        check=fails(NOT_JSON, hint="int of more than 4300 digits"),
        py="[10 ** 5000]",
    ),
    Behaviour(
        name="a value that contains itself is not a valid result",
        check=fails(NOT_JSON),
        py="x = []\nx.append(x)\nx",
        ts="const x: any[] = []\nx.push(x)\nx",
    ),
    Behaviour(
        name="bytes are not a valid result",
        check=fails(NOT_JSON),
        py="b'x'",
        ts="new Uint8Array([1])",
    ),
    Behaviour(
        name="the session stays usable after a result that is not JSON",
        check=_the_session_stays_usable,
        py=("x = 5\n{x}", "x"),
        ts=("const x = 5\nnew Set([x])", "x"),
    ),
    Behaviour(
        name="a result above 16 MiB is rejected",
        check=fails("RESPONSE_TOO_LARGE", "resource_exhausted", options={"limits": {"memory_mb": 256}}),
        py="text = 'a' * (9 << 20)\n[text, text]",
        ts="const text = 'a'.repeat(9 << 20)\n;[text, text]",
        slow=True,
    ),
)
