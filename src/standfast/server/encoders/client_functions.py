"""Functions that a client defines in its request and runs itself, as tools of the session.

Theory of operation
-------------------
The request's functions are an overlay on the session's tools. A call of one waits for an external completion,
so the turn parks in the store, like one that waits for any other system. The response has the call, with the
completion's token as its id. The client's next request has the output under that id: it completes the call,
and the same turn resumes.

Rules
-----
1. A function cannot have the name of one of the agent's tools: the agent's tools run where their author put
   them.
2. The functions apply to the turn that the request starts or resumes. The next request must repeat them.
3. Only the process that serves the request knows them. If it dies while the turn runs, the turn continues
   without them; if it dies while the turn waits for the client, the request with the output restores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from standfast.errors import InvalidArgument, TokenNotFound
from standfast.model.canonical import Json
from standfast.model.capability import Capability, SideEffect, ToolCallContext
from standfast.model.session import TurnRecord
from standfast.runtime.agent_session import Session
from standfast.server.calls import Call
from standfast.tools.context import CompleteLater, RunContext
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import StaticTools

TOKEN_PREFIX: Final = "cpl_"  # noqa: S105 (the form of a token, none itself)
_OWNER: Final = "the client"


class ClientFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A client's function. `strict` has no effect: arguments are always validated against the schema."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None

    @property
    def tool_name(self) -> str:
        """The name under which the model calls it, because tool names have no hyphens."""
        return self.name.replace("-", "_")


class ClientFunctions(StaticTools):
    """One client's functions as a source of tools."""

    def __init__(self, functions: tuple[ClientFunction, ...]) -> None:
        self.functions = functions
        super().__init__(_tool(one) for one in functions)


def _tool(function: ClientFunction) -> RegisteredTool:
    contract = Capability(
        name=function.tool_name,
        description=function.description or "",
        input_schema={"type": "object", **(function.parameters or {})},
        side_effect=SideEffect.EXTERNAL_SYSTEM,
        idempotent=True,  # the handler only waits, always under the same token
    )
    return RegisteredTool(
        contract, _wait_for_client, async_mode=True, owner=_OWNER, wants_context=True, loop="runtime"
    )


async def _wait_for_client(ctx: RunContext[Any], call: ToolCallContext) -> CompleteLater:
    return CompleteLater(ctx.completion_token())


async def offer_functions(call: Call, session: Session[Any], functions: Iterable[ClientFunction]) -> None:
    """Replace the client functions that the session's model may call with *functions*."""
    given = tuple(functions)
    live = call.runtime.live(session.session_id)
    overlay = live.setup.overlay
    known = next((one for one in overlay.providers if isinstance(one, ClientFunctions)), None)
    if given == (() if known is None else known.functions):
        return
    agent = call.server.agents.get((await session.head()).agent)
    names = [one.tool_name for one in given]
    for name in names:
        if names.count(name) > 1 or (agent is not None and name in agent.registry):
            raise InvalidArgument(
                f"there are two functions {name!r}",
                hint="the agent has tools of its own: choose another name",
            )
    others = tuple(one for one in overlay.providers if one is not known)
    added = (ClientFunctions(given),) if given else ()
    await session.tools.set_context_overlay(msgspec.structs.replace(overlay, providers=(*others, *added)))


def function_names(call: Call, session_id: str) -> dict[str, str]:
    """Return the session's client functions: the client's names by the names that the model calls."""
    providers = call.runtime.live(session_id).setup.overlay.providers
    return {
        one.tool_name: one.name
        for provider in providers
        if isinstance(provider, ClientFunctions)
        for one in provider.functions
    }


def turn_settings(
    given: Mapping[str, Json], choice: str | None, functions: Iterable[ClientFunction], parallel: bool | None
) -> dict[str, Json]:
    """Return the settings *given* in a request, with its `tool_choice` and `parallel_tool_calls`."""
    settings = {name: value for name, value in given.items() if value is not None}
    if choice not in (None, "auto"):
        by_name = {one.name: one.tool_name for one in functions}
        if choice not in ("none", "required", *by_name):
            raise InvalidArgument(f"tool_choice {choice!r} is not a function of this request")
        settings["tool_choice"] = by_name.get(str(choice), choice)
    if parallel is not None:
        settings["parallel_tool_calls"] = parallel
    return settings


async def turn_of_tokens(call: Call, tokens: Iterable[str]) -> tuple[TurnRecord, Session[Any]]:
    """Return the turn that the calls under *tokens* belong to, and its session with its agent."""
    turn_ids = {token: token.removeprefix(TOKEN_PREFIX).partition(".")[0] for token in tokens}
    if len(set(turn_ids.values())) != 1:
        raise InvalidArgument("the outputs are for several turns", hint="complete one turn at a time")
    token, turn_id = next(iter(turn_ids.items()))
    found = await call.turn(turn_id)
    if found is None:
        raise TokenNotFound(token)
    record, _ = found
    agent = call.server.agents.get(record.agent)
    return record, await call.runtime.session(record.session_id, agent=agent)


def is_token(text: str) -> bool:
    """Return whether *text* is a call id that this server issued for a client's function call."""
    return text.startswith(TOKEN_PREFIX)


def number_of_token(token: str) -> int:
    """Return the call number in a token, which is `cpl_TURN.CALL-SECRET`."""
    number = token.partition(".")[2].partition("-")[0]
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise TokenNotFound(token)
    return int(number)
