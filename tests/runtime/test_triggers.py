"""Triggers and timers: each outside or timed occurrence becomes one turn of each listening session."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stand_ins import EchoModel, HeldModel, Place, agent_of, asks, keeper_looks, said, until

from standfast import Agent, Plugin, Runtime, Session
from standfast.errors import InvalidArgument, InvalidSessionId, SessionNotFound, SignatureRefused
from standfast.model.session import TurnState
from standfast.model.trigger import Schedule, Trigger
from standfast.plugins.contexts import TriggerEvent
from standfast.plugins.registrar import PluginRegistrar
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.triggers import GRACE_MS, MAX_MISSED, MAX_PAYLOAD_BYTES
from standfast.testing.clock import FakeClock
from standfast.tools.decorator import tool

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
SECRET = "between us"


def clerk(**options: Any) -> Agent[Any, Any]:
    """Return an agent that answers every message."""
    return Agent(EchoModel(), name="clerk", **options)


def opened(place: Place, *agents: Agent[Any, Any], **options: Any) -> Runtime:
    """Open a runtime whose keeper polls without a pause."""
    runtime = place.runtime(agents=agents, **options)
    runtime.poll_s = 0.005
    return runtime


async def heard(runtime: Runtime, session_id: str = "s") -> list[str]:
    """Return the texts that the session received, once none of them is queued."""

    async def idle() -> bool:
        if await runtime.store.inputs(session_id):  # first: an input that is not queued is already a turn
            return False
        return all(turn.state is TurnState.ENDED for turn in await runtime.store.turns(session_id))

    await until(idle)
    head = await runtime.store.head(session_id)
    assert head is not None
    if head.leaf is None:
        return []
    payloads = [one.payload for part in await runtime.store.path(head.leaf) for one in part.entries]
    return said(payloads)


def due(texts: list[str]) -> list[int]:
    return [json.loads(text)["due"] for text in texts]


# Occurrences


def test_an_occurrence_becomes_one_turn_for_each_trigger_of_its_source(place: Place) -> None:
    """Ours: all triggers of a source fire, others do not."""

    async def main() -> None:
        agent = clerk()
        async with opened(place, agent) as runtime:
            for name in ("a", "b", "c"):
                await runtime.session(name, agent=agent)
            await runtime.add_trigger("first", "orders", "a", prompt="Look at {payload}, please: {payload}")
            await runtime.add_trigger("second", "orders", "b")
            await runtime.add_trigger("third", "returns", "c")
            assert await runtime.occur("orders", "1", {"id": "A1", "cents": 5}) == 2
            assert await heard(runtime, "a") == [
                'Look at {"cents":5,"id":"A1"}, please: {"cents":5,"id":"A1"}'
            ]
            assert await heard(runtime, "b") == ['{"cents":5,"id":"A1"}']
            assert await heard(runtime, "c") == []

    asyncio.run(main())


def test_the_same_source_and_key_are_delivered_once(place: Place) -> None:
    """Ours: an occurrence is delivered exactly once per key, even after a restart."""

    async def main() -> None:
        for expected in (1, 0):
            agent = clerk()
            async with opened(place, agent) as runtime:
                await runtime.session("s", agent=agent)
                await runtime.add_trigger("t", "orders", "s")
                assert await runtime.occur("orders", "1", "one") == expected
                assert await runtime.occur("orders", "1", "other words, same key") == 0
                assert await heard(runtime) == ['"one"']
        async with opened(place, agent := clerk()) as runtime:
            assert await runtime.occur("orders", "2") == 1
            assert await heard(runtime) == ['"one"', "null"]

    asyncio.run(main())


def test_an_occurrence_without_a_trigger_is_not_recorded(place: Place) -> None:
    """Ours: a source that retries until a trigger exists is delivered then."""

    async def main() -> None:
        async with opened(place, clerk()) as runtime:
            await runtime.session("s", agent=clerk())
            assert await runtime.occur("orders", "1") == 0
            await runtime.add_trigger("t", "orders", "s")
            assert await runtime.occur("orders", "1") == 1

    asyncio.run(main())


def test_a_disabled_or_removed_trigger_receives_nothing(place: Place) -> None:
    """Ours: earlier deliveries are not undone."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "orders", "s", enabled=False)
            assert await runtime.occur("orders", "1") == 0
            await runtime.add_trigger("t", "orders", "s", prompt="two")
            assert await runtime.occur("orders", "2") == 1
            assert await runtime.remove_trigger("t")
            assert not await runtime.remove_trigger("t")
            assert await runtime.occur("orders", "3") == 0
            assert await heard(runtime) == ["two"]
            assert await runtime.triggers() == []

    asyncio.run(main())


def test_occurrences_wait_behind_the_running_turn(memory: Place) -> None:
    """Ours: each occurrence is a separate turn, in the order of arrival."""

    async def main() -> None:
        model = HeldModel()
        async with opened(memory, Agent(model, name="held")) as runtime:
            session: Session[Any] = await runtime.session("s", agent=Agent(model, name="held"))
            await runtime.add_trigger("t", "orders", "s")
            turn = session.turn("hello")
            turn.start()
            await model.started.wait()
            for number in range(3):
                assert await runtime.occur("orders", str(number), number) == 1
            model.go.set()
            await turn
            assert await heard(runtime) == ["hello", "0", "1", "2"]

    asyncio.run(main())


def test_an_occurrence_waits_until_the_sessions_approval_is_decided(place: Place) -> None:
    """Ours: SPEC §12, input that arrives during an approval is not lost."""

    @tool(approval="manual")
    def pay() -> str:
        return "paid"

    async def main() -> None:
        agent = agent_of(asks(("pay", {})), "done", "noted", name="payer", tools=[pay])
        async with opened(place, agent) as runtime:
            session: Session[Any] = await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "orders", "s")
            waiting = await session.turn("pay").settled()
            assert await runtime.occur("orders", "1", "later") == 1
            await keeper_looks(runtime)
            assert len(await session.turns()) == 1
            await runtime.approve(waiting.waits[0].wait_id)
            assert await heard(runtime) == ["pay", '"later"']

    asyncio.run(main())


def test_an_occurrence_for_a_session_that_is_not_open_runs_if_its_agent_is_known(place: Place) -> None:
    """Ours: a queued input waits for a process that knows the session's agent."""

    async def main() -> None:
        async with opened(place, clerk()) as first:
            await first.session("s", agent=clerk())
            await first.add_trigger("t", "orders", "s")
        async with opened(place) as stranger:
            assert await stranger.occur("orders", "1", "hello") == 1
        async with opened(place, Agent(EchoModel(), name="another-agent")) as other:
            await other.session("unrelated", agent=clerk())
            await keeper_looks(other)
            assert len(await other.store.inputs("s")) == 1
        async with opened(place, clerk()) as knows:
            assert await heard(knows) == ['"hello"']
            assert await knows.occur("orders", "2", "again") == 1
            assert await heard(knows) == ['"hello"', '"again"']

    asyncio.run(main())


def test_an_occurrence_delivered_by_another_process_runs_here(tmp_path: Path, clock: FakeClock) -> None:
    """Ours: the keeper looks for queued inputs, whichever process has queued them."""
    place = Place(tmp_path / "standfast.db", clock)

    async def main() -> None:
        async with opened(place, agent := clerk()) as runs, opened(place) as tells:
            await runs.session("s", agent=agent)
            await tells.add_trigger("t", "orders", "s")
            assert await tells.occur("orders", "1", 1) == 1
            assert await heard(runs) == ["1"]

    asyncio.run(main())


def test_a_trigger_needs_a_session_and_is_deleted_with_it(place: Place) -> None:
    """Ours: a trigger for a deleted session does nothing."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            with pytest.raises(SessionNotFound):
                await runtime.add_trigger("t", "orders", "s")
            await runtime.session("s", agent=agent)
            await runtime.session("other", agent=agent)
            await runtime.add_trigger("t", "orders", "s", schedule=Schedule(every_ms=1_000))
            await runtime.add_trigger("u", "orders", "other")
            await runtime.delete("s")
            assert [one.name for one in await runtime.triggers()] == ["u"]
            place.clock.advance(10)
            await keeper_looks(runtime)
            assert await runtime.occur("orders", "1", 1) == 1
            assert await heard(runtime, "other") == ["1"]
            assert await runtime.store.head("s") is None

    asyncio.run(main())


def test_an_occurrence_for_a_session_that_is_being_deleted_is_dropped(place: Place) -> None:
    """Ours: the session may be deleted between the look-up of the triggers and the delivery."""

    async def main() -> None:
        async with opened(place, clerk()) as runtime:
            await runtime.session("s", agent=clerk())
            await runtime.add_trigger("t", "orders", "s")
            known = await runtime.triggers()
            await runtime.delete("s")

            async def stale() -> list[Trigger]:
                return known

            runtime.store.triggers = stale  # type: ignore[method-assign]
            await runtime.occur("orders", "1", 1)
            await keeper_looks(runtime)
            assert await runtime.store.inputs("s") == []
            assert await runtime.store.head("s") is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "with space"}, "name"),
        ({"source": "x" * 129}, "source"),
        ({"source": 7}, "source"),
        ({"prompt": " "}, "no prompt"),
        ({"schedule": Schedule()}, "exactly one of cron, every_ms and at_ms, got none"),
        ({"schedule": Schedule(cron="* * * * *", at_ms=5)}, "got cron and at_ms"),
        ({"schedule": Schedule(every_ms=999)}, "every_ms"),
        ({"schedule": "0 0 30 2 *"}, "no month has"),
        ({"schedule": Schedule(cron="@daily", timezone="Mars/Olympus")}, "is unknown"),
    ],
)
def test_a_trigger_that_cannot_work_is_refused_when_it_is_added(
    memory: Place, wrong: dict[str, Any], words: str
) -> None:
    """Ours: the error is raised when the trigger is added, not when it should fire."""

    async def main() -> None:
        async with opened(memory) as runtime:
            await runtime.session("s", agent=clerk())
            with pytest.raises(InvalidArgument) as caught:
                await runtime.add_trigger(**{"name": "t", "source": "orders", "session_id": "s", **wrong})
            assert words in str(caught.value)
            assert await runtime.triggers() == []
            with pytest.raises(InvalidSessionId):
                await runtime.add_trigger("t", "orders", "no such/session")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "key", "payload"),
    [
        ("orders", "", 1),
        ("orders", "k" * 513, 1),
        ("or ders", "1", 1),
        ("orders", "1", object()),
        ("orders", "1", float("nan")),
        ("orders", "1", "x" * MAX_PAYLOAD_BYTES),
    ],
)
def test_an_occurrence_that_cannot_be_stored_is_refused(
    memory: Place, source: str, key: str, payload: object
) -> None:
    """Ours: SPEC §11, sizes are limited; a refused occurrence is not recorded."""

    async def main() -> None:
        async with opened(memory, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "orders", "s")
            with pytest.raises(InvalidArgument):
                await runtime.occur(source, key, payload)
            assert await runtime.occur("orders", "1", 1) == 1

    asyncio.run(main())


# Sources announced by plugins


class Announces(Plugin):
    """A plugin that announces a schema for orders."""

    def register(self, registrar: PluginRegistrar) -> None:
        super().register(registrar)
        schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
        registrar.triggers.add(
            TriggerEvent(name="orders", payload_schema=schema), TriggerEvent(name="anything")
        )


def test_a_payload_must_match_the_schema_that_a_plugin_announces(place: Place) -> None:
    """Ours: the payload is validated where the source is announced."""

    async def main() -> None:
        agent = clerk(plugins=[Announces()])
        async with opened(place, agent) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.session("plain", agent=Agent(EchoModel(), name="plain"))
            for source in ("orders", "anything", "unannounced"):
                await runtime.add_trigger(f"t-{source}", source, "s")
                await runtime.add_trigger(f"u-{source}", source, "plain")
            with pytest.raises(
                InvalidArgument, match=r"of 'orders' does not match its schema.*at \['id'\]"
            ) as caught:
                await runtime.occur("orders", "1", {"id": 7})
            assert "announces" in (caught.value.hint or "")
            assert await runtime.occur("orders", "1", {"id": "A1"}) == 2
            assert await runtime.occur("anything", "1", 7) == 2
            assert await runtime.occur("unannounced", "1", 7) == 2
            assert await heard(runtime) == ['{"id":"A1"}', "7", "7"]

    asyncio.run(main())


# Webhooks


def signed(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def test_a_signed_webhook_is_an_occurrence_identified_by_its_body_or_its_key(place: Place) -> None:
    """Ours: webhooks must be signed."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "git/push", "s")
            body, text = b'{"ref": "main"}', "früh".encode()
            for signature in (signed(body), f"sha256={signed(body).upper()}", f" {signed(body)}\n"):
                await runtime.occur_signed("git/push", body, signature, SECRET)
            assert await runtime.occur_signed("git/push", text, signed(text), SECRET.encode()) == 1
            assert await runtime.occur_signed("git/push", body, signed(body), SECRET, key="d-1") == 1
            assert await runtime.occur_signed("git/push", body, signed(body), SECRET, key="d-1") == 0
            assert await heard(runtime) == ['{"ref":"main"}', '"früh"', '{"ref":"main"}']

    asyncio.run(main())


@pytest.mark.parametrize(
    "signature",
    ["", "sha256=", "0" * 64, signed(b"another body"), signed(b"{}", "guessed"), "ünïcode", "\ud800"],
)
def test_a_webhook_with_a_wrong_signature_is_refused_and_not_recorded(memory: Place, signature: str) -> None:
    """Ours: no part of the body is used before its signature is verified."""

    async def main() -> None:
        async with opened(memory, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "hook", "s")
            with pytest.raises(SignatureRefused) as caught:
                await runtime.occur_signed("hook", b"{}", signature, SECRET, key="1")
            assert caught.value.code == "PERMISSION_DENIED"
            assert SECRET not in str(caught.value)
            assert signed(b"{}") not in str(caught.value)
            assert await runtime.occur_signed("hook", b"{}", signed(b"{}"), SECRET, key="1") == 1

    asyncio.run(main())


def test_an_empty_secret_and_a_body_that_is_not_text_are_refused(memory: Place) -> None:
    """Ours: an unset environment variable must not disable the signature check."""

    async def main() -> None:
        async with opened(memory) as runtime:
            with pytest.raises(InvalidArgument, match="empty"):
                await runtime.occur_signed("hook", b"{}", signed(b"{}", ""), "")
            body = b"\xff\xfe"
            with pytest.raises(InvalidArgument, match="neither JSON nor text"):
                await runtime.occur_signed("hook", body, signed(body), SECRET)

    asyncio.run(main())


# Timers


def test_a_timer_fires_when_it_is_due_and_advances(place: Place) -> None:
    """Ours: due schedules fire with {due, now, missed}."""

    async def main() -> None:
        start = place.clock.now_ms()
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            made = await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=HOUR_MS))
            assert made.next_at == start + HOUR_MS
            await keeper_looks(runtime)
            assert await heard(runtime) == []
            for _ in range(2):
                place.clock.advance(3600)
                await keeper_looks(runtime)
            place.clock.advance(1800)
            await keeper_looks(runtime)
            assert [json.loads(text) for text in await heard(runtime)] == [
                {"due": start + hours * HOUR_MS, "now": start + hours * HOUR_MS, "missed": 0}
                for hours in (1, 2)
            ]
            (kept,) = await runtime.triggers()
            assert kept.next_at == start + 3 * HOUR_MS

    asyncio.run(main())


@pytest.mark.slow
def test_a_cron_timer_follows_its_time_zone_across_a_clock_change(place: Place) -> None:
    """Ours: a time skipped by the spring clock change fires at the change."""
    place.clock.ms = 1_711_796_400_000  # 2024-03-30 12:00 in Berlin

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            schedule = Schedule(cron="30 2 * * *", timezone="Europe/Berlin")
            await runtime.add_trigger("t", "clock", "s", schedule=schedule)
            for _ in range(48):
                place.clock.advance(1800)
                await keeper_looks(runtime, 1)
            place.clock.advance(24 * 3600)
            await keeper_looks(runtime)
            shift, next_day = 1_711_846_800_000, 1_711_931_400_000
            assert due(await heard(runtime)) == [shift, next_day]

    asyncio.run(main())


def test_a_one_time_schedule_fires_once(place: Place) -> None:
    """Ours: even if the program adds the trigger at every start, or the time is already past."""

    async def main() -> None:
        at = place.clock.now_ms() + HOUR_MS
        for hours in (1, 2, 3):
            async with opened(place, agent := clerk()) as runtime:
                await runtime.session("s", agent=agent)
                await runtime.add_trigger("t", "clock", "s", schedule=Schedule(at_ms=at))
                await runtime.add_trigger("late", "late", "s", prompt="late", schedule=Schedule(at_ms=5))
                place.clock.advance(3600)
                await keeper_looks(runtime)
                texts = await heard(runtime)
                assert sorted(texts) == sorted(["late", *(text for text in texts if text != "late")])
                assert due([text for text in texts if text != "late"]) == [at], hours
                assert [one.next_at for one in await runtime.triggers()] == [None, None]

    asyncio.run(main())


def test_times_missed_while_no_process_ran_are_made_up_for_once(place: Place) -> None:
    """Ours: catch_up="once" fires once, even if the program adds the trigger again at its start."""

    async def main() -> None:
        start = place.clock.now_ms()
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=HOUR_MS))
        place.clock.advance(5.5 * 3600)
        async with opened(place, agent := clerk()) as runtime:
            await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=HOUR_MS))
            await keeper_looks(runtime)
            (text,) = await heard(runtime)
            assert json.loads(text) == {"due": start + HOUR_MS, "now": place.clock.now_ms(), "missed": 4}
            (kept,) = await runtime.triggers()
            assert kept.next_at == start + 6 * HOUR_MS

    asyncio.run(main())


def test_missed_times_are_skipped_if_the_schedule_says_so(place: Place) -> None:
    """Ours: catch_up="skip" ignores missed times; a small delay is not a miss."""

    async def main() -> None:
        start = place.clock.now_ms()
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            schedule = Schedule(every_ms=HOUR_MS, catch_up="skip")
            await runtime.add_trigger("t", "clock", "s", schedule=schedule)
        place.clock.advance(3600 + GRACE_MS / 1000 + 1)
        async with opened(place, clerk()) as runtime:
            await keeper_looks(runtime)
            assert await heard(runtime) == []
            (kept,) = await runtime.triggers()
            assert kept.next_at == start + 2 * HOUR_MS
            place.clock.ms = start + 2 * HOUR_MS + GRACE_MS
            await keeper_looks(runtime)
            assert due(await heard(runtime)) == [start + 2 * HOUR_MS]

    asyncio.run(main())


def test_a_year_of_missed_minutes_is_made_up_for_at_once(place: Place) -> None:
    """Ours: counting the missed times stops early."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "clock", "s", schedule="* * * * *")
            place.clock.advance(365 * 86_400)
            await keeper_looks(runtime)
            (text,) = await heard(runtime)
            assert json.loads(text)["missed"] == MAX_MISSED
            (kept,) = await runtime.triggers()
            assert kept.next_at is not None
            assert 0 < kept.next_at - place.clock.now_ms() <= 60_000

    asyncio.run(main())


def test_a_changed_schedule_starts_over_and_the_same_one_continues(place: Place) -> None:
    """Ours: changing the prompt of a timer does not change its times."""

    async def main() -> None:
        start = place.clock.now_ms()
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)

            async def add(every_ms: int, prompt: str = "{payload}", enabled: bool = True) -> int | None:
                schedule = Schedule(every_ms=every_ms)
                made = await runtime.add_trigger(
                    "t", "clock", "s", schedule=schedule, prompt=prompt, enabled=enabled
                )
                return made.next_at

            assert await add(HOUR_MS) == start + HOUR_MS
            place.clock.advance(60)
            assert await add(HOUR_MS, "other words") == start + HOUR_MS
            assert await add(2 * HOUR_MS) == start + 60_000 + 2 * HOUR_MS
            await add(2 * HOUR_MS, enabled=False)
            place.clock.advance(10 * 3600)
            assert await add(2 * HOUR_MS) == place.clock.now_ms() + 2 * HOUR_MS
            await keeper_looks(runtime)
            assert await heard(runtime) == []

    asyncio.run(main())


def test_a_timer_fires_its_own_trigger_and_those_without_a_schedule(place: Place) -> None:
    """Ours: triggers without a schedule hear every timer of their source; timers do not fire each other."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            for name in ("a", "b", "c"):
                await runtime.session(name, agent=agent)
            await runtime.add_trigger("ta", "clock", "a", schedule=Schedule(every_ms=HOUR_MS))
            await runtime.add_trigger("tb", "clock", "b", schedule=Schedule(every_ms=2 * HOUR_MS))
            await runtime.add_trigger("tc", "clock", "c", prompt="tick")
            for _ in range(4):
                place.clock.advance(3600)
                await keeper_looks(runtime)
                counts = [len(await heard(runtime, name)) for name in "abc"]
            assert counts == [4, 2, 6]
            assert await runtime.occur("clock", "by hand") == 3

    asyncio.run(main())


def test_a_timer_with_an_invalid_record_does_not_affect_the_others(place: Place) -> None:
    """Ours: an invalid record must not stop the keeper."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            made = await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=HOUR_MS))
            foreign = Schedule(cron="@hourly", timezone="Mars/Olympus")
            await runtime.store.put_trigger(msgspec.structs.replace(made, name="a", schedule=foreign))
            place.clock.advance(3600)
            await keeper_looks(runtime)
            assert len(await heard(runtime)) == 1
            assert await runtime.occur("clock", "1") == 2

    asyncio.run(main())


def test_a_runtime_that_knows_no_agent_fires_nothing(place: Place) -> None:
    """Ours: inspecting sessions from the command line changes nothing."""

    async def main() -> None:
        async with opened(place, agent := clerk()) as runtime:
            await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=HOUR_MS))
        place.clock.advance(3600)
        async with opened(place) as looks:
            assert looks._recovery is not None
            await looks._recovery._start_queued()
            assert await looks.store.inputs("s") == []

    asyncio.run(main())


@pytest.mark.slow
def test_two_runtimes_on_one_file_fire_a_timer_once(tmp_path: Path, clock: FakeClock) -> None:
    """Ours: one transaction stores the occurrence and moves the trigger to its next time."""
    place = Place(tmp_path / "standfast.db", clock)

    async def main() -> None:
        async with opened(place, clerk()) as one, opened(place, clerk()) as other:
            await one.session("s", agent=clerk())
            await one.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=HOUR_MS))
            times = [clock.now_ms() + HOUR_MS * number for number in range(1, 21)]
            for _ in times:
                clock.advance(3600)
                await asyncio.gather(keeper_looks(one, 2), keeper_looks(other, 2))
            assert due(await heard(one)) == times
            assert len(await one.store.turns("s")) == 20

    asyncio.run(main())


# A faulty source


def listener(tmp_path: Path) -> ScriptedModel:
    """Return a model that answers everything, in every process."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"rules": [{"text": "noted"}]}))
    return ScriptedModel.from_file(script, name="listener")


def twice_in_disorder(count: int) -> list[int]:
    told = [*range(count), *range(count)]
    random.Random(8).shuffle(told)
    return told


@pytest.mark.slow
def test_thousands_of_occurrences_reported_twice_cause_one_turn_each(
    tmp_path: Path, sampled: Callable[[int], slice]
) -> None:
    """Ours: one trigger, two tasks that report out of order; with all points 10,000 occurrences."""
    count = len(range(10_000)[sampled(20)])
    told = twice_in_disorder(count)

    async def tell(runtime: Runtime, numbers: list[int]) -> int:
        return sum([await runtime.occur("orders", f"order-{number}", number) for number in numbers])

    async def main() -> None:
        agent = Agent(listener(tmp_path), name="clerk")
        async with Runtime(tmp_path / "standfast.db", agents=[agent]) as runtime:
            session: Session[Any] = await runtime.session("s", agent=agent)
            await runtime.add_trigger("t", "orders", "s")
            counts = await asyncio.gather(tell(runtime, told[::2]), tell(runtime, told[1::2]))
            assert sum(counts) == count
            draining = runtime.live("s").draining
            assert draining is not None
            await draining
            assert await session.inputs() == []
            turns = await session.turns()
            assert len(turns) == count
            assert {turn.state for turn in turns} == {TurnState.ENDED}
            assert sorted(map(int, said(await session.messages()))) == list(range(count))

    asyncio.run(main())


FAULTY = """
import asyncio, random, sys
from standfast import Agent, Runtime
from standfast.providers.scripted import ScriptedModel

database, script, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Loud(ScriptedModel):
    async def stream(self, request):
        print("asked", flush=True)
        async for delta in super().stream(request):
            yield delta

async def tell(runtime, numbers):
    for number in numbers:
        await runtime.occur("orders", f"order-{number}", number)

async def main():
    told = [*range(count), *range(count)]
    random.Random(seed).shuffle(told)
    agent = Agent(Loud.from_file(script, name="listener"), name="clerk")
    async with Runtime(database, agents=[agent]) as runtime:
        await asyncio.gather(tell(runtime, told[::2]), tell(runtime, told[1::2]))
        while await runtime.store.inputs("s") or await runtime.store.open_turn("s") is not None:
            await asyncio.sleep(0.01)
    print("done", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_processes_killed_during_delivery_lose_and_duplicate_nothing(
    child: Callable[..., Any], tmp_path: Path
) -> None:
    """Ours: after SIGKILL and a restart, each occurrence is delivered exactly once."""
    database, count = tmp_path / "standfast.db", 300
    model = listener(tmp_path)

    async def prepare() -> None:
        async with Runtime(database) as runtime:
            await runtime.session("s", agent=Agent(model, name="clerk"))
            await runtime.add_trigger("t", "orders", "s")

    async def check() -> None:
        async with Runtime(database) as runtime:
            session: Session[Any] = await runtime.session("s", agent=Agent(model, name="clerk"))
            counts = Counter(map(int, said(await session.messages())))
            assert counts == Counter(range(count))
            assert len(await session.turns()) == count

    asyncio.run(prepare())
    for seed, heard_before_the_end in enumerate((1, 20, 60, 90)):
        victim = child(FAULTY, database, tmp_path / "script.json", seed, count)
        for _ in range(heard_before_the_end):
            assert victim.line() == "asked"
        victim.kill()
    last = child(FAULTY, database, tmp_path / "script.json", 9, count)
    assert last.output(timeout=60).splitlines()[-1] == "done"
    asyncio.run(check())


TIMED = """
import asyncio, sys
from standfast import Agent, Runtime
from standfast.model.trigger import Schedule
from standfast.providers.scripted import ScriptedModel
from standfast.testing.clock import FakeClock

database, script, ticks = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main():
    clock = FakeClock()
    agent = Agent(ScriptedModel.from_file(script, name="listener"), name="clerk")
    runtime = Runtime(database, agents=[agent], clock=clock)
    runtime.poll_s = 0.001
    async with runtime:
        await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=60_000))
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(ticks):
            clock.advance(60)
            while (await runtime.store.trigger("t")).next_at <= clock.now_ms():
                await asyncio.sleep(0.001)
        while await runtime.store.inputs("s") or await runtime.store.open_turn("s") is not None:
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.slow
def test_two_processes_on_one_file_fire_a_timer_once(child: Callable[..., Any], tmp_path: Path) -> None:
    """Ours: two processes that see the same due times deliver each once."""
    database, ticks = tmp_path / "standfast.db", 40
    model, clock = listener(tmp_path), FakeClock()

    async def prepare() -> None:
        async with Runtime(database, clock=clock) as runtime:
            await runtime.session("s", agent=Agent(model, name="clerk"))
            await runtime.add_trigger("t", "clock", "s", schedule=Schedule(every_ms=60_000))

    async def check() -> None:
        async with Runtime(database, clock=clock) as runtime:
            session: Session[Any] = await runtime.session("s", agent=Agent(model, name="clerk"))
            times = due(said(await session.messages()))
            assert len(times) == len(set(times)) == len(await session.turns())
            assert set(times) <= {clock.now_ms() + 60_000 * tick for tick in range(1, ticks + 1)}
            assert len(times) >= ticks / 2  # the slower process skips times that were already made up for

    asyncio.run(prepare())
    processes = [child(TIMED, database, tmp_path / "script.json", ticks) for _ in range(2)]
    for one in processes:
        assert one.line() == "ready"
    for one in processes:
        print(file=one.process.stdin, flush=True)
    for one in processes:
        one.output()
    asyncio.run(check())
