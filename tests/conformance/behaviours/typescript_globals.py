"""Globals that TypeScript has without importing anything."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, fails, gives, sharing
from behaviours.stage import Stage


def _global(
    name: str, value: object, code: str, refused: dict[str, str] | None = None, **more: object
) -> Behaviour:
    return Behaviour(name=name, check=gives(value), ts=code, refused=refused or {}, **more)  # type: ignore[arg-type]


def _console(stage: Stage) -> None:
    stage.value(stage.code)
    assert (stage.ended.stdout, stage.ended.stderr) == ("{ a: [ 1, 'x' ] } 5\n", "careful\n")


TYPESCRIPT_GLOBALS = sharing(
    Behaviour(name="console prints values as Node does", check=_console,
              ts="console.log({a: [1, 'x']}, 5)\nconsole.warn('careful')"),
    _global("setTimeout and clearTimeout", ["a", "b"], "const log: string[] = []\nsetTimeout(() => log.push('b'), 2)\nsetTimeout(() => log.push('a'), 1)\nconst t = setTimeout(() => log.push('c'), 1)\nclearTimeout(t)\nawait new Promise(done => setTimeout(done, 5))\nlog"),
    _global("setInterval and clearInterval", 3, "let n = 0\nawait new Promise<void>(done => { const t = setInterval(() => { if (++n === 3) { clearInterval(t); done() } }, 1) })\nn"),
    _global("queueMicrotask", ["now", "soon"], "const log = ['now']\nqueueMicrotask(() => log.push('soon'))\nawait null\nlog"),
    _global("URL and URLSearchParams", ["/a/x", "2", "q=1&r=b+c"], "const u = new URL('../x?p=2', 'https://h/a/b/')\n;[u.pathname, u.searchParams.get('p'), String(new URLSearchParams({q: '1', r: 'b c'}))]"),
    _global("TextEncoder and TextDecoder", [[195, 169], "é"], "const b = new TextEncoder().encode('é')\n;[Array.from(b), new TextDecoder().decode(b)]"),
    _global("atob and btoa", ["aGk=", "hi"], "[btoa('hi'), atob('aGk=')]"),
    _global("structuredClone", [True, 1], "const a = {m: new Map([[1, 1]])}\nconst b = structuredClone(a)\n;[a.m !== b.m, b.m.get(1)!]"),
    _global("crypto.randomUUID and getRandomValues", [36, 4], "[crypto.randomUUID().length, crypto.getRandomValues(new Uint8Array(4)).length]"),
    _global("performance.now", True, "const t = performance.now()\nt >= 0 && performance.now() >= t"),
    _global("AbortController", [False, True, "why"], "const c = new AbortController()\nconst before = c.signal.aborted\nc.abort('why')\n;[before, c.signal.aborted, c.signal.reason]",
            {"quickjs": "UNKNOWN_TOOL"}),
    _global("Math, Number and parsing", [3, 4, 255, 1.5], "[Math.max(1, 3), Math.hypot(0, 4), parseInt('ff', 16), Number('1.5')]"),
    _global("encodeURIComponent and its reverse", ["a%20b%C3%A9", "a bé"], "[encodeURIComponent('a bé'), decodeURIComponent('a%20b%C3%A9')]"),
    _global("globalThis", [True, 7], "(globalThis as any).seven = 7\n;[typeof globalThis === 'object', seven]"),
    _global("locale-specific dates and numbers", ["1/2/2024", "1,234.5"], "[new Date(2024, 0, 2).toLocaleDateString('en-US'), (1234.5).toLocaleString('en-US')]",
            bugs={"quickjs": "the locale is silently ignored"}),
    _global("Intl", "1.234,5", "new Intl.NumberFormat('de-DE').format(1234.5)", {"quickjs": "RUNTIME_ERROR"}),
    _global("WebAssembly", "object", "new WebAssembly.Module(new Uint8Array())\n1", {"quickjs": "RUNTIME_ERROR"}),
    _global("SharedArrayBuffer and Atomics", 1, "Atomics.add(new Int32Array(new SharedArrayBuffer(4)), 0, 1) + 1", {"quickjs": "RUNTIME_ERROR"}),
    Behaviour(name="there is no network", check=fails("UNKNOWN_TOOL"), ts="await fetch('https://example.com')"),
    Behaviour(name="there is no process object and no environment", check=fails("RUNTIME_ERROR"), ts="(process as any).env"),
    Behaviour(name="there are no other threads", check=fails("UNKNOWN_TOOL"), ts="new Worker('x')"),
)  # fmt: skip
