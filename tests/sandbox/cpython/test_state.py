"""The state that a session keeps from run to run, in the same process or in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from standfast.errors import Code, SnapshotRefused
from standfast.ports.code_engine import CellEnd, CellRequest
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.cpython.state import decode_state, encode_state

pytestmark = pytest.mark.slow

Request = Callable[..., CellRequest]
Run = Callable[..., CellEnd]


@pytest.fixture
def run(engine: CPythonCells, request_of: Request) -> Run:
    def start(code: str, **options: Any) -> CellEnd:
        end = engine.open(request_of(code, **options)).start()
        assert isinstance(end, CellEnd)
        return end

    return start


@pytest.fixture
def warm_and_cold(
    engine: CPythonCells, other: CPythonCells, request_of: Request
) -> Callable[[str, str], Any]:
    """Return a function that runs code in the same process and in another and returns the common result."""

    def both(first: str, second: str) -> Any:
        before = engine.open(request_of(first, key="pair")).start()
        assert isinstance(before, CellEnd)
        assert before.error is None, before.error
        ends = [
            cells.open(request_of(second, key="pair", state=before.state)).start()
            for cells in (engine, other)
        ]
        told = [(end.result, end.error and end.error.message) for end in ends if isinstance(end, CellEnd)]
        assert told[0] == told[1]
        assert told[0][1] is None, told
        return told[0][0]

    return both


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("x = [1]\ny = x", "y.append(2)\nx", [1, 2]),
        ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)", "f(10)", 55),
        ("base = 1\ndef f(): return base", "base = 7\nf()", 7),
        ("def outer():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n"
         "    def get(): return n\n    return up, get\nup, get = outer()\nup()", "up()\n"
         "[get(), up()]", [2, 3]),
        ("class A:\n    kind = 'a'\n    def __init__(self, x): self.x = x\n    def f(self): return self.x\n"
         "class B(A):\n    def f(self): return super().f() + 1\n"
         "b = B(4)", "[b.f(), b.kind, isinstance(b, A), B(1).f()]",
         [5, "a", True, 2]),
        ("from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int\n    b: str = 'b'\nd = D(1)",
         "[d == D(1), repr(d), d.b]", [True, "D(a=1, b='b')", "b"]),
        ("from enum import Enum\nclass E(Enum):\n    A = 1\n    B = 2\n"
         "e = E.B", "[e is E.B, E(1).name]", [True, "A"]),
        ("import json, collections as c\nfrom math import sqrt", "[json.dumps(c.Counter('aa')), sqrt(4)]",
         ['{"a": 2}', 2.0]),
        ("compose = lambda f, g: (lambda x: f(g(x)))\ninc = lambda x: x + 1\n"
         "twice = compose(inc, inc)", "twice(1)", 3),
        ("import functools\n@functools.lru_cache\ndef f(x): return x * 2\nf(1)\n"
         "part = functools.partial(pow, 2)",
         "[f(3), part(5)]", [6, 32]),
        ("def deco(f):\n    def inner(*a): return ['deco', f(*a)]\n    return inner\n@deco\n"
         "def f(x): return x", "f(1)",
         ["deco", 1]),
        ("import datetime, decimal, re, pathlib\nkeep = [datetime.date(2024, 1, 2), decimal.Decimal('1.5'), "
         "re.compile('a+'), pathlib.PurePath('a/b')]",
         "[str(keep[0]), str(keep[1]), keep[2].pattern, str(keep[3])]",
         ["2024-01-02", "1.5", "a+", "a/b"]),
        ("class Mine(Exception):\n    def __init__(self, a, b):\n"
         "        super().__init__(f'{a}-{b}')\n        self.a = a\n"
         "try:\n    raise Mine(1, 2)\nexcept Mine as e:\n"
         "    kept = e", "[str(kept), kept.a, type(kept) is Mine]",
         ["1-2", 1, True]),
        ("import random\nrandom.seed(42)", "import random\nrandom.random()", 0.6394267984578837),
        ("from decimal import *\ngetcontext().prec = 5", "str(Decimal(1) / Decimal(3))", "0.33333"),
        ("tool = add", "import json\nrepr(tool)", "<function add>"),
        ("class Meta(type):\n    def hi(cls): return cls.__name__\n"
         "class K(metaclass=Meta): pass", "K.hi()", "K"),
        ("from typing import NamedTuple, Generic, TypeVar\nT = TypeVar('T')\nclass Box(Generic[T]):\n"
         "    def __init__(self, v): self.v = v\nclass P(NamedTuple):\n    x: int\n"
         "p, b = P(3), Box(4)", "[p.x, b.v]", [3, 4]),
        ("import abc\nclass Base(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\nclass Sub(Base):\n"
         "    def f(self): return 'sub'\n    @property\n    def g(self): return 'prop'\n"
         "s = Sub()", "[s.f(), s.g]",
         ["sub", "prop"]),
        ("x: int = 5\ndef g():\n    yield from range(x)", "[x, list(g())]", [5, [0, 1, 2, 3, 4]]),
        ("async def later(n): return n * 2", "await later(4)", 8),
    ],
)  # fmt: skip
def test_variables_persist_into_the_next_run(
    warm_and_cold: Callable[[str, str], Any], first: str, second: str, expected: Any
) -> None:
    """Seed: sessions persist between runs, with or without their process."""
    assert warm_and_cold(first, second) == expected


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        ("g = (n for n in [1, 2])", "g", "generator"),
        ("f = open('x', 'w')", "f", "TextIOWrapper"),
        ("open('x', 'w').close()\nf = open('x')", "f", "TextIOWrapper"),
        ("import threading\nlock = threading.Lock()", "lock", "lock"),
        ("async def c(): pass\nco = c()", "co", "coroutine"),
        (
            "import asyncio\nlater = await asyncio.gather(add(1))\np = add(2)\nif 0:\n    await p",
            "p",
            "Later",
        ),
        ("holder = {'deep': [(n for n in [1])]}", "holder", "dict"),
    ],
)
def test_values_that_cannot_be_kept_are_dropped_and_reported(
    run: Run, engine: CPythonCells, code: str, name: str, kind: str
) -> None:
    """Ours: such a value does not survive in a warm process either."""
    from standfast.ports.code_engine import CallAnswer

    end = run(f"{code}\nkept = 1", answer_now=lambda call: CallAnswer())
    assert end.error is None
    assert [note for note in end.notes if note.startswith(f"{name} ({kind}) cannot be kept")], end.notes
    assert end.state is not None
    assert "kept" in engine.names(end.state)
    assert name not in engine.names(end.state)
    missing = run(name, state=end.state)
    assert missing.error is not None
    assert missing.error.message == f"NameError: name '{name}' is not defined"
    assert run("kept", state=end.state).result == 1


def test_an_exception_keeps_the_variables_bound_before_it(run: Run) -> None:
    """Seed: a Python exception is not a rollback."""
    end = run("x = 1\n1 / 0\nx = 2")
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.RUNTIME_ERROR, False)
    assert run("x", state=end.state).result == 1


def test_a_worker_that_holds_a_different_state_is_not_used(run: Run) -> None:
    """Ours: after a rewind, the same key arrives with an earlier state."""
    first = run("x = 1")
    assert run("x = 2\nx", state=first.state).result == 2
    assert run("x", state=first.state).result == 1
    assert run("x", state=b"").error is not None


def test_code_that_only_reads_stores_no_new_state(run: Run) -> None:
    """Ours: a run stores its state only if the state may have changed."""
    state = run("x = [3, 1]\nfrom collections import defaultdict").state
    assert run("sorted(x)", state=state).state is None
    assert run("len(doc)", state=state, inputs={"doc": "abc"}).state is None
    assert run("x", state=state).result == [3, 1]
    lazy = run("d = defaultdict(list)", state=state).state
    assert run("d['new']", state=lazy).state is not None
    assert run("1 + 1").state is None


def test_a_state_lists_the_names_it_binds(run: Run, engine: CPythonCells) -> None:
    """Ours: an empty state binds nothing."""
    state = run("b: int = 1\nimport json\nfor a in 'x':\n    pass\nglobals()['not a name'] = 1").state
    assert state is not None
    assert engine.names(b"") == []
    assert engine.names(state) == ["a", "b", "json"]


def test_a_state_of_another_python_version_is_refused(run: Run, engine: CPythonCells) -> None:
    """Seed: byte code of another Python version is not loaded."""
    state = run("x = 1").state
    assert state is not None
    stored = decode_state(state)
    assert stored is not None
    for fields in ({"version": "3.99"}, {"format": 99}, {"engine": "monty"}):
        with pytest.raises(SnapshotRefused) as refused:
            engine.names(encode_state(msgspec.structs.replace(stored, **fields)))
        assert refused.value.code == Code.SNAPSHOT_VERSION_MISMATCH
    for broken in (state[:20], b"\x80", b"\x00"):
        with pytest.raises(SnapshotRefused) as refused:
            run("x", state=broken)
        assert refused.value.code == Code.SNAPSHOT_CORRUPT


def test_a_payload_that_cannot_be_loaded_fails_only_its_run(run: Run) -> None:
    """Seed: a damaged snapshot affects only its session, and is read only inside the jail."""
    stored = decode_state(run("x = 1").state or b"")
    assert stored is not None
    evil = b"cos\nsystem\n(S'touch /tmp/standfast-escaped'\ntR."
    for payload in (b"nonsense", stored.payload[:-3], evil):
        end = run("1", state=encode_state(msgspec.structs.replace(stored, payload=payload)))
        assert end.error is not None
        assert (end.error.code, end.hard) == (Code.INTERRUPTED, True)
    assert run("1 + 1").result == 2


def test_an_object_that_cannot_be_loaded_is_dropped_before_it_is_stored(run: Run) -> None:
    """Ours: one object that cannot be loaded must not cost a session all its variables."""
    code = (
        "class Bad:\n    def __getstate__(self): return {'a': 1}\n"
        "    def __setstate__(self, s): raise ValueError('no')\nb = Bad()\nx = 1"
    )
    end = run(code, key="bad")
    assert end.notes == ("b (Bad) cannot be kept between runs: no",)
    assert run("x", state=end.state, key="another").result == 1


def test_files_do_not_outlive_their_run(run: Run) -> None:
    """Ours: files are not part of a session's state."""
    end = run("import os\nos.makedirs('d/e')\nopen('d/e/f', 'w').write('x')\nos.chdir('d')\nx = 1")
    assert run("import os\n[os.listdir('.'), os.getcwd()]", state=end.state).result == [[], "/tmp"]


def test_many_cells_keep_a_small_state(run: Run) -> None:
    """Ours: a state grows with its contents, not with the number of cells."""
    state: bytes | None = None
    for number in range(60):
        state = run(f"n = {number}\ndef f(): return n\nlast = [n] * 3", state=state or b"").state
    assert state is not None
    assert len(state) < 2_000
    assert run("[last, f()]", state=state).result == [[59, 59, 59], 59]


def test_a_state_that_is_too_large_is_refused_and_rolled_back(run: Run) -> None:
    """Ours: a state too large for a store is reported at once."""
    state = run("x = 1").state
    end = run("x = 'a' * (70 << 20)", state=state, limits={"memory_mb": 256})
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (Code.MEMORY_EXCEEDED, True, None)
    assert run("x", state=state).result == 1


def test_half_the_memory_can_be_kept(run: Run) -> None:
    """Ours: storing needs extra memory, which is not charged to the code."""
    state = run("x = 'a' * (40 << 20)").state
    assert state is not None
    assert run("len(x)", state=state).result == 40 << 20
