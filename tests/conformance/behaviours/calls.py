"""Calls of tools from guest code."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, fails, gives, sharing
from behaviours.stage import Stage

IMPORT = "import asyncio\n"


def _records_are_kept(stage: Stage) -> None:
    assert stage.value(stage.code) == 5
    calls = stage.ended.external_calls
    assert [(call.name, call.status) for call in calls] == [("add", "ok"), ("fail", "error"), ("add", "ok")]
    assert stage.ended.metrics.external_calls_count == 3


def _at_the_same_time(stage: Stage) -> None:
    assert stage.value(stage.code.replace("PLACE", stage.session)) == [1, 2, 3]


def _last_first(stage: Stage) -> None:
    names = [f"{stage.session}-{letter}" for letter in "abc"]
    assert stage.value(stage.code, inputs={"a": names[0], "b": names[1], "c": names[2]}) == names


def _no_external_call(stage: Stage) -> None:
    assert stage.value(stage.code, limits={"max_external_calls": 2}) == "slept"
    assert stage.ended.metrics.external_calls_count == 0


CALLS = [
    *sharing(
        Behaviour(
            name="a plain call returns its value",
            check=gives(5),
            py="add(1) + add_later(2)",
        ),
        Behaviour(
            name="an awaited call returns its value",
            check=gives(5),
            py="await add(1) + await add_later(2)",
            ts="await add(1) + await add_later(2)",
        ),
        Behaviour(
            name="arguments may be positional",
            check=gives(3),
            py="add(1, 2)",
            ts="await add(1, 2)",
        ),
        Behaviour(
            name="arguments may be named",
            check=gives(3),
            py="add(b=1, a=2)",
            ts="await add({b: 1, a: 2})",
        ),
        Behaviour(
            name="arguments may be unpacked",
            check=gives([3, 3]),
            py="[add(*[1], **{'b': 2}), add(1, b=2)]",
            ts="const given: [number, number] = [1, 2]\n;[await add(...given), await add({...{a: 1}, b: 2})]",
        ),
        Behaviour(
            name="a call may be the argument of a call",
            check=gives(3),
            py="add(add(1))",
            ts="await add(await add(1))",
        ),
        Behaviour(
            name="functions, methods and loops may make calls",
            check=gives([2, 3, 4]),
            py="def f(n):\n    return add(n)\nclass A:\n    def m(self):\n        return add(2)\n"
            "[f(1), A().m(), *[add(n) for n in [3]]]",
            ts="async function f(n: number) { return await add(n) }\nclass A { async m() { return await add(2) } }\n"
            "const out = [await f(1), await new A().m()]\nfor (const n of [3]) out.push(await add(n))\nout",
        ),
        Behaviour(
            name="a tool is a value that can be passed on",
            check=gives([2, 2]),
            py="fs = [add, add_later]\n[f(1) for f in fs]",
            ts="const fs = [add, add_later]\nconst out = []\nfor (const f of fs) out.push(await f(1))\nout",
        ),
        Behaviour(
            name="a built-in function may call a tool",
            check=gives([[2, 3], ["a", "bb"]]),
            py="[list(map(add, [1, 2])), sorted(['bb', 'a'], key=lambda x: echo(len(x)))]",
            refused={"monty": "UNSUPPORTED_FEATURE"},
        ),
        Behaviour(
            name="a generator may make calls",
            check=gives([2, 3]),
            py="def g():\n    for n in [1, 2]:\n        yield add(n)\nlist(g())",
            ts="async function* g() { for (const n of [1, 2]) yield await add(n) }\n"
            "const out = []\nfor await (const n of g()) out.push(n)\nout",
            refused={"monty": "UNSUPPORTED_FEATURE"},
        ),
        Behaviour(
            name="an answer arrives as a value of the language",
            check=gives(["x", True, None, 2.5]),
            py="got = echo({'k': ['x', True, None, 2.5]})\ngot['k']",
            ts="const got = await echo({value: {k: ['x', true, null, 2.5]}})\ngot.k",
        ),
        Behaviour(
            name="calls awaited together run concurrently",
            check=_at_the_same_time,
            py=IMPORT + "await asyncio.gather(*[meet('PLACE', 3, n) for n in [1, 2, 3]])",
            ts="await Promise.all([1, 2, 3].map(n => meet('PLACE', 3, n)))",
        ),
        Behaviour(
            name="results keep the order of the calls, whichever ends first",
            check=_last_first,
            py=IMPORT + "await asyncio.gather(after(a, b), after(b, c), after(c))",
            ts="await Promise.all([after(a, b), after(b, c), after(c)])",
        ),
        Behaviour(
            name="a call begins where it is made and is awaited later",
            check=gives([3, 2]),
            py="one = add_later(1)\ntwo = add_later(2)\n[await two, await one]",
            ts="const one = add_later(1)\nconst two = add_later(2)\n;[await two, await one]",
        ),
        Behaviour(
            name="calls in guest functions run concurrently",
            check=gives([22, 33]),
            py=IMPORT
            + "async def one(n):\n    return await add(n) * 11\nawait asyncio.gather(one(1), one(2))",
            ts="const one = async (n: number) => await add(n) * 11\nawait Promise.all([one(1), one(2)])",
        ),
        Behaviour(
            name="a failed call does not affect concurrent calls",
            check=gives([2, "told so"]),
            py=IMPORT
            + "async def one(f, *args):\n    try:\n        return await f(*args)\n    except ValueError as e:\n"
            "        return str(e)\nawait asyncio.gather(one(add, 1), one(fail))",
            ts="const all = await Promise.allSettled([add(1), fail()])\n"
            "all.map((one: any) => one.status === 'fulfilled' ? one.value : one.reason.message)",
        ),
        Behaviour(
            name="gather can return exceptions as values",
            check=gives([2, "ValueError"]),
            py=IMPORT + "got = await asyncio.gather(add(1), fail(), return_exceptions=True)\n"
            "[got[0], type(got[1]).__name__]",
            refused={"monty": "RUNTIME_ERROR"},
        ),
        Behaviour(
            name="a failed call raises an exception that code can catch",
            check=gives("ValueError: told so"),
            py="try:\n    fail()\nexcept ValueError as e:\n    result = 'ValueError: ' + str(e)",
            ts="try { await fail() } catch (e: any) { result = `${e.name}: ${e.message}` }",
        ),
        Behaviour(
            name="a failed call that the code does not catch is the error of the run",
            check=fails("TOOL_ERROR", "runtime_error", "told so", at=(2, None)),
            py="x = 1\nfail()",
            ts="const x = 1\nawait fail()",
        ),
        Behaviour(
            name="a tool's own error code arrives",
            check=fails("OUT_OF_STOCK", "runtime_error", "none left"),
            py="fail('OUT_OF_STOCK')",
            ts="await fail('OUT_OF_STOCK')",
        ),
        Behaviour(
            name="arguments of a wrong type are refused, and code can catch that",
            check=gives("caught"),
            py="try:\n    add('x')\nexcept (TypeError, ValueError):\n    result = 'caught'",
            ts="try { await add('x' as any) } catch (e) { result = 'caught' }",
        ),
        Behaviour(
            name="wrong arguments that the code does not catch are the error of the run",
            check=fails("INVALID_ARGUMENT", "validation_error", hint="a, b"),
            py="add(1, 2, 3, 4)",
            ts="await add(1, 2, 3, 4)",
        ),
        Behaviour(
            name="an argument that is not JSON is refused, and code can catch that",
            check=gives(True),
            py="try:\n    echo(lambda: 1)\nexcept TypeError as e:\n    result = 'not JSON' in str(e)",
            ts="try { await echo(() => 1) } catch (e: any) { result = e.message.includes('not JSON') }",
        ),
        Behaviour(
            name="a call to an unknown name suggests a similar name",
            check=fails("UNKNOWN_TOOL", "validation_error", hint="add_later"),
            py="x = 1\nadd_latr(1)",
            ts="const x = 1\nawait add_latr(1)",
        ),
        Behaviour(
            name="a call to an unknown name can be caught",
            check=gives("caught"),
            py="try:\n    add_latr(1)\nexcept NameError:\n    result = 'caught'",
            ts="try { await add_latr(1) } catch (e) { if (e instanceof ReferenceError) result = 'caught' }",
        ),
        Behaviour(
            name="code can list its tools",
            check=gives(True),
            py="any(tool['name'] == 'add' for tool in list_tools())",
            ts="(await list_tools()).some((tool: any) => tool.name === 'add')",
        ),
        Behaviour(
            name="every call is on record",
            check=_records_are_kept,
            py="x = add(1)\ntry:\n    fail()\nexcept ValueError:\n    pass\nadd(x, b=3)",
            ts="const x = await add(1)\ntry { await fail() } catch {}\nawait add({a: x, b: 3})",
        ),
        Behaviour(
            name="sleeping takes time and is not an external call",
            check=_no_external_call,
            py="import time, asyncio\nfor i in range(4):\n    time.sleep(0.001)\nawait asyncio.sleep(0.001)\n'slept'",
            ts="for (let i = 0; i < 4; i++) await new Promise(done => setTimeout(done, 1))\n'slept'",
        ),
    ),
    Behaviour(
        name="a guest function hides a tool of the same name",
        check=gives("mine"),
        py=("def add(a):\n    return 'mine'", "add(1)"),
        ts=("function add(a: number) { return 'mine' }", "add(1)"),
    ),
]
