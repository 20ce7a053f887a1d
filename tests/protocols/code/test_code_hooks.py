"""Plugins and observers see cells, and the calls that cells make, like any other call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from code_stand_ins import cell, finish, outcomes, reports, rows
from code_turns import Hooks, Played, coder_on, logging_tools, observations, play, read_of, take_turns, when
from stand_ins import Place, of_kind, said, until

from standfast import CodeMode, CodeProtocol, Session, tool
from standfast.errors import InvalidArgument
from standfast.graph.history import answered
from standfast.model.capability import CallStatus
from standfast.model.directive import (
    AbortTurn,
    EnqueueMessages,
    ReplaceToolArgs,
    ShortCircuitTool,
    ask_person,
    deny_call,
)
from standfast.model.events import PluginEventEmitted, ToolCallSettled, ToolCallStarted
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.outcome import Finished, FrameSwitched, Stopped, StopReason, Waiting
from standfast.model.session import FrameOpened
from standfast.plugins.shipped import Compaction, Guard, Redact, RollingHistory, ToolOutputBudget
from standfast.testing.clock import FakeClock
from standfast.testing.stored_bytes import stored_bytes

pytestmark = pytest.mark.slow

# A call that code makes


def test_hooks_see_a_cell_and_its_calls_with_their_parent(memory: Place) -> None:
    """Ours: the same hooks run and can identify the caller."""
    hooks = Hooks()
    played = play(memory, cell("look('a')\nadd(1)"), "over", plugins=[hooks])
    assert [(one.tool_name, one.call_id, one.parent) for one in hooks.calls] == [
        ("run_code", 1, 0),
        ("look", 2, 1),
        ("add", 3, 1),
    ]
    assert [one.arguments for one in hooks.calls] == [{"code": "look('a')\nadd(1)"}, {"key": "a"}, {"a": 1}]
    assert [(one.tool_name, one.parent, one.is_cell) for one in hooks.seen] == [
        ("look", 1, False),
        ("add", 1, False),
        ("run_code", 0, True),
    ]
    assert [one.value for one in hooks.seen[:2]] == ["seen a", 2]
    assert hooks.seen[2].value["result"] == 2
    assert [(one.name, one.status) for one in played.first.calls] == [("look", "ok"), ("add", "ok")]


def test_a_denied_call_is_a_permission_error_in_the_code(place: Place) -> None:
    """Ours: code can catch the error, and the model reads it."""
    code = "try:\n    look('a')\nexcept PermissionError as error:\n    x = str(error)\nadd(1)"
    hooks = Hooks(when("look", deny_call("not that")))
    played = play(place, cell(code), finish("x"), plugins=[hooks])
    assert played.first.output == "PERMISSION_DENIED: not that"
    assert 'look(key="a") -> denied: not that' in observations(played.first.messages)[0]
    assert played.ran == [(1, 1)]
    assert [one.status for one in played.first.calls] == [CallStatus.DENIED, CallStatus.OK]


def test_a_denied_call_that_is_not_caught_fails_the_cell(memory: Place) -> None:
    """Ours: the observation shows the line that made the call."""
    played = play(memory, cell("x = 1\nlook('a')"), "over", plugins=[Guard(deny=["look"])])
    told = observations(played.first.messages)[0]
    assert told.startswith(
        "[cell 0] failed\nerror:\nPERMISSION_DENIED: look() is refused: a rule forbids it\n"
    )
    assert "  2 | look('a')\n    | ^" in told


def test_the_arguments_of_a_nested_call_can_be_replaced(memory: Place) -> None:
    """Ours: the arguments that a plugin substitutes are validated."""
    fits = Hooks(when("look", ReplaceToolArgs(arguments={"key": "b"})))
    assert play(memory, finish("look('a')"), plugins=[fits]).first.output == "seen b"
    wrong = Hooks(when("look", ReplaceToolArgs(arguments={"kee": "b"})))
    played = play(Place(None, FakeClock()), finish("look('a')"), "over", plugins=[wrong])
    assert outcomes(played.first.messages) == ["INVALID_ARGUMENT"]
    assert played.ran == []


def test_a_short_circuit_value_is_returned_to_the_code(memory: Place) -> None:
    """Ours: the tool does not run; a value that does not match the tool's type is the plugin's error."""
    hooks = Hooks(when("look", ShortCircuitTool(value="from the cache")))
    played = play(memory, finish("look('a')"), plugins=[hooks])
    assert (played.first.output, played.ran) == ("from the cache", [])
    wrong = Hooks(when("look", ShortCircuitTool(value=5)))
    played = play(Place(None, FakeClock()), finish("look('a')"), "over", plugins=[wrong])
    assert outcomes(played.first.messages) == ["TOOL_ERROR"]


def test_a_failing_hook_fails_the_call_but_not_the_cell(memory: Place) -> None:
    """Ours: the code gets a RuntimeError that it can catch."""

    def fail(ctx: Any) -> Any:
        return 1 / 0 if ctx.tool_name == "look" else None

    code = "try:\n    look('a')\nexcept RuntimeError as error:\n    finish(str(error))"
    for hooks in (Hooks(fail), Hooks(None, fail)):
        played = play(Place(None, FakeClock()), cell(code), plugins=[hooks])
        assert str(played.first.output).startswith("PLUGIN_ERROR: plugin 'hooks' failed in ")


def test_a_replaced_result_is_returned_to_the_code(place: Place) -> None:
    """Ours: guest code never sees values that a plugin removed."""
    changed = Hooks(None, when("look", ShortCircuitTool(value="something else")))
    assert play(place, finish("look('a')"), plugins=[changed]).first.output == "something else"


def test_a_result_that_a_plugin_turns_into_an_error_is_raised(memory: Place) -> None:
    """Ours: code gets the exception type that belongs to the error's code."""
    hooks = Hooks(None, when("look", deny_call("hidden")))
    code = "try:\n    look('a')\nexcept PermissionError as error:\n    finish(str(error))"
    played = play(memory, cell(code), plugins=[hooks])
    assert played.first.output == "PERMISSION_DENIED: hidden"
    assert played.ran == ["a"]


def test_messages_of_a_nested_calls_hook_reach_the_model_after_the_cell(memory: Place) -> None:
    """Ours: a hook's messages are delivered at the next checkpoint, as with any call."""
    hooks = Hooks(when("look", EnqueueMessages(messages=(UserMessage(content="mind the gap"),))))
    played = play(memory, cell("look('a')"), "over", plugins=[hooks])
    assert played.read()[-1] == "mind the gap"
    assert played.read()[-2].startswith("[cell 0] ok")


@pytest.mark.parametrize("stage", ["before", "after"])
def test_a_turn_can_be_aborted_during_a_cell(place: Place, stage: str) -> None:
    """Ours: every call has a result, variables are as before the cell, and the session stays usable."""
    abort = when("look", AbortTurn(message="enough"))
    hooks = Hooks(abort) if stage == "before" else Hooks(None, abort)
    script = [cell("x = 1"), cell("x = 2\nlook('a')\nx = 3"), finish("x")]
    played = play(place, *script, turns=("go", "and now"), plugins=[hooks])
    assert isinstance(played.first.outcome, Stopped)
    assert played.first.outcome.reason is StopReason.PLUGIN_ABORT
    assert answered(list(played.first.messages)) == list(played.first.messages)
    assert played.ran == ([] if stage == "before" else ["a"])
    assert played.last.output == "1"


# The cell itself


def test_a_guard_can_deny_a_cell_because_of_its_code(place: Place) -> None:
    """Ours: a cell is a call like any other, and none of its code runs."""
    guard = Guard(
        rules=[{"tool": "run_code", "when": lambda given: "secret" in given["code"], "then": "deny"}]
    )
    script = [cell("x = look('secret')"), finish("[look('b'), history[0]['error']['code']]")]
    played = play(place, *script, plugins=[guard])
    assert played.read()[-1] == (
        "[cell] failed\nerror:\nPERMISSION_DENIED: run_code() is refused: a rule forbids it"
    )
    assert played.first.output == '["seen b","PERMISSION_DENIED"]'
    assert played.ran == ["b"]


def test_the_code_of_a_cell_can_be_replaced(memory: Place) -> None:
    """Ours: the history has the code that was executed."""
    replace = ReplaceToolArgs(arguments={"code": "x = look('b')"})
    hooks = Hooks(lambda ctx: replace if "'a'" in str(ctx.arguments) else None)
    script = [cell("x = look('a')"), finish("[x, history[0]['code']]")]
    played = play(memory, *script, plugins=[hooks])
    assert played.first.output == '["seen b","x = look(\'b\')"]'


def test_the_report_of_a_cell_can_be_changed(place: Place) -> None:
    """Ours: the model and `history` get the report as plugins changed it."""

    def censor(ctx: Any) -> Any:
        if not ctx.is_cell or not ctx.value.get("stdout"):
            return None
        return ShortCircuitTool(value={**ctx.value, "stdout": "(censored)"})

    script = [cell("print('rude')"), finish("history[0]['stdout']")]
    played = play(place, *script, plugins=[Hooks(None, censor)])
    assert observations(played.first.messages)[0] == "[cell 0] ok\nstdout:\n(censored)"
    assert played.first.output == "(censored)"


def test_the_model_reads_the_value_that_a_plugin_puts_in_place_of_a_report(memory: Place) -> None:
    """Ours: `history` has the same value in the cell's place."""
    hooks = Hooks(None, lambda ctx: ShortCircuitTool(value="nothing to see") if ctx.call_id == 1 else None)
    script = [cell("look('a')"), finish("[len(history), history[0]['result']]")]
    played = play(memory, *script, plugins=[hooks])
    assert played.read(1)[-1] == "[cell]\nnothing to see"
    assert played.first.output == '[1,"nothing to see"]'


def test_an_answer_changes_with_the_report_that_plugins_changed(place: Place) -> None:
    """Bug: plugins had changed the report, but the answer was not changed with it."""

    def louder(ctx: Any) -> Any:
        if not ctx.is_cell:
            return None
        return ShortCircuitTool(value={**ctx.value, "result": str(ctx.value["result"]).upper()})

    played = play(place, finish("'quiet'"), plugins=[Hooks(None, louder)])
    assert (played.first.output, played.shown) == ("QUIET", ["QUIET"])


@pytest.mark.parametrize("instead", [ShortCircuitTool(value="no"), deny_call("no")], ids=["value", "error"])
def test_an_answer_removed_by_a_plugin_does_not_end_the_turn(
    memory: Place, instead: ShortCircuitTool
) -> None:
    """Bug: the answer was given although its report had been replaced."""
    hooks = Hooks(None, lambda ctx: instead if ctx.call_id == 1 else None)
    played = play(memory, finish("'the secret'"), "over", plugins=[hooks])
    assert played.first.output == "over"
    assert played.shown == ["over"]


def test_a_changed_answer_is_validated_against_the_output_type(memory: Place) -> None:
    """Ours: the model has to correct an invalid answer."""

    def spoil(ctx: Any) -> Any:
        return ShortCircuitTool(value={**ctx.value, "result": "five"}) if ctx.call_id == 1 else None

    played = play(memory, finish("5"), finish("6"), plugins=[Hooks(None, spoil)], output_type=int)
    assert "Your answer does not fit" in played.read()[-1]
    assert played.first.output == 6


# People


def asked(place: Place, plugin: Hooks, *replies: Any, **decision: Any) -> tuple[Played, str]:
    """Run a turn that waits for a person, decide in another process, and return its outcome."""
    ran: list[Any] = []

    async def main() -> tuple[Played, str]:
        agent, model = coder_on(*replies, tools=logging_tools(ran), plugins=[plugin])
        played = Played(model, ran=ran)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await take_turns(session, played, ["go"])
            assert isinstance(played.first.outcome, Waiting)
            (approval,) = await session.approvals(pending=True)
            assert ran == []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            decide = session.deny if decision.pop("deny", False) else session.approve
            played.results.append(await decide(approval.approval_id, **decision))
        return played, f"{approval.capability}: {approval.reason}"

    return asyncio.run(main())


CELL = cell("x = look('a')\nfinish([x, x])")


def test_a_cell_waits_while_a_person_is_asked_about_its_call(place: Place) -> None:
    """Ours: a plugin's question suspends the code in the middle of an expression."""
    played, question = asked(place, Hooks(when("look", ask_person("sure?"))), CELL)
    assert question == "look: sure?"
    assert (played.last.output, played.ran) == ('["seen a","seen a"]', ["a"])


def test_a_person_may_edit_the_arguments_of_a_nested_call(memory: Place) -> None:
    """Ours: code gets the result of the call with the edited arguments."""
    played, _ = asked(memory, Hooks(when("look", ask_person("sure?"))), CELL, arguments={"key": "b"})
    assert (played.last.output, played.ran) == ('["seen b","seen b"]', ["b"])


def test_a_denied_nested_call_raises_permission_error(memory: Place) -> None:
    """Ours: a denial raises the same exception, whether a person or a rule denies."""
    code = "try:\n    look('a')\nexcept PermissionError as error:\n    finish(str(error))"
    plugin = Hooks(when("look", ask_person("sure?")))
    played, _ = asked(memory, plugin, cell(code), deny=True, reason="not today")
    assert played.last.output == "PERMISSION_DENIED: a person refused the call of look(): not today"


def test_a_cell_can_require_approval(place: Place) -> None:
    """Ours: the approval shows the code, which runs only when it is approved."""
    played, question = asked(place, Hooks(when("run_code", ask_person("is this wise?"))), CELL)
    assert question == "run_code: is this wise?"
    assert (played.last.output, played.ran) == ('["seen a","seen a"]', ["a"])


def test_a_person_may_deny_a_cell(memory: Place) -> None:
    """Ours: none of the code runs, and the model reads why."""
    played, _ = asked(memory, Hooks(when("run_code", ask_person("?"))), CELL, "over", deny=True)
    assert (played.last.output, played.ran) == ("over", [])
    assert played.read()[-1] == (
        "[cell] failed\nerror:\nPERMISSION_DENIED: a person refused the call of run_code()"
    )


def test_a_person_may_edit_the_code_of_a_cell(place: Place) -> None:
    """Bug: the code that the model had written ran instead of the approved code."""
    changed = "y = look('b')\nfinish(y)"
    played, _ = asked(place, Hooks(when("run_code", ask_person("?"))), CELL, arguments={"code": changed})
    assert (played.last.output, played.ran) == ("seen b", ["b"])


def test_edited_code_is_rerun_after_the_cell_has_waited(place: Place) -> None:
    """Bug: a cell that resumed in another process ran the code from before the edit."""
    ask = ask_person("?")
    plugin = Hooks(lambda ctx: ask if ctx.tool_name == "run_code" or ctx.parent else None)
    ran: list[Any] = []

    async def main() -> None:
        agent, _ = coder_on(CELL, tools=logging_tools(ran), plugins=[plugin])
        edits: list[dict[str, Any] | None] = [{"code": "y = look('b') + '!'\nfinish(y)"}, None]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("go").settled()
        for edit in edits:
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                (approval,) = await session.approvals(pending=True)
                result = await session.approve(approval.approval_id, arguments=edit)
        assert (result.output, ran) == ("seen b!", ["b"])

    asyncio.run(main())


def test_invalid_edited_code_is_refused_before_the_decision_is_recorded(memory: Place) -> None:
    """Bug: the decision failed because run_code was looked up among the session's tools."""

    async def main() -> None:
        agent, _ = coder_on(CELL, tools=logging_tools([]), plugins=[Hooks(when("run_code", ask_person("?")))])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("go").settled()
            (approval,) = await session.approvals(pending=True)
            with pytest.raises(InvalidArgument, match="edited arguments are invalid"):
                await session.approve(approval.approval_id, arguments={"cod": "x"})
            assert (await session.approve(approval.approval_id)).output == '["seen a","seen a"]'

    asyncio.run(main())


# Secrets

SECRET = "sk-abcdefghij1234567890ABCDEFGH"
HALVES = "'sk-abcdefghij' + '1234567890ABCDEFGH'"


@tool(side_effect="read")
async def credentials() -> dict[str, Any]:
    """Return secrets."""
    return {"key": SECRET, "user": "me"}


@tool(side_effect="read", approval="manual")
async def ask() -> str:
    """Ask a person."""
    return "yes"


def stored(path: Path) -> str:
    """Return all text in the files of a store."""
    blobs = b"".join(data for (data,) in rows(path, "SELECT data FROM blobs"))
    return (blobs + stored_bytes(path.parent)).decode(errors="replace")


def test_secrets_reach_neither_the_model_nor_the_store_nor_an_observer(tmp_path: Path) -> None:
    """Ours: secrets are redacted whether a tool returned them, code printed them or the model wrote them."""
    path = tmp_path / "standfast.db"
    script = [
        cell("found = credentials()\nprint(found)\nfound"),
        cell(f"print({HALVES})\nprint('x' * 20_000)\n[{HALVES}]"),
        f"I know it: {SECRET}\n{cell(f'x = {SECRET!r}')}",
        cell(f"raise ValueError({HALVES})"),
        cell("ask()"),
        finish(f"'It is ' + {HALVES}"),
        cell(f"continue_as('use ' + {HALVES}, [{HALVES}])"),
        finish("[found, x]"),
    ]

    async def main() -> None:
        agent, model = coder_on(*script, tools=[credentials, ask], plugins=[Redact(secrets=[SECRET])])
        played = Played(model)
        async with Place(path, FakeClock()).runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await take_turns(session, played, ["go"])
            assert SECRET not in stored(path)  # with the journal of a waiting turn
            (approval,) = await session.approvals(pending=True)
            assert (await session.approve(approval.approval_id)).output == "It is [redacted]"
            await take_turns(session, played, ["on"])
            assert isinstance(played.last.outcome, FrameSwitched)
            await until(lambda: has_turns(session, 3))
            last = await session.follow((await session.turns())[-1].turn_id)
            assert last.output == '[{"key":"[redacted]","user":"me"},"[redacted]"]'
        for words in (*map(str, played.events), *map(str, model.requests), stored(path)):
            assert SECRET not in words

    asyncio.run(main())


async def has_turns(session: Session[Any], count: int) -> bool:
    turns = await session.turns()
    return len(turns) == count and turns[-1].summary is not None


# Plugins that manage the context window


@tool(side_effect="read")
async def pages() -> list[str]:
    """A long result."""
    return [f"page {number} " + "x" * 100 for number in range(1_000)]


@pytest.mark.parametrize(
    ("options", "reply"),
    [
        ({}, cell("found = pages()\nprint(found)")),
        (
            {"protocol": "standard"},
            {"tool_calls": [{"name": "run_code", "arguments": {"code": "found = pages()\nprint(found)"}}]},
        ),
    ],
    ids=["protocol", "mode"],
)
def test_code_gets_long_results_completely_despite_a_budget(
    memory: Place, options: dict[str, Any], reply: Any
) -> None:
    """Bug: code got the head and tail of a text instead of a list, and its report was cut in the same way."""
    plugins = [ToolOutputBudget(max_bytes=1_000), *([CodeMode()] if options else [])]

    async def main() -> None:
        agent, model = coder_on(reply, "over", tools=[pages], plugins=plugins, **options)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            report = reports(result.messages)[0]
            assert (report.index, report.error) == (0, None)
            told = observations(result.messages)[0]
            assert 'history[0]["stdout"] has all of it' in told
            assert len(told) <= 8_000
            assert all("read_output" not in text for text in read_of(model.requests[-1].messages))

    asyncio.run(main())


def whole(messages: list[Message]) -> bool:
    """Return whether every call has its result and every result its call."""
    return answered(messages) == messages


def test_cells_dropped_from_a_rolling_history_keep_their_numbers(memory: Place) -> None:
    """Ours: cells that are hidden from the model's view are still in `history`."""
    script = [
        part
        for number in range(6)
        for part in (cell(f"print('{number}' * 3_000)"), finish(f"'end {number}'"))
    ]
    last = finish("[len(history), len(history[0]['stdout']), history[10]['stdout'][0]]")
    plugins = [RollingHistory(window_tokens=4_000, keep_turns=1)]
    played = play(memory, *script, last, turns=[str(number) for number in range(7)], plugins=plugins)
    assert played.last.output == '[12,3001,"5"]'
    read = played.read()
    assert any("output of run_code() left out" in text for text in read)
    assert read[-2].startswith("[cell 11] ok")
    assert sum(map(len, read)) < 4_000 * 4
    assert all(not isinstance(one, ToolMessage) for one in played.model.requests[-1].messages)


@pytest.mark.parametrize("keep_turns", [0, 1])
def test_cells_keep_their_numbers_when_the_history_is_summarized(place: Place, keep_turns: int) -> None:
    """Bug: after a summary the numbers in the text no longer matched those of `history`."""
    script = [
        cell("x = 1\nprint('word ' * 400)"),
        finish("'one'"),
        cell("y = 2\nprint('word ' * 400)"),
        finish("'two'"),
        "they counted",
        cell("x + y"),
        finish("[len(history), history[4]['result']]"),
        finish("[len(history), history[4]['result'], history[-1]['code'], 'cut' in history[0]]"),
    ]
    compaction = Compaction(window_tokens=2_000, fill=0.5, keep_turns=keep_turns)

    async def main() -> None:
        agent, model = coder_on(*script, plugins=[compaction])
        played = Played(model)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await take_turns(session, played, ["a", "b", "c", "d"])
            opened = [one.payload for one in await session.nodes() if isinstance(one.payload, FrameOpened)]
            assert [one.switch.reason for one in opened] == ["compaction"]
            assert whole(list(opened[0].switch.seed))
        assert [one.index for one in reports(played.results[2].messages)] == [4, 5]
        assert played.results[2].output == "[5,3]"
        assert [one.index for one in reports(played.last.messages)] == [6]
        assert played.last.output == "[6,3,\"finish([len(history), history[4]['result']])\",true]"
        read = played.read()
        assert read[0].endswith("they counted")
        assert [text[:8] for text in read if text.startswith("[cell")] == [
            f"[cell {number}]"[:8] for number in ([2, 3, 4, 5] if keep_turns else [4, 5])
        ]

    asyncio.run(main())


# Observers


def test_events_of_nested_calls_name_the_cell(place: Place) -> None:
    """Ours: an observer can distinguish the model's calls from those of its code."""
    played = play(place, cell("look('a')\nadd(1)"), "over")
    started = of_kind(ToolCallStarted, played.events)
    assert [(one.call.call_id, one.call.name, one.call.parent) for one in started] == [
        (1, "run_code", 0),
        (2, "look", 1),
        (3, "add", 1),
    ]
    settled = of_kind(ToolCallSettled, played.events)
    assert [one.call_id for one in settled] == [2, 3, 1]
    assert [one.value for one in settled[:2]] == ["seen a", 2]


def test_only_the_cell_is_in_the_messages_but_its_calls_are_recorded(place: Place) -> None:
    """Ours: the model reads one result; the audit trail has every call."""
    played = play(place, cell("for key in 'abc': look(key)"), "over")
    kinds = [type(one) for one in played.first.messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage]
    assert [(one.name, one.status) for one in played.first.calls] == [("look", CallStatus.OK)] * 3
    assert len({one.request_digest for one in played.first.calls}) == 3
    assert of_kind(PluginEventEmitted, played.events) == []


def test_calls_of_built_in_functions_pass_through_the_hooks_too(memory: Place) -> None:
    """Ours: a guard can forbid code to call a model or to sleep."""
    code = "try:\n    llm('what?')\nexcept PermissionError:\n    finish('refused')"
    played = play(memory, cell(code), plugins=[Guard(deny=["llm"])])
    assert played.first.outcome == Finished(text="refused")
    assert said(played.first.messages) == ["go"]


def test_a_guard_applies_to_cells_that_are_tool_calls(memory: Place) -> None:
    """Ours: guards apply however the model sends its cells."""
    reply = {"tool_calls": [{"name": "run_code", "arguments": {"code": "look('a')"}}]}
    for options in ({"protocol": CodeProtocol(cells="tool_call")}, {"protocol": "standard"}):
        plugins = [Guard(deny=["look"]), *([CodeMode()] if options["protocol"] == "standard" else [])]
        played = play(Place(None, FakeClock()), reply, "over", plugins=plugins, **options)
        assert outcomes(played.first.messages) == ["PERMISSION_DENIED"]
        assert played.ran == []
