"""Rate limits: when each call may start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asking import Giving, heard, request

from standfast import Agent, Fallback, Limited, RateLimit, Runtime
from standfast.errors import InvalidArgument, ModelError
from standfast.model.limits import Usage
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.providers.rate_limit import Limiter, SharedLimits
from standfast.providers.request_digest import estimated_tokens
from standfast.providers.scripted import ScriptedModel
from standfast.testing.clock import FakeClock


class Time:
    """A clock that sleeping advances, so that a single waiter takes no real time."""

    def __init__(self) -> None:
        self.clock = FakeClock(0)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def limiter(self, **limit: int) -> Limiter:
        return Limiter(RateLimit(**limit), clock=self.clock, sleep=self.sleep)


class Held:
    """A model whose replies wait until the test releases them."""

    model_id = "held:1"

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.under_way.append(request.session_id)
        self.begun.set()
        await self.go.wait()
        yield ReplyEnded(text="", usage=Usage(input=1, calls=1))

    async def close(self) -> None: ...


async def settle() -> None:
    """Run the event loop until nothing is left to run."""
    for _ in range(10):
        await asyncio.sleep(0)


def asked_by(name: str) -> ModelRequest:
    return ModelRequest(messages=[], session_id=name)


def test_concurrent_calls_are_limited_and_start_in_order() -> None:
    """Ours: first come, first served; a waiting call starts when a running one ends."""

    async def main() -> None:
        model = Held()
        limited = Limited(model, RateLimit(concurrency=2))
        calls = [asyncio.create_task(heard(limited, asked_by(name))) for name in "abcd"]
        await settle()
        assert model.under_way == ["a", "b"]
        calls[0].cancel()
        await settle()
        assert model.under_way == ["a", "b", "c"]
        model.go.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert model.under_way == ["a", "b", "c", "d"]

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_queue() -> None:
    """Ours: a turn cancelled while it waits delays no other turn and uses no quota."""

    async def main() -> None:
        model = Held()
        limited = Limited(model, RateLimit(concurrency=1))
        first, second, third = (asyncio.create_task(heard(limited, asked_by(name))) for name in "abc")
        await settle()
        second.cancel()
        await settle()
        assert second.cancelled()
        model.go.set()
        await asyncio.gather(first, third)
        assert model.under_way == ["a", "c"]

    asyncio.run(main())


def test_the_first_call_in_the_queue_may_be_cancelled() -> None:
    """Ours: the next call in the queue takes its place."""

    async def main() -> None:
        time = Time()
        limiter = time.limiter(concurrency=1)
        held = await limiter.admit()
        front, behind = (asyncio.create_task(limiter.admit()) for _ in range(2))
        await settle()
        front.cancel()
        await settle()
        limiter.release(held)
        assert (await behind).tokens == 0

    asyncio.run(main())


def test_no_minute_has_more_requests_than_allowed() -> None:
    """Ours: after a burst, a call starts whenever one becomes a minute old; the wait is slept, not polled."""

    async def main() -> None:
        time = Time()
        limiter, began = time.limiter(requests_per_minute=3), list[float]()
        for _ in range(7):
            admission = await limiter.admit()
            began.append(time.clock.monotonic())
            limiter.release(admission)
            time.clock.advance(1)
        assert began == [0, 1, 2, 60, 61, 62, 120]
        assert time.slept == [57, 57]

    asyncio.run(main())


def test_tokens_are_estimated_before_a_call_and_corrected_after_it() -> None:
    """Ours: a call that used fewer than estimated makes room at once."""

    async def main() -> None:
        time = Time()
        limiter = time.limiter(tokens_per_minute=100)
        first = await limiter.admit(80)
        second = asyncio.ensure_future(limiter.admit(50))
        limiter.release(first, used=10)
        await second
        assert (second.result().at, time.slept) == (0, [])
        limiter.release(second.result(), used=90)
        third = await limiter.admit(1)
        assert (third.at, time.slept) == (60, [60])

    asyncio.run(main())


def test_a_correction_wakes_a_sleeping_call() -> None:
    """Ours: no call sleeps a minute for tokens that were never used."""

    async def main() -> None:
        never = asyncio.Event()

        async def sleep(seconds: float) -> None:
            await never.wait()

        limiter = Limiter(RateLimit(tokens_per_minute=100), clock=FakeClock(0), sleep=sleep)
        first = await limiter.admit(80)
        second = asyncio.create_task(limiter.admit(50))
        await settle()
        assert not second.done()
        limiter.release(first, used=10)
        await second

    asyncio.run(main())


def test_a_call_larger_than_the_limit_waits_for_an_empty_minute() -> None:
    """Ours: otherwise the call would wait for ever."""

    async def main() -> None:
        time = Time()
        limiter = time.limiter(tokens_per_minute=100)
        limiter.release(await limiter.admit(10))
        time.clock.advance(20)
        assert (await limiter.admit(1_000)).at == 60

    asyncio.run(main())


def test_a_correction_after_its_minute_has_no_effect() -> None:
    """Ours: tokens of a long call no longer count once their minute is over."""

    async def main() -> None:
        time = Time()
        limiter = time.limiter(tokens_per_minute=100)
        long = await limiter.admit(50)
        time.clock.advance(61)
        other = await limiter.admit(60)
        limiter.release(long, used=5_000)
        assert (await limiter.admit(40)).at == other.at == 61

    asyncio.run(main())


def test_the_estimate_follows_the_size_of_the_request() -> None:
    """Ours: a token is estimated as four bytes."""
    small, large = estimated_tokens(request("x")), estimated_tokens(request("x" * 4_000))
    assert large - small == pytest.approx(1_000, abs=2)


def test_a_model_reports_its_usage_to_its_limit() -> None:
    """Ours: all tokens of the reply's usage count."""

    async def main() -> None:
        time = Time()
        limiter = time.limiter(tokens_per_minute=1_000)
        usage = Usage(input=300, cache_read=300, output=399, calls=1)
        model = Limited(Giving(ReplyEnded(text="x", usage=usage)), limiter)
        await heard(model)
        await heard(model)
        assert time.slept == [60]

    asyncio.run(main())


def test_a_delay_that_the_provider_asks_for_applies_to_all_calls() -> None:
    """Ours: other calls avoid the same refusal; a delay of an hour is left to the turn."""

    async def main() -> None:
        time = Time()
        limiter = time.limiter(concurrency=9)
        for retry_after_ms, pause in ((2_000, 2.0), (3_600_000, 60.0)):
            busy = ModelError("busy", retryable=True, retry_after_ms=retry_after_ms)
            with pytest.raises(ModelError):
                await heard(Limited(Giving(busy), limiter))
            await heard(Limited(Giving(ReplyEnded(text="x")), limiter))
            assert time.slept.pop() == pause

    asyncio.run(main())


def test_a_limit_works_in_one_event_loop_after_another() -> None:
    """Ours: `run_sync` creates a new loop each time."""
    model = Limited(ScriptedModel(["x"], strict=False), RateLimit(concurrency=1))

    async def both() -> int:
        return len(await asyncio.gather(heard(model), heard(model)))

    assert [asyncio.run(both()) for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize(
    "limit", [{"concurrency": 0}, {"requests_per_minute": 1.5}, {"tokens_per_minute": True}]
)
def test_an_invalid_limit_is_refused(limit: dict[str, int]) -> None:
    """Ours: the error names the problem."""
    with pytest.raises(InvalidArgument, match=f"{next(iter(limit))} must be a whole number of at least 1"):
        RateLimit(**limit)


def test_a_limit_of_the_wrong_type_is_refused() -> None:
    """Ours: a plain number does not say what it limits."""
    with pytest.raises(InvalidArgument, match="a limit must be a RateLimit, got int"):
        Limited(Giving(), 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="got int"):
        Runtime(rate_limits={"openai": 5})  # type: ignore[dict-item]


# Shared by a runtime


def test_a_model_is_subject_to_its_own_limit_and_its_providers() -> None:
    """Ours: keys are names of providers or ids of models; other models are not limited."""
    limits = SharedLimits({"p": RateLimit(concurrency=1), "p:a": RateLimit(concurrency=1)})
    other, mine, twice = (Giving(model_id=name) for name in ("q:a", "p:b", "p:a"))
    assert limits.around(other) is other
    shown = [repr(limits.around(model)) for model in (mine, twice)]
    assert shown == ["<Limited p:b>", "<Limited p:a>"]
    inner = limits.around(twice)
    assert isinstance(inner, Limited)
    assert isinstance(inner._model, Limited)


def test_each_model_of_a_fallback_is_subject_to_its_own_limits() -> None:
    """Ours: a provider's limit also applies inside a fallback."""
    limits = SharedLimits({"p": RateLimit(concurrency=1)})
    around = limits.around(Fallback(Giving(model_id="p:a"), Giving(model_id="q:b")))
    assert isinstance(around, Fallback)
    assert [type(model) for model in around.models] == [Limited, Giving]
    assert around.model_id == "fallback:p:a|q:b"


@pytest.mark.parametrize("key", ["held", "held:1"])
def test_all_sessions_of_a_runtime_share_a_limit(key: str) -> None:
    """Ours: two agents and two sessions share the limit of one provider."""

    async def main() -> None:
        model = Held()
        async with Runtime(rate_limits={key: RateLimit(concurrency=1)}) as runtime:
            sessions = [
                await runtime.session(name, agent=Agent(model, name=f"agent-{name}"))
                for name in ("one", "two")
            ]
            turns = [session.turn("Hi") for session in sessions]
            results = [asyncio.ensure_future(_result(turn)) for turn in turns]
            await model.begun.wait()
            await settle()
            assert model.under_way == ["one"]
            model.go.set()
            assert await asyncio.gather(*results) == ["finished", "finished"]
            assert model.under_way == ["one", "two"]

    asyncio.run(main())


async def _result(turn: object) -> str:
    return (await turn).status  # type: ignore[misc,no-any-return]


def test_models_given_by_name_share_a_limit_and_a_queued_turn_can_be_cancelled(tmp_path: Path) -> None:
    """Ours: waiting for the limit is part of the call."""
    script = tmp_path / "slow.json"
    script.write_text('{"rules": [{"text": "x"}]}')

    async def main() -> None:
        time = Time()
        limits = {"scripted": RateLimit(requests_per_minute=1)}
        stuck = asyncio.Event()

        async def sleep(seconds: float) -> None:
            time.slept.append(seconds)
            stuck.set()
            await asyncio.Event().wait()

        async with Runtime(rate_limits=limits, clock=time.clock, _sleep=sleep) as runtime:
            agent = Agent(f"scripted:{script}")
            first = await runtime.session("one", agent=agent)
            second = await runtime.session("two", agent=agent)
            assert (await first.turn("Hi")).output == "x"
            waiting = second.turn("Hi")
            result = asyncio.ensure_future(_result(waiting))
            await stuck.wait()
            assert time.slept[0] == 60
            assert await runtime.cancel(waiting.turn_id)
            assert isinstance((await asyncio.gather(result, return_exceptions=True))[0], Exception)

    asyncio.run(main())


def test_closing_closes_the_model() -> None:
    """Ours: wrapped models can be nested."""
    model = Giving(ReplyEnded(text="x"))
    limited: ModelProvider = Limited(Limited(model, RateLimit(concurrency=1)), RateLimit(concurrency=1))
    asyncio.run(limited.close())
    assert (model.closed, limited.model_id) == (1, "giving:1")
