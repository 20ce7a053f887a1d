"""The globals of guest code, what it cannot reach, and what it may break without breaking the bridge."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import Code
from standfast.model.capability import GuestException
from standfast.ports.code_engine import CallAnswer, CellCall, CellPause

Cells = Any


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("'text', 1, -0, 10n, null, undefined, true", "text 1 -0 10n null undefined true"),
        ("{a: 'x', 'b-c': [1, 'y']}", "{ a: 'x', 'b-c': [ 1, 'y' ] }"),
        ("[], {}, [1, , 3]", "[] {} [ 1, <empty>, 3 ]"),
        ("new Map([['a', {b: 1}]]), new Set([1])", "Map(1) { 'a' => { b: 1 } } Set(1) { 1 }"),
        ("{a: {b: {c: {d: 1}}}}", "{ a: { b: { c: [Object] } } }"),
        ("() => 1, function named() {}, class A {}, Math.max",
         "[Function (anonymous)] [Function: named] [class A] [Function: max]"),
        ("new Date(0), /x/g, Symbol('s')", "1970-01-01T00:00:00.000Z /x/g Symbol(s)"),
        ("new Uint8Array([1, 2]), Object.create(null)", "Uint8Array(2) [ 1, 2 ] [Object: null prototype] {}"),
        ("'%s is %d%%: %j', 'x', 5, {a: 1}, 'more'", "x is 5%: {\"a\":1} more"),
        ("new (class Point { x = 1 })()", "Point { x: 1 }"),
        ("'it\\'s', [\"it's\"]", "it's [ \"it's\" ]"),
        ("{get a() { return 1 }}", "{ a: [Getter] }"),
        ("Array.from({length: 102}, () => 0).length, [].concat([1])", "102 [ 1 ]"),
    ],
)  # fmt: skip
def test_values_are_printed_as_node_prints_them(cells: Cells, code: str, shown: str) -> None:
    """Ours: `console.log` prints as in Node."""
    end = cells.run(f"console.log({code})")
    assert (end.error, end.stdout) == (None, shown + "\n")


def test_output_goes_to_the_right_stream(cells: Cells) -> None:
    """Seed: stdout and stderr are separate."""
    code = "console.log('a'); console.info('b'); console.debug('c'); console.warn('d'); console.error('e')"
    end = cells.run(code + "; console.group('g'); console.log('in'); console.groupEnd(); console.log('out')")
    assert (end.stdout, end.stderr) == ("a\nb\nc\ng\n  in\nout\n", "d\ne\n")
    end = cells.run("const o: any = {}; o.o = o; console.log(o); console.log(new Error('x')); console.log()")
    assert end.error is None
    assert end.stdout.startswith("{ o: [Circular *1] }\nError: x\n    at ")


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("new URL('../x?y=1#z', 'http://Example.com:80/a/b/c').href", "http://example.com/a/x?y=1#z"),
        ("new URL('https://u:p@host:8443/a%20b/ü?q=ä b#f').href",
         "https://u:p@host:8443/a%20b/%C3%BC?q=%C3%A4%20b#f"),
        ("const u = new URL('https://h/p'); u.searchParams.append('a', '1 2&3'); u.pathname = '/x y'; u.href",
         "https://h/x%20y?a=1+2%263"),
        ("const u = new URL('https://h:444/p?x=1');\n"
         "[u.origin, u.host, u.port, u.search, u.searchParams.get('x')]",
         ["https://h:444", "h:444", "444", "?x=1", "1"]),
        ("[URL.canParse('nope'), URL.canParse('mailto:a@b'), new URL('mailto:a@b').pathname]",
         [False, True, "a@b"]),
        ("new URL('//other/x', 'https://h/a').href", "https://other/x"),
        ("new URL('?q', 'https://h/a/b?x').href", "https://h/a/b?q"),
        ("new URL('file:///tmp/../a').href", "file:///a"),
        ("[...new URLSearchParams('a=1&b=%20+x&a=2')]", [["a", "1"], ["b", "  x"], ["a", "2"]]),
        ("const p = new URLSearchParams({b: '1', a: 'ü'});\n"
         "p.sort(); p.set('b', '2'); p.delete('c'); String(p)",
         "a=%C3%BC&b=2"),
        ("Array.from(new TextEncoder().encode('aü€😀'))",
         [97, 195, 188, 226, 130, 172, 240, 159, 152, 128]),
        ("new TextDecoder().decode(new Uint8Array([239, 187, 191, 97, 255, 226, 130, 172]))", "a\ufffd€"),
        ("let e; try { new TextDecoder('utf-8', {fatal: true}).decode(new Uint8Array([255])) }\n"
         "catch (x) { e = x }\ne instanceof TypeError", True),
        ("[btoa('hello'), atob('aGVsbG8=')]", ["aGVsbG8=", "hello"]),
        ("const a = {d: new Date(5), m: new Map([[1, {x: 1}]]), s: new Set([1])};\n"
         "const b: any = structuredClone({...a, self: null as any});\n"
         "[b.d.getTime(), b.m.get(1).x, b.m !== a.m, b.s.has(1)]", [5, 1, True, True]),
        ("const a: any = {}; a.a = a; const b = structuredClone(a); b.a === b && b !== a", True),
        ("let e: any; try { structuredClone(() => 1) } catch (x) { e = x }\ne.name", "DataCloneError"),
        ("/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/"
         ".test(crypto.randomUUID())", True),
        ("const a = Array.from({length: 500}, () => Math.random());\n"
         "const mean = a.reduce((x, y) => x + y) / 500;\n"
         "[a.every(x => x >= 0 && x < 1), new Set(a).size, Math.abs(mean - 0.5) < 0.1]",
         [True, 500, True]),
        ("new Date(2024, 0, 1).toISOString()", "2024-01-01T00:00:00.000Z"),
        ("eval('1 + 1') + new Function('a', 'return a * 2')(4)", 10),
        ("[1, 2, 3].at(-1)! + Object.groupBy([1, 2], x => x % 2 ? 'odd' : 'even').odd!.length", 4),
    ],
)  # fmt: skip
def test_the_globals_that_users_expect_exist(cells: Cells, code: str, result: Any) -> None:
    """Ours: code that models write runs without a library."""
    assert cells.value(code) == result


# ── the bridge ───────────────────────────────────────────────────────────────────────────────────────

POLLUTION = """
const bad: any = () => { throw new Error('polluted') };
const steal: any[] = [];
Object.defineProperty(Object.prototype, 'toJSON', { value: () => 'forged', configurable: true });
Object.defineProperty(Array.prototype, 'toJSON', { value: () => ['forged'], configurable: true });
Object.defineProperty(Array.prototype, '0', { set(v) { steal.push(v) }, get() { return 'forged' } });
Object.defineProperty(Object.prototype, 'then', { get: undefined, configurable: true });
for (const name of ['map', 'push', 'join', 'forEach', 'slice', 'concat', 'indexOf'])
  (Array.prototype as any)[name] = bad;
for (const name of ['slice', 'replace', 'replaceAll', 'indexOf', 'charCodeAt', 'split', 'padStart'])
  (String.prototype as any)[name] = bad;
for (const name of ['get', 'set', 'has', 'delete', 'forEach', 'clear'])
  for (const kind of [Map, Set, WeakMap]) (kind.prototype as any)[name] = bad;
for (const name of ['call', 'apply', 'bind']) (Function.prototype as any)[name] = bad;
(Array.prototype as any)[Symbol.iterator] = bad;
(String.prototype as any)[Symbol.iterator] = bad;
(Promise.prototype as any).then = bad; (Promise as any).resolve = bad; (Promise as any).all = bad;
JSON.stringify = bad; JSON.parse = bad; Reflect.apply = bad; Reflect.ownKeys = bad; Object.keys = bad;
Object.defineProperty = bad; Array.isArray = bad; Date.now = () => 42;
(globalThis as any).Promise = bad; (globalThis as any).Error = bad; (globalThis as any).Map = bad;
(globalThis as any).String = bad; (globalThis as any).Object = bad; (globalThis as any).console = undefined;
"""


def test_the_host_can_still_talk_to_a_polluted_session(cells: Cells) -> None:
    """Seed: guest code that replaces built-ins must not break or deceive the host."""
    state = cells.kept(POLLUTION + "const x = 1; 5")
    assert cells.value("({ a: [1, 'two', { b: null }] })", state=state) == {"a": [1, "two", {"b": None}]}
    run = cells.open("const got = await add({ q: [1] }, 'z'); got.n + x", state=state)
    assert run.start() == CellPause((CellCall(number=1, name="add", args=[{"q": [1]}, "z"], line=1),))
    end = cells.ended(run.answer(1, CallAnswer(value={"n": 41})))
    assert (end.error, end.result) == (None, 42)
    assert "x" in cells.engine.names(end.state)
    run = cells.open("try { await add(1) } catch (e: any) { e.name + ':' + e.message }", state=state)
    run.start()
    seen = GuestException(type="ValueError", message="no")
    assert cells.ended(run.answer(1, CallAnswer(exception=seen))).result == "ValueError:no"
    assert cells.fails("null.x", state=state).message == "TypeError: cannot read property 'x' of null"
    assert cells.value("doc.a", state=state, inputs={"doc": {"a": 7}}) == 7
    assert cells.value("later", state=state, load={"later": 8}.__getitem__) == 8


@pytest.mark.parametrize(
    "code",
    [
        "for (const k of Reflect.ownKeys(globalThis)) try { delete (globalThis as any)[k] } catch {}\n5",
        "for (const k of Reflect.ownKeys(globalThis)) try { (globalThis as any)[k] = null } catch {}\n5",
        "Object.freeze(globalThis); 5",
        "Object.setPrototypeOf(globalThis, null); 5",
        "for (const kind of [Object, Array, Promise, Map]) Object.freeze(kind.prototype); 5",
        "(Error as any).prepareStackTrace = (e: any, frames: any) => { throw new Error('x') }; 5",
        "(Error as any).prepareStackTrace = () => ({ a: 1 }); 5",
        "(Error as any).stackTraceLimit = 0; 5",
        "Object.preventExtensions(Object.getPrototypeOf(globalThis)); 5",
    ],
)
def test_a_session_that_breaks_its_globals_breaks_only_itself(cells: Cells, code: str) -> None:
    """Ours: whatever code does to its globals, the next cell runs or fails with an error."""
    end = cells.run(code)
    assert end.error is None
    assert end.result == 5
    again = cells.open("await add(1)", state=end.state).start()
    assert isinstance(again, CellPause) or again.error is not None
    assert cells.run("null.x", state=end.state).error is not None
    assert cells.value("1 + 1") == 2


def test_stack_frames_give_no_access_to_the_bridge(cells: Cells) -> None:
    """Ours: functions in a stack trace give guest code no additional powers."""
    code = """
const found: any[] = [];
(Error as any).prepareStackTrace = (e: any, frames: any[]) => {
  for (const f of frames) { const g = f.getFunction?.(); if (g) found.push(g) }
  return '';
};
add(1); console.log(new Error('x')); try { (null as any).x } catch {}
(Error as any).prepareStackTrace = undefined;
for (const f of found.slice(0, 50))
  for (const args of [[], ['[1,0,"forged"]'], ['x']]) try { f(...args) } catch {}
'ok'
"""
    step = cells.open(code, limits={"cpu_ms": 200}).start()
    assert isinstance(step, CellPause) or step.error is not None or step.result == "ok"
    assert cells.value("1 + 1") == 2


@pytest.mark.parametrize(
    "code",
    [
        "host('flood')",
        "globalThis.host",
        "poll()",
        "settle('[1,0,1]')",
        "Deno.env",
        "process.exit(1)",
        "std.open('/etc/passwd', 'r')",
        "os.exec(['ls'])",
        "new XMLHttpRequest()",
        "new WebSocket('ws://h')",
        "require('child_process')",
        "import.meta.url",
        "new Function('return this')().process.env",
        "(async () => {}).constructor('return process')()",
        "[].constructor.constructor('return process')().mainModule",
        "new (Object.getPrototypeOf(async function () {}).constructor)('return host')()",
    ],
)
def test_the_machine_is_out_of_reach(cells: Cells, code: str) -> None:
    """Seed: guest code sees nothing of the host."""
    end = cells.run(f"const got = {code}; await got; if (got === undefined) throw new Error('nothing'); got")
    assert end.error is not None, end.result


def test_lone_surrogates_are_shown_as_escapes(cells: Cells) -> None:
    """Bug: half a surrogate pair was replaced by U+FFFD in output and in errors."""
    assert cells.run("console.log('a\\ud800b')").stdout == "a\\ud800b\n"
    assert cells.fails("throw new Error('\\udc00')").message == "Error: \\udc00"
    assert cells.run("(globalThis as any)['\\ud800'] = 1; 5").result == 5


def test_a_forged_error_is_only_an_error(cells: Cells) -> None:
    """Ours: a thrown value can neither pass for a host error nor claim a position outside the code."""
    code = "const e: any = new RangeError('x'); e.code = 'TIMEOUT_CPU'; e.known = { code: 'CANCELLED' };\n"
    error = cells.fails(code + "e.stack = 'at a (eval_script:99999:1)\\n at b (eval_script:1:1)'; throw e")
    assert (error.code, error.span) == (Code.RUNTIME_ERROR, None)
    hostile = "throw new Proxy(new Error('x'), { get() { throw new Error('trap') } })"
    assert cells.fails(hostile).code == Code.RUNTIME_ERROR
    assert cells.fails("throw { get name() { throw 1 }, toString: null }").code == Code.RUNTIME_ERROR
    long = cells.fails("throw new Error('x'.repeat(1e6))")
    assert len(long.message) < 20_000


def test_sessions_share_nothing(cells: Cells) -> None:
    """Seed: two tenants never share a worker without a reset."""
    for n in range(6):
        assert cells.value("typeof (globalThis as any).leak", key=f"tenant{n}") == "undefined"
        cells.run("(globalThis as any).leak = 1; (Array.prototype as any).leak = 2", key=f"tenant{n}")
        assert cells.value("([] as any).leak === undefined", key=f"other{n}") is True


def test_timers_fire_in_order_of_due_time_whatever_the_order_of_answers(cells: Cells) -> None:
    """Bug: two short timers fired in the order in which the host's threads returned."""
    code = (
        "const log: string[] = []\n"
        "setTimeout(() => { log.push('b'); queueMicrotask(() => log.push('after b')) }, 2)\n"
        "setTimeout(() => log.push('a'), 1)\n"
        "await new Promise((done) => setTimeout(done, 3))\nlog"
    )
    run = cells.open(code)
    pause = run.start()
    slept = {call.kwargs["seconds"]: call.number for call in pause.calls}
    step = run.answer(slept[0.003], CallAnswer())
    assert cells.ended(step).result == ["a", "b", "after b"]
