"""Tools that raise: where their tracebacks go, and what the model sees."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stand_ins import Place

from standfast import Agent, BlockingSandbox, ScriptedModel, ToolError, ToolMessage, tool
from standfast.model.capability import MAX_TRACEBACKS
from standfast.model.events import ToolCallSettled
from standfast.plugins.shipped import Redact
from standfast.tools.tracebacks import MAX_CHARS
from standfast.trace.jsonl import JsonlTrace

SECRET = "sk-" + "a1B2" * 8


def _deep_inside(order_id: str) -> str:
    raise LookupError(f"no order {order_id}")


@tool(side_effect="read")
def plain(order_id: str) -> str:
    """Raise."""
    return _deep_inside(order_id)


@tool(side_effect="read")
async def coroutine(order_id: str) -> str:
    """Raise."""
    await asyncio.sleep(0)
    return _deep_inside(order_id)


@tool(side_effect="read", loop="runtime")
async def at_home(order_id: str) -> str:
    """Raise."""
    return _deep_inside(order_id)


@tool(side_effect="read", isolate=True)
def isolated(order_id: str) -> str:
    """Raise."""
    return _deep_inside(order_id)


@tool(side_effect="read", expose_errors=False)
async def discreet(order_id: str) -> str:
    """Raise an error with a private message."""
    raise LookupError(f"no order {order_id} in db.internal")


TOOLS = [plain, coroutine, at_home, isolated, discreet]


def asks(name: str, order_id: str = "A1") -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": {"order_id": order_id}}]}


def turn_of(place: Place, *script: Any, tools: list[Any] = TOOLS, session: str = "s", **options: Any) -> Any:
    """Return the result of one turn, and its events."""

    async def main() -> Any:
        async with place.runtime(**options.pop("runtime", {})) as runtime:
            agent = Agent(ScriptedModel(list(script)), tools=tools, **options)
            turn = (await runtime.session(session, agent=agent)).turn("go")
            events = [event async for event in turn]
            return await turn, events

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["plain", "coroutine", "at_home", "isolated"])
def test_the_traceback_is_logged_with_session_and_call_and_kept_in_the_record(
    place: Place, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: a tool that raised left no traceback anywhere."""
    with caplog.at_level("WARNING", logger="standfast.tools"):
        done, events = turn_of(place, asks(name), "end")
    (logged,) = [one for one in caplog.records if one.name == "standfast.tools"]
    assert f"tool {name}() raised in session s, call 1\nTraceback" in logged.getMessage()
    assert (logged.session_id, logged.call_id, logged.tool) == ("s", 1, name)  # type: ignore[attr-defined]
    (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
    for text in (logged.getMessage(), str(result.record.traceback)):
        assert ", in _deep_inside" in text
        assert text.endswith("LookupError: no order A1")
        assert "dispatch.py" not in text
        assert "loop_threads.py" not in text
    assert result.error.message == f"{name}() raised LookupError: no order A1"
    assert not any(one.record.traceback for one in events if isinstance(one, ToolCallSettled))


def test_another_process_reads_the_traceback_from_the_store(place: Place) -> None:
    """Ours: the workbench shows the traceback later."""
    turn_of(place, asks("plain"), "end")

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel([]), tools=TOOLS))
            (result,) = [one for one in await session.messages() if isinstance(one, ToolMessage)]
            assert result.record is not None
            assert ", in _deep_inside" in (result.record.traceback or "")

    asyncio.run(main())


def test_a_tool_can_hide_its_exceptions_from_the_model(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: the model sees that the call failed; the log and the record have the rest."""
    with caplog.at_level("WARNING", logger="standfast.tools"):
        done, _ = turn_of(memory, asks("discreet"), "end")
    (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
    assert result.error.message == "discreet() failed (call 1); the log of the program has the details"
    assert "db.internal" in str(result.record.traceback)
    assert "db.internal" in caplog.text

    @tool(side_effect="read", expose_errors=False)
    def told(order_id: str) -> str:
        """Raise for the model."""
        raise ToolError("SOLD_OUT", "none left")

    done, _ = turn_of(memory, asks("told"), "end", tools=[told], session="t")
    (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
    assert (result.error.code, result.error.message) == ("SOLD_OUT", "none left")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (("GONE", "no file caf\udce9"), ("GONE", "no file caf\\udce9", None)),
        (("GONE", LookupError("none left")), ("GONE", "none left", None)),
        ((404, "none left", "caf\udce9"), ("404", "none left", "caf\\udce9")),
        (("GONE", "x" * 3_000_000), ("GONE", "x" * 1_048_576, None)),
    ],
    ids=["surrogate", "exception", "number", "large"],
)
def test_the_texts_of_a_tool_error_can_be_stored(place: Place, given: Any, shown: Any) -> None:
    """Bug: the turn could not end, or its messages could not be read afterwards."""

    @tool(side_effect="read")
    def told(order_id: str) -> str:
        """Raise for the model."""
        raise ToolError(*given[:2], hint=given[2] if len(given) > 2 else None)

    assert turn_of(place, asks("told"), "end", tools=[told])[0].output == "end"

    async def main() -> None:
        async with place.runtime() as runtime:
            messages = await runtime.session_handle("s").messages()
            (result,) = [one for one in messages if isinstance(one, ToolMessage)]
            assert result.error is not None
            assert (result.error.code, result.error.message, result.error.hint) == shown

    asyncio.run(main())


def test_code_sees_no_more_of_an_exception_than_the_model(memory: Place) -> None:
    """Ours: the message is hidden in cells as in native calls, because the model reads a cell's output."""
    cell = '```python\ntry:\n    discreet(order_id="A1")\nexcept Exception as e:\n    finish(str(e))\n```'
    done, _ = turn_of(memory, cell, protocol="code")
    assert "db.internal" not in done.output
    assert "discreet() failed (call 2)" in done.output
    assert "db.internal" in done.calls[-1].traceback


def test_a_run_without_a_model_keeps_tracebacks_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """Ours: all calls use the same dispatcher."""
    code = "for n in range(20):\n  try:\n    plain(order_id=str(n))\n  except LookupError:\n    pass\n"
    with BlockingSandbox(tools=[plain]) as sandbox, caplog.at_level("WARNING", logger="standfast.tools"):
        result = sandbox.run(code)
    kept = [call.traceback for call in result.external_calls if call.traceback]
    assert len(result.external_calls) == 20
    assert len(kept) == MAX_TRACEBACKS
    assert "LookupError: no order 0" in kept[0]
    assert len([one for one in caplog.records if one.name == "standfast.tools"]) == 20


def test_a_traceback_is_bounded_and_redacted(memory: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Ours: secrets are redacted before a record is written."""

    @tool(side_effect="read", expose_errors=False)
    def leaks(order_id: str) -> str:
        """Raise with a key."""
        raise ValueError(f"{SECRET} " + "x" * 100_000 + f" {SECRET}")

    with caplog.at_level("WARNING", logger="standfast.tools"):
        done, _ = turn_of(memory, asks("leaks"), "end", tools=[leaks])
    (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
    assert len(str(result.record.traceback)) <= MAX_CHARS
    assert "[redacted]" in str(result.record.traceback)
    for text in (caplog.text, str(result.record.traceback), msgspec.json.encode(done.messages).decode()):
        assert SECRET not in text


def test_a_plugin_that_cleans_results_also_cleans_the_recorded_exception(memory: Place) -> None:
    """Ours: a secret that only the operator knows must not stay in the record."""

    @tool(side_effect="read", expose_errors=False)
    def leaks(order_id: str) -> str:
        """Raise with a password."""
        raise ValueError("cannot log in with hunter2hunter2")

    redact = Redact(secrets=["hunter2hunter2"])
    done, _ = turn_of(memory, asks("leaks"), "end", tools=[leaks], plugins=[redact])
    assert "hunter2hunter2" not in msgspec.json.encode(done.messages).decode()
    assert "hunter2hunter2" not in msgspec.json.encode(done.calls).decode()


def test_an_exception_that_cannot_be_formatted_is_logged_anyway(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: the call settles, whatever the exception does when it is formatted."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        @property
        def __notes__(self) -> Any:  # type: ignore[override]
            raise SystemExit

    @tool(side_effect="read")
    async def breaks(order_id: str) -> str:
        """Raise."""
        raise Broken

    with caplog.at_level("WARNING", logger="standfast.tools"):
        done, _ = turn_of(memory, asks("breaks"), "end", tools=[breaks])
    (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
    assert result.error.code == "TOOL_ERROR"
    assert "Broken" in caplog.text


@pytest.mark.parametrize("contents", [False, True])
def test_the_trace_has_the_location_of_an_exception_and_with_contents_the_whole_traceback(
    memory: Place, tmp_path: Path, contents: bool
) -> None:
    """Ours: without `contents`, a trace has the location of an exception but not its message."""
    path = tmp_path / "trace.jsonl"
    with JsonlTrace(path, contents=contents) as trace:
        turn_of(memory, asks("coroutine", "A1-is-private"), "end", runtime={"trace": trace})
    records = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    (call,) = [one["body"] for one in records if one.get("kind") == "tool_call"]
    assert call["exception"]["type"] == "LookupError"
    assert ", in _deep_inside" in call["exception"]["stack"]
    assert "A1-is-private" not in call["exception"]["stack"]
    assert ("content" in call) is contents
    if contents:
        assert call["content"]["traceback"].endswith("LookupError: no order A1-is-private")
    else:
        assert "A1-is-private" not in path.read_text()


def test_a_logging_handler_of_the_application_gets_the_record(memory: Place) -> None:
    """Ours: the record goes to a standard logger, with session and call as fields."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(session_id)s %(call_id)s %(tool)s"))
    logger = logging.getLogger("standfast.tools")
    logger.addHandler(handler)
    try:
        turn_of(memory, asks("plain"), "end")
    finally:
        logger.removeHandler(handler)
    assert stream.getvalue().startswith("WARNING s 1 plain")
