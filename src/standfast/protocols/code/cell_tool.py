"""The tool `run_code`, as it is described to a model that writes Python or TypeScript."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.code import Language
from standfast.model.limits import CapabilityLimits
from standfast.tools.decorator import tool
from standfast.tools.registered_tool import RegisteredTool


@tool(side_effect="none", limits=CapabilityLimits(timeout_ms=60_000))
def run_code(code: Annotated[str, msgspec.Meta(description="one cell of Python")]) -> dict[str, Any]:
    """Run Python. Variables persist in later cells, tools are functions, the last expression is shown."""
    raise InvalidArgument("run_code() can only be called by a model; the session's executor runs the cell")


@functools.cache
def cell_tool(language: Language) -> RegisteredTool:
    """Return `run_code` as it is offered to a model that writes *language*."""
    if language is Language.PYTHON:
        return run_code.registered
    return run_code.registered.with_contract(
        description="Run TypeScript. Variables persist in later cells, tools are functions that return "
        "promises, the last expression is shown.",
        input_schema={
            **run_code.capability.input_schema,
            "properties": {"code": {"type": "string", "description": "one cell of TypeScript"}},
        },
    )
