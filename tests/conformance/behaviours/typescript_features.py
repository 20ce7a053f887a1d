"""Features of TypeScript only."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, gives, sharing


def _typescript(
    name: str, value: object, code: str, refused: dict[str, str] | None = None, **more: object
) -> Behaviour:
    return Behaviour(name=name, check=gives(value), ts=code, refused=refused or {}, **more)  # type: ignore[arg-type]


UNSUPPORTED = {"quickjs": "UNSUPPORTED_FEATURE"}

TYPESCRIPT_FEATURES = sharing(
    _typescript("type annotations of every kind are stripped", [1, "x", [2], True],
                "type Id = string | number\nlet a: Id = 1\nconst b = <T,>(x: T): T => x\nfunction c(this: void, xs?: readonly number[]): xs is number[] { return true }\n"
                "const d = [2] as const satisfies readonly number[]\n;[a, b<string>('x'), d, c()]"),
    _typescript("interfaces, type aliases and declarations are removed", 1,
                "interface A { x: number }\ntype B<T> = { [K in keyof T]?: T[K] }\ndeclare const nowhere: B<A>\ndeclare module 'x' {}\n1"),
    _typescript("generics with constraints and defaults", [3, "b"],
                "class Stack<T extends {} = string> { private items: T[] = []\n  push(x: T): this { this.items.push(x); return this }\n  get size(): number { return this.items.length } }\n"
                "function pick<T, K extends keyof T>(o: T, k: K): T[K] { return o[k] }\n[new Stack<number>().push(1).push(2).push(3).size, pick({a: 'b'}, 'a')]"),
    _typescript("overloads and type guards", ["n", "s"],
                "function f(x: number): string\nfunction f(x: string): string\nfunction f(x: any) { return typeof x === 'number' ? 'n' : 's' }\n[f(1), f('x')]"),
    _typescript("non-null and type assertions", [1, 2], "const x: number | null = 1\nconst y = x! as unknown as number\nlet z!: number\nz = 2\n;[y, z]"),
    _typescript("parameter properties", [1, "b"], "class A { constructor(public readonly x: number, private y = 'b') {}\n  both() { return [this.x, this.y] } }\nnew A(1).both()"),
    _typescript("member modifiers", [1, 2, 3], "class A { public a = 1; protected readonly b: number = 2; static override = 3; declare d: string\n  get all() { return [this.a, this.b, A.override] } }\nnew A().all"),
    _typescript("classes that implement interfaces", "hello", "interface Says { say(): string }\nclass A implements Says { say() { return 'hello' } }\nnew A().say()"),
    _typescript("enums of text and constant enums", ["up", 1, "B"], "enum D { Up = 'up' }\nconst enum E { A, B }\nenum F { A, B }\n[D.Up, E.B, F[1]]"),
    _typescript("enums whose values are computed", [1, 2, 3], "enum Flags { A = 1 << 0, B = 1 << 1, C = A | B }\n[Flags.A, Flags.B, Flags.C]"),
    _typescript("namespaces", 3, "namespace Geometry { export const sides = 3; const hidden = 1 }\nGeometry.sides"),
    _typescript("decorators", ["seen", 2], "const seen: string[] = []\nfunction mark(target: any, context: any) { seen.push('seen'); return target }\n"
                "@mark\nclass A { two() { return 2 } }\n[seen[0], new A().two()]", UNSUPPORTED),
    _typescript("module imports", 1, "import { readFileSync } from 'fs'\n1", UNSUPPORTED),
    _typescript("type-only imports", 1, "import type { A } from './a'\n1"),
    _typescript("exports", 5, "export const five = 5\nexport function f() { return five }\nf()"),
    _typescript("`require`", 1, "const fs = require('fs')\n1", {"quickjs": "UNKNOWN_TOOL"}),
    _typescript("JSX", 1, "const x = <div>text</div>\n1", UNSUPPORTED),
    _typescript("optional chaining of members, calls and items", [None, None, 2], "const o: any = {f: () => 2}\n;[o.a?.b ?? null, o.g?.() ?? null, o.f?.()]"),
    _typescript("nullish and logical assignment", [1, 2, 3], "let a: any = null, b: any = 1, c: any = 0\na ??= 1\nb &&= 2\nc ||= 3\n;[a, b, c]"),
    _typescript("tagged templates", "a|1|b|2|", "const tag = (s: TemplateStringsArray, ...v: any[]) => s.map((t, i) => t + (i < v.length ? '|' + v[i] + '|' : '')).join('')\ntag`a${1}b${2}`"),
    _typescript("raw templates", "a\\nb", "String.raw`a\\nb`"),
    _typescript("computed and shorthand members", {"x": 1, "k2": 2, "f": 3}, "const x = 1, k = 'k'\nconst o = {x, [k + 2]: 2, f() { return 3 }}\n;({...o, f: o.f()})"),
    _typescript("getters and setters of objects", [1, 10], "const o = {_v: 1, get v() { return this._v }, set v(n) { this._v = n * 10 }}\nconst a = o.v\no.v = 1\n;[a, o.v]"),
    _typescript("Proxy and Reflect", ["got x", True, ["a"]], "const p: any = new Proxy({a: 1}, {get: (t, k) => 'got ' + String(k), has: () => true})\n;[p.x, 'z' in p, Reflect.ownKeys({a: 1})]"),
    _typescript("symbols", [1, "Symbol(s)", True], "const s = Symbol('s')\nconst o = {[s]: 1}\n;[o[s], s.toString(), Symbol.for('a') === Symbol.for('a')]"),
    _typescript("iterator helpers and Symbol.iterator", [[2, 4], [1, 2]], "function* g() { yield 1; yield 2 }\nconst it = {*[Symbol.iterator]() { yield* [1, 2] }}\n;[[...g().map(n => n * 2)], [...it]]"),
    _typescript("BigInt arithmetic", ["3628800", True, "5"], "let f = 1n\nfor (let i = 1n; i <= 10n; i++) f *= i\n;[f.toString(), 2n > 1, String(BigInt(5))]"),
    _typescript("WeakMap, WeakSet and WeakRef", [1, True, True], "const k = {}\nconst m = new WeakMap([[k, 1]])\n;[m.get(k), new WeakSet([k]).has(k), new WeakRef(k).deref() === k]"),
    _typescript("typed arrays and DataView", [[1, 2], 258, 2], "const b = new ArrayBuffer(2)\nconst u = new Uint8Array(b)\nu.set([1, 2])\n;[Array.from(u), new DataView(b).getUint16(0), b.byteLength]"),
    _typescript("private methods, fields and static blocks", [1, 2, True], "class A { static n = 0; static { A.n = 2 } #x = 1\n  #get() { return this.#x } get() { return this.#get() } static has(o: any) { return #x in o } }\n"
                "[new A().get(), A.n, A.has(new A())]"),
    _typescript("labelled blocks and continue", [0, 2], "const out: number[] = []\nouter: for (let i = 0; i < 3; i++) { for (const j of [1]) { if (i === j) continue outer }\n  out.push(i) }\nout"),
    _typescript("switch with fall through", ["b", "c"], "const out: string[] = []\nswitch (2 as number) { case 1: out.push('a'); case 2: out.push('b'); case 3: out.push('c'); break; default: out.push('d') }\nout"),
    _typescript("promises: all, race, any, allSettled, finally", [[1, 2], 1, 2, ["fulfilled", "rejected"], "f"],
                "let f = ''\nawait Promise.resolve().finally(() => { f = 'f' })\n;[await Promise.all([1, Promise.resolve(2)]), await Promise.race([1, new Promise(() => {})]),\n"
                " await Promise.any([Promise.reject(1), 2]), (await Promise.allSettled([1, Promise.reject(1)])).map(x => x.status), f]"),
    _typescript("Promise.withResolvers", 5, "const {promise, resolve} = Promise.withResolvers<number>()\nresolve(5)\nawait promise"),
    _typescript("modern array methods", [3, [3, 2, 1], [1, 9], [2], 1], "const xs = [1, 2, 3]\n;[xs.at(-1), xs.toReversed(), [1, 2].with(1, 9), [[2]].flat(), xs.findLast(x => x < 2)]"),
    _typescript("modern object methods", [{"odd": [1, 3], "even": [2]}, True, [["a", 1]]], "[Object.groupBy([1, 2, 3], n => n % 2 ? 'odd' : 'even'), Object.hasOwn({a: 1}, 'a'), Object.entries({a: 1})]"),
    _typescript("set operations", [[1, 2, 3], [2], True], "const a = new Set([1, 2]), b = new Set([2, 3])\n;[[...a.union(b)], [...a.intersection(b)], new Set([1]).isSubsetOf(a)]"),
    _typescript("modern string methods", ["xbxb", "005", True, ["1", "2"]], "['abab'.replaceAll('a', 'x'), '5'.padStart(3, '0'), 'abc'.includes('b'), [...'a1b2'.matchAll(/\\d/g)].map(m => m[0])]"),
    _typescript("numbers: separators, exponents, safe integers", [1000000, 8, 255, True], "[1_000_000, 2 ** 3, 0xff, Number.isSafeInteger(2 ** 53 - 1)]"),
    _typescript("explicit resource management", ["use", "dispose"], "const log: string[] = []\n{\n  using r = {[Symbol.dispose]() { log.push('dispose') }}\n  log.push('use')\n}\nlog"),
    _typescript("accessors declared with `accessor`", 1, "class A { accessor x = 1 }\nnew A().x", UNSUPPORTED),
    _typescript("`this`, call, apply and bind", [1, 1, 1], "function f(this: {x: number}) { return this.x }\nconst o = {x: 1}\n;[f.call(o), f.apply(o), f.bind(o)()]"),
    _typescript("prototypes", ["p", True], "const p = {who: 'p'}\nconst o = Object.create(p)\n;[o.who, Object.getPrototypeOf(o) === p]"),
    _typescript("hoisting of functions and var", [1, None], "const a = later()\nfunction later() { return 1 }\nconst b = typeof v === 'undefined' ? null : v\nvar v = 1\n;[a, b]"),
    _typescript("errors with stacks and causes", ["TypeError", "why", True], "let e: any\ntry { throw new TypeError('no', {cause: 'why'}) } catch (x) { e = x }\n[e.name, e.cause, e.stack.length > 0]"),
    _typescript("destructuring with defaults in parameters", [1, 2, {"z": 3}], "const f = ({x = 1, y, ...rest}: {x?: number; y: number; z: number}) => [x, y, rest]\nf({y: 2, z: 3})"),
    _typescript("await anywhere in an expression", [3, "b"], "const x = (await Promise.resolve(1)) + (await Promise.resolve(2))\nconst y = (await Promise.resolve(true)) ? 'b' : 'c'\n;[x, y]"),
    _typescript("lines without semicolons", [3, 2], "const a = 1\nconst b = 2\nlet c = a + b\nc++\nc--\n;[c, b]"),
    _typescript("declarations of every kind in one cell", 15, "var a = 1; let b = 2; const c = 3; function d() { return 4 } class E { v = 5 }\na + b + c + d() + new E().v"),
)  # fmt: skip
