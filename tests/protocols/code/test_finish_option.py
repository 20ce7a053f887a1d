"""The option that decides whether code may end its turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from code_stand_ins import RecordingModel, cell, outcomes
from stand_ins import Place

from standfast import Agent
from standfast.protocols.code.plugin import CodeMode, CodeProtocol
from standfast.providers.scripted import ScriptedModel

ENDS = {
    "finish": ("finish(1)", "finish(1)"),
    "continue_as": ("continue_as('more')", "continue_as({task: 'more'})"),
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("language", ["python", "typescript"])
@pytest.mark.parametrize("form", ["fences", "tool_call", "mode"])
def test_code_cannot_end_a_turn_with_finish_disabled(
    memory: Place, form: str, language: str, ends: str
) -> None:
    """Bug: the seed's ExecRequest.accept_finish was always true."""
    code = ENDS[ends][language == "typescript"]
    options: dict[str, Any] = {"language": language, "finish": False}
    fenced = cell(code).replace("```python", f"```{language}")
    asks = fenced if form == "fences" else {"tool_calls": [{"name": "run_code", "arguments": {"code": code}}]}
    model = RecordingModel(ScriptedModel([asks, "No end."], strict=False))
    agent: Agent[Any, Any] = (
        Agent(model, plugins=[CodeMode(**options)])
        if form == "mode"
        else Agent(model, protocol=CodeProtocol(cells=form, **options))  # type: ignore[arg-type]
    )

    async def main() -> None:
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("go")
        assert result.output == "No end."
        assert outcomes(result.messages) == ["RUNTIME_ERROR"]
        assert f"{ends}() cannot be called here" in str(result.messages[2])
        assert "finish(" not in model.requests[0].instructions
        assert "continue_as(" not in model.requests[0].instructions

    asyncio.run(main())
