"""Several models used in place of one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asking import Giving, deltas, ended, request

from standfast import Agent, Fallback, Runtime, TurnStopped, UsageLimits, tool
from standfast.errors import InvalidArgument, ModelError, TurnCode
from standfast.model.events import ModelCallFailed
from standfast.ports.model_provider import ReplyEnded, TextArrived
from standfast.providers.scripted import ScriptedModel
from standfast.testing.servers.anthropic_server import AnthropicServer
from standfast.testing.servers.openai_server import OpenAIServer

BUSY = ModelError("too busy", code="RATE_LIMITED", retryable=True, retry_after_ms=9_000, hint="wait")
BROKEN = ModelError("no such model")


def failure(model: Fallback, attempt: int) -> ModelError:
    with pytest.raises(ModelError) as raised:
        deltas(model, request(attempt=attempt))
    return raised.value


def test_the_attempt_number_selects_the_model() -> None:
    """Ours: a process that takes over a turn continues with the model that is due."""
    models = [Giving(ReplyEnded(text=name), model_id=f"p:{name}") for name in "abc"]
    fallback = Fallback(*models)
    assert [ended(fallback, request(attempt=n)).text for n in range(1, 6)] == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("error", [BUSY, BROKEN, InvalidArgument("no images here"), RuntimeError("oops")])
def test_a_failure_is_retried_at_once_if_another_model_is_left(error: Exception) -> None:
    """Ours: waiting is pointless if another model is available; the message names the one that failed."""
    told = failure(Fallback(Giving(error, model_id="p:a"), Giving()), 1)
    assert (told.retryable, told.retry_after_ms) == (True, 0)
    assert told.message.startswith("p:a: ")
    assert str(getattr(error, "message", error)) in told.message


def test_the_last_models_failure_is_passed_on_unchanged() -> None:
    """Ours: only the last model's failure decides how long to wait."""
    told = failure(Fallback(Giving(), Giving(BUSY, model_id="p:b")), 2)
    assert (told.message, told.code) == ("p:b: too busy", "RATE_LIMITED")
    assert (told.retryable, told.retry_after_ms, told.hint) == (True, 9_000, "wait")
    assert not failure(Fallback(Giving(), Giving(BROKEN)), 2).retryable


def test_a_context_overflow_is_passed_on_unchanged() -> None:
    """Ours: compaction helps with any model."""
    overflow = ModelError("too long", code=TurnCode.CONTEXT_OVERFLOW)
    assert failure(Fallback(Giving(overflow), Giving()), 1) is overflow


@pytest.mark.parametrize(
    ("served", "told"), [("", "p:a"), ("a-2026", "p:a-2026"), ("p:a", "p:a"), ("a:3b", "p:a:3b")]
)
def test_the_reply_names_the_model_that_served_it(served: str, told: str) -> None:
    """Ours: the name includes the provider, which is needed to look up prices."""
    assert ended(Fallback(Giving(ReplyEnded(text="x", model=served), model_id="p:a"))).model == told


def test_the_name_of_a_fallback_lists_its_models() -> None:
    """Ours: nested fallbacks are flattened, and a name that could not be parsed again is refused."""
    inner = Fallback(Giving(model_id="p:a"), Giving(model_id="p:b"))
    assert Fallback(inner, Giving(model_id="q:c")).model_id == "fallback:p:a|p:b|q:c"
    with pytest.raises(InvalidArgument, match="cannot be one of several"):
        Fallback(Giving(model_id="p:a|b"))
    with pytest.raises(InvalidArgument, match="at least one model"):
        Fallback()
    with pytest.raises(InvalidArgument, match="got str"):
        Fallback("openai:gpt-5")  # type: ignore[arg-type]


def test_closing_closes_all_models_even_if_one_raises() -> None:
    """Ours: no connection is left open."""
    left, fine = ScriptedModel(["never asked"]), Giving()
    with pytest.raises(Exception, match="were not used"):
        asyncio.run(Fallback(left, fine).close())
    assert fine.closed == 1


def test_a_turn_continues_with_the_next_model_and_retracts_streamed_text() -> None:
    """Ours: the failed model's text is not part of the answer, and there is no back-off."""
    waited: list[float] = []

    async def no_sleep(seconds: float) -> None:
        waited.append(seconds)

    async def main() -> None:
        first = Giving(TextArrived("I thi"), BUSY, model_id="p:a")
        second = Giving(TextArrived("Yes."), ReplyEnded(text="Yes."), model_id="q:b")
        async with Runtime(_sleep=no_sleep) as runtime:
            session = await runtime.session("s", agent=Agent([first, second]))
            turn = session.turn("Is it?")
            failed = [event async for event in turn if isinstance(event, ModelCallFailed)]
            result = await turn
        assert (result.output, result.usage.calls) == ("Yes.", 2)
        assert [event.error.message for event in failed] == ["p:a: too busy"]

    asyncio.run(main())
    assert not [seconds for seconds in waited if seconds > 0]


def test_attempts_are_limited_across_all_models() -> None:
    """Ours: `max_attempts` counts every attempt, whichever model was called."""
    models = [Giving(BUSY, model_id=f"p:{name}") for name in "abc"]
    with pytest.raises(TurnStopped, match="p:b: too busy"):
        Agent(models, limits=UsageLimits(max_attempts=2)).run_sync("Hi")
    assert [model.asked for model in models] == [1, 1, 0]


def test_a_list_of_names_is_a_fallback_that_sessions_record(tmp_path: Path) -> None:
    """Ours: another process can recreate the models from the name."""
    failing, fine = tmp_path / "failing.json", tmp_path / "fine.json"
    failing.write_text('{"rules": [{"failure": {"message": "down"}}]}')
    fine.write_text('{"rules": [{"text": "Here I am."}]}')
    agent = Agent([f"scripted:{failing}", f"scripted:{fine}"])
    assert agent.model_id == f"fallback:scripted:{failing}|scripted:{fine}"
    assert Agent(agent.model_id).run_sync("Hi").output == "Here I am."
    assert agent.run_sync("Hi").output == "Here I am."
    assert Agent([f"scripted:{fine}"]).model_id == f"scripted:{fine}"
    with pytest.raises(InvalidArgument, match="the list of models is empty"):
        Agent([])
    with pytest.raises(InvalidArgument, match="got int"):
        Agent(["scripted:demo", 5])  # type: ignore[list-item]


@tool(side_effect="read")
def order(order_id: str) -> int:
    """How many days late it is."""
    return 6


def test_a_turn_that_one_vendor_began_is_finished_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: calls and results are understood by the other vendor; reasoning is not sent there."""
    calls = [{"name": "order", "arguments": {"order_id": "A1"}, "id": "toolu_01A"}]
    overloaded = {"fault": {"status": 529, "message": "Overloaded"}}

    async def main() -> None:
        async with (
            AnthropicServer([{"tool_calls": calls, "reasoning": "Let me look."}, overloaded]) as first,
            OpenAIServer([{"text": "Six days."}]) as second,
        ):
            monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", first.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            monkeypatch.setenv("OPENAI_BASE_URL", second.base_url)
            names = ["anthropic:claude-sonnet-4-5", "openai:gpt-5"]
            async with Runtime() as runtime:
                agent = Agent(names, tools=[order], settings={"reasoning": "low"})
                session = await runtime.session("s", agent=agent)
                result = await session.turn("How late is A1?")
            assert (result.output, result.usage.calls) == ("Six days.", 3)
            served = [getattr(message, "model", "") for message in result.messages]
            assert [name.partition(":")[0] for name in served if name] == ["anthropic", "openai"]
            assert (len(first.requests), len(second.requests)) == (2, 1)
            assert "Let me look." not in str(second.requests[0].body)
            assert "Let me look." in str(first.requests[1].body)

    asyncio.run(main())
