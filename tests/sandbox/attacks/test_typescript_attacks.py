"""Attacks on TypeScript. Nothing leaks, the host survives, and the next run works."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import Code, ScriptRefused
from standfast.sandbox.typescript import types as tsc
from standfast.sandbox.typescript.script import read_script

pytestmark = pytest.mark.slow

Target = Any
Outside = Any

ABSENT = [
    "process", "require", "module", "exports", "global", "window", "self", "Deno", "Bun", "fetch",
    "XMLHttpRequest", "WebSocket", "EventSource", "Worker", "SharedWorker", "importScripts", "WebAssembly",
    "Atomics", "std", "os", "bjson", "scriptArgs", "print", "load", "loadScript", "read", "readFile", "gc",
    "navigator", "location", "document", "localStorage", "indexedDB", "caches", "open", "host", "quit",
    "exit", "__dirname", "__filename", "__loadScript",
]  # fmt: skip
REACHES: list[tuple[str, str]] = [
    *[(f"global {name}", f"typeof {name} === 'undefined' ? '' : '{name}'") for name in ABSENT],
    *[(f"module {name}", f"await eval(\"import('{name}')\")") for name in ("std", "os", "qjs:std", "qjs:os", "fs", "node:fs", "child_process", "file://{file}", "{file}")],
    ("module by a function", "await new Function(\"return import('std')\")()"),
    ("module by an async function", "await (async () => {{}}).constructor(\"return import('os')\")()"),
    ("module statement", "import * as std from 'std'"),
    ("module expression", "await import('std')"),
    ("module meta", "import.meta.url"),
    ("module meta by eval", "eval('import.meta')"),
    ("require", "require('fs').readFileSync('{file}', 'utf8')"),
    ("this in a function", "Object.keys(new Function('return this')()).filter(k => /host|bridge|standfast|std|os$/.test(k)).join()"),
    ("this in a sloppy eval", "(0, eval)('typeof host + typeof settle + typeof poll').replaceAll('undefined', '')"),
    ("constructor of a tool", "(add as any).constructor('return typeof host')() === 'undefined' ? '' : 'host'"),
    ("caller of a tool", "(add as any).caller ?? ''"),
    ("arguments of a tool", "(add as any).arguments ?? ''"),
    ("callee", "(function () {{ return (arguments as any).callee.caller ?? '' }})()"),
    ("source of a tool", "String(add).includes('host') ? String(add) : ''"),
    ("stack frames", "let got: any = ''; (Error as any).prepareStackTrace = (e: any, s: any) => {{ got = String(s.map((x: any) => x.getFunction())); return '' }}; add(1); new Error('x').stack; got"),
    ("stack frames of a class", "let got: any = ''; class E extends Error {{ static prepareStackTrace(e: any, s: any) {{ got = 'seen'; return '' }} }}; new E('x').stack; got"),
    ("stack frames of a host error", "let got: any = ''; (Error as any).prepareStackTrace = (e: any, s: any) => {{ got = 'seen'; return '' }}; try {{ await echo() }} catch {{}}; got"),
    ("paths in a stack", "const s = new Error('x').stack ?? ''; /\\/(work|home|root|usr|tmp)\\//.test(s) ? s : ''"),
    ("hidden names", "Object.getOwnPropertyNames(globalThis).filter(n => /standfast|bridge|host|settle|poll|__/i.test(n)).join()"),
    ("hidden symbols", "Object.getOwnPropertySymbols(globalThis).filter(s => s !== Symbol.toStringTag).map(String).join()"),
    ("prototype of the global object", "Reflect.ownKeys(Object.getPrototypeOf(globalThis)).filter(k => typeof (globalThis as any)[k] !== 'function').map(String).join()"),
    ("time of the machine", "Math.abs(performance.now()) > 100 ? 'clock' : ''"),
    ("shared memory", "typeof SharedArrayBuffer === 'undefined' ? '' : (() => {{ try {{ return new Int32Array(new SharedArrayBuffer(8))[0] }} catch {{ return '' }} }})()"),
    ("blocking wait", "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)"),
    ("weak references", "let n = ''; new FinalizationRegistry(() => {{ n = 'ran'; add(1) }}).register({{}}, 1); n"),
    ("a wasm module", "new (globalThis as any).WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))"),
    ("a realm", "new (globalThis as any).ShadowRealm()"),
    ("locale", "typeof Intl === 'undefined' ? '' : Intl.DateTimeFormat().resolvedOptions().timeZone === 'UTC' ? '' : 'zone'"),
    ("time zone of the machine", "new Date(0).getTimezoneOffset() || ''"),
]  # fmt: skip


@pytest.mark.parametrize("code", [row[1] for row in REACHES], ids=[row[0] for row in REACHES])
def test_guest_code_cannot_reach_anything_behind_the_bridge(
    typescript: Target, outside: Outside, secret: str, code: str
) -> None:
    """Ours: SPEC §11; features of other engines, and ways to reach behind the bridge."""
    result = typescript.box.run(code.format(**outside.places()), session="reach")
    assert result.error is not None or not result.result, result.result
    assert secret not in repr(result)
    outside.is_untouched()
    typescript.box.reset("reach")
    assert typescript.box.run("1 + 1", session="bystander").result == 2


def test_the_workers_hold_no_secrets(
    typescript: Target, outside: Outside, secret: str, children: Any
) -> None:
    """Ours: a process that runs guest code has no environment to leak."""
    typescript.box.run("1", session="secrets")
    workers = [pid for pid in children() if b"quickjs.worker" in _read(f"/proc/{pid}/cmdline")]
    assert workers
    for pid in workers:
        assert secret.encode() not in _read(f"/proc/{pid}/environ")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


# ── the bridge ───────────────────────────────────────────────────────────────────────────────────────

POLLUTIONS: list[tuple[str, str]] = [
    ("toJSON of objects", "Object.defineProperty(Object.prototype, 'toJSON', {value: () => 'evil', configurable: true})"),
    ("toJSON of text", "Object.defineProperty(String.prototype, 'toJSON', {value: () => 'evil'}); Object.defineProperty(Number.prototype, 'toJSON', {value: () => 666})"),
    ("toJSON of lists", "Object.defineProperty(Array.prototype, 'toJSON', {value: () => 'evil'})"),
    ("then that is read", "Object.defineProperty(Object.prototype, 'then', {get: () => undefined, configurable: true})"),
    ("then of promises", "Promise.prototype.then = (() => 5) as any"),
    ("constructor of promises", "Promise.prototype.constructor = class { constructor(f: any) { f(() => {}, () => {}) } } as any"),
    ("species of promises", "Object.defineProperty(Promise, Symbol.species, {value: null})"),
    ("promises", "(globalThis as any).Promise = class { constructor() { throw new Error('evil') } }"),
    ("resolve of promises", "Promise.resolve = (() => { throw new Error('evil') }) as any"),
    ("setters of numbers", "for (const p of [Object.prototype, Array.prototype]) for (let i = 0; i < 9; i++) Object.defineProperty(p, i, {set() { throw new Error('evil') }, get: () => 'evil', configurable: true})"),
    ("length", "Object.defineProperty(Object.prototype, 'length', {get: () => 5, set() { throw 1 }, configurable: true})"),
    ("iterators", "Array.prototype[Symbol.iterator] = (function* () { yield 666 }) as any; Object.getPrototypeOf([][Symbol.iterator]()).next = () => { throw 1 }"),
    ("methods of lists", "for (const k of Object.getOwnPropertyNames(Array.prototype)) if (k !== 'length' && k !== 'constructor') (Array.prototype as any)[k] = () => { throw new Error('evil') }"),
    ("methods of text", "for (const k of Object.getOwnPropertyNames(String.prototype)) if (k !== 'length' && k !== 'constructor') (String.prototype as any)[k] = () => 'evil'"),
    ("methods of maps and sets", "for (const C of [Map, Set, WeakMap]) for (const k of Object.getOwnPropertyNames(C.prototype)) try { Object.defineProperty(C.prototype, k, {value: () => 'evil'}) } catch {}"),
    ("methods of functions", "for (const k of ['call', 'apply', 'bind']) (Function.prototype as any)[k] = () => 'evil'"),
    ("JSON", "JSON.stringify = (() => 'evil') as any; JSON.parse = (() => 'evil') as any; (globalThis as any).JSON = null"),
    ("Reflect and Object", "for (const o of [Reflect, Object] as any[]) for (const k of Object.getOwnPropertyNames(o)) try { if (typeof o[k] === 'function' && k !== 'prototype') o[k] = () => 'evil' } catch {}"),
    ("own globals", "for (const k of ['Map', 'Set', 'String', 'Error', 'Object', 'Array', 'Reflect', 'Uint8Array', 'Date', 'TypeError', 'RangeError']) (globalThis as any)[k] = null"),
    ("hasInstance", "for (const E of [Error, RangeError, TypeError, Date, Map, Set, RegExp] as any[]) Object.defineProperty(E, Symbol.hasInstance, {value: () => true})"),
    ("errors", "Error.prototype.toString = (() => { throw 1 }) as any; Object.defineProperty(Error.prototype, 'name', {get() { throw 1 }}); (Error as any).stackTraceLimit = -1"),
    ("descriptors", "for (const k of ['get', 'set', 'value', 'writable', 'enumerable']) Object.defineProperty(Object.prototype, k, Object.assign(Object.create(null), {value: 1, configurable: true, writable: true}))"),
    ("proto", "Object.defineProperty(Object.prototype, '__proto__', {get() { throw 1 }, set() { throw 1 }})"),
    ("frozen everything", "for (const o of [Object.prototype, Array.prototype, Promise.prototype, Map.prototype, Function.prototype, Error.prototype]) Object.freeze(o)"),
    ("a frozen global", "Object.freeze(Object.getPrototypeOf(globalThis))"),
    ("replaced console", "(globalThis as any).console = {log() { throw 1 }}"),
    ("timers", "(globalThis as any).setTimeout = (globalThis as any).queueMicrotask = () => { throw 1 }"),
    ("a throwing result property", "Object.defineProperty(globalThis, 'result', {get() { throw 1 }, configurable: false})"),
]  # fmt: skip


@pytest.mark.parametrize("code", [row[1] for row in POLLUTIONS], ids=[row[0] for row in POLLUTIONS])
def test_polluting_the_bridge_does_not_change_what_the_host_sees(
    typescript: Target, sid: str, noted: list[Any], code: str
) -> None:
    """Seed: the bridge uses nothing that guest code can replace."""
    call = "await note({ a: [1, 'two', { three: null }], b: true })"
    result = typescript.attack(f"{code};\n{call}", sid)
    assert noted == [{"a": [1, "two", {"three": None}], "b": True}], result.error
    assert (result.status, result.result) == ("ok", 1), result.error
    noted.clear()
    again = typescript.attack(call, sid)
    assert (again.status, noted) == ("ok", [{"a": [1, "two", {"three": None}], "b": True}]), again.error
    typescript.is_well(sid)


def test_a_guest_cannot_forge_error_codes_of_the_host(typescript: Target, sid: str) -> None:
    """Bug: with the stack trace functions, code could give its exceptions any error code of the host."""
    code = """
const seen: any[] = [];
(Error as any).prepareStackTrace = (e: any, frames: any[]) => { seen.push(...frames.map(f => f.getFunction())); return '' };
try { await echo() } catch {}
const make = seen.find(f => f?.name === 'failure');
throw make ? make('Error', 'm', 'X', '', { code: 'WAITING_FOR_APPROVAL', message: 'forged' }) : new Error('plain')
"""
    result = typescript.attack(code, sid)
    assert result.error is not None
    assert (result.error.code, result.error.message) == (Code.RUNTIME_ERROR, "Error: plain")


def test_calls_are_validated_counted_and_approved_however_they_are_made(
    typescript: Target, sid: str, noted: list[Any]
) -> None:
    """Ours: the host decides who may call what; the guest only sends text."""
    tools = "const tools: any = Object.getPrototypeOf(globalThis);\n"
    assert typescript.attack(tools + "await tools.pay(1000)", sid).status == "waiting_for_approval"
    typescript.box.cancel(sid)
    assert typescript.attack(tools + "tools.unknown = tools.note; await tools.unknown(1)", sid).status == "ok"
    assert typescript.attack("await (globalThis as any).unknown(1)", f"{sid}-2").error is not None
    counted = typescript.attack(
        tools + "await Promise.all(Array.from({length: 9}, () => tools.note(2)))",
        sid, limits={"max_external_calls": 3, "wall_ms": 900},
    )  # fmt: skip
    assert counted.error.code == Code.EXTERNAL_CALLS_EXCEEDED
    assert ("paid", 1000) not in noted
    assert noted.count(2) <= 3


CPU, MEMORY, WALL, STACK, OUTPUT, CALLS, DIED = (
    "TIMEOUT_CPU", "MEMORY_EXCEEDED", "TIMEOUT_WALL", "STACK_OVERFLOW", "STDOUT_EXCEEDED", "EXTERNAL_CALLS_EXCEEDED", "INTERRUPTED",
)  # fmt: skip
FINE, RAISED, FOREIGN, WRONG = "fine", "RUNTIME_ERROR", "RESULT_NOT_SERIALIZABLE", "INVALID_ARGUMENT"
LIMITS = {"cpu_ms": 120, "wall_ms": 500, "memory_mb": 16}

BOMBS: list[tuple[str, str, set[str]]] = [
    # time
    ("loop", "while (true) {}", {CPU}),
    ("loop that catches", "while (true) { try { while (true) {} } catch {} }", {CPU}),
    ("loop in finally", "try { while (true) {} } finally { while (true) {} }", {CPU}),
    ("loop in a nest of finally", "const f = (): any => { try { while (true) {} } finally { f() } }; f()", {CPU}),
    ("loop in a generator", "function* g() { while (true) try { yield 1 } finally { continue } }; for (const x of g()) {}", {CPU}),
    ("microtasks", "while (true) await null", {CPU}),
    ("microtasks that multiply", "const f = (): any => { queueMicrotask(f); queueMicrotask(f) }; f(); await new Promise(() => {})", {CPU, MEMORY}),
    ("promises that multiply", "const f = async (): Promise<any> => Promise.all([f(), f()]); await f()", {CPU, MEMORY, STACK, RAISED}),
    ("a promise that resolves to itself", "const p: any = new Promise(r => setTimeout(() => r(p), 0)); await p", {RAISED}),
    ("timers", "const f = () => setTimeout(f, 0); f(); await new Promise(() => {})", {CPU}),
    ("intervals", "setInterval(() => {}, 0); await new Promise(() => {})", {CPU, WALL, CALLS}),
    ("many timers", "for (let i = 0; i < 1e6; i++) setTimeout(() => {}, 1e9); await new Promise(() => {})", {CPU, MEMORY, CALLS}),
    ("an endless timer", "await new Promise(r => setTimeout(r, 1e308))", {WALL}),
    ("an infinite timer", "await new Promise(r => setTimeout(r, Infinity)); 5", {FINE}),
    ("timers without a valid delay", "await new Promise(r => setTimeout(r, NaN)); await new Promise(r => setTimeout(r, -1e308)); 5", {FINE}),
    ("an endless thenable", "const t: any = { then(r: any) { Promise.resolve().then(() => r({ ...t })) } }; t", {CPU, MEMORY}),
    ("a thenable that never settles", "({ then() {} })", {DIED}),
    ("a thenable that resolves to itself", "const t: any = { then(r: any) { r(t) } }; t", {DIED, CPU}),
    ("an endless async iterator", "for await (const x of { [Symbol.asyncIterator]: () => ({ next: async () => ({ done: false, value: 1 }) }) }) {}", {CPU}),
    ("regex", "/(a*)*b/.test('a'.repeat(50))", {CPU}),
    ("regex with references", "/^(a|a?)+\\1$/.test('a'.repeat(50) + 'b')", {CPU}),
    ("regex in replace", "'a'.repeat(40).replace(/((a+)+)+$/g, () => { while (true) {} })", {CPU}),
    ("a big number", "(7n ** 200000n) ** 50n", {CPU, MEMORY, RAISED}),
    ("a big number as text", "String(7n ** 300000n).length", {CPU, FINE, MEMORY}),
    ("sorting", "Array.from({length: 1e5}, (_, i) => i).sort(() => { for (let i = 0; i < 1e4; i++); return 1 })", {CPU}),
    ("sorting without order", "let n = 0; Array.from({length: 1e4}, (_, i) => i).sort(() => (n++ % 3) - 1); n > 0", {FINE, CPU}),
    ("a getter in a result", "({ get a(): any { while (true) {} } })", {CPU}),
    ("a getter in an argument", "await echo({ get a(): any { while (true) {} } })", {CPU}),
    ("a getter in an exception", "throw Object.defineProperty(new Error('x'), 'stack', { get() { while (true) {} } })", {CPU}),
    ("a name in an exception", "throw Object.defineProperty(new Error('x'), 'name', { get() { while (true) {} } })", {CPU}),
    ("a proxy as exception", "throw new Proxy(new Error('x'), { get() { while (true) {} }, ownKeys() { while (true) {} } })", {CPU, RAISED}),
    ("a proxy in the console", "console.log(new Proxy({}, { ownKeys() { while (true) {} } }))", {CPU}),
    ("a class in a result", "class A { toJSON() { while (true) {} } }; new A()", {CPU}),
    ("an instance check", "Object.defineProperty(RangeError, Symbol.hasInstance, { value() { while (true) {} } }); const f = (): any => ({ get a() { return f() } }); f()", {CPU}),
    ("the stack trace limit", "(Error as any).stackTraceLimit = { valueOf() { while (true) {} } }; await add(1)", {CPU, FINE, RAISED}),
    ("hashing and dates", "for (;;) new Date(NaN).valueOf() + crypto.randomUUID().length", {CPU}),
    ("eval in eval", "const s = 'eval(s)'; (globalThis as any).s = s; eval(s)", {CPU, STACK, RAISED}),
    ("retrying after a limit", "const until = (f: any): any => { try { return f() } catch (e) { return until(f) } }; until(() => { while (true) {} })", {CPU}),
    # memory
    ("a buffer", "new ArrayBuffer(2 ** 31 - 1)", {MEMORY, RAISED}),
    ("a buffer of 2 to the 32", "new ArrayBuffer(2 ** 32)", {RAISED, MEMORY}),
    ("a buffer of 2 to the 53", "new ArrayBuffer(2 ** 53)", {RAISED}),
    ("a resizable buffer", "new ArrayBuffer(8, { maxByteLength: 2 ** 40 } as any)", {RAISED, MEMORY}),
    ("buffers whose errors are caught", "for (;;) try { new ArrayBuffer(2e9) } catch {}", {MEMORY, CPU}),
    ("typed arrays", "const a: any[] = []; for (;;) a.push(new Float64Array(1e5))", {MEMORY}),
    ("text", "let s = 'ab'; for (;;) { s += s; s.charCodeAt(1) }", {MEMORY, RAISED}),
    ("text by repetition", "'x'.repeat(2 ** 30)", {MEMORY, RAISED}),
    ("text by padding", "'x'.padEnd(2 ** 29, 'yz').split('')", {MEMORY, RAISED}),
    ("text by replacing", "'x'.repeat(1e5).replaceAll('x', 'y'.repeat(1e5))", {MEMORY, RAISED}),
    ("lists", "const a: any[] = []; for (;;) a.push([a, a])", {MEMORY, CPU}),
    ("a list by length", "const a: any = []; a.length = 4294967295; a", {CPU, MEMORY, FOREIGN}),
    ("a list that is sparse", "const a: any = []; a[4294967294] = 1; a", {CPU, MEMORY, FOREIGN}),
    ("a list that is filled", "new Array(1e8).fill(0)", {MEMORY, CPU}),
    ("a list that claims to be long", "new Proxy([], { get: (t, k) => k === 'length' ? 1e9 : 1 })", {CPU, MEMORY}),
    ("a list of infinite length", "await echo(new Proxy([], { get: (t, k) => k === 'length' ? Infinity : 'x'.repeat(1e5) }))", {CPU, MEMORY}),
    ("maps", "const m = new Map(); for (let n = 0;; n++) m.set(n, {})", {MEMORY, CPU}),
    ("symbols", "const a: any[] = []; for (let n = 0;; n++) a.push(Symbol.for('x'.repeat(99) + n))", {MEMORY, CPU}),
    ("properties", "for (let n = 0;; n++) (globalThis as any)['k' + n] = n", {MEMORY, CPU}),
    ("closures", "let f = () => 1; for (;;) { const g = f; f = () => g() }", {MEMORY, CPU}),
    ("spread", "const a = new Array(1e5).fill(1); Math.max(...a, ...a, ...a, ...a, ...a, ...a, ...a, ...a)", {FINE, RAISED, MEMORY, STACK}),
    ("regexes", "for (let n = 0;; n++) new RegExp('a'.repeat(n % 1000) + '(b|c)'.repeat(100))", {CPU, MEMORY, RAISED}),
    ("a regex of repetitions", "new RegExp('((((a{1,1000}){1,1000}){1,1000}){1,1000})').test('a')", {CPU, MEMORY, RAISED, FINE}),
    ("code", "new Function('return ' + '1+'.repeat(1e6) + '1')()", {MEMORY, STACK, RAISED, CPU, FINE}),
    ("JSON of nested lists", "let o: any = 1; for (let i = 0; i < 40; i++) o = [o, o]; o", {CPU, MEMORY}),
    ("JSON of nested lists as argument", "let o: any = 1; for (let i = 0; i < 40; i++) o = [o, o]; await echo(o)", {CPU, MEMORY}),
    ("a message", "throw new Error('x'.repeat(2e6))", {RAISED, MEMORY}),
    # depth
    ("recursion", "const f = (): any => f(); f()", {STACK}),
    ("recursion, caught", "const f = (): any => { try { return f() } catch { return f() } }; f()", {STACK, CPU}),
    ("recursion of generators", "function* g(): any { yield* g() }; [...g()]", {STACK}),
    ("recursion of getters", "const o = { get x(): any { return o.x } }; o.x", {STACK}),
    ("recursion of proxies", "let p: any = {}; for (let i = 0; i < 1e4; i++) p = new Proxy(p, {}); p.x", {STACK, DIED, FINE, RAISED, MEMORY}),
    ("recursion of prototypes", "let p: any = {}; for (let i = 0; i < 1e5; i++) p = Object.create(p); p.x ?? 1", {FINE, CPU, MEMORY}),
    ("recursion of bound functions", "let f: any = () => 1; for (let i = 0; i < 1e4; i++) f = f.bind(null); f()", {STACK, DIED, FINE, RAISED, MEMORY}),
    ("recursion of comparison", "const s = (): any => [2, 1].sort(s); s()", {STACK}),
    ("recursion of text", "const o: any = { toString: () => `${o}` }; `${o}`", {STACK}),
    ("recursion of JSON", "let o: any = []; for (let i = 0; i < 1e5; i++) o = [o]; JSON.stringify(o)", {STACK, RAISED, MEMORY}),
    ("recursion of parsing JSON", "JSON.parse('['.repeat(1e6))", {STACK, RAISED, MEMORY}),
    ("recursion of joining", "let a: any = []; for (let i = 0; i < 1e5; i++) a = [a]; String(a)", {STACK, RAISED, MEMORY}),
    ("recursion of flattening", "let a: any = []; for (let i = 0; i < 1e5; i++) a = [a]; a.flat(Infinity)", {STACK, RAISED, FINE, MEMORY}),
    ("recursion of cloning", "let a: any = []; for (let i = 0; i < 1e5; i++) a = [a]; structuredClone(a)", {STACK, RAISED, MEMORY}),
    ("recursion of regexes", "new RegExp('('.repeat(1e5) + ')'.repeat(1e5))", {STACK, RAISED, MEMORY, CPU}),
    ("recursion of classes", "let C: any = class {}; for (let i = 0; i < 1e4; i++) { const B = C; C = class extends B {} }; new C()", {STACK, RAISED, MEMORY, FOREIGN, CPU}),
    ("recursion of freeing", "let o: any = null; for (let i = 0; i < 2e5; i++) o = { o }; o = null; 1", {FINE, CPU, MEMORY}),
    ("a deep result", "let o: any = {}; for (let i = 0; i < 5e4; i++) o = { o }; o", {FOREIGN, MEMORY}),
    ("a deep argument", "let o: any = {}; for (let i = 0; i < 5e4; i++) o = { o }; await echo(o)", {WRONG, MEMORY}),
    ("a deep print", "let o: any = {}; for (let i = 0; i < 5e4; i++) o = { o }; console.log(o); 1", {FINE, MEMORY}),
    # what the host sees
    ("a cycle", "const o: any = {}; o.o = o; o", {FOREIGN}),
    ("a cycle through getters that call", "const o: any = { get o() { add(1); return o } }; o", {FOREIGN, CPU}),
    ("a proxy", "const p: any = new Proxy({}, { get: () => p, ownKeys: () => ['a'], getOwnPropertyDescriptor: () => ({ value: 1, enumerable: true, configurable: true }), getPrototypeOf: () => Object.prototype }); p", {FOREIGN, MEMORY}),
    ("a proxy that throws", "new Proxy({}, { getPrototypeOf() { throw 1 }, get() { throw 2 }, ownKeys() { throw 3 } })", {FOREIGN, RAISED}),
    ("a revoked proxy", "const r = Proxy.revocable({}, {}); r.revoke(); r.proxy", {FOREIGN, RAISED}),
    ("a revoked proxy as argument", "const r = Proxy.revocable([], {}); r.revoke(); await echo(r.proxy)", {WRONG, RAISED}),
    ("a result that throws", "({ get a(): any { throw new Error('x') } })", {FOREIGN, RAISED}),
    ("a symbol", "Symbol('x')", {FOREIGN}), ("a big integer", "1n", {FOREIGN}), ("a function", "() => 1", {FOREIGN}), ("a map", "new Map([[1, 2]])", {FOREIGN}),
    ("lone surrogates", "'\\ud800'", {FOREIGN}), ("a lone surrogate in a key", "({ ['\\udfff']: 1 })", {FOREIGN}),
    ("a lone surrogate in an argument", "await echo('\\ud800')", {WRONG}),
    ("a lone surrogate in an error name", "throw Object.assign(new Error('\\ud800'), { name: '\\udfff' })", {RAISED}),
    ("a __proto__ key", "JSON.parse('{\"__proto__\": {\"x\": 1}, \"constructor\": 2}')", {FINE}),
    ("an exception whose properties throw", "throw { get name(): any { throw 1 }, get message(): any { throw 2 }, toString() { throw 3 }, [Symbol.toPrimitive]() { throw 4 } }", {RAISED}),
    ("an undefined exception", "throw undefined", {RAISED}), ("an exception that is a symbol", "throw Symbol('x')", {RAISED}),
    ("an exception that is a proxy", "throw new Proxy({}, { getPrototypeOf() { throw 1 }, ownKeys() { throw 1 } })", {RAISED}),
    ("an unhandled rejection", "Promise.reject(new Error('lost')); 1", {RAISED}),
    ("many rejections", "for (let i = 0; i < 1e4; i++) Promise.reject(i); 1", {RAISED, MEMORY}),
    ("a rejection with a loop", "Promise.reject(Object.defineProperty(new Error('x'), 'message', { get() { while (true) {} } })); 1", {CPU}),
    ("output", "while (true) console.log('x'.repeat(1000))", {OUTPUT, CPU}),
    ("empty output", "while (true) console.log('')", {OUTPUT, CPU}),
    ("output in groups", "while (true) console.group()", {CPU, MEMORY}),
    ("output in deep groups", "for (let i = 0; i < 1e4; i++) console.group(); console.log('a\\n'.repeat(1e4))", {MEMORY, OUTPUT, CPU}),
    ("output of patterns", "console.log('%s'.repeat(1e5), ...new Array(1000).fill('x'.repeat(1000)))", {FINE, MEMORY, CPU, OUTPUT}),
    ("output of lone surrogates", "console.log('\\ud800'.repeat(1000)); console.error('\\udfff')", {FINE}),
    ("output of a cycle", "const o: any = {}; o.o = o; o.m = new Map([[o, o]]); console.log(o, [o])", {FINE}),
    ("output of values that throw", "console.log(new Proxy({}, { ownKeys() { throw 1 } }), { get a() { throw 1 } }, Object.create(null))", {FINE}),
    ("calls", "while (true) await add(1)", {CALLS}),
    ("calls that catch", "while (true) try { await add('x' as any) } catch {}", {CALLS}),
    ("concurrent calls", "await Promise.all(Array.from({length: 500}, () => add(1)))", {CALLS}),
    ("calls that are never awaited", "for (let i = 0; i < 500; i++) add(1); 1", {CALLS}),
    ("calls with large arguments", "const x = 'x'.repeat(2e6); while (true) await echo(x)", {"REQUEST_TOO_LARGE", MEMORY}),
    ("calls in a getter of a result", "({ get a() { add(1); return 1 } })", {FINE, FOREIGN}),
    ("calls in toJSON of an argument", "class A { toJSON() { add(1); return 1 } }; await echo(new A())", {FINE}),
    ("calls in a rejection", "await Promise.reject({ get stack() { add(1); return '' } })", {RAISED}),
    ("names", "for (let i = 0; i < 1e4; i++) (globalThis as any)['n'.repeat(50) + i] = 1; 1", {FINE, CPU, MEMORY}),
]  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("code", "expected"), [row[1:] for row in BOMBS], ids=[row[0] for row in BOMBS])
def test_a_bomb_ends_in_time_and_does_no_harm(
    typescript: Target, sid: str, code: str, expected: set[str]
) -> None:
    """Ours: SPEC §5; no guest code can hang, kill or slow the host for longer than its limit and a second."""
    typescript.keep(sid)
    limits = (
        {**LIMITS, "wall_ms": 10_000} if CALLS in expected else LIMITS
    )  # a busy machine makes calls slowly
    result = typescript.attack(code, sid, limits=limits)
    found = FINE if result.error is None else str(result.error.code)
    slow = {CPU, WALL} if {MEMORY, CPU} & expected else set()  # a busy machine may reach a time limit first
    assert found in expected | slow, result.error
    typescript.has_kept(sid)
    assert typescript.box.run("1 + 1", session="bystander").result == 2


def test_there_are_enough_attacks() -> None:
    """Ours: the tables must not shrink by accident."""
    assert len(BOMBS) + len(REACHES) + len(POLLUTIONS) >= 200


def test_depth_is_the_only_limit_that_code_may_catch_and_survive(typescript: Target, sid: str) -> None:
    """Seed: code can catch the RangeError and continue, even the second time."""
    code = "const f = (): any => f(); let n = 0; for (let i = 0; i < 50; i++) try { f() } catch (e) { if (e instanceof RangeError) n++ }; n"
    assert typescript.attack(code, sid).result == 50
    assert typescript.attack("await add(n)", sid).result == 51


# ── source text ──────────────────────────────────────────────────────────────────────────────────────

SIZE = (256 << 10) - 200


def many(part: str, count: int = 10**9) -> str:
    return part * min(count, SIZE // len(part.encode()))


SOURCES: dict[str, str] = {
    "open brackets of all kinds": many("({[("), "open parentheses": many("("), "nested parentheses": many("(", 10**5) + "1" + many(")", 10**5),
    "nested braces": many("{", 10**5) + many("}", 10**5), "nested lists": many("[", 10**5) + many("]", 10**5), "angles": many("<"),
    "generics": "let a: " + many("A<", 80000) + "B" + many(">", 80000), "templates": many("`${", 40000) + "1" + many("}`", 40000),
    "open templates": many("`${"), "an open string": "'" + many("a"), "an open template": "`" + many("a"), "an open comment": "/*" + many("a"),
    "comments": many("/**/"), "a regex": "/" + many("("), "quotes": many("'"), "backticks": many("`"), "arrows": many("a=>") + "1",
    "typed arrows": many("(a:T)=>", 20000) + "1", "choices": many("a?", 50000) + "1" + many(":1", 50000), "casts": "a" + many(" as T"),
    "satisfied": "a" + many(" satisfies T"), "certain": "a" + many("!", 200000), "members": "a" + many(".b", 10**5), "sums": "1" + many("+1", 10**5),
    "not": many("!", 200000) + "1", "key types": "let a:" + many("keyof ") + "T", "unions": "let a:" + many("A|") + "B",
    "conditional types": "type A=" + many("B extends C ? D : ", 12000) + "E", "decorators": many("@a ") + "class A{}",
    "classes": many("class A{m(){", 15000) + many("}}", 15000), "functions": many("function f(){", 15000) + many("}", 15000),
    "else": many("if(a);else ") + ";", "elements": many("<a>", 40000) + many("</a>", 40000), "NUL": "1;\0", "halves": "'\ud800'", "marks": many("\ufeff"),
    "emoji": "'" + many("😀") + "'", "line ends": many("\u2028"), "lines": many("\n"), "semicolons": many(";"), "variables": many("let a=1;"),
    "patterns": "const " + many("[", 20000) + "a" + many("]", 20000) + "=1", "an enum": "enum A{" + many("a,") + "}",
    "namespaces": many("namespace A{", 15000) + many("}", 15000), "abstract": many("abstract "), "declare": many("declare "), "await": many("await ") + "1",
    "new": many("new ") + "A", "import": many("import "), "hashes": many("#"), "at": many("@"), "escapes": many("\\u0061"), "casts in front": many("<T>") + "x",
    "overloads": many("function f(a:T):T;"), "calls with types": many("f<T>("), "comparisons": many("a<b>(c),"), "a name": many("a"), "colons": many(":"),
    "questions": many("?"), "fields": many("class A{x!:T;y?:T=1;}"), "too long": many("a") * 2, "rubbish": "".join(chr(33 + n * 7919 % 90) for n in range(SIZE)),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_source_of_any_form_is_parsed_or_refused_in_time(name: str) -> None:
    """Ours: the host parses the code itself, so parsing must be fast."""
    began = time.thread_time()
    with contextlib.suppress(ScriptRefused):
        read_script(SOURCES[name])
    assert time.thread_time() - began < 3


@pytest.mark.parametrize(
    "name", ["NUL", "halves", "rubbish", "too long", "open parentheses", "nested lists", "generics"]
)
def test_malformed_source_gives_a_typed_error(typescript: Target, sid: str, name: str) -> None:
    """Ours: no source can crash the host or leave the session unusable."""
    result = typescript.box.run(SOURCES[name], session=sid, limits={"wall_ms": 2_000})
    assert result.error is not None
    assert result.error.code in set(Code)
    typescript.is_well(sid)


def test_a_compiler_that_takes_too_long_is_killed_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Any
) -> None:
    """Bug: npm's tsc starts the compiler as a child process, which kept running after the timeout."""
    inner = f"import subprocess, sys\nsubprocess.run([{sys.executable!r}, '-c', 'while True: pass'])"
    monkeypatch.setattr(tsc, "_TIMEOUT_S", 0.4)
    before = children()
    with pytest.raises(tsc.CompilerFailed):
        tsc.compile_messages([sys.executable, "-c", inner], "1", "")
    until = time.monotonic() + 10
    command = b"while True: pass"
    while any(command in _read(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdecimal()):
        assert time.monotonic() < until
    assert not {pid for pid in children() - before if command in _read(f"/proc/{pid}/cmdline")}
