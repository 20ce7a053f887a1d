"""What a run reports about its failure: type, message, line and column."""

from __future__ import annotations

from behaviours.behaviour import Behaviour, fails, sharing

FAILED = "RUNTIME_ERROR"

ERRORS = sharing(
    Behaviour(
        name="a syntax error has its line",
        check=fails("SYNTAX_ERROR", "validation_error", at=(2, None)),
        py="x = 1\ny = (",
        ts="const x = 1\nconst y = (",
    ),
    Behaviour(
        name="a syntax error has its column",
        check=fails("SYNTAX_ERROR", at={"python": (2, 7), "typescript": (2, 10)}),
        py="x = 1\ny = 1 2",
        ts="const x = 1\nconst y: = 2",
    ),
    Behaviour(
        name="an exception has its type, message, line and column",
        check=fails(FAILED, "runtime_error", "Error: ", at={"python": (3, 5), "typescript": (3, 11)}),
        py="x = 1\n\ny = x / 0",
        ts="const x: any = null\n\nconst y = x.f",
    ),
    Behaviour(
        name="columns count characters",
        check=fails(FAILED, at={"python": (1, 10), "typescript": (1, 21)}),
        py="x = '😀'; 1 / 0",
        ts="const x: any = '😀'; null!.x",
    ),
    Behaviour(
        name="columns are those of the code as it was written, with its types",
        check=fails(FAILED, at=(2, 27)),
        ts="interface Node { next: Node | null }\nconst n = (1 as number) + (null as any as Node).next",
    ),
    Behaviour(
        name="an exception in a function is where it was raised",
        check=fails(FAILED, at={"python": (2, 12), "typescript": (2, 10)}),
        py="def f(n):\n    return 1 // n\ndef g(n):\n    return f(n)\ng(0)",
        ts="function f(n: any) {\n  return n.a.b\n}\nfunction g(n: any) {\n  return f(n)\n}\ng(0)",
    ),
    Behaviour(
        name="an exception in a function of an earlier run is where this run called it",
        check=fails(FAILED, at=(2, 5)),
        py=("def f(n):\n    x = 0\n    y = 0\n    return 1 // n", "\n2 + f(0)"),
        ts=("function f(n: any) {\n\n\n  return n.a.b\n}", "\n2 + f(0)"),
    ),
    Behaviour(
        name="an exception in an async function has its line",
        check=fails(FAILED, at=(2, None)),
        py="async def f():\n    return 1 / 0\nawait f()",
        ts="async function f() {\n  return (null as any).x\n}\nawait f()",
    ),
    Behaviour(
        name="an exception after an awaited call has its line",
        check=fails(FAILED, at=(3, None)),
        py="async def f():\n    x = await add(1)\n    return x / 0\nawait f()",
        ts="async function f() {\n  const x: any = await add(1)\n  return x.y.z\n}\nawait f()",
    ),
    Behaviour(
        name="an exception that the code raises is reported",
        check=fails(FAILED, "runtime_error", "Error: not so", at=(2, None)),
        py="x = 1\nraise ValueError('not so')",
        ts="const x = 1\nthrow new RangeError('not so')",
    ),
    Behaviour(
        name="an exception class defined in the code is reported by its name",
        check=fails(FAILED, "runtime_error", "Oops: not so", at=(3, None)),
        py="class Oops(Exception):\n    pass\nraise Oops('not so')",
        ts="class Oops extends Error { name = 'Oops' }\n\nthrow new Oops('not so')",
        refused={"monty": "UNSUPPORTED_FEATURE"},
        bugs={"quickjs": "the reported position is that of the class, not of the throw"},
    ),
    Behaviour(
        name="a thrown value of any type is reported",
        check=fails(FAILED, "runtime_error", "some text"),
        ts="throw 'some text'",
    ),
    Behaviour(
        name="a rejected promise that the code does not await is the error of the run",
        check=fails(FAILED, "runtime_error", "Error: lost"),
        ts="Promise.reject(new Error('lost'))\n1",
    ),
    Behaviour(
        name="exiting the interpreter ends only the run",
        check=fails(FAILED, "runtime_error", "SystemExit: 3", at=(1, None)),
        py="raise SystemExit(3)",
        bugs=dict.fromkeys(("monty", "auto"), "reported as an internal error of Monty, without a position"),
    ),
    Behaviour(
        name="an unbound name is reported",
        check=fails(FAILED, "runtime_error", "nothing_here", at=(1, None)),
        py="nothing_here",
        ts="nothing_here",
    ),
)
