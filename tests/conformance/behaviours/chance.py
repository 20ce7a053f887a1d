"""Time and randomness: where they come from, and that a wait does not change them."""

from __future__ import annotations

from behaviours.behaviour import Behaviour
from behaviours.stage import Stage


def _the_clock(stage: Stage) -> None:
    """Assert that the code sees the time of the clock that the test moved."""
    before = stage.host.clock.ms
    assert stage.value(stage.code) == before
    stage.host.clock.advance(3600)
    assert stage.value(stage.code) == before + 3_600_000


def _as_before_the_wait(stage: Stage) -> None:
    here, there = stage.here(), stage.there()
    (asked,) = here.waits(stage.code)
    (seen,) = here.done
    there.host.clock.advance(60)
    done = there.box.approve(asked.approval_id)
    assert done.status == "ok", done.error
    assert done.result == seen
    assert there.done == [("A", 100)]


def _different_each_time(stage: Stage) -> None:
    assert len({stage.value(stage.code) for _ in range(3)}) == 3


def _different_sessions(stage: Stage) -> None:
    assert stage.value(stage.code) != stage.value(stage.code, session=stage.other())


def _later_after_the_wait(stage: Stage) -> None:
    (asked,) = stage.waits(stage.code)
    stage.host.clock.advance(60)
    first, second = stage.box.approve(asked.approval_id).result
    assert (first, second) == (stage.host.clock.ms - 60_000, stage.host.clock.ms)


CHANCE = [
    Behaviour(
        name="time comes from the host's clock",
        check=_the_clock,
        py="import time\nint(time.time() * 1000)",
        ts="Date.now()",
        unpromised=("monty",),
    ),
    Behaviour(
        name="time advances over a wait",
        check=_later_after_the_wait,
        py="import time\nx = time.time()\nrefund('A')\n[int(x * 1000), int(time.time() * 1000)]",
        ts="const x = Date.now()\nawait refund('A')\n;[x, Date.now()]",
        unpromised=("monty",),
    ),
    Behaviour(
        name="a time read before a wait stays the same",
        check=_as_before_the_wait,
        py="import time, datetime\nx = [time.time(), str(datetime.datetime.now())]\nnote(x)\nrefund('A')\nx",
        ts="const x = [Date.now(), new Date().toISOString()]\nawait note({value: x})\nawait refund('A')\nx",
    ),
    Behaviour(
        name="random numbers drawn before a wait stay the same",
        check=_as_before_the_wait,
        py="import random\nx = [random.random(), random.randint(1, 10**9)]\nnote(x)\nrefund('A')\nx",
        ts="const x = [Math.random(), Math.random()]\nawait note({value: x})\nawait refund('A')\nx",
    ),
    Behaviour(
        name="a unique id generated before a wait stays the same",
        check=_as_before_the_wait,
        py="import uuid, secrets\nx = [str(uuid.uuid4()), secrets.token_hex(8)]\nnote(x)\nrefund('A')\nx",
        ts="const x = [crypto.randomUUID()]\nawait note({value: x})\nawait refund('A')\nx",
        refused={"monty": "RUNTIME_ERROR"},
    ),
    Behaviour(
        name="the order of a set stays the same over a wait",
        check=_as_before_the_wait,
        py="x = list({'a', 'bb', 'ccc', 'dddd', 'eeeee', 'ffffff'})\nnote(x)\nrefund('A')\nx",
        ts="const x = [...new Set(['a', 'bb', 'ccc'])]\nawait note({value: x})\nawait refund('A')\nx",
    ),
    Behaviour(
        name="each run has different random numbers",
        check=_different_each_time,
        py="import random\nrandom.random()",
        ts="Math.random()",
    ),
    Behaviour(
        name="each session has different random numbers",
        check=_different_sessions,
        py="import random\nrandom.random()",
        ts="Math.random()",
    ),
]
