"""Features that both languages have, each in its own syntax."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, gives, sharing

UNSUPPORTED = {"monty": "UNSUPPORTED_FEATURE"}


def _feature(
    name: str, value: object, py: str, ts: str, refused: dict[str, str] | None = None, **more: object
) -> Behaviour:
    return Behaviour(
        name=name,
        check=gives(value),
        py=py,
        ts=ts,
        refused=refused or {},
        **more,  # type: ignore[arg-type]
    )


SHARED_FEATURES = sharing(
    _feature(
        "classes with methods and operators or getters",
        [7, "P(3, 4)"],
        "class P:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n    def __add__(self, o):\n"
        "        return self.x + o.y\n    def __repr__(self):\n        return f'P({self.x}, {self.y})'\n"
        "p = P(3, 4)\n[p + p, repr(p)]",
        "class P {\n  constructor(public x: number, public y: number) {}\n  get sum() { return this.x + this.y }\n"
        "  toString() { return `P(${this.x}, ${this.y})` }\n}\nconst p = new P(3, 4)\n;[p.sum, String(p)]",
    ),
    _feature(
        "inheritance and calls to base methods",
        ["base derived", True],
        "class A:\n    def f(self):\n        return 'base'\nclass B(A):\n    def f(self):\n"
        "        return super().f() + ' derived'\n[B().f(), isinstance(B(), A)]",
        "class A { f() { return 'base' } }\nclass B extends A { f() { return super.f() + ' derived' } }\n"
        "[new B().f(), new B() instanceof A]",
        UNSUPPORTED,
    ),
    _feature(
        "abstract classes",
        [9, "no"],
        "from abc import ABC, abstractmethod\nclass Shape(ABC):\n    @abstractmethod\n    def area(self): ...\n"
        "class Square(Shape):\n    def area(self):\n        return 9\n"
        "try:\n    Shape()\n    made = 'yes'\nexcept TypeError:\n    made = 'no'\n[Square().area(), made]",
        "abstract class Shape { abstract area(): number; twice() { return 2 * this.area() } }\n"
        "class Square extends Shape { area() { return 9 } }\n[new Square().twice() / 2, 'no']",
        UNSUPPORTED,
    ),
    _feature(
        "properties with getters and setters",
        [5, 50],
        "class A:\n    _v = 5\n    @property\n    def v(self):\n        return self._v\n    @v.setter\n"
        "    def v(self, n):\n        self._v = n * 10\na = A()\nb = a.v\na.v = 5\n[b, a.v]",
        "class A {\n  private _v = 5\n  get v() { return this._v }\n  set v(n: number) { this._v = n * 10 }\n}\n"
        "const a = new A()\nconst b = a.v\na.v = 5\n;[b, a.v]",
        UNSUPPORTED,
    ),
    _feature(
        "static and class methods",
        [3, "A"],
        "class A:\n    @staticmethod\n    def add(a, b):\n        return a + b\n    @classmethod\n"
        "    def called(cls):\n        return cls.__name__\n[A.add(1, 2), A.called()]",
        "class A {\n  static add(a: number, b: number) { return a + b }\n  static called() { return this.name }\n}\n"
        "[A.add(1, 2), A.called()]",
        UNSUPPORTED,
    ),
    _feature(
        "private names of a class",
        [1, True],
        "class A:\n    def __init__(self):\n        self.__v = 1\n    def get(self):\n        return self.__v\n"
        "a = A()\n[a.get(), not hasattr(a, '__v')]",
        "class A { #v = 1; get() { return this.#v } }\nconst a = new A()\n;[a.get(), !('v' in a)]",
        bugs=dict.fromkeys(("monty", "auto"), "Monty does not mangle names that begin with two underscores"),
    ),
    _feature(
        "exception classes, caught by their base class",
        ["Oops: no 7", "end"],
        "class Oops(Exception):\n    def __init__(self, text, n):\n        super().__init__(text)\n        self.n = n\n"
        "log = []\ntry:\n    raise Oops('no', 7)\nexcept Exception as e:\n"
        "    log.append(f'{type(e).__name__}: {e} {e.n}')\nfinally:\n    log.append('end')\nlog",
        "class Oops extends Error { constructor(text: string, public n: number) { super(text); this.name = 'Oops' } }\n"
        "const log: string[] = []\ntry { throw new Oops('no', 7) }\n"
        "catch (e) { if (e instanceof Error) log.push(`${e.name}: ${e.message} ${(e as Oops).n}`) }\n"
        "finally { log.push('end') }\nlog",
        UNSUPPORTED,
    ),
    _feature(
        "exceptions: caught, raised again, with a cause",
        ["inner", "outer", "end"],
        "log = []\ntry:\n    try:\n        raise KeyError('inner')\n    except KeyError as e:\n"
        "        log.append(e.args[0])\n        raise ValueError('outer') from e\nexcept ValueError as e:\n"
        "    log.append(str(e))\nfinally:\n    log.append('end')\nlog",
        "const log: string[] = []\ntry {\n  try { throw new Error('inner') }\n"
        "  catch (e: any) { throw new Error('outer', {cause: e}) }\n"
        "} catch (e: any) { log.push(e.cause.message, e.message) } finally { log.push('end') }\nlog",
    ),
    _feature(
        "generators",
        [[1, 1, 2, 3, 5], [1, 2]],
        "def fib():\n    a, b = 1, 1\n    while True:\n        yield a\n        a, b = b, a + b\n"
        "def two():\n    yield from [1, 2]\ng = fib()\n[[next(g) for _ in range(5)], list(two())]",
        "function* fib(): Generator<number> { let [a, b] = [1, 1]; while (true) { yield a; [a, b] = [b, a + b] } }\n"
        "function* two() { yield* [1, 2] }\nconst out = []\n"
        "for (const n of fib()) { if (n > 5) break; out.push(n) }\n[out, [...two()]]",
        UNSUPPORTED,
    ),
    _feature(
        "values sent into a generator",
        [1, 11, "end"],
        "def g():\n    got = yield 1\n    try:\n        yield got + 1\n    finally:\n        log.append('end')\n"
        "log = []\nit = g()\nlog.append(next(it))\nlog.append(it.send(10))\nit.close()\nlog",
        "const log: any[] = []\nfunction* g(): Generator<number, void, number> {\n  const got = yield 1\n"
        "  try { yield got + 1 } finally { log.push('end') }\n}\nconst it = g()\n"
        "log.push(it.next().value)\nlog.push(it.next(10).value)\nit.return()\nlog",
        UNSUPPORTED,
    ),
    _feature(
        "async generators and async iteration",
        [0, 2, 4],
        "async def g():\n    for i in range(3):\n        yield i * 2\nout = []\nasync for n in g():\n    out.append(n)\nout",
        "async function* g() { for (let i = 0; i < 3; i++) yield i * 2 }\nconst out: number[] = []\n"
        "for await (const n of g()) out.push(n)\nout",
        UNSUPPORTED,
    ),
    _feature(
        "iterable objects",
        [3, 2, 1],
        "class Down:\n    def __init__(self, n):\n        self.n = n\n    def __iter__(self):\n        return self\n"
        "    def __next__(self):\n        if self.n == 0:\n            raise StopIteration\n        self.n -= 1\n"
        "        return self.n + 1\n[n for n in Down(3)]",
        "class Down { constructor(private n: number) {}\n  [Symbol.iterator]() { let n = this.n\n"
        "    return { next: () => n > 0 ? {value: n--, done: false} : {value: undefined, done: true} } } }\n"
        "[...new Down(3)]",
    ),
    _feature(
        "async functions",
        [2, [2, 4]],
        "import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    return 2 * n\n"
        "[await f(1), await asyncio.gather(f(1), f(2))]",
        "const f = async (n: number) => { await null; return 2 * n }\n[await f(1), await Promise.all([f(1), f(2)])]",
    ),
    _feature(
        "closures",
        [1, 2, 11],
        "def counter(n):\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up\n"
        "a, b = counter(0), counter(10)\n[a(), a(), b()]",
        "const counter = (n: number) => () => ++n\nconst a = counter(0), b = counter(10)\n;[a(), a(), b()]",
    ),
    _feature(
        "default, rest and named parameters",
        [[1, 2, 3, {"d": 4}], [1, [2, 3]]],
        "def f(a, /, b=2, *, c=3, **k):\n    return [a, b, c, k]\ndef g(a, *rest):\n    return [a, list(rest)]\n"
        "[f(1, d=4), g(1, 2, 3)]",
        "const f = (a: number, b = 2, {c = 3, ...k}: any = {}) => [a, b, c, k]\n"
        "function g(a: number, ...rest: number[]) { return [a, rest] }\n[f(1, undefined, {d: 4}), g(1, 2, 3)]",
    ),
    _feature(
        "unpacking and destructuring",
        [1, [2, 3], 4, 5],
        "a, *b = [1, 2, 3]\n(c, [d]) = (4, [5])\n[a, b, c, d]",
        "const [a, ...b] = [1, 2, 3]\nconst {c, x: [d]} = {c: 4, x: [5]}\n;[a, b, c, d]",
    ),
    _feature(
        "comprehensions, or filter and map",
        [[0, 4, 16], {"a": 1}, 14],
        "[[n * n for n in range(5) if n % 2 == 0], {k: v for k, v in [('a', 1)]}, sum(n * n for n in range(4))]",
        "[[0, 1, 2, 3, 4].filter(n => n % 2 === 0).map(n => n * n), Object.fromEntries([['a', 1]]),\n"
        " [0, 1, 2, 3].reduce((sum, n) => sum + n * n, 0)]",
    ),
    _feature(
        "decorators of functions",
        3,
        "def twice(f):\n    def g(*a):\n        return f(*a) + 1\n    return g\n"
        "@twice\ndef h(x):\n    return x\nh(2)",
        "const twice = (f: Function) => (...a: any[]) => f(...a) + 1\nconst h = twice((x: number) => x)\nh(2)",
    ),
    _feature(
        "pattern matching, or switch",
        ["pair 1 2", "text", "other"],
        "def f(x):\n    match x:\n        case [a, b]:\n            return f'pair {a} {b}'\n        case str():\n"
        "            return 'text'\n        case _:\n            return 'other'\n[f([1, 2]), f('x'), f(None)]",
        "const f = (x: any) => {\n  switch (true) {\n    case Array.isArray(x): return `pair ${x[0]} ${x[1]}`\n"
        "    case typeof x === 'string': return 'text'\n    default: return 'other'\n  }\n}\n[f([1, 2]), f('x'), f(null)]",
    ),
    _feature(
        "string interpolation",
        ["1 + 1 = 2", "0003.14"],
        "n = 1\n[f'{n} + {n} = {n + n}', f'{3.14159:07.2f}']",
        "const n = 1\n;[`${n} + ${n} = ${n + n}`, (3.14159).toFixed(2).padStart(7, '0')]",
    ),
    _feature(
        "integers of any size",
        ["1267650600228229401496703205376", "0xff"],
        "[str(2 ** 100), hex(255)]",
        "[String(2n ** 100n), '0x' + 255n.toString(16)]",
    ),
    _feature(
        "regular expressions with named groups",
        ["2024", "b-a", ["1", "22"]],
        "import re\n[re.match(r'(?P<year>\\d{4})', '2024-01')['year'], re.sub(r'(\\w)-(\\w)', r'\\2-\\1', 'a-b'),\n"
        " re.findall(r'\\d+', 'x1y22')]",
        "[/(?<year>\\d{4})/.exec('2024-01')!.groups!.year, 'a-b'.replace(/(\\w)-(\\w)/, '$2-$1'),\n"
        " 'x1y22'.match(/\\d+/g)]",
    ),
    _feature(
        "regular expressions with lookbehind and Unicode classes",
        ["5", ["é", "ü"]],
        "import re\n[re.search(r'(?<=€)\\d', '€5')[0], re.findall(r'[^\\W\\d_a-z]', 'aé1ü')]",
        "[/(?<=€)\\d/.exec('€5')![0], 'aé1ü'.match(/(?![a-z])\\p{L}/gu)]",
    ),
    _feature(
        "JSON",
        ['{"a": [1, null]}', [1, None]],
        "import json\n[json.dumps({'a': [1, None]}), json.loads('{\"a\": [1, null]}')['a']]",
        "[JSON.stringify({a: [1, null]}).replace(':', ': ').replace(',', ', '), JSON.parse('{\"a\": [1, null]}').a]",
    ),
    _feature(
        "sets and maps",
        [[1, 2, 3], [2], ["b", "a"]],
        "a, b = {1, 2}, {2, 3}\nd = {'b': 1}\nd['a'] = 2\n[sorted(a | b), sorted(a & b), list(d)]",
        "const a = new Set([1, 2]), b = new Set([2, 3])\nconst d = new Map([['b', 1]])\nd.set('a', 2)\n"
        ";[[...new Set([...a, ...b])].sort(), [...a].filter(n => b.has(n)), [...d.keys()]]",
    ),
    _feature(
        "sorting by a key, stable",
        [["b", "a", "cc"], ["cc", "b", "a"]],
        "xs = ['b', 'a', 'cc']\n[sorted(xs, key=len), sorted(xs, key=len, reverse=True)]",
        "const xs = ['b', 'a', 'cc']\n;[[...xs].sort((x, y) => x.length - y.length),\n"
        " xs.toSorted((x, y) => y.length - x.length)]",
    ),
    _feature(
        "dates",
        ["2024-03-01", 31],
        "import datetime\nd = datetime.date(2024, 2, 29) + datetime.timedelta(days=1)\n"
        "[d.isoformat(), (datetime.date(2024, 2, 1) - datetime.date(2024, 1, 1)).days]",
        "const d = new Date(Date.UTC(2024, 1, 29))\nd.setUTCDate(d.getUTCDate() + 1)\n"
        ";[d.toISOString().slice(0, 10), (Date.UTC(2024, 1, 1) - Date.UTC(2024, 0, 1)) / 86400000]",
    ),
    _feature(
        "records: dataclasses, or interfaces",
        [3, True],
        "from dataclasses import dataclass, field\n@dataclass\nclass Q:\n    x: int\n    ys: list = field(default_factory=list)\n"
        "q = Q(3)\n[q.x, q == Q(3)]",
        "interface Q { readonly x: number; ys?: number[] }\ntype R = Pick<Q, 'x'> & { z: boolean }\n"
        "const q: R = {x: 3, z: true}\n;[q.x, q.z]",
    ),
    _feature(
        "enums",
        ["RED", 2, ["RED", "BLUE"]],
        "from enum import Enum\nclass Colour(Enum):\n    RED = 1\n    BLUE = 2\n"
        "[Colour(1).name, Colour.BLUE.value, [c.name for c in Colour]]",
        "enum Colour { RED = 1, BLUE }\n[Colour[1], Colour.BLUE, Object.keys(Colour).filter(k => isNaN(Number(k)))]",
        UNSUPPORTED,
    ),
    _feature(
        "optional chaining and null coalescing",
        [None, "x"],
        "d = {'a': None}\n[(d.get('a') or {}).get('b'), d.get('zz') or 'x']",
        "const d: any = {a: null}\n;[d.a?.b ?? null, d.zz ?? 'x']",
    ),
    _feature(
        "spread syntax",
        [[0, 1, 2], {"a": 1, "b": 3}],
        "xs, d = [1, 2], {'a': 1, 'b': 2}\n[[0, *xs], {**d, 'b': 3}]",
        "const xs = [1, 2], d = {a: 1, b: 2}\n;[[0, ...xs], {...d, b: 3}]",
    ),
    _feature(
        "leaving nested loops",
        [1, 1],
        "def find():\n    for i in range(3):\n        for j in range(3):\n            if i * j == 1:\n"
        "                return [i, j]\nfind()",
        "let found: number[] = []\nouter: for (let i = 0; i < 3; i++) for (let j = 0; j < 3; j++)\n"
        "  if (i * j === 1) { found = [i, j]; break outer }\nfound",
    ),
    _feature(
        "Unicode: code points, case and normal forms",
        [1, "ÉCLAIR", True, 128512],
        "import unicodedata\n[len('😀'), 'éclair'.upper(), unicodedata.normalize('NFC', 'e\\u0301') == 'é', ord('😀')]",
        "[[...'😀'].length, 'éclair'.toUpperCase(), 'e\\u0301'.normalize('NFC') === 'é', '😀'.codePointAt(0)]",
    ),
    _feature(
        "code generated at run time",
        [2, 9],
        "ns = {}\nexec('def sq(n):\\n    return n * n', ns)\n[eval('1 + 1'), ns['sq'](3)]",
        "[eval('1 + 1'), new Function('n', 'return n * n')(3)]",
    ),
    _feature(
        "globals that functions bind",
        [1, 2],
        "total = 0\ndef up():\n    global total\n    total += 1\n    return total\n[up(), up()]",
        "let total = 0\nfunction up() { total += 1; return total }\n[up(), up()]",
    ),
    _feature(
        "dynamic attributes",
        [5, 7, True],
        "class A:\n    pass\na = A()\nsetattr(a, 'x', 5)\na.y = 7\n[getattr(a, 'x'), a.y, hasattr(a, 'y')]",
        "const a: Record<string, number> = {}\na['x'] = 5\na.y = 7\n;[a.x, a['y'], 'y' in a]",
    ),
    _feature(
        "deleting names and items",
        [{"b": 2}, "gone"],
        "d = {'a': 1, 'b': 2}\ndel d['a']\nx = 1\ndel x\ntry:\n    x\n    said = 'there'\nexcept NameError:\n    said = 'gone'\n"
        "[d, said]",
        "const d: any = {a: 1, b: 2}\ndelete d.a\n;[d, 'a' in d ? 'there' : 'gone']",
        UNSUPPORTED,
    ),
)
