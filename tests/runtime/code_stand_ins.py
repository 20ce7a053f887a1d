"""Helpers for tests of sessions that act in code: cells, their reports, models, the store."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from standfast.model.code import CellReport
from standfast.model.limits import Usage
from standfast.model.message import Content, Message, RequestedCall, ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent import Agent
from standfast.runtime.agent_session import Session
from standfast.store.sqlite.connection import open_checked


def cell(code: str) -> str:
    """Return a reply that consists of one cell."""
    return f"```python\n{textwrap.dedent(code).strip()}\n```"


def finish(expression: str) -> str:
    """Return a cell that ends the turn with this value."""
    return cell(f"finish({expression})")


def coder(*replies: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent with a scripted model that acts in code."""
    options.setdefault("protocol", "code")
    return Agent(ScriptedModel(replies, strict=False), **options)


def reports(messages: Iterable[Message]) -> list[CellReport]:
    """Return the reports of the cells among *messages*."""
    return [
        msgspec.convert(one.value, CellReport)
        for one in messages
        if isinstance(one, ToolMessage) and one.name == "run_code"
    ]


def outcomes(messages: Iterable[Message]) -> list[Any]:
    """Return the result of each cell, or the code of its error."""
    return [one.result if one.error is None else one.error.code for one in reports(messages)]


class Typist:
    """A model that runs the user's text as a cell and answers with its report; "say ..." runs none."""

    def __init__(self, model_id: str = "scripted:typist") -> None:
        self.model_id = model_id
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        last = request.messages[-1]
        said = _first_words(last.content) if isinstance(last, UserMessage) else "say ok"
        plain = said.startswith(("say ", "[cell"))
        yield ReplyEnded(text=said.removeprefix("say ") if plain else cell(said))

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _first_words(content: Content) -> str:
    """Return the text before the descriptions of inputs and attachments."""
    return content if isinstance(content, str) else text_of(content[:1])


class RunsCode:
    """A model that calls the tool run_code with one cell, and ends."""

    def __init__(self, code: str) -> None:
        self.model_id = "scripted:runs"
        self._code = code

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        done = isinstance(request.messages[-1], ToolMessage)
        arguments = msgspec.json.encode({"code": self._code}).decode()
        calls = () if done else (RequestedCall(name="run_code", arguments=arguments),)
        yield ReplyEnded(text="ok" if done else "", calls=calls)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def typing(**options: Any) -> Agent[Any, Any]:
    """Return an agent that runs the user's text as code."""
    options.setdefault("protocol", "code")
    return Agent(Typist(), name="typist", **options)


async def value_of(session: Session[Any], code: str) -> Any:
    """Run a cell in its own turn and return its value, or the code of its error."""
    return outcomes((await session.turn(textwrap.dedent(code).strip())).messages)[-1]


class RecordingModel:
    """A wrapper of another model that records every request."""

    def __init__(self, model: ModelProvider) -> None:
        self.model_id = model.model_id
        self.requests: list[ModelRequest] = []
        self._model = model

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        return self._model.stream(request)

    async def close(self) -> None:
        await self._model.close()

    def prompt_bytes(self) -> list[int]:
        """Return the size of everything that each request contained."""
        return [
            len(msgspec.json.encode(one.messages)) + len(one.instructions.encode()) for one in self.requests
        ]


class AnsweringModel:
    """A model that gives a session the cells of a script, and answers questions from code with a function."""

    def __init__(self, cells: Iterable[str], answer: Callable[[str], str | Exception]) -> None:
        self.model_id = "scripted:answers"
        self._cells = iter(cells)
        self._answer = answer

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        if ".plugin." not in request.idempotency_key:
            yield ReplyEnded(text=next(self._cells), usage=Usage(input=1, output=1, calls=1))
            return
        answer = self._answer(str(getattr(request.messages[-1], "content", "")))
        if isinstance(answer, Exception):
            raise answer
        yield ReplyEnded(text=answer, usage=Usage(input=10, output=3, calls=1))

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def rows(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a store's file, read with the library that the store uses."""
    database = open_checked(str(path), apsw.SQLITE_OPEN_READWRITE)
    try:
        return list(database.execute(query, values))
    finally:
        database.close()


def blob_sizes(path: Path) -> list[int]:
    """Return the sizes of the stored blobs in ascending order, without the records of prompts."""
    blobs = [data for (data,) in rows(path, "SELECT data FROM blobs")]
    return sorted(len(data) for data in blobs if not data.startswith(b'{"layers":'))
