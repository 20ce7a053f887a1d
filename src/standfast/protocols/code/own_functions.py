"""The functions that only code has: to wait, to ask a model, to end the turn, to look tools up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.language import Language
from standfast.model.limits import CapabilityLimits, SessionLimits
from standfast.protocols.tool_docs.tool_search import discovery
from standfast.tools.catalog import ToolCatalog
from standfast.tools.context import CompleteAfter, RunContext
from standfast.tools.decorator import Tool, tool
from standfast.tools.registered_tool import RegisteredTool

OWNER: Final = "the code protocol"
FINISH: Final = "finish"
CONTINUE_AS: Final = "continue_as"

_SHORT_SLEEP_S: Final = 1.0
"""So long a call waits by itself; longer ones are timers, for which the turn is parked."""
_A_MINUTE: Final = CapabilityLimits(timeout_ms=60_000)
_TEN_MINUTES: Final = CapabilityLimits(
    timeout_ms=600_000, max_request_bytes=16 << 20, max_response_bytes=16 << 20
)


@tool(side_effect="none", limits=_A_MINUTE)
def run_code(code: Annotated[str, msgspec.Meta(description="one cell of Python")]) -> dict[str, Any]:
    """Run Python. Variables stay for the next cell, tools are functions, the last expression is shown."""
    raise InvalidArgument("a cell is run by the session's code executor")


def cell_tool(language: Language) -> RegisteredTool:
    """`run_code` as a model that writes *language* is offered it."""
    return run_code.registered if language is Language.PYTHON else _RUN_TYPESCRIPT


@tool(side_effect="none", limits=_A_MINUTE, loop="runtime")
async def sleep(
    seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
) -> CompleteAfter | None:
    """Wait. However long it takes, nothing is held meanwhile and no restart cuts it short."""
    span_s = seconds + 60 * minutes + 3_600 * hours + 86_400 * days
    if span_s > _SHORT_SLEEP_S:
        return CompleteAfter(span_s)
    await asyncio.sleep(max(0.0, span_s))
    return None


@tool(side_effect="read", limits=_TEN_MINUTES, loop="runtime")
async def llm(
    ctx: RunContext[Any],
    prompt: str,
    data: Json = None,
    schema: dict[str, Any] | None = None,
    instructions: str = "",
) -> Json:
    """Ask a language model: *data* is added to the prompt, and with a JSON *schema* the answer is a value."""
    text = await ctx.complete(
        _prompt(prompt, data), instructions=instructions, source="llm", output_schema=schema
    )
    # The first check loads a library, which would keep the runtime's loop from other sessions.
    return text if schema is None else await asyncio.to_thread(_value, text, schema)


@tool(side_effect="none")
def finish(value: Json = None) -> None:
    """End the turn with this answer. Nothing after it runs."""


@tool(side_effect="none")
def continue_as(task: str, seed: Json = None) -> None:
    """End the turn and go on with *task* in a fresh context that knows only *seed*. Variables stay."""


def _with_contract(tool: Tool[Any, Any], **changes: Any) -> RegisteredTool:
    return replace(tool.registered, capability=msgspec.structs.replace(tool.capability, **changes))


_RUN_TYPESCRIPT: Final = _with_contract(
    run_code,
    description="Run TypeScript. Variables stay for the next cell, tools are functions that return promises, "
    "the last expression is shown.",
    input_schema={
        **run_code.capability.input_schema,
        "properties": {"code": {"type": "string", "description": "one cell of TypeScript"}},
    },
)

_FINISH_WITH_ANY: Final = _with_contract(finish, input_schema={"type": "array", "maxItems": 1})
"""`finish` where an object stands for named arguments: `finish({value: 1})` answers with that very object."""


def _current_policy(limits: SessionLimits | None) -> Tool[Any, Any]:
    @tool(side_effect="none")
    def current_policy() -> dict[str, Any]:
        """Show the limits that every cell runs under."""
        shown = msgspec.to_builtins(limits or SessionLimits())
        return {"limits": shown, "session_limits": shown}

    return current_policy


def own_functions(
    catalog: ToolCatalog,
    resolve: Callable[[str], RegisteredTool],
    language: Language = Language.PYTHON,
    limits: SessionLimits | None = None,
) -> dict[str, RegisteredTool]:
    """All of them, by name, as *language* calls them; *limits* are those of a cell."""
    ends = finish.registered if language is Language.PYTHON else _FINISH_WITH_ANY
    made: list[Tool[Any, Any]] = [sleep, llm, continue_as, _current_policy(limits)]
    tools = [
        cell_tool(language),
        ends,
        *(one.registered for one in made),
        *discovery(catalog, resolve, language),
    ]
    return {one.name: replace(one, owner=OWNER) for one in tools}


def _prompt(prompt: str, data: Json) -> str:
    if data is None:
        return prompt
    shown = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    return f"{prompt}\n\n{shown}"


def _value(text: str, schema: dict[str, Any]) -> Json:
    """The model's answer as the value that was asked for; ValueError if it is none."""
    import jsonschema_rs

    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.partition("\n")[2].rpartition("```")[0]
    try:
        value: Json = msgspec.json.decode(bare)
        jsonschema_rs.validator_for(schema).validate(value)
    except msgspec.DecodeError:
        raise ValueError(f"the model did not answer with JSON: {text[:200]!r}") from None
    except jsonschema_rs.ValidationError as error:
        raise ValueError(f"the model's answer does not fit the schema: {error.message}") from None
    return value
