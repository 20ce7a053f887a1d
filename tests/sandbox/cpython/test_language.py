"""All of Python: features that models' code uses and the other engine refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd

pytestmark = pytest.mark.slow

Session = Callable[..., CellEnd]

FEATURES: list[tuple[str, Any]] = [
    ("class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return super().f() + 1\nB().f()", 2),
    ("def g():\n    x = yield 1\n    yield x\ni = g()\nresult = [next(i), i.send(5)]\ndel i", [1, 5]),
    ("def g():\n    yield from range(3)\nlist(g())", [0, 1, 2]),
    ("x = [1, 2, 3]\ndel x[0]\ny = {'a': 1}\ndel y['a']\n[x, y]", [[2, 3], {}]),
    ("gone = 1\ndel gone\ntry:\n    gone\nexcept NameError:\n    result = 'gone'", "gone"),
    ("class P:\n    @property\n    def x(self): return 7\n    @classmethod\n"
     "    def c(cls): return cls.__name__\n"
     "    @staticmethod\n    def s(): return 's'\n[P().x, P.c(), P.s()]", [7, "P", "s"]),
    ("class M:\n    async def __aenter__(self): return 'in'\n    async def __aexit__(self, *e): return True\n"
     "async with M() as m:\n    seen = m\nseen", "in"),
    ("async def agen():\n    for i in range(3):\n        yield i\n[i async for i in agen()]", [0, 1, 2]),
    ("class C:\n    def __enter__(self): return 1\n    def __exit__(self, *e): return True\n"
     "with C() as c:\n    raise ValueError\nc", 1),
    ("from dataclasses import dataclass, field, asdict\n@dataclass(order=True)\nclass D:\n    a: int\n"
     "    b: list = field(default_factory=list)\nasdict(max(D(1), D(2, [3])))", {"a": 2, "b": [3]}),
    ("from enum import Enum, auto\nclass E(Enum):\n    A = auto()\n    B = auto()\n"
     "[e.name for e in E]", ["A", "B"]),
    ("from typing import NamedTuple\nclass T(NamedTuple):\n    a: int\n    b: int = 2\nT(1)", [1, 2]),
    ("import re\n[m.group(1) for m in re.finditer(r'(\\d+)-(?P<w>\\w+)', '1-a 22-b')]", ["1", "22"]),
    ("import json\njson.loads(json.dumps({'a': [1, None, True]}))", {"a": [1, None, True]}),
    ("from collections import Counter, defaultdict, deque, OrderedDict\nd = defaultdict(list)\n"
     "d['a'].append(1)\n"
     "q = deque([1, 2], maxlen=2)\nq.append(3)\n[Counter('abca').most_common(1), d, list(q)]",
     [[["a", 2]], {"a": [1]}, [2, 3]]),
    ("import itertools, functools, operator\n"
     "[list(itertools.accumulate([1, 2, 3])), functools.reduce(operator.mul, [1, 2, 3, 4]), "
     "list(itertools.pairwise('abc'))]", [[1, 3, 6], 24, [["a", "b"], ["b", "c"]]]),
    ("import statistics\n[statistics.mean([1, 2, 3]), statistics.median([1, 9, 3])]", [2, 3]),
    ("from decimal import Decimal, getcontext\nstr(Decimal('0.1') + Decimal('0.2'))", "0.3"),
    ("from fractions import Fraction\nstr(Fraction(1, 3) + Fraction(1, 6))", "1/2"),
    ("import heapq, bisect\nh = [3, 1, 2]\nheapq.heapify(h)\n"
     "[heapq.heappop(h), bisect.bisect([1, 3], 2)]", [1, 1]),
    ("import csv, io\nlist(csv.DictReader(io.StringIO('a,b\\n1,2')))", [{"a": "1", "b": "2"}]),
    ("import sqlite3\nwith sqlite3.connect(':memory:') as db:\n"
     "    rows = db.execute('select 1 + 1').fetchall()\n"
     "db.close()\ndel db\nrows", [[2]]),
    ("import hashlib, base64, zlib\n[hashlib.sha256(b'a').hexdigest()[:8], base64.b64encode(b'a').decode(), "
     "zlib.decompress(zlib.compress(b'a')).decode()]", ["ca978112", "YQ==", "a"]),
    ("import xml.etree.ElementTree as ET\nET.fromstring('<a><b x=\"1\"/></a>')[0].get('x')", "1"),
    ("import urllib.parse as p\n[p.quote('a b'), p.urlparse('http://h/p?q=1').query]", ["a%20b", "q=1"]),
    ("import textwrap, string, difflib\n"
     "[textwrap.dedent('  a'), string.Template('$x').substitute(x=1)]", ["a", "1"]),
    ("import contextlib\n@contextlib.contextmanager\ndef m():\n    yield 3\nwith m() as v:\n    pass\nv", 3),
    ("import zoneinfo, datetime\ndatetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('UTC')).isoformat()",
     "2024-07-01T00:00:00+00:00"),
    ("match {'k': [1, 2]}:\n    case {'k': [a, *rest]}:\n        result = [a, rest]", [1, [2]]),
    ("def f(a, /, b, *c, d=1, **e): return [a, b, c, d, e]\nf(1, 2, 3, d=4, x=5)", [1, 2, [3], 4, {"x": 5}]),
    ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n"
     "    def __getattr__(self, n): return n\n[(V(1) + V(2)).x, V(1).other]", [3, "other"]),
    ("class Meta(type):\n    def __new__(m, n, b, d):\n        d['made'] = n\n"
     "        return super().__new__(m, n, b, d)\n"
     "class K(metaclass=Meta): pass\nK.made", "K"),
    ("def outer():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n"
     "        return n\n    return inc\n"
     "inc = outer()\n[inc(), inc()]", [1, 2]),
    ("try:\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n"
     "        raise ValueError('v') from e\n"
     "except ValueError as e:\n    result = type(e.__cause__).__name__", "ZeroDivisionError"),
    ("try:\n    raise ExceptionGroup('g', [ValueError(1), TypeError(2)])\nexcept* ValueError as g:\n"
     "    a = len(g.exceptions)\nexcept* TypeError:\n    b = 2\n[a, b]", [1, 2]),
    ("exec('made = 5')\neval('made + 1')", 6),
    ("f'{3.14159:.2f} {\"x\"!r:>5} {10**6:,}'", "3.14   'x' 1,000,000"),
    ("import tempfile, pathlib\nwith tempfile.TemporaryDirectory() as d:\n    p = pathlib.Path(d, 'f')\n"
     "    p.write_text('hi')\n    result = p.read_text()", "hi"),
    ("open('note.txt', 'w').write('abc')\nopen('note.txt').read()", "abc"),
    ("import threading\nseen = []\nt = threading.Thread(target=seen.append, args=(1,))\nt.start()\n"
     "t.join()\ndel t\nseen",
     [1]),
    ("from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
     "    result = list(pool.map(lambda n: n * n, range(4)))\ndel pool", [0, 1, 4, 9]),
    ("import warnings, logging\nlogging.getLogger('x').warning('w')\n'ok'", "ok"),
    ("sorted([3, 1, 2], key=lambda n: -n)", [3, 2, 1]),
    ("2 ** 200", 2**200),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), FEATURES, ids=[repr(code)[:60] for code, _ in FEATURES])
def test_every_feature_of_python_works(session: Session, code: str, expected: Any) -> None:
    """Seed: all of Python is available."""
    end = session(code)
    assert end.error is None, end
    assert end.result == expected


ASYNC: list[tuple[str, Any]] = [
    ("import asyncio\nawait asyncio.gather(add(1), add(2))", [10, 20]),
    ("import asyncio\nawait asyncio.gather(*[add(n) for n in range(3)])", [0, 10, 20]),
    ("import asyncio\nawait asyncio.gather(*map(add, [1, 2]))", [10, 20]),
    ("list(map(add, [1, 2]))", [10, 20]),
    ("[add(n) for n in (1, 2)] + sorted([add(3), add(1)])", [10, 20, 10, 30]),
    ("import asyncio\nt = asyncio.create_task(add(1))\nresult = [await t, t.done()]\ndel t", [10, True]),
    ("import asyncio\nasync with asyncio.TaskGroup() as g:\n    a = g.create_task(add(1))\n"
     "    b = g.create_task(add(2))\n"
     "result = a.result() + b.result()\ndel a, b, g", 30),
    ("import asyncio\nasync def main():\n    return await add(1) + add(2)\nasyncio.run(main())", 30),
    ("import asyncio\nasyncio.run(add(4))", 40),
    ("import asyncio\nasync def f(x):\n    return await asyncio.wait_for(add(x), 5)\nawait f(1)", 10),
    ("import asyncio\nresult = []\nfor done in asyncio.as_completed([add(1), add(2)]):\n"
     "    result.append(await done)\n"
     "del done\nresult", [10, 20]),
    ("import asyncio\nq = asyncio.Queue()\nasync def put():\n    for n in range(3):\n"
     "        await q.put(await add(n))\n"
     "async def take():\n    return [await q.get() for _ in range(3)]\n"
     "result = (await asyncio.gather(put(), take()))[1]\ndel q", [0, 10, 20]),
    ("import asyncio\nawait asyncio.to_thread(lambda: add(5))", 50),
    ("import asyncio\nsem = asyncio.Semaphore(1)\nasync def one(n):\n    async with sem:\n"
     "        return await add(n)\n"
     "result = await asyncio.gather(one(1), one(2))\ndel sem\nresult", [10, 20]),
    ("exec('async def later():\\n    return await add(6)')\nawait later()", 60),
    ("calls = [add(n) for n in (1, 2)]\n[await call for call in calls]", [10, 20]),
    ("import asyncio\nasync def tick():\n    await asyncio.sleep(0)\n    return 1\n"
     "await asyncio.gather(tick(), tick())",
     [1, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), ASYNC, ids=[repr(code)[:60] for code, _ in ASYNC])
def test_plain_and_awaited_calls_work(session: Session, code: str, expected: Any) -> None:
    """Seed: plain `f(x)` calls and awaited ones both work."""

    def ten_times(call: CellCall) -> CallAnswer:
        return CallAnswer(value=(call.args[0] if call.args else 0) * 10)

    end = session(code, answer_now=ten_times)
    assert end.error is None, end
    assert end.result == expected


@pytest.mark.parametrize(
    ("code", "message", "span"),
    [
        ("x = 1\nx.nothing", "AttributeError: 'int' object has no attribute 'nothing'", (2, 1, 2, 10)),
        ("a = 'ü'; b = a[5]", "IndexError: string index out of range", (1, 14, 1, 18)),
        ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: division by zero", (2, 12, 2, 17)),
        (
            "import json\njson.loads('[')",
            "JSONDecodeError: Expecting value: line 1 column 2 (char 1)",
            (2, 1, 2, 16),
        ),
        ("class Mine(Exception):\n    pass\nraise Mine('no')", "Mine: no", (3, 1, 3, 17)),
    ],
)
def test_an_error_has_the_line_and_column_of_the_code(
    session: Session, code: str, message: str, span: tuple[int, ...]
) -> None:
    """Seed: lines and columns are those of the user's code."""
    error = session(code).error
    assert error is not None
    assert error.message == message
    assert error.span is not None
    assert (error.span.line, error.span.column, error.span.end_line, error.span.end_column) == span


def test_an_error_in_a_function_of_an_earlier_run_is_located_at_its_call(session: Session) -> None:
    """Ours: a line number of earlier code would be misleading."""
    session("def broken():\n    x = 1\n    return 1 / 0")
    error = session("y = 1\nbroken()").error
    assert error is not None
    assert error.span is not None
    assert error.span.line == 2


def test_a_printed_traceback_shows_the_lines_of_the_code(session: Session) -> None:
    """Ours: a traceback looks the same as outside the sandbox."""
    end = session("import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()")
    assert "1 / 0" in end.stderr
    assert "ZeroDivisionError" in end.stderr
    assert "standfast" not in end.stderr


def test_stdout_and_stderr_are_kept_separate(session: Session) -> None:
    """Ours: guest code has both streams, like any program."""
    end = session(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdout.buffer.write(b'raw\\n')"
    )
    assert (end.stdout, end.stderr) == ("out\nraw\n", "err\n")


def test_a_lone_surrogate_can_be_printed(session: Session) -> None:
    """Bug: half of a surrogate pair has no UTF-8 form."""
    assert session("print('a\\ud800b')").stdout == "a\\ud800b\n"
