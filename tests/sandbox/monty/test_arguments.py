"""Call arguments that are a few numbers and need no conversion, and others that resemble them."""

from __future__ import annotations

from typing import Any

import pytest

from standfast import BlockingSandbox, CapabilityLimits, tool


@tool(side_effect="none", limits=CapabilityLimits(max_request_bytes=20_000))
def echo(value: Any = None, other: Any = None) -> list[Any]:
    """Return the argument."""
    return [value, other]


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("echo(1)", [1, None]),
        ("echo(-(2**62))", [-(2**62), None]),
        ("echo(2**63)", [2**63, None]),
        ("echo(True)", [True, None]),
        ("echo(1.5, other=False)", [1.5, False]),
        ("echo((1, 2), other=(3,))", [[1, 2], [3]]),
    ],
)
def test_numbers_are_passed_unchanged(code: str, got: list[Any]) -> None:
    """Ours: the fast path gives the same result as the conversion."""
    with BlockingSandbox(tools=[echo]) as box:
        result = box.run(code)
        assert (result.result, result.error) == (got, None)
        assert isinstance(result.result, list)
        assert [type(part) for part in result.result] == [type(part) for part in got]


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "-float('inf')", "{1}", "echo"])
def test_numbers_without_a_json_form_are_refused(value: str) -> None:
    """Ours: infinite numbers have no JSON form."""
    with BlockingSandbox(tools=[echo]) as box:
        for call in (f"echo({value})", f"echo(other={value})"):
            result = box.run(call)
            assert result.error is not None, (call, result)
            assert "is not JSON" in result.error.message, (call, result)


def test_long_names_count_towards_the_size_of_a_request() -> None:
    """Ours: numbers are small, but their names may be long."""
    with BlockingSandbox(tools=[echo]) as box:
        unknown = box.run("echo(**{'x' * 50: 1})").error
        large = box.run("echo(**{'x' * 30_000: 1})").error
        assert unknown is not None
        assert large is not None
        assert "20000" not in unknown.message
        assert "20000" in large.message, large
