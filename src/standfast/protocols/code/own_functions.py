"""The functions that code may call: the session's tools, and those that only code can call."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from standfast.errors import ToolNameTaken
from standfast.model.canonical import Json
from standfast.model.code import RUN_CODE, Language
from standfast.model.limits import CapabilityLimits, SessionLimits
from standfast.plugins.executor_defaults import CatalogFunctions
from standfast.protocols.code.cell_tool import cell_tool
from standfast.protocols.tool_docs.tool_guide import discovery, owned
from standfast.tools.context import CompleteAfter, RunContext
from standfast.tools.decorator import Tool, tool
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog

OWNER: Final = "the code protocol"
FINISH: Final = "finish"
CONTINUE_AS: Final = "continue_as"

_SHORT_SLEEP_S: Final = 1.0
"""Longer sleeps become timers, for which the turn parks."""
_A_MINUTE: Final = CapabilityLimits(timeout_ms=60_000)
_TEN_MINUTES: Final = CapabilityLimits(
    timeout_ms=600_000, max_request_bytes=16 << 20, max_response_bytes=16 << 20
)


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
    if data is not None:
        prompt = f"{prompt}\n\n{data if isinstance(data, str) else msgspec.json.encode(data).decode()}"
    text = await ctx.complete(prompt, instructions=instructions, source="llm", output_schema=schema)
    # The first check imports a library, which would block the runtime's loop.
    return text if schema is None else await asyncio.to_thread(_value, text, schema)


@tool(side_effect="none")
def finish(value: Json = None) -> None:
    """End the turn with this answer. No code after it runs."""


@tool(side_effect="none")
def continue_as(task: str, seed: Json = None) -> None:
    """End the turn and continue with *task* in a fresh context that knows only *seed*. Variables persist."""


_FINISH_WITH_ANY: Final = finish.registered.with_contract(input_schema={"type": "array", "maxItems": 1})
"""`finish` for TypeScript, where an object argument is the answer itself: `finish({value: 1})`."""


def own_functions(
    catalog: ToolCatalog,
    resolve: Callable[[str], RegisteredTool],
    language: Language = Language.PYTHON,
    limits: SessionLimits | None = None,
) -> dict[str, RegisteredTool]:
    """Return the functions that only code can call, by name; *limits* are those of a cell."""
    policy = owned(OWNER, CellPolicy(limits or SessionLimits()).current_policy)
    tools = [*_shared_functions(language), *policy, *discovery(catalog, resolve, language, OWNER)]
    return {one.name: one for one in tools}


@functools.cache
def _shared_functions(language: Language) -> tuple[RegisteredTool, ...]:
    """Return the functions that are the same in every session."""
    ends = finish.registered if language is Language.PYTHON else _FINISH_WITH_ANY
    made: list[Tool[Any, Any]] = [sleep, llm, continue_as]
    tools = [cell_tool(language), ends, *(one.registered for one in made)]
    return tuple(msgspec.structs.replace(one, owner=OWNER) for one in tools)


class CellPolicy:
    """The limits and settings of a session's cells, as code can query them."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits

    @tool(side_effect="none")
    def current_policy(self) -> dict[str, Any]:
        """Return the limits that apply to every cell."""
        shown = msgspec.to_builtins(self._limits)
        return {"limits": shown, "session_limits": shown}


def _value(text: str, schema: dict[str, Any]) -> Json:
    """Return the model's answer as a value of *schema*; raise ValueError if it does not match."""
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
        raise ValueError(f"the model's answer does not match the schema: {error.message}") from None
    return value


class SessionFunctions(CatalogFunctions):
    """The functions that the code of a session may call."""

    def __init__(
        self,
        catalog: ToolCatalog,
        resolve: Callable[[str], RegisteredTool],
        language: Language = Language.PYTHON,
        limits: SessionLimits | None = None,
    ) -> None:
        super().__init__(catalog, resolve, RUN_CODE, own_functions(catalog, resolve, language, limits))
        for name, own in self._own.items():
            if catalog.find(name) is not None and resolve(name).handler is not own.handler:
                raise ToolNameTaken(name, OWNER, resolve(name).owner)

    def suggest(self, name: str) -> str | None:
        return super().suggest(name) or "search_tools(query) finds functions that can be called"
