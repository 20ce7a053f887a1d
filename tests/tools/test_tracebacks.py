"""Tracebacks of exceptions that contain values of unbounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast.tools.tracebacks import MAX_CHARS, exception_type_of, frames_of, traceback_of


class _Endless:
    """A value that shares its parts, so formatting it never returns."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt("the value was made a text")


def shared() -> list[Any]:
    value: list[Any] = [_Endless()]
    for _ in range(40):
        value = [value, value]
    return value


def plainly() -> None:
    raise ValueError(shared())


def as_the_cause() -> None:
    raise KeyError("outer") from ValueError(shared())


def in_its_context() -> None:
    try:
        raise ValueError(shared())
    except ValueError:
        raise KeyError("outer")  # noqa: B904  # the context is what is tested


def in_a_group() -> None:
    raise ExceptionGroup("outer", [TypeError("one"), ValueError(shared())])


def in_a_note() -> None:
    error = ValueError("outer")
    error.__notes__ = [shared()]  # type: ignore[list-item]
    raise error


@pytest.mark.parametrize("fail", [plainly, as_the_cause, in_its_context, in_a_group, in_a_note])
def test_a_value_that_shares_its_parts_is_not_formatted(fail: Callable[[], None]) -> None:
    """Bug: the host formatted the value, past every limit on time and memory."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  # several types, none with a text
        fail()
    text = traceback_of(raised.value)
    assert text.endswith(f"{raised.type.__name__}: (its message cannot be shown)")
    assert f"in {fail.__name__}" in frames_of(text)
    assert exception_type_of(text) == raised.type.__name__


def test_a_long_message_is_cut_in_the_middle() -> None:
    """Ours: rule 1 of the module; a text has at most MAX_CHARS characters."""
    text = traceback_of(ValueError("first" + "x" * 1_000_000 + "last"))
    assert len(text) <= MAX_CHARS
    assert text.startswith("ValueError: first")
    assert text.endswith("last")
