"""Features of Python only."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, gives, sharing

UNSUPPORTED = {"monty": "UNSUPPORTED_FEATURE"}
MISSING = {"monty": "RUNTIME_ERROR"}


def _python(
    name: str, value: object, code: str, refused: dict[str, str] | None = None, **more: object
) -> Behaviour:
    return Behaviour(name=name, check=gives(value), py=code, refused=refused or {}, **more)  # type: ignore[arg-type]


PYTHON_FEATURES = sharing(
    _python(
        "context managers",
        ["in", "body", "out"],
        "log = []\nclass C:\n    def __enter__(self):\n        log.append('in')\n        return self\n"
        "    def __exit__(self, *a):\n        log.append('out')\nwith C():\n    log.append('body')\nlog",
    ),
    _python(
        "async context managers",
        ["in", "out"],
        "log = []\nclass C:\n    async def __aenter__(self):\n        log.append('in')\n"
        "    async def __aexit__(self, *a):\n        log.append('out')\nasync with C():\n    pass\nlog",
        UNSUPPORTED,
    ),
    _python("the walrus operator", [10, 3], "if (n := 10) > 5:\n    x = n\n[x, (m := 3)]"),
    _python("lambdas and conditional expressions", ["even", 6], "f = lambda n: 'even' if n % 2 == 0 else 'odd'\n[f(4), (lambda a, b=2: a * b)(3)]"),
    _python("slices with steps, and assignment to them", [[3, 1], [1, 9, 4]], "xs = [1, 2, 3, 4]\na = xs[2::-2]\nxs[1:3] = [9]\n[a, xs]"),
    _python("chained comparisons and short circuits", [True, 0, "x"], "[1 < 2 < 3, 0 and 1 / 0, '' or 'x']"),
    _python("for and while with else", ["for", "while"], "log = []\nfor _ in []:\n    pass\nelse:\n    log.append('for')\nwhile False:\n    pass\nelse:\n    log.append('while')\nlog"),
    _python("patterns of mappings, classes and guards", ["big 12", "p 1", "none"],
            "class P:\n    def __init__(self, x):\n        self.x = x\ndef f(v):\n    match v:\n        case {'n': n} if n > 10:\n"
            "            return f'big {n}'\n        case P(x=x):\n            return f'p {x}'\n        case _:\n"
            "            return 'none'\n[f({'n': 12}), f(P(1)), f({'n': 1})]"),
    _python("multiple inheritance and method resolution order", ["C", "A", "B"],
            "class A:\n    pass\nclass B:\n    pass\nclass C(A, B):\n    pass\n[k.__name__ for k in C.__mro__[:3]]", UNSUPPORTED),
    _python("metaclasses", "Made", "class Meta(type):\n    def __new__(m, name, bases, ns):\n        ns['kind'] = 'Made'\n"
            "        return super().__new__(m, name, bases, ns)\nclass A(metaclass=Meta):\n    pass\nA.kind", UNSUPPORTED),
    _python("descriptors", [5, 10], "class Twice:\n    def __get__(self, o, t=None):\n        return o.v * 2\nclass A:\n    v = 5\n    w = Twice()\n[A().v, A().w]", UNSUPPORTED),
    _python("slots", "AttributeError", "class A:\n    __slots__ = ('x',)\na = A()\na.x = 1\ntry:\n    a.y = 2\n    r = 'set'\nexcept AttributeError as e:\n    r = type(e).__name__\nr", bugs=dict.fromkeys(("monty", "auto"), "Monty ignores `__slots__`")),
    _python("frozen and ordered dataclasses", [True, "FrozenInstanceError"],
            "from dataclasses import dataclass, FrozenInstanceError\n@dataclass(frozen=True, order=True)\nclass V:\n    n: int\n"
            "try:\n    V(1).n = 2\n    r = 'set'\nexcept FrozenInstanceError as e:\n    r = type(e).__name__\n[V(1) < V(2), r]", refused=MISSING),
    _python("nested classes", 3, "class A:\n    class B:\n        v = 3\nA.B.v", UNSUPPORTED),
    _python("generator expressions are lazy", [0, 1], "it = (n for n in range(10 ** 9))\n[next(it), next(it)]", refused={"monty": "MEMORY_EXCEEDED"}),
    _python("star expressions and nested unpacking", [1, [2, 3], 4], "(a, *b), c = [1, 2, 3], 4\n[a, b, c]"),
    _python("exception groups", ["v", "t"],
            "log = []\ntry:\n    raise ExceptionGroup('g', [ValueError('v'), TypeError('t')])\nexcept* ValueError as e:\n"
            "    log += [str(x) for x in e.exceptions]\nexcept* TypeError as e:\n    log += [str(x) for x in e.exceptions]\nlog", UNSUPPORTED),
    _python("formatted tracebacks", True,
            "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    text = traceback.format_exc()\n'ZeroDivisionError' in text and 'line 3' in text", MISSING),
    _python("annotations and generics", ["int", 3], "from typing import Generic, TypeVar, Optional\nT = TypeVar('T')\nclass Box(Generic[T]):\n"
            "    def __init__(self, v: T) -> None:\n        self.v = v\nx: Optional[int] = 3\n[int.__name__, Box[int](x).v]", UNSUPPORTED),
    _python("complex numbers", [5.0, True], "z = 3 + 4j\n[abs(z), z.conjugate() == 3 - 4j]"),
    _python("bytes, bytearray and memoryview", ["6869", 104, [104, 105]], "b = bytearray(b'hi')\n[bytes(b).hex(), memoryview(b)[0], list(b)]", {"monty": "UNKNOWN_TOOL"}),
    _python("integer methods and division", [3, 7, -4, [3, 1], "ff"], "[(7).bit_length(), int('111', 2), -7 // 2, list(divmod(10, 3)), format(255, 'x')]", refused=MISSING),
    _python("text methods", [["a", "b"], "a-b", "  x", "Ab", "x", [0, 2]],
            "['a b'.split(), '-'.join('ab'), 'x'.rjust(3), 'ab'.title(), 'xyyx'.strip('xy') or 'x', [i for i, c in enumerate('aba') if c == 'a']]"),
    _python("`%` formatting and `str.format`", ["1 x 02.50", "a=1"], "['%d %s %05.2f' % (1, 'x', 2.5), 'a={a}'.format(a=1)]"),
    _python("format specifications for alignment and grouping", ["1,234", "  ab", "x....", "50%"], "[f'{1234:,}', f'{\"ab\":>4}', f'{\"x\":.<5}', f'{0.5:.0%}']"),
    _python("dictionary methods and merging", [{"a": 1, "b": 2, "c": 3}, 1, 9, ["a", "b"]], "d = {'a': 1, 'b': 2}\n[d | {'c': 3}, d.pop('a', 0), d.setdefault('z', 9), ['a', *[k for k in d if k == 'b']]]"),
    _python("zip, enumerate, reversed, any, all", [[[1, "a"], [2, "b"]], [[5, "x"]], [2, 1], True],
            "[list(zip([1, 2], 'ab', strict=True)), list(enumerate('x', 5)), list(reversed([1, 2])), any([0, 1]) and all([])]"),
    _python("min and max with keys and defaults", ["ccc", "b", 0], "xs = ['b', 'aa', 'ccc']\n[max(xs, key=len), min(xs, key=len), max([], default=0)]"),
    _python("dynamic attributes with `__getattr__`", ["got x", 1], "class A:\n    y = 1\n    def __getattr__(self, name):\n        return 'got ' + name\n[A().x, A().y]", UNSUPPORTED),
    _python("`__call__`, `__getitem__` and `__len__`", [6, "k", 3, True],
            "class A:\n    def __call__(self, n):\n        return n * 2\n    def __getitem__(self, k):\n        return k\n    def __len__(self):\n        return 3\n"
            "    def __contains__(self, x):\n        return x == 1\na = A()\n[a(3), a['k'], len(a), 1 in a]", UNSUPPORTED),
    _python("comparison and hashing of objects", [True, 1],
            "class A:\n    def __init__(self, n):\n        self.n = n\n    def __eq__(self, o):\n        return self.n == o.n\n    def __hash__(self):\n        return hash(self.n)\n"
            "[A(1) == A(1), len({A(1), A(1)})]"),
    _python("reflected and in-place operators", [12, 7], "class A:\n    def __radd__(self, n):\n        return n + 2\n    def __iadd__(self, n):\n        return n\na = A()\nb = 10 + a\na += 7\n[b, a]", UNSUPPORTED),
    _python("type aliases", 3, "from typing import TypeAlias\nNumber: TypeAlias = int | float\nx: Number = 3\nx", refused=MISSING),
    _python("`functools.wraps`", ["f", 1], "import functools\ndef d(f):\n    @functools.wraps(f)\n    def g():\n        return f()\n    return g\n@d\ndef f():\n    return 1\n[f.__name__, f()]", MISSING),
    _python("`dataclasses.asdict`", {"x": 3}, "from dataclasses import dataclass, asdict\n@dataclass\nclass Q:\n    x: int\nasdict(Q(3))", MISSING),
    _python("assertions", "no", "try:\n    assert 1 == 2, 'no'\nexcept AssertionError as e:\n    r = str(e)\nr", bugs=dict.fromkeys(("monty", "auto"), "Monty adds the text of the assertion to its message")),
    _python("tasks created now and awaited later", [1, 2], "import asyncio\nasync def f(n):\n    return n\nt = asyncio.create_task(f(1))\n[await t, await f(2)]", MISSING),
    _python("async queues and locks", 1, "import asyncio\nq = asyncio.Queue()\nawait q.put(1)\nasync with asyncio.Lock():\n    x = await q.get()\nx", UNSUPPORTED),
    Behaviour(name="timeouts that cancel a sleep", check=gives("late", limits={"cpu_ms": 500}), refused=MISSING,
              py="import asyncio\ntry:\n    await asyncio.wait_for(asyncio.sleep(1), 0.01)\n    y = 'done'\nexcept TimeoutError:\n    y = 'late'\ny"),
    _python("`globals()` and `locals()`", [True, ["a"]], "g = 1\ndef f(a):\n    return sorted(locals())\n['g' in globals(), f(1)]", {"monty": "UNKNOWN_TOOL"}),
    _python("wildcard imports", 2, "from math import *\nfloor(2.5)", MISSING),
)  # fmt: skip
