"""A real guest that runs the reader's output, and functions that code may call."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from quickjs_rs import JSError, Runtime

from standfast import tool
from standfast.model.capability import Capability
from standfast.sandbox.typescript.script import read_script

Evaluate = Callable[[str], Any]


class Guest:
    """One session: programs that share a global object."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def run(self, code: str) -> Any:
        """Return the value of a program."""
        return asyncio.run(self._context.eval_async(read_script(code).javascript))

    def failure(self, code: str) -> tuple[str, tuple[int, int]]:
        """Return the message of an uncaught error, and its position in the code."""
        script = read_script(code)
        with pytest.raises(JSError) as caught:
            asyncio.run(self._context.eval_async(script.javascript))
        found = re.search(r"eval_script:(\d+):(\d+)", caught.value.stack or "")
        assert found is not None
        return caught.value.message, script.position(int(found[1]), int(found[2]))


@pytest.fixture
def guest() -> Iterator[Guest]:
    with Runtime() as runtime, runtime.new_context() as context:
        yield Guest(context)


@dataclasses.dataclass
class Item:
    name: str
    count: int = 1


@tool(side_effect="read")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effect="read")
def order(item: Item, tags: list[str] | None = None, *, how: Literal["slow", "fast"] = "slow") -> str:
    """Place an order."""
    return item.name


@tool(side_effect="read")
def book(day: datetime.date, price: decimal.Decimal, ratio: float = 0.5, note: str | None = None) -> bool:
    """Book a day."""
    return True


@tool(side_effect="read")
def put(values: dict[str, int]) -> None:
    """Put values."""


SEARCH = Capability(
    name="search",
    description="Search.",
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "title": "Query"},
            "limit": {"type": ["integer", "null"]},
            "filter": {"$ref": "#/$defs/Filter"},
        },
        "required": ["query"],
        "$defs": {"Filter": {"type": "object", "properties": {"n": {"type": "integer", "title": "N"}}}},
    },
)
LISTED = Capability(name="listed", description="Takes anything.", input_schema={"type": "array"})


class Functions:
    """The functions that these programs may call."""

    def __init__(self) -> None:
        made = [item.capability for item in (add, order, book, put)]
        self._all = {item.name: item for item in (*made, SEARCH, LISTED)}

    def __contains__(self, name: object, /) -> bool:
        return name in self._all

    def names(self) -> list[str]:
        return list(self._all)

    def capability(self, name: str) -> Capability:
        return self._all[name]

    def is_async(self, name: str) -> bool:
        return True

    def suggest(self, name: str) -> str | None:
        close = difflib.get_close_matches(name, self._all, n=1)
        return f"did you mean {close[0]}?" if close else None


@pytest.fixture(scope="session")
def functions() -> Functions:
    return Functions()
