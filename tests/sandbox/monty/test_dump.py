"""Edits to the engine's dumps, made on real dumps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pydantic_monty
import pytest

from standfast.errors import EngineFailed
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty.dump import with_limits, without_sources


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with pydantic_monty.Monty(min_processes=1, max_processes=3) as made:
        yield made


def _limits(memory_mb: int) -> dict[str, Any]:
    return {"max_memory": memory_mb << 20, "max_feed_duration_secs": 2.0, "max_recursion_depth": 100}


def _dump(pool: Any, *codes: str, memory_mb: int = 8) -> bytes:
    with pool.checkout(limits=_limits(memory_mb)) as session:
        for code in codes:
            session.feed_run(code)
        return bytes(session.dump())


def _value(pool: Any, dump: bytes, code: str, memory_mb: int = 64) -> Any:
    with pool.checkout(limits=_limits(memory_mb)) as session:
        session.load_session(dump)
        return session.feed_run(code)


STATES = [
    "x = 1",
    "x = float('nan')",
    "x = [float('nan'), float('inf'), -float('inf'), -0.0, 1e300, 5e-324]",
    "x = 'gtracker\\xa4flimits\\xa7'",
    "x = b'gtracker\\xa4flimits\\xa7' * 3",
    "x = 'state Idle sources next_input_id'",
    "x = {'sources': {'Idle': 1}, 'state': 'Idle', 'tracker': {'limits': 1}}",
    "x = [2 ** 100, -2 ** 100, 2 ** 63, -1, 23, 24, 255, 256, 65536, 2 ** 32]",
    "x = 'é😀' * 100",
    "x = list(range(1000))",
    "def f(a, b=2, *c, d=3, **e):\n    return a + b\nx = f(1)",
    "class A:\n    def __init__(self):\n        self.x = 1\na = A()\nx = a.x",
    "x = None\ny = (1, (2, {3}), {'k': frozenset([1])}, range(3), ..., True)",
    "import math, re, json, datetime\nx = datetime.datetime(2020, 1, 1)\ny = re.compile('a')",
    "x = lambda n: n + 1",
    "x = []\nx.append(x)",
]


@pytest.mark.parametrize("code", STATES)
def test_limits_are_replaced_and_everything_else_is_kept(pool: Any, code: str) -> None:
    """Ours: the engine can only tighten a session's limits, while ours apply to one run."""
    dump = _dump(pool, code)
    raised = with_limits(dump, SessionLimits(memory_mb=64, cpu_ms=1_500))
    assert _value(pool, raised, "repr(x)") == _value(pool, dump, "repr(x)", 8)
    assert _value(pool, raised, "len('a' * (20 << 20))") == 20 << 20
    with pytest.raises(pydantic_monty.MontyRuntimeError):
        _value(pool, dump, "len('a' * (20 << 20))")
    assert with_limits(raised, SessionLimits(memory_mb=64, cpu_ms=1_500)) == raised


@pytest.mark.parametrize("code", STATES)
def test_dropping_sources_keeps_everything_else(pool: Any, code: str) -> None:
    """Ours: the sources of all runs are kept for tracebacks, so a dump would grow with each run."""
    dump = _dump(pool, code, *(f"y{i} = '{'pad' * 50}'" for i in range(20)))
    smaller, _ = without_sources(dump)
    assert len(smaller) < len(dump) - 20 * 100
    assert _value(pool, smaller, "repr(x)") == _value(pool, dump, "repr(x)")
    assert without_sources(smaller)[0] == smaller


def test_sources_of_functions_are_kept_for_their_tracebacks(pool: Any) -> None:
    """Ours: only sources that no function can refer to are dropped."""
    dump, _ = without_sources(_dump(pool, "def boom():\n    return 1 // 0", *["z = 1"] * 5))
    with pytest.raises(pydantic_monty.MontyRuntimeError) as caught:
        _value(pool, dump, "boom()")
    assert "ZeroDivisionError" in str(caught.value)
    assert len(caught.value.traceback()) == 2


def test_an_exception_kept_from_a_dropped_source_can_still_be_used(pool: Any) -> None:
    """Bug: a kept exception refers to the place where it was raised."""
    dump, _ = without_sources(
        _dump(pool, "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    kept = e", "z = 1")
    )
    assert _value(pool, dump, "str(kept)") == "division by zero"
    with pytest.raises(pydantic_monty.MontyRuntimeError):
        _value(pool, dump, "raise kept")


@pytest.mark.parametrize(
    "codes", [["x = 1"] * 3, ["x = 1", "def f():\n    pass", "y = 2"], ["def f():\n    pass"] * 3]
)
def test_the_next_source_has_the_announced_number(pool: Any, codes: list[str]) -> None:
    """Ours: awaited calls are looked up by the name of their source, which must be unique."""
    dump, number = without_sources(_dump(pool, *codes))
    for _ in range(3):
        with pool.checkout(limits=_limits(8)) as session:
            session.load_session(dump)
            with pytest.raises(pydantic_monty.MontyRuntimeError) as caught:
                session.feed_run("1 / 0")
            dump = bytes(session.dump())
        assert caught.value.traceback()[0].filename == f"<python-input-{number}>"
        number += 1


@pytest.mark.parametrize(
    "limits",
    [
        SessionLimits(memory_mb=1, cpu_ms=1, max_stack_depth=1),
        SessionLimits(memory_mb=4_095, cpu_ms=2**32 - 1, max_stack_depth=65_535),
        SessionLimits(memory_mb=23, cpu_ms=999, max_stack_depth=24),
        SessionLimits(memory_mb=256, cpu_ms=1_000, max_stack_depth=256),
    ],
    ids=str,
)
def test_limits_of_every_size_can_be_written(pool: Any, limits: SessionLimits) -> None:
    """Ours: numbers have five lengths in CBOR."""
    raised = with_limits(with_limits(_dump(pool, "x = 1"), limits), SessionLimits())
    assert _value(pool, raised, "x") == 1


@pytest.mark.parametrize("bad", [b"", b"MONTY\0", b"PICKLE" + b"x" * 100, b"MONTY\0\0\x01" + b"\xff" * 40])
def test_a_dump_of_an_unexpected_form_is_refused(bad: bytes) -> None:
    """Ours: an unexpected dump raises instead of being guessed at."""
    for edit in (lambda: with_limits(bad, SessionLimits()), lambda: without_sources(bad)):
        with pytest.raises(EngineFailed):
            edit()


def test_a_truncated_dump_is_refused_or_edited_where_it_is_intact(pool: Any) -> None:
    """Bug: reading past the end raised IndexError or never returned, instead of EngineFailed."""
    dump = _dump(pool, "x = [1, 2, 3]", "y = 'text'")
    for size in range(0, len(dump), 7):
        for edit in (lambda cut: with_limits(cut, SessionLimits()), without_sources):
            with contextlib.suppress(EngineFailed):
                edit(dump[:size])
