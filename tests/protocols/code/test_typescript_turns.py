"""Agents that act in TypeScript: cells, repairing them, waiting in the middle, and their variables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from code_stand_ins import outcomes, reports
from code_turns import coder_on, observations, play, read_of
from stand_ins import Place, go_on, until
from typescript_cells import Shop, cell, coder, typing, value_of

from standfast import Agent, Attachment, CodeMode, CodeProtocol, SessionLimits
from standfast.errors import Code, InvalidArgument, PluginStateLost
from standfast.model.capability import CallStatus
from standfast.model.outcome import FrameSwitched
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_session import Session

pytestmark = pytest.mark.slow

TYPESCRIPT = CodeProtocol(language="typescript")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def observed(*codes: str, tools: list[Any] | None = None, **options: Any) -> list[str]:
    """Return the observation of each cell, as the model reads it."""
    agent = coder(*map(cell, codes), "Oh.", tools=tools or [], **options)
    return observations(agent.run_sync("go").messages)


async def has_turns(session: Session[Any], count: int) -> bool:
    """Return whether `count` turns have ended."""
    turns = await session.turns()
    return len(turns) == count and turns[-1].summary is not None


# A task


REFUNDS = """
const paid: string[] = [];
for (const id of await orders({customer: 7})) {
  const one = await order({order_id: id});
  if (one.days_late > 0) {
    await refund({order_id: id, cents: one.cents});
    paid.push(id);
  }
}
finish(`Paid back: ${paid.join(", ")}.`);
"""


def test_one_cell_completes_a_task_with_three_tools_a_loop_and_an_approval(place: Place, shop: Shop) -> None:
    """Seed: the main use of the code protocol: one model call, with an approval inside a loop."""

    async def main() -> None:
        agent = coder(f"I look.\n\n{cell(REFUNDS)}", tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("Pay back what came late.")
            assert (waiting.status, shop.did) == ("waiting", ["orders 7", "order A1"])
            (asked,) = await session.approvals(pending=True)
            assert (asked.capability, asked.kwargs) == ("refund", {"order_id": "A1", "cents": 4200})
            result = await session.approve(asked.approval_id)
            assert (result.output, result.usage.calls) == ("Paid back: A1.", 1)
            assert shop.did == ["orders 7", "order A1", "refund A1 4200", "order B2", "order C3"]
            assert observations(result.messages) == [
                "[cell 0] ok\nresult:\nPaid back: A1.\ncalls:\n"
                "orders({customer: 7}) -> ok\n"
                'order({order_id: "A1"}) -> ok\n'
                'refund({order_id: "A1", cents: 4200}) -> ok\n'
                'order({order_id: "B2"}) -> ok\n'
                'order({order_id: "C3"}) -> ok'
            ]

    asyncio.run(main())


def test_calls_run_concurrently(place: Place, shop: Shop) -> None:
    """Ours: `Promise.all` corresponds to `gather`; results keep the order of the calls."""
    played = play(
        place,
        cell("""
        const all = await Promise.all(["B2", "A1"].map((order_id) => order({order_id})));
        finish(all.map((one) => one.days_late));
        """),
        tools=shop.tools,
        protocol=TYPESCRIPT,
    )
    assert played.last.output == "[0,6]"
    assert sorted(shop.did) == ["order A1", "order B2"]


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("finish('as text')", "as text"),
        ("await finish(1); console.log('never')", "1"),
        ("finish({value: 1})", '{"value":1}'),
        ("finish({late: true, days: [1]})", '{"late":true,"days":[1]}'),
        ("finish({})", "{}"),
        ("finish()", ""),
        ("try { await finish('kept') } catch (error) { finish('other') }", "kept"),
    ],
)
def test_finish_answers_with_its_argument_itself(code: str, answer: str) -> None:
    """Ours: an object is an answer, never named arguments; code after `finish` is ignored."""
    assert coder(cell(code)).run_sync("go").output == answer


def test_an_invalid_answer_is_an_error_that_the_next_cell_corrects() -> None:
    """Ours: the type of the answer is checked where `finish` is called."""
    agent = coder(
        cell("const days = 6;\nfinish({days: 'six'})"), cell("finish({days})"), output_type=dict[str, int]
    )
    result = agent.run_sync("go")
    assert result.output == {"days": 6}
    (told, _) = observations(result.messages)
    assert "ValueError: the answer is not valid: Expected `int`, got `str`" in told
    assert "  2 | finish({days: 'six'})\n" in told


def test_continue_as_continues_in_a_new_frame(place: Place) -> None:
    """Seed: continue_as opens a frame that has only its seed; variables are kept."""

    async def main() -> None:
        begins = cell('const kept = 7;\ncontinue_as({task: "the rest", seed: {n: 1}})')
        agent, model = coder_on(begins, cell("finish([kept, history.length])"), protocol=TYPESCRIPT)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            first = await session.turn("go").settled()
            assert isinstance(first.outcome, FrameSwitched)
            await until(lambda: has_turns(session, 2))
            second = await session.follow((await session.turns())[1].turn_id)
            assert second.output == "[7,0]"
            assert read_of(model.requests[1].messages) == ['{"n":1}', "the rest"]

    asyncio.run(main())


# Repairing cells


def test_a_model_can_repair_a_cell_because_it_is_shown_the_failing_line(shop: Shop) -> None:
    """Ours: every observation has the line of the TypeScript source."""
    syntax, name, kind, *_ = observed(
        "const one: number = 1;\nconst two: number = one +;",
        'interface Found { cents: number }\nconst found: Found = await ordr({order_id: "A1"});',
        'type Id = string;\nconst id: Id = "A1";\nconst no = (await order({order_id: id}) as any).lines[0];',
        "const done = await order({order_id: 'A1'});\ndone.cents",
        tools=shop.tools,
    )
    assert syntax.startswith("[cell 0] failed, nothing was executed\nerror:\nSYNTAX_ERROR: ")
    assert "\n  2 | const two: number = one +;\n    |" in syntax
    assert name.startswith("[cell 1] failed, nothing was executed\nerror:\nUNKNOWN_TOOL: ordr() ")
    assert (
        '\n  2 | const found: Found = await ordr({order_id: "A1"});\n    |                            ^'
        in name
    )
    assert "hint: did you mean order(), orders()?" in name
    assert kind.startswith("[cell 2] failed\nerror:\nRUNTIME_ERROR: TypeError: cannot read property '0' of")
    assert "\n  3 | const no = (await order({order_id: id}) as any).lines[0];\n    |" in kind
    assert _ == ['[cell 3] ok\nresult:\n4200\ncalls:\norder({order_id: "A1"}) -> ok']


def test_a_call_with_wrong_arguments_is_reported_before_anything_runs(shop: Shop) -> None:
    """Ours: errors that a check can find are reported before any side effect."""
    (told, _) = observed('console.log("before");\nawait order({id: "A1"});', "1", tools=shop.tools)
    assert told.startswith("[cell 0] failed, nothing was executed\nerror:\nTYPE_ERROR: order() ")
    assert '\n  2 | await order({id: "A1"});\n' in told
    assert shop.did == []


def test_a_tool_that_fails_rejects_with_an_error_that_code_can_catch(shop: Shop) -> None:
    """Ours: the error has a name, a message and a code, whatever the tool raised."""
    (told, uncaught, _) = observed(
        "const odd: any = 5;\n"
        "try { await order({order_id: odd}) } catch (error) {\n"
        "  console.log(error instanceof Error, error.name, error.code)\n"
        "}",
        "const n = 1;\nawait order({order_id: odd});",
        "n",
        tools=shop.tools,
    )
    assert "stdout:\ntrue TypeError INVALID_ARGUMENT\n" in told
    assert "\n  2 | await order({order_id: odd});\n    |       ^" in uncaught
    assert _ == "[cell 2] ok\nresult:\n1"


@pytest.mark.parametrize("tag", ["ts", "TypeScript", "javascript", "js", "mjs", "tsx", "cell", "{.ts}"])
def test_cells_are_found_under_every_tag_of_the_language(tag: str) -> None:
    """Ours: models tag TypeScript in many ways."""
    assert coder(cell("finish(6 * 7)", tag)).run_sync("go").output == "42"


def test_a_cell_in_another_language_is_a_failed_call() -> None:
    """Ours: a session has one language, whether Python or TypeScript."""
    (told,) = observations(coder(cell("x = 1", "python"), "Oh.").run_sync("go").messages)
    assert "UNSUPPORTED_FEATURE: the cell is written in python, but this session runs typescript" in told
    python = Agent(ScriptedModel([cell("const x = 1"), "Oh."]), protocol="code")
    (told,) = observations(python.run_sync("go").messages)
    assert "UNSUPPORTED_FEATURE: the cell is written in typescript, but this session runs python" in told


def test_a_result_that_is_not_json_is_an_error_with_a_hint() -> None:
    """Ours: the hint is in the language of the session."""
    (told, _) = observed("const seen = new Map([[1, 2]]);\nseen", "[...seen]")
    assert "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds Map\n" in told
    assert (
        "hint: the rest of the cell took effect; end it with JSON or text, [...x], String(x), or print"
        in told
    )
    assert _ == "[cell 1] ok\nresult:\n[[1,2]]"


# Values


def test_cells_read_history_inputs_and_attachments(place: Place) -> None:
    """Ours: TypeScript cells have the same read-only values as Python cells."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("console.log('a line'); 41 + 1")
            assert await value_of(session, "[history[0].result, history.at(-1).stdout, history.length]") == [
                42,
                "a line\n",
                1,
            ]
            shown = await value_of(
                session, "[rates.eur, log.length]", inputs={"rates": {"eur": 2}, "log": "abc"}
            )
            assert shown == [2, 3]
            assert await value_of(session, "log.toUpperCase()") == "ABC"
            assert await value_of(session, "log = 'x'") in (Code.TYPE_ERROR, Code.RUNTIME_ERROR)
            assert await value_of(session, "log") == "abc"

    asyncio.run(main())


def test_a_file_that_is_not_text_is_an_array_of_bytes(memory: Place) -> None:
    """Ours: a text attachment is a string, any other one bytes."""

    async def main() -> None:
        sent = [
            Attachment("grün".encode(), "text/plain", "notes.txt"),
            Attachment(bytes(range(256)), "image/png", "picture.png"),
        ]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn(["const picture = attachments['picture.png']", *sent])
            assert await value_of(session, "[picture.constructor.name, picture.length, picture[255]]") == [
                "Uint8Array",
                256,
                255,
            ]
            assert await value_of(session, "attachments['notes.txt'] + Object.keys(attachments)") == (
                "grünnotes.txt,picture.png"
            )

    asyncio.run(main())


def test_a_function_from_an_earlier_cell_reads_current_values(memory: Place) -> None:
    """Ours: history and inputs are not part of the state; a function sees their current values."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("function told() { return [history.length, rate] }", inputs={"rate": 1})
            assert await value_of(session, "told()") == [1, 1]
            assert await value_of(session, "told()", inputs={"rate": 2}) == [2, 2]

    asyncio.run(main())


def test_code_can_call_a_model_and_look_up_tools(place: Place, shop: Shop) -> None:
    """Seed: llm, search_tools and describe_tool are functions of code."""
    played = play(
        place,
        cell("""
        const said = await llm({prompt: "Answer", data: [1], schema: {type: "integer"}});
        const [found] = await search_tools({query: "look up"});
        const described = await describe_tool({name: found.name});
        finish([said, found.signature, described.signature]);
        """),
        "7",
        tools=shop.tools,
        protocol=TYPESCRIPT,
    )
    line = "declare function order(args: { order_id: string }): Promise<Record<string, number>>;"
    assert json.loads(played.last.output or "") == [7, line, f"/** Look an order up. */\n{line}"]


def test_the_prompts_rules_about_available_names_are_true() -> None:
    """Ours: the model relies on the rules in the prompt."""
    (shown, _) = observed(
        "const said = ['console', 'setTimeout', 'URL', 'TextEncoder', 'crypto', 'structuredClone'];\n"
        "const denied = ['fetch', 'require', 'process', 'Deno'];\n"
        "[said.filter((n) => !(n in globalThis)), denied.filter((n) => n in globalThis), "
        "crypto.randomUUID().length]",
        "import fs from 'fs'",
    )
    assert shown == "[cell 0] ok\nresult:\n[[],[],36]"
    assert _.startswith("[cell 1] failed, nothing was executed\nerror:\nUNSUPPORTED_FEATURE: ")


# Waiting


def test_a_cell_waits_in_one_runtime_and_resumes_in_another(place: Place, shop: Shop) -> None:
    """Ours: a cell pauses in the middle of an expression and repeats no earlier call."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        code = "const x = 1 + (await order({order_id: 'A1'})).cents * await refund('A1', 2);\nx"
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("const before = {n: [1]}; function twice(n: number) { return 2 * n }")
            waiting = await session.turn(code)
            assert (waiting.status, shop.did) == ("waiting", ["order A1"])
        async with place.runtime() as runtime:  # has no agent: it only decides
            await runtime.approve(waiting.waits[0].wait_id)
            assert shop.did == ["order A1"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await go_on(session)
            assert (result.turn_id, outcomes(result.messages)) == (waiting.turn_id, [8401])
            assert shop.did == ["order A1", "refund A1 2"]
            assert await value_of(session, "[x, before, twice(x)]") == [8401, {"n": [1]}, 16802]

    asyncio.run(main())


@pytest.mark.slow
def test_a_loop_that_waits_for_each_call_keeps_the_earlier_results(place: Place, shop: Shop) -> None:
    """Ours: a cell may be suspended and resumed many times, each time by another runtime."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        code = """
        const paid: number[] = [];
        for (const n of [1, 2, 3]) {
          console.log("asking", n);
          paid.push(await refund({order_id: `o${n}`, cents: n}));
        }
        paid"""
        async with place.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn(code)
        for _ in range(3):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                result = await session.approve(result.waits[0].wait_id)
        (report,) = reports(result.messages)
        assert (report.result, report.stdout) == ([1, 2, 3], "asking 1\nasking 2\nasking 3\n")
        assert shop.did == ["refund o1 1", "refund o2 2", "refund o3 3"]

    asyncio.run(main())


def test_a_denial_is_an_error_that_code_can_catch(place: Place, shop: Shop) -> None:
    """Ours: code gets a PermissionError with the reason and the code."""

    async def main() -> None:
        code = (
            "let told: string[] = [];\n"
            "try { await refund({order_id: 'A'}) } catch (e) { told = [e.name, e.code, e.message] }\ntold"
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            wait = (await session.turn(code)).waits[0]
            result = await session.deny(wait.wait_id, reason="too much")
            ((name, kind, message),) = outcomes(result.messages)
            assert (name, kind) == ("PermissionError", "PERMISSION_DENIED")
            assert "too much" in message
            assert [one.status for one in result.calls] == [CallStatus.DENIED]
            assert shop.did == []

    asyncio.run(main())


@pytest.mark.parametrize("nap", ["sleep({days: 2})", "new Promise((go) => setTimeout(go, 172_800_000))"])
def test_a_cell_sleeps_for_days_without_a_process(place: Place, nap: str) -> None:
    """Ours: whatever code waits for, the turn is parked, and resumes when the time has passed."""

    async def main() -> None:
        agent = typing()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn(
                f"const begun = Date.now();\nawait {nap};\n(Date.now() - begun) / 86_400_000"
            )
            assert [wait.kind for wait in waiting.waits] == ["timer"]
        place.clock.advance(2 * 86_400)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert outcomes((await go_on(session)).messages) == [2]

    asyncio.run(main())


# Variables of cells


@pytest.mark.slow
def test_variables_follow_the_history(place: Place) -> None:
    """Ours: variables persist across turns and runtimes; forks copy and rewinds restore them."""

    async def main() -> None:
        agent = typing()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("const seen = [1]; class Counter { n = 1; more() { return ++this.n } }")
            await session.turn("seen.push(2); let counter = new Counter()")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, "const again = 1; [seen, counter.more()]") == [[1, 2], 2]
            other = await session.fork("f")
            await session.turn("seen.push('mine')")
            await other.turn("const seen = ['theirs']; counter.more()")
            assert await value_of(session, "[seen, counter.n]") == [[1, 2, "mine"], 2]
            assert await value_of(other, "[seen, counter.n]") == [["theirs"], 3]
            await session.rewind(turns=3)
            assert await value_of(session, "[seen, counter.n]") == [[1, 2], 1]
            assert await value_of(session, "again") == Code.RUNTIME_ERROR

    asyncio.run(main())


def test_code_can_test_whether_a_name_is_bound() -> None:
    """Ours: `typeof` of an unbound name is not an error, as in JavaScript."""
    assert observed(
        "if (typeof cache === 'undefined') { globalThis.cache = [1] }\ncache", "typeof cache"
    ) == ["[cell 0] ok\nresult:\n[1]", "[cell 1] ok\nresult:\nobject"]


@pytest.mark.slow
def test_a_cell_that_raises_keeps_its_variables_and_one_that_is_stopped_does_not(place: Place) -> None:
    """Ours: SPEC §5, an exception keeps the variables, exceeding a limit rolls them back."""

    async def main() -> None:
        protocol = CodeProtocol(language="typescript", limits=SessionLimits(cpu_ms=200))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(protocol))
            assert await value_of(session, "let x = 1; throw new Error('boom')") == Code.RUNTIME_ERROR
            assert await value_of(session, "x = 2; while (true) {}") == Code.TIMEOUT_CPU
            assert await value_of(session, "x") == 1

    asyncio.run(main())


def test_the_language_and_the_engine_of_a_session_are_fixed(place: Place) -> None:
    """Ours: the stored state of another engine is rejected."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("const x = 1")
        async with place.runtime() as runtime:
            with pytest.raises(PluginStateLost, match="typescript on quickjs"):
                await runtime.session("s", agent=typing(CodeProtocol()))

    asyncio.run(main())
    with pytest.raises(InvalidArgument, match="engine quickjs runs typescript, not python"):
        CodeProtocol(engine="quickjs")


PROGRAM = """
import asyncio, os, pathlib, signal, sys

sys.path[:0] = sys.argv[4:]
from typescript_cells import typing

from standfast import Runtime, tool

path, ledger, code = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]


@tool(side_effect="read")
def number() -> int:
    with ledger.open("a") as file:
        file.write("number\\n")
    return 7


@tool(side_effect="read")
def note(text: str) -> str:
    first = "note" not in ledger.read_text()
    with ledger.open("a") as file:
        file.write(f"note {text}\\n")
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return text


async def main() -> None:
    async with Runtime(path) as runtime:
        session = await runtime.session("s", agent=typing(tools=[number, note]))
        turn = await session.resume() or session.turn(code)
        result = await turn.settled()
        print(result.messages[-2].value["result"])


asyncio.run(main())
"""


@pytest.mark.slow
def test_a_cell_rerun_after_a_crash_makes_the_same_calls(
    child: Callable[..., Any], tmp_path: Path, ledger: Path
) -> None:
    """Ours: time and random numbers are replayed, and settled calls are not repeated."""
    code = (
        "const n = await number();\n"
        "const text = `${n} ${Math.random()} ${crypto.randomUUID()} ${Date.now()}`;\n"
        "await note({text})"
    )
    here = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "runtime")]
    first = child(PROGRAM, tmp_path / "db", ledger, code, *here)
    first.process.wait(timeout=60)
    second = child(PROGRAM, tmp_path / "db", ledger, code, *here).output(timeout=60)
    called, *noted = ledger.read_text().splitlines()
    assert called == "number"
    assert noted == [f"note {second.strip()}"] * 2


# Other ways to send a cell


def test_cells_may_be_calls_of_a_tool_whose_description_names_typescript(place: Place, shop: Shop) -> None:
    """Ours: some models are better at tool calls."""
    asked = {"tool_calls": [{"name": "run_code", "arguments": {"code": "finish((await orders(7)).length)"}}]}
    played = play(
        place, asked, tools=shop.tools, protocol=CodeProtocol(cells="tool_call", language="typescript")
    )
    assert played.last.output == "3"
    (request,) = played.model.requests
    (offered,) = request.tools
    assert offered.description.startswith("Run TypeScript. Variables persist")
    assert offered.input_schema["properties"]["code"]["description"] == "one cell of TypeScript"
    assert "You act by writing TypeScript: call run_code with one cell at a time." in request.instructions


def test_code_mode_runs_typescript_beside_native_calls(place: Place, shop: Shop) -> None:
    """Ours: the model chooses between code and a native call each time."""
    asked = {
        "tool_calls": [
            {"name": "run_code", "arguments": {"code": "const n = (await orders({customer: 7})).length;\nn"}},
            {"name": "order", "arguments": {"order_id": "A1"}},
        ]
    }
    played = play(
        place,
        asked,
        "Done.",
        tools=shop.tools,
        protocol="standard",
        plugins=[CodeMode(language="typescript")],
    )
    assert played.last.output == "Done."
    assert outcomes(played.last.messages) == [3]
    request = played.model.requests[0]
    assert (
        "run_code runs a cell of TypeScript in which every other tool is a function" in request.instructions
    )
    (offered,) = (one for one in request.tools if one.name == "run_code")
    assert offered.description.startswith("Run TypeScript.")
