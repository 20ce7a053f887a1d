"""`current_policy()`: the limits that code can read about its own run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from standfast import Agent, BlockingSandbox, CodeProtocol, ScriptedModel, SessionLimits
from standfast.protocols.code.executor import CELL_LIMITS

ENGINES = [("monty", "python"), ("cpython", "python"), ("auto", "python"), ("quickjs", "typescript")]


def asked(box: BlockingSandbox, language: str, **options: Any) -> Any:
    code = "await current_policy()" if language == "typescript" else "current_policy()"
    result = box.run(code, language=language, **options)
    assert result.status == "ok", result.error
    return result.result


@pytest.mark.parametrize(("engine", "language"), ENGINES, ids=[engine for engine, _ in ENGINES])
def test_code_reads_the_limits_of_its_session_and_of_this_run(engine: str, language: str) -> None:
    """Bug: the code read the limits of the sandbox, whatever the limits of the session and the run."""
    options: Any = {"engine": engine, "language": language, "limits": {"max_external_calls": 9}}
    with BlockingSandbox(**options) as box:
        usual = asked(box, language)
        box.create("own", language=language, limits={"max_external_calls": 7})
        own = asked(box, language, session="own")
        once = asked(
            box, language, session="own", limits=SessionLimits(max_external_calls=5), timeout_ms=4_321
        )
        told = (usual, own, once)
        assert [one["limits"]["max_external_calls"] for one in told] == [9, 7, 5]
        assert once["limits"]["wall_ms"] == 4_321
        assert [one["session_limits"]["max_external_calls"] for one in told] == [9, 7, 7]
        assert usual["session_limits"] == usual["limits"]


def test_agents_cells_read_the_limits_of_a_cell() -> None:
    """Bug: SPEC §4 says that `current_policy` is always available, but cells did not have it."""
    for limits in (CELL_LIMITS, SessionLimits(max_external_calls=3)):
        model = ScriptedModel(['```python\nfinish(current_policy()["limits"]["max_external_calls"])\n```'])
        agent: Agent[Any, Any] = Agent(model, protocol=CodeProtocol(limits=limits))
        assert asyncio.run(agent.run("go")).output == str(limits.max_external_calls)
