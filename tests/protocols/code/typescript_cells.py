"""Shared helpers for tests of TypeScript sessions: cells, agents, tools of a shop."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from typing import Any

from code_stand_ins import outcomes

from standfast import Agent, CodeProtocol, tool
from standfast.model.message import UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_session import Session


def cell(code: str, tag: str = "typescript") -> str:
    """Return a reply that consists of one cell."""
    return f"```{tag}\n{textwrap.dedent(code).strip()}\n```"


def coder(*replies: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent with a scripted model that writes TypeScript."""
    options.setdefault("protocol", CodeProtocol(language="typescript"))
    return Agent(ScriptedModel(replies, strict=False), **options)


class Typist:
    """A model that runs the user's text as a cell, and answers with the cell's report."""

    model_id = "scripted:typist"

    def __init__(self, tag: str) -> None:
        self._tag = tag

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        said = (
            text_of(last.content if isinstance(last.content, str) else last.content[:1])
            if isinstance(last, UserMessage)
            else "ok"
        )
        yield ReplyEnded(text=said if said.startswith("[cell") else cell(said, self._tag))

    async def close(self) -> None:
        """Do nothing; there is nothing to close."""


def typing(protocol: CodeProtocol | None = None, **options: Any) -> Agent[Any, Any]:
    """Return an agent that runs the user's text as code, in TypeScript unless another protocol is given."""
    protocol = protocol or CodeProtocol(language="typescript")
    model = Typist(str(protocol.options().language))
    return Agent(model, name="typist", protocol=protocol, **options)


async def value_of(session: Session[Any], code: str, **options: Any) -> Any:
    """Run a cell in its own turn and return its value, or the code of its error."""
    return outcomes((await session.turn(textwrap.dedent(code).strip(), **options)).messages)[-1]


class Shop:
    """The tools of a shop, and a log of their calls."""

    def __init__(self) -> None:
        self.did: list[str] = []

        @tool(side_effect="read")
        async def orders(customer: int) -> list[str]:
            """The orders of a customer."""
            self.did.append(f"orders {customer}")
            return ["A1", "B2", "C3"]

        @tool(side_effect="read")
        async def order(order_id: str) -> dict[str, int]:
            """Look an order up."""
            self.did.append(f"order {order_id}")
            return {"cents": 4200, "days_late": 6 if order_id == "A1" else 0}

        @tool(side_effect="external_system", approval="manual")
        async def refund(order_id: str, *, cents: int = 1) -> int:
            """Pay back."""
            self.did.append(f"refund {order_id} {cents}")
            return cents

        self.tools = [orders, order, refund]
