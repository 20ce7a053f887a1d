"""TypeScript without its types: the output and its behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import ScriptRefused
from standfast.sandbox.typescript import source
from standfast.sandbox.typescript.script import read_script

pytestmark = pytest.mark.slow

BLANKED = [
    ("f(x as string)", "f(x          )"),
    ("f(x satisfies T)", "f(x            )"),
    ("f(x!)", "f(x )"),
    ("x!.y![0]!()", "x .y [0] ()"),
    ("f<string>(x)", "f        (x)"),
    ("new Foo<string>(x)", "new Foo        (x)"),
    ("f?.<string>(x)", "f?.        (x)"),
    ("tag<string>`x`", "tag        `x`"),
    ("c ? tag<A>`x` : d", "c ? tag   `x` : d"),
    ("f(<any>x)", "f(     x)"),
    ("f(x as const)", "f(x         )"),
    ("f(x as A.B.C | undefined)", "f(x                     )"),
    ("f(x as | A.B.C.D | E)", "f(x                 )"),
    ("f(y => y as any)", "f(y => y       )"),
    ("var x: number = 1", "var x         = 1"),
    ("var x: { a: string; b?: number }[] = []", "var x                              = []"),
    ("var x!: number, y: string", "var x         , y;       "),
    (
        "function f(a: number, b?: string, ...c: any[]): void {}",
        "function f(a        , b         , ...c       )       {}",
    ),
    (
        "function f<T extends object>(this: Foo, a: T): a is T { return true }",
        "function f                  (           a   )         { return true }",
    ),
    ("function f(this: Foo) {}", "function f(         ) {}"),
    ("function f(a: any): asserts a is string {}", "function f(a     )                      {}"),
    ("function f(a: string): void;", ";                           "),
    ("async function* f<T>(): AsyncGenerator<T> {}", "async function* f   ()                    {}"),
    ("f((a: number): string => a)", "f((a        )         => a)"),
    ("f(<T,>(a: T) => a)", "f(    (a   ) => a)"),
    ("f(async <T>(a: T): Promise<T> => a)", "f(async    (a   )             => a)"),
    ("f(({ a }: { a: string }) => a)", "f(({ a }               ) => a)"),
    ("interface A { a: string }", ";                        "),
    ("type A = string | number", ";                       "),
    ("declare const a: number", ";                      "),
    ("declare global { interface B {} }", ";                                "),
    ("namespace N { export interface A {} }", ";                                    "),
    ("try {} catch (e: unknown) {}", "try {} catch (e         ) {}"),
    (
        "f({ m<T>(a: T): T { return a }, get b(): number { return 1 } })",
        "f({ m   (a   )    { return a }, get b()         { return 1 } })",
    ),
    ('import type { A } from "a"', ";                         "),
    ('export type { A } from "a"', ";                         "),
    ("export { a, b }", ";              "),
    ("export function f() {}", ";      function f() {}"),
    ("export default f", ";              f"),
    ("a\ntype B = 1\n(c)()", "a\n;         \n(c)()"),
    ("a = b as any\n(c)()", "a = b;      \n(c)()"),
    ("a = b as any[]\n[c].d()", "a = b;        \n[c].d()"),
    ("a = b as any[]\n\n  // c\n  [c, d].e()", "a = b;        \n\n  // c\n  [c, d].e()"),
    ("a = b as any[] /* [\n */ [c].d()", "a = b;         /* [\n */ [c].d()"),
    ("a = ['//'] as any[] // c\n[c].d()", "a = ['//'];         // c\n[c].d()"),
    ("a = b as any[]  \r\n[c].d()", "a = b;          \r\n[c].d()"),
    ("a = b satisfies { c: 1 }\n[c].d()", "a = b;                  \n[c].d()"),
    ("a = (b as any)\n[c]", "a = (b       )\n[c]"),
    ("a = b as any[]  \n`c`", "a = b;          \n`c`"),
    ("(class { a = 1 as any[]\n['b'] = 2 })", "(class { a = 1;        \n['b'] = 2 })"),
    ("(function () { return <any>\n 5 })", "(function () { return (    \n 5) })"),
    ("f(<\nT>(a: T) => a)", "f((\n   a   ) => a)"),
    ("f((a): {\n b: string } => a)", "f((a    \n           ) => a)"),
    ("(class<T> extends A<T> implements B { })", "(class    extends A                 { })"),
    (
        "(class { private a: number = 1; readonly b?: string; static c!: number; declare d: string })",
        "(class { ;       a         = 1; ;        b ;       ; static c ;       ; ;                 })",
    ),
    ("(class { [key: string]: any; a = 1 })", "(class { ;                 ; a = 1 })"),
    (
        "(class { abstract a(): void; b(c: string): void; b(c: any) {} protected async d() {} })",
        "(class { ;                 ; ;                 ; b(c     ) {} ;         async d() {} })",
    ),
    ("(class { get: number\n a() {} })", "(class { get;       \n a() {} })"),
    ('(class { a = 1 as any\n private ["b"] = 2 })', '(class { a = 1;      \n ;       ["b"] = 2 })'),
    ("f(x as 'ä€𝒳')", "f(x    \u0020\u00a0\u3000\u3000  )"),
    ("#!/usr/bin/env node\nf()", "                   \nf()"),
]


@pytest.mark.parametrize(("code", "javascript"), BLANKED)
def test_types_become_blanks_of_the_same_width(code: str, javascript: str) -> None:
    """Ours: a position in the JavaScript is also valid in the TypeScript."""
    assert read_script(code).javascript == javascript


@pytest.mark.parametrize("code", [code for code, _ in BLANKED])
def test_the_output_contains_no_types(code: str) -> None:
    """Ours: reading the JavaScript again changes nothing."""
    once = read_script(code).javascript
    assert read_script(once).javascript == once


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("enum E { A, B = 2, C, 'd e' = 7, F = 'x', G = A | B, H }; [E.C, E[2], E['d e'], E.F, E.G, E.H]",
         [3, "G", 7, "x", 2, 3]),
        ("enum E { A = 1 } enum E { B = 5 } [E.A, E[5]]", [1, "B"]),
        ("enum E { A = 'ab'.length, B = -1, C, D = 1 << 3 } [E[2], E.B, E.C, E[8]]", ["A", -1, 0, "D"]),
        ("const enum K { X = 10, Y } K.Y", 11),
        ("enum S { default = 1, new, class } [S.default, S[2], S.class]", [1, "new", 3]),
        ("enum E { A, /* a */ B, // b\n C\n}\n[E.B, E.C]", [1, 2]),
        ("enum Empty {} Object.keys(Empty).length", 0),
        ("enum T { A = `x`, B = 'y' } Object.keys(T)", ["A", "B"]),
        ("function f() { enum E { A, B }; return E[1] + E.A } f()", "B0"),
        ("enum E { E, A } [E.E, E.A]", [0, 1]),
        ("namespace N { export const x = 1; const y = 2; export function f() { return y } } N.f() + N.x", 3),
        ("namespace N { export let y = 2; export function inc() { y++ } } N.inc(); N.y", 3),
        ("namespace N { export namespace M { export const z = 3 } export enum E { A } } [N.M.z, N.E.A]",
         [3, 0]),
        ("class P { z = 1; constructor(public x: number, private readonly y = 2, q?: string) {} } "
         "Object.entries(new P(5)).flat()", ["x", 5, "y", 2, "z", 1]),
        ("class B { b = 1; constructor(public t: string) {} }\n"
         "class D extends B { constructor(public u: number) { super('t'); this.b = this.u } }\n"
         "const d = new D(3); [d.t, d.u, d.b]", ["t", 3, 3]),
        ("class B {} class D extends B { constructor(public u: number) { super()\n} } new D(4).u", 4),
        ("abstract class A { abstract f(): number; g() { return this.f() } }\n"
         "class C extends A { f() { return 4 } } new C().g()", 4),
        ("class A {}\n(() => 5)()", 5),
        ("let n = [3] as number[]\n;[n[0]]", [3]),
        ("const a = [1] as any[]\n[a[0], 2].map((n) => n + 1)", [2, 3]),
        ("const a = [1] as any[]\n[a[0]]", [1]),
        ("let a: any = 1, b: any = 2\na = a as any\n[a, b] = [b, a];\n[a, b]", [2, 1]),
        ("const a = [7, 8] as const\n[a[1]]", [8]),
        ("const a = 'k' as keyof typeof globalThis\n[a]", ["k"]),
        ("const a = (() => 5) as () => number\n[a()]", [5]),
        ("const f = () => { const a = [[1]] as any[][]\n  [a[0], 2].length\n return a }\n[f()[0]]", [[1]]),
        ("const a = [5] as\n  any\n  []\na[0]", 5),
        ("const a: any = [[3, 4]]\nconst b = a\n[0] as any\n[b]", [[3, 4]]),
        ("const a: any = { b: 2 }\nconst c = (a as any)\n['b']\nc", 2),
        ("const f = (x: number): x is 1 => x === 1; f(1)", True),
        ("class A { get: number\n foo() { return 1 } } new A().foo()", 1),
        ("class A { x = 1 as any\n private *b() { yield 2 } all() { return [...this.b()] } } new A().all()",
         [2]),
        ("function f() { return <\nT>(x: T) => x } f()(3)", 3),
        ("function over(a: string): string;\nfunction over(a: any) { return a } over(3 as any)", 3),
        ("type A = 1\ninterface B {}\ndeclare const q: number\n[1].length", 1),
        ("for (const x of [1] as number[]) { var k = x as any } k", 1),
        ("const { a, b: { c } }: any = { a: 1, b: { c: 'x' } }; a + c", "1x"),
        ("const o = { m<T>(x: T): T { return x }, get p(): any { return 2 } } satisfies object; o.m<T>(o.p)",
         2),
        ("const s = new Set<string>; s.size", 0),
        ("type A = { b: string }\n`x`", "x"),
        ("let a = 1 as number\n`${a}`", "1"),
        ("export default function () {}\n1", 1),
        ("export default class {}\n2", 2),
        ("export const x = 3, y = 4\nx + y", 7),
        ("const fs: (() => number)[] = []; for (let i = 0; i < 3; i++) fs.push(() => i); fs.map((f) => f())",
         [0, 1, 2]),
        ("const x: number = await Promise.resolve(5); x", 5),
        ("let out: number[] = []; for await (const x of [1, 2]) out.push(x); out", [1, 2]),
        ("class A { static #n = 1; static { A.#n += 1 } static get n(): number { return A.#n } } A.n", 2),
        ("const name = (() => {}).name; const f = () => 1; [name, f.name]", ["", "f"]),
    ],
)  # fmt: skip
def test_rewritten_constructs_keep_their_meaning(guest: Any, code: str, value: Any) -> None:
    """Seed: enums, namespaces and parameter properties work, and statements stay separate."""
    assert guest.run(code) == value


def test_positions_behind_rewritten_parts_are_mapped_back(guest: Any) -> None:
    """Ours: lines keep their widths unless the script records a change."""
    code = "enum E { A, B }\nclass C { constructor(public x: E) { fail(x) } }\nnew C(E.B)"
    script = read_script(code)
    assert script.javascript.count("\n") == 2
    assert guest.failure(code)[1] == (2, 38)


def test_a_cast_whose_type_continues_with_a_bracket_on_the_next_line_is_refused() -> None:
    """Bug: the text in the brackets was taken for a type and silently removed."""
    with pytest.raises(ScriptRefused) as refused:
        read_script("f(a as any\n[b])")
    assert "where the type of this cast ends" in str(refused.value)


@pytest.mark.parametrize("piece", ["a/*", "a//", "a\n", "'", "`", "a as b\n[", "/* */a\n["])
def test_looking_for_brackets_takes_linear_time(piece: str) -> None:
    """Ours: the time to read code must be linear in its length."""
    source._late_brackets(f"x as any\n{piece * 100_000}[".encode())
