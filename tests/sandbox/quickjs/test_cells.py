"""TypeScript cells: pauses, answers, suspension, inputs, results, workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from standfast.errors import Code, EngineFailed, ErrorObject, InvalidArgument
from standfast.model.capability import GuestException
from standfast.ports.code_engine import CallAnswer, CellCall, CellPause, CodeEngine
from standfast.sandbox.run_errors import argument_not_json

pytestmark = pytest.mark.slow

Cells = Any
BIG = "x" * 5_000_000
STOPPED = ErrorObject(code=Code.CANCELLED, message="enough")


def value(of: Any, at_ms: int = 0) -> CallAnswer:
    return CallAnswer(value=of, at_ms=at_ms)


def failed(kind: str, message: str, error: ErrorObject | None = None) -> CallAnswer:
    return CallAnswer(exception=GuestException(type=kind, message=message), error=error)


# ── pauses and answers ───────────────────────────────────────────────────────────────────────────────


def test_the_engine_implements_its_port(cells: Cells) -> None:
    """Ours: the runtime uses engines only through their port."""
    port: CodeEngine = cells.engine
    assert port.language == "typescript"


def test_an_awaited_call_pauses_the_cell_until_it_is_answered(cells: Cells) -> None:
    """Seed: calls inside code are handled like any other call."""
    run = cells.open("const y: number = await add(1, 'b');\ny + 1")
    assert run.start() == CellPause((CellCall(number=1, name="add", args=[1, "b"], line=1),))
    end = cells.ended(run.answer(1, value(3)))
    assert (end.result, end.error, end.calls_made) == (4, None, 1)
    assert end.instructions is not None
    assert end.instructions > 1000


@pytest.mark.parametrize(
    ("call", "args", "kwargs"),
    [
        ("lookup({x: 1, y: 'a'})", [], {"x": 1, "y": "a"}),
        ("lookup({x: 1, y: undefined})", [], {"x": 1}),
        ("lookup({y: 'a'})", [], {"y": "a"}),
        ("lookup({x: 1, z: 2})", [], {"x": 1, "z": 2}),
        ("add({y: 'a'})", [{"y": "a"}], {}),
        ("lookup(1, 'a')", [1, "a"], {}),
        ("lookup(1, undefined)", [1], {}),
        ("lookup(undefined, 1)", [None, 1], {}),
        ("lookup()", [], {}),
        ("lookup(new Date(0))", ["1970-01-01T00:00:00.000Z"], {}),
    ],
)
def test_one_object_with_the_contracts_names_holds_named_arguments(
    cells: Cells, call: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Ours: a capability is called as its declaration shows, or with positional arguments.

    The tool reports wrong names if its first parameter cannot be an object.
    """
    pause = cells.open(f"await {call}").start()
    name = call.partition("(")[0]
    assert pause == CellPause((CellCall(number=1, name=name, args=args, kwargs=kwargs, line=1),))


def test_the_next_cell_starts_from_the_saved_state(cells: Cells) -> None:
    """Seed: variables persist between cells, and may be declared again."""
    state = cells.kept("const x = [1];\nfunction f() { return x }\nclass A { n = 1 }")
    assert cells.engine.names(state) == ["A", "f", "x"]
    assert cells.value("x.push(2); f()", state=state) == [1, 2]
    assert cells.value("const x = new A().n; x", state=state) == 1


def test_a_worker_that_holds_a_different_state_is_not_used(cells: Cells) -> None:
    """Ours: after a rewind, the same key arrives with an earlier state."""
    first = cells.kept("let x = 1")
    assert cells.value("x = 2; x", state=first) == 2
    assert cells.value("x", state=first) == 1
    assert cells.fails("x").message == "ReferenceError: x is not defined"


def test_awaited_calls_are_made_concurrently(cells: Cells) -> None:
    """Seed: `Promise.all` over tools runs them concurrently."""
    run = cells.open("await Promise.all([add(1), fetchIt(2), add(3)])")
    assert cells.made(run.start()) == [(1, "add"), (2, "fetchIt"), (3, "add")]
    assert run.answer(3, value("c")) == CellPause()
    assert run.answer(1, value("a")) == CellPause()
    assert cells.ended(run.answer(2, value("b"))).result == ["a", "b", "c"]


def test_code_that_awaits_each_call_continues_in_the_order_of_the_answers(cells: Cells) -> None:
    """Ours: the execution of a cell depends only on the order of its results."""
    code = """
const seen: string[] = [];
async function one(n: number) {
  seen.push(await add(n));
  seen.push(await fetchIt(n));
}
await Promise.all([one(1), one(2)]);
seen
"""
    run = cells.open(code)
    assert cells.made(run.start()) == [(1, "add"), (2, "add")]
    assert cells.made(run.answer(2, value("second"))) == [(3, "fetchIt")]
    assert cells.made(run.answer(1, value("first"))) == [(4, "fetchIt")]
    assert run.answer(4, value("fourth")) == CellPause()
    assert cells.ended(run.answer(3, value("third"))).result == ["second", "first", "fourth", "third"]


def test_a_call_that_is_not_awaited_is_made_and_the_cell_waits_for_it(cells: Cells) -> None:
    """Ours: a call is made even if its promise is not awaited, as in JavaScript."""
    run = cells.open("add(1); 'done'")
    assert cells.made(run.start()) == [(1, "add")]
    assert cells.ended(run.answer(1, value(None))).result == "done"


def test_a_trailing_promise_is_awaited(cells: Cells) -> None:
    """Ours: the result of a cell is a value, never a promise."""
    run = cells.open("add(1).then((n: number) => n * 2)")
    assert cells.made(run.start()) == [(1, "add")]
    assert cells.ended(run.answer(1, value(4))).result == 8


def test_a_call_that_is_no_longer_awaited_can_still_be_answered(cells: Cells) -> None:
    """Ours: a failed Promise.all leaves calls behind whose results arrive later."""
    run = cells.open("try { await Promise.all([add(1), fetchIt(2)]) } catch {}\nawait add(3)")
    run.start()
    assert cells.made(run.answer(1, failed("ValueError", "no"))) == [(3, "add")]
    assert run.answer(2, value("late")) == CellPause()
    assert cells.ended(run.answer(3, value("ok"))).result == "ok"


def test_an_answer_to_an_unknown_call_is_refused(cells: Cells) -> None:
    """Ours: a mistake in the driver must raise."""
    run = cells.open("await add(1)")
    run.start()
    with pytest.raises(InvalidArgument):
        run.answer(2, value(1))
    end = cells.ended(run.answer(1, value(1)))
    assert run.answer(1, value(1)) is end


def test_a_failed_call_rejects_with_an_error_that_names_the_cause(cells: Cells) -> None:
    """Seed: guest code may catch the failure of a call."""
    code = "let e: any; try { await add(1) } catch (x) { e = x }\n"
    code += "[e.name, e.message, e.code, e instanceof Error]"
    run = cells.open(code)
    run.start()
    error = ErrorObject(code="OUT_OF_STOCK", message="none left")
    end = cells.ended(run.answer(1, failed("ValueError", "none left", error)))
    assert end.result == ["ValueError", "none left", "OUT_OF_STOCK", True]


def test_an_uncaught_failure_keeps_the_error_code_of_the_failed_call(cells: Cells) -> None:
    """Ours: the error code of a denied call survives its passage through the guest."""
    denied = ErrorObject(code=Code.PERMISSION_DENIED, message="not you", hint="ask")
    run = cells.open("let x = 1;\n  await add(1);\nx = 2")
    run.start()
    end = cells.ended(run.answer(1, failed("PermissionError", "not you", denied)))
    assert end.error is not None
    assert (end.error.code, end.error.hint, end.hard) == (Code.PERMISSION_DENIED, "ask", False)
    assert end.error.span is not None
    assert end.error.span.line == 2
    assert cells.value("x", state=end.state) == 1


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("new Map()", "Map"),
        ("() => 1", "function"),
        ("10n", "bigint"),
        ("[NaN]", "NaN"),
        ("{a: Symbol('s')}", "symbol"),
        ("'\\ud800'", "a string with a lone surrogate"),
    ],
)
def test_an_argument_that_is_not_json_is_reported_with_the_call(
    cells: Cells, argument: str, what: str
) -> None:
    """Ours: the call is not made, and the code is given the reason."""
    pause = cells.open(f"await add({argument})").start()
    assert isinstance(pause, CellPause)
    assert pause.calls[0].problem == argument_not_json("add", what)


def test_an_undefined_function_is_an_unknown_tool(cells: Cells) -> None:
    """Seed: an unknown name gets a suggestion."""
    error = cells.fails("let x = 1;\n  ad(1)")
    assert (error.code, error.hint) == (Code.UNKNOWN_TOOL, "did you mean add?")
    assert error.span is not None
    assert (error.span.line, error.span.column) == (2, 3)


def test_a_removed_function_cannot_be_called(cells: Cells) -> None:
    """Ours: a stored reference to a capability does not outlive it."""
    state = cells.kept("const old = add")

    class None_:
        def __contains__(self, name: object, /) -> bool:
            return False

        def names(self) -> list[str]:
            return []

        def suggest(self, name: str) -> str | None:
            return None

    assert cells.fails("await old(1)", state=state, functions=None_()).code == Code.UNKNOWN_TOOL
    assert cells.fails("await add(1)", state=state, functions=None_()).code == Code.UNKNOWN_TOOL


def test_a_variable_hides_a_function_of_the_same_name(cells: Cells) -> None:
    """Seed: code may use any name for its own variables."""
    state = cells.kept("const add = (n: number) => n + 1")
    assert cells.value("add(1)", state=state) == 2


# ── timers ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_timer_is_a_call_and_time_advances_with_its_answer(cells: Cells) -> None:
    """Seed: a sleep is a durable timer, not a blocked process."""
    code = "const a = Date.now();\nawait new Promise(done => setTimeout(done, 1500));\nDate.now() - a"
    run = cells.open(code, now_ms=1_000)
    assert run.start() == CellPause((CellCall(number=1, name="sleep", kwargs={"seconds": 1.5}, line=2),))
    assert cells.ended(run.answer(1, value(None, at_ms=2_500))).result == 1500


def test_a_timer_without_delay_needs_no_clock(cells: Cells) -> None:
    """Ours: yielding to other tasks needs no journal entry."""
    code = "const seen: string[] = [];\nsetTimeout(() => seen.push('later'));\nseen.push('now');\n"
    assert cells.value(code + "await new Promise(done => setTimeout(done, 0));\nseen") == ["now", "later"]


def test_pending_timers_end_with_the_cell(cells: Cells) -> None:
    """Ours: a call that was raced against a timeout does not make the cell wait for the timer."""
    code = "const late = new Promise((_, no) => setTimeout(() => no(new Error('late')), 60000));\n"
    run = cells.open(code + "await Promise.race([add(1), late])")
    assert cells.made(run.start()) == [(1, "sleep"), (2, "add")]
    end = cells.ended(run.answer(2, value("quick")))
    assert (end.result, end.error) == ("quick", None)
    assert cells.value("1", state=end.state) == 1


def test_an_interval_fires_until_it_is_cleared(cells: Cells) -> None:
    """Ours: timers work as in JavaScript."""
    code = """
let n = 0;
await new Promise<void>(done => {
  const id = setInterval(() => { n += 1; if (n === 2) { clearInterval(id); done() } }, 10);
  clearTimeout(setTimeout(() => { n = 100 }, 5));
});
n
"""
    run = cells.open(code)
    assert cells.made(run.start()) == [(1, "sleep")]
    assert cells.made(run.answer(1, value(None))) == [(2, "sleep")]
    assert cells.ended(run.answer(2, value(None))).result == 2


def test_an_error_in_a_timer_ends_the_cell(cells: Cells) -> None:
    """Ours: no error is silent."""
    error = cells.fails("setTimeout(() => { throw new Error('in a timer') });\nawait new Promise(() => {})")
    assert error.message == "Error: in a timer"


# ── immediate answers ────────────────────────────────────────────────────────────────────────────────


def test_finish_ends_the_code_and_keeps_its_variables(cells: Cells) -> None:
    """Seed: `finish(value)` ends the turn from inside code; nothing can catch it."""
    finished: list[Any] = []

    def answer_now(call: CellCall) -> CallAnswer | None:
        finished.extend(call.args)
        return failed("SystemExit", "finished")

    code = "let x = 1;\ntry { await finish({a: x}) } catch { x = 2 } finally { x = 3 }\nx = 4"
    end = cells.run(code, answer_now=answer_now)
    assert finished == [{"a": 1}]
    assert end.error is not None
    assert (end.error.code, end.error.message) == (Code.RUNTIME_ERROR, "SystemExit: finished")
    assert (end.hard, end.calls_made) == (False, 0)
    assert cells.value("x", state=end.state) == 1


def test_a_call_answered_immediately_has_no_number(cells: Cells) -> None:
    """Ours: a call without an effect is neither journaled nor counted."""
    now = lambda call: value(call.args[0] * 10) if call.name == "nowOrNever" else None  # noqa: E731
    code = "let sum = 0;\nfor (let n = 0; n < 5; n++) sum += await nowOrNever(n);\nawait add(sum)"
    run = cells.open(code, answer_now=now, limits={"max_external_calls": 1})
    assert run.start() == CellPause((CellCall(number=1, name="add", args=[100], line=3),))
    assert cells.ended(run.answer(1, value(1))).calls_made == 1
    run = cells.open("await Promise.all([nowOrNever(1), add(2), nowOrNever(3)])", answer_now=now)
    assert cells.made(run.start()) == [(1, "add")]
    assert cells.ended(run.answer(1, value(2))).result == [10, 2, 30]


def test_an_immediate_answer_that_raises_frees_the_worker(cells: Cells) -> None:
    """Ours: an error in the caller's code must not lose a worker."""

    def broken(call: CellCall) -> CallAnswer | None:
        raise OSError("no disk")

    for _ in range(5):
        with pytest.raises(OSError, match="no disk"):
            cells.open("await add(1)", answer_now=broken).start()
    assert cells.value("1") == 1


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_large_input_is_not_part_of_the_state(cells: Cells) -> None:
    """Seed: inputs are not stored again with every cell."""
    for code in (
        "const n = doc.length; n",
        "const n = doc.length; doc.slice(0, 10)",
        "const n = 1; [doc.length]",
    ):
        end = cells.run(code, inputs={"doc": BIG})
        assert end.error is None
        assert end.state is not None
        assert len(end.state) < 50_000, code
        assert b"xxxxxxxxxxxxxxxx" not in end.state
        assert cells.fails("doc", state=end.state).message == "ReferenceError: doc is not defined"


def test_an_input_may_be_any_json_value_or_bytes(cells: Cells) -> None:
    """Ours: attachments are passed as bytes."""
    inputs = {"a": {"b": [1, None, 2.5], "__proto__": {"polluted": 1}}, "raw": b"\x00\xff", "text": "ü"}
    code = "[a.b, raw.length, raw[1], raw instanceof Uint8Array, text, Object.keys(a).length]"
    assert cells.value(code, inputs=inputs) == [[1, None, 2.5], 2, 255, True, "ü", 2]


def test_a_variable_reappears_after_an_input_of_the_same_name(cells: Cells) -> None:
    """Seed: inputs hide variables only while the code runs."""
    state = cells.kept("const data = 'mine'")
    state = cells.kept("const copy = data", state=state, inputs={"data": "given"})
    assert cells.value("[data, copy]", state=state) == ["mine", "given"]


def test_a_value_is_loaded_only_when_the_code_uses_it(cells: Cells) -> None:
    """Ours: a value that is not used is not loaded."""
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return {"story": BIG, "raw": b"\x01"}[name]

    code = "function size() { return story.length }\nconst n = size() + story.length;\nif (n < 0) other;\nn"
    first = cells.run(code, load=load)
    assert (first.result, asked) == (10_000_000, ["story"])
    assert first.state is not None
    assert len(first.state) < 50_000
    assert cells.engine.names(first.state) == ["n", "size"]
    assert cells.value("size()", state=first.state, load=load) == 5_000_000
    assert asked == ["story", "story"]
    assert cells.value("raw[0]", load=load) == 1


def test_a_function_reads_the_inputs_of_the_cell_that_calls_it(cells: Cells) -> None:
    """Ours: inputs are not part of the state, but functions that read them are."""
    state = cells.kept("function rate() { return data.rate }", inputs={"data": {"rate": 1}})
    assert cells.value("rate()", state=state, inputs={"data": {"rate": 2}}) == 2
    assert cells.value("rate()", state=state, load={"data": {"rate": 3}}.__getitem__) == 3
    assert cells.fails("rate()", state=state).message == "ReferenceError: data is not defined"


def test_code_may_test_whether_a_name_is_bound(cells: Cells) -> None:
    """Ours: `typeof` of an unbound name is not an error, whether or not values can be loaded."""
    code = "function known() { return typeof cache }\nknown()"
    state = cells.kept(code, load={}.__getitem__)
    assert cells.value("known()", state=state, load={}.__getitem__) == "undefined"
    assert cells.value("known()", state=state, load={"cache": [1]}.__getitem__) == "object"
    later = cells.kept(
        "if (typeof cache === 'undefined') { globalThis.cache = 1 }", state=state, load={}.__getitem__
    )
    assert cells.value("[known(), cache]", state=later, load={}.__getitem__) == ["number", 1]


def test_bytes_nested_in_a_value_stay_bytes(cells: Cells) -> None:
    """Ours: `attachments` is a record of strings and bytes."""
    files = {"a.txt": "text", "b.png": b"\x00\xff", "c": [{"d": b"", "bytes": 1}]}
    code = (
        "[files['a.txt'], Array.from(files['b.png']), files.c[0].d instanceof Uint8Array, files.c[0].bytes]"
    )
    for options in ({"inputs": {"files": files}}, {"load": {"files": files}.__getitem__}):
        assert cells.value(code, **options) == ["text", [0, 255], True, 1]


def test_a_value_that_cannot_be_loaded_is_a_reference_error(cells: Cells) -> None:
    """Ours: a value that cannot be loaded behaves like an unknown name."""
    assert cells.fails("nothing", load={}.__getitem__).message == "ReferenceError: nothing is not defined"
    assert cells.fails("nothing(1)", load={}.__getitem__).code == Code.UNKNOWN_TOOL

    def broken(name: str) -> Any:
        raise OSError("no disk")

    with pytest.raises(EngineFailed, match="no disk"):
        cells.open("nothing", load=broken).start()
    assert cells.value("1") == 1


# ── results ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("const result = 1;\n2", 1),
        ("let result; if (true) { result = 5 }\n3", 5),
        ("result = 7; 8", 7),
        ("const x = 3;\nx * 2", 6),
        ("const x = 3", None),
        ("undefined", None),
        ("[undefined, , null]", [None, None, None]),
        ("({a: undefined, b: [{c: 'ü'}], d: -0, e: 1e21})", {"b": [{"c": "ü"}], "d": 0, "e": 1e21}),
        ("new URL('https://example.com/a')", "https://example.com/a"),
        ("Object.create(null)", {}),
        ("9007199254740991", 9007199254740991),
    ],
)
def test_the_result_is_the_variable_result_or_the_last_expression(
    cells: Cells, code: str, result: Any
) -> None:
    """Seed: the result is `result` or the last expression."""
    assert cells.value(code) == result


def test_result_of_an_earlier_cell_does_not_count(cells: Cells) -> None:
    """Ours: `result` counts only if this run bound it."""
    state = cells.kept("const result = 1")
    assert cells.value("if (1 > 2) { result = 3 }\n4", state=state) == 4
    assert cells.value("result + 1", state=state) == 2
    assert cells.value("result = result + 1", state=state) == 2


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("() => 1", "function"),
        ("new Map()", "Map"),
        ("[new Set()]", "Set"),
        ("add", "function"),
        ("10n", "bigint"),
        ("class P { q = 1 }; new P()", "P"),
        ("const a: any[] = []; a.push(a); a", "a cycle"),
        ("new TypeError('x')", "TypeError"),
        ("NaN", "NaN"),
        (
            "let deep: any = 1; for (let i = 0; i < 5000; i++) deep = [deep]; deep",
            "a value nested too deeply",
        ),
    ],
)
def test_a_result_that_is_not_json_is_an_error_but_the_state_is_kept(
    cells: Cells, code: str, what: str
) -> None:
    """Seed: the error is reported, and the variables are kept."""
    end = cells.run(f"const x = 1;\n{code}")
    assert end.error is not None
    assert (end.error.code, end.error.hint) == (Code.RESULT_NOT_SERIALIZABLE, what)
    assert (end.result, end.hard) == (None, False)
    assert cells.value("x", state=end.state) == 1


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_cells_let_others_run(cells: Cells) -> None:
    """Ours: two slots are enough for any number of sessions that wait for slow calls."""
    codes = [f"const x = await add({n});\nconst y = await fetchIt(x);\n[{n}, x, y]" for n in range(6)]
    runs = [cells.open(code, key=f"k{n}") for n, code in enumerate(codes)]
    for run in runs:
        assert cells.made(run.start()) == [(1, "add")]
    for n, run in reversed(list(enumerate(runs))):
        assert cells.made(run.answer(1, value(n * 10))) == [(2, "fetchIt")]
    for n, run in enumerate(runs):
        assert cells.ended(run.answer(2, value("y"))).result == [n, n * 10, "y"]


def test_a_cell_waits_for_a_slot_until_another_cell_pauses(spare: Callable[..., Cells]) -> None:
    """Ours: sessions whose calls need cells must not deadlock."""
    cells = spare(1)
    with ThreadPoolExecutor(6) as pool:

        def nested(depth: int) -> int:
            run = cells.open(f"await add({depth}) + 1", key=f"d{depth}")
            run.start()
            inner = pool.submit(nested, depth - 1).result(20) if depth else 0
            return int(cells.ended(run.answer(1, value(inner))).result)

        assert pool.submit(nested, 4).result(20) == 5


def test_a_paused_cell_that_is_stopped_ends_with_the_next_answer(cells: Cells) -> None:
    """Seed: a cancelled turn ends its code."""
    run = cells.open("const p = fetchIt(1);\nawait add(1);\nawait p")
    run.start()
    run.stop(STOPPED)
    end = cells.ended(run.answer(1, value(None)))
    assert (end.error, end.hard, end.state) == (STOPPED, True, None)


def test_a_running_cell_can_be_stopped(cells: Cells) -> None:
    """Seed: cancelling does not wait for the code to finish."""
    running = threading.Event()

    def answer_now(call: CellCall) -> CallAnswer:
        running.set()
        return CallAnswer()

    run = cells.open("await add(1);\nwhile (true) {}", answer_now=answer_now)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run.start)
        assert running.wait(10)
        run.stop(STOPPED)
        assert cells.ended(step.result(10)).error == STOPPED


def test_a_stop_after_the_end_does_nothing(cells: Cells) -> None:
    """Ours: a cell ends once, and its worker may already serve another."""
    run = cells.open("const x = 1")
    end = cells.ended(run.start())
    run.stop(STOPPED)
    run.close()
    assert run.answer(1, value(None)) is end
    assert cells.value("x", state=end.state) == 1


def test_a_worker_that_died_while_idle_is_replaced(cells: Cells) -> None:
    """Ours: a worker's data is always also in the stored state."""
    state = cells.kept("const x = 1", key="dies")
    os.kill(cells.engine._workers._warm["dies"].pid, signal.SIGKILL)
    assert cells.value("x", key="dies", state=state) == 1


def test_code_that_cannot_be_parsed_leaves_the_worker_unchanged(cells: Cells) -> None:
    """Ours: the worker is already prepared when the code turns out to be invalid."""
    state = cells.kept("const x = 1; result = 7", key="refused")
    process = cells.engine._workers._warm["refused"].pid
    for _ in range(3):
        assert cells.fails("const = 2", key="refused", state=state).code == Code.SYNTAX_ERROR
    assert cells.engine._workers._warm["refused"].pid == process
    assert cells.value("x + 1", key="refused", state=state) == 2


def test_a_guest_lost_during_preparation_is_recreated(cells: Cells) -> None:
    """Ours: the engine does not wait until a worker is ready, so its failure shows in the next cell."""
    state = cells.kept("const big = new Uint8Array(8e6).fill(7)", key="lost")
    low = {"memory_mb": 4}
    assert cells.fails("const = 2", key="lost", state=state, limits=low).code == Code.SYNTAX_ERROR
    assert cells.value("big[5]", key="lost", state=state) == 7


def test_a_worker_that_dies_under_a_paused_cell_ends_it(cells: Cells) -> None:
    """Ours: the crash is reported, and the session keeps its earlier state."""
    run = cells.open("const x = 2; await add(1)", key="crash")
    run.start()
    os.kill(run._stepper.worker.pid, signal.SIGKILL)
    end = cells.ended(run.answer(1, value(None)))
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (Code.INTERRUPTED, True, None)
    assert cells.value("1", key="crash") == 1


def test_many_sessions_run_concurrently(cells: Cells) -> None:
    """Ours: one engine serves many threads, and no session sees another."""

    def session(n: int) -> list[int]:
        state, seen = b"", []
        for step in range(5):
            end = cells.run(
                f"globalThis.mine ??= []; mine.push({n * 100 + step}); mine", key=f"many{n}", state=state
            )
            assert end.error is None
            state = end.state
            seen = end.result
        return seen

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(session, range(6)))
    assert found == [[n * 100 + step for step in range(5)] for n in range(6)]


def test_closing_leaves_no_process_behind(spare: Callable[..., Cells]) -> None:
    """Ours: closing ends every process, whether warm, ready or paused."""
    cells = spare(2)
    cells.run("1", key="a")
    paused = cells.open("await add(1)", key="b")
    paused.start()
    pids = [process.pid for process in cells.engine._workers._all]
    assert len(pids) >= 2
    cells.engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(EngineFailed):
        cells.open("1", key="c").start()


def test_a_worker_is_recycled_after_its_maximum_number_of_runs(
    spare: Callable[..., Cells], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a process must not accumulate memory for ever."""
    cells = spare(1)
    monkeypatch.setattr("standfast.sandbox.quickjs.workers.MAX_RUNS", 3)
    pids = set()
    for n in range(6):
        cells.run("1", key=f"r{n}")
        pids.add(cells.engine._workers._warm[f"r{n}"].pid)
    assert len(pids) == 2


def test_closing_ends_a_cell_that_is_computing(spare: Callable[..., Cells]) -> None:
    """Ours: closing does not wait for endless code."""
    cells = spare(1)
    running = threading.Event()

    def answer_now(call: CellCall) -> CallAnswer:
        running.set()
        return CallAnswer()

    run = cells.open("await add(1);\nwhile (true) {}", answer_now=answer_now)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run.start)
        assert running.wait(10)
        cells.engine.close()
        end = cells.ended(step.result(10))
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.CANCELLED, True)


def test_a_check_finds_faults_before_a_run(cells: Cells) -> None:
    """Ours: an engine's checks are those of its language."""
    state = cells.kept("const known = (n: number) => n")
    look = {"state": state, "functions": cells.request("").functions, "inputs": ["doc"], "check": "calls"}
    assert cells.engine.check("known(1); await add(doc)", **look) == []
    assert [item.code for item in cells.engine.check("ad(1)", **look)] == [Code.UNKNOWN_TOOL]
    assert cells.engine.check("let = (", **look)[0].code == Code.SYNTAX_ERROR
    assert cells.engine.check("'\ud800'", **look)[0].code == Code.SYNTAX_ERROR
    assert cells.engine.touched("doc.a + 1", ["doc", "other"]).names == {"doc": frozenset({"a"})}
    with pytest.raises(InvalidArgument):
        cells.open("'\ud800'")


def test_abandoned_cells_free_their_workers(cells: Cells) -> None:
    """Ours: a turn that ends early must not lose a worker."""
    for n in range(6):
        run = cells.open("await add(1)", key=f"g{n}")
        run.start()
        run.close()
        run.close()
    assert cells.value("1") == 1
