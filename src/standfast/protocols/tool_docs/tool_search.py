"""Finding a tool among many, by words.

Theory of operation
-------------------
An index is made once of a catalog: every word of a name or a description, in its singular, with the tools
that have it. A query is looked up word by word. A word counts more in a name than in a description, whole
than as a beginning, as a beginning than inside, and more the fewer tools have it.

Rules
-----
1. The same catalog and query give the same list; of equals, the one that the catalog has first is first.
2. What is searchable and was found is callable for the rest of the session: by the next call or cell.
"""

from __future__ import annotations

import asyncio
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec

from standfast.errors import GenerationMismatch, ServiceUnavailable, StandfastError, UnknownTool
from standfast.model.capability import ToolAvailability
from standfast.model.language import Language
from standfast.protocols.tool_docs.tool_guide import Resolve, signature_of
from standfast.tools.catalog import CatalogTool, ToolCatalog
from standfast.tools.context import RunContext
from standfast.tools.decorator import Tool, tool
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.stubs import stub_of
from standfast.tools.typescript_stubs import brief_declaration_of

OWNER: Final = "standfast built-in"
MAX_RESULTS: Final = 50
_MAX_DESCRIPTION_CHARS: Final = 2_000
_MAX_TERMS: Final = 12
_MANY: Final = 1_000
_MOST_TRIES: Final = 20
_WORD: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STOP_WORDS: Final = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "has", "if", "in", "into", "is",
    "it", "its", "of", "on", "or", "that", "the", "this", "to", "use", "used", "with",
})  # fmt: skip
_NAME_WEIGHTS: Final = (8.0, 5.0, 3.0)
_DESCRIPTION_WEIGHTS: Final = (3.0, 2.0, 1.0)
"""Of a whole word, of the beginning of one, and of what is inside one."""

_QUERY = msgspec.Meta(description="what the tool should do, in a few words")
_LIMIT = msgspec.Meta(description=f"how many to list, up to {MAX_RESULTS}")
_NAME = msgspec.Meta(description="the name of a tool, as search_tools() gives it")


class _Field:
    """The words of one field of all tools, and which tools have them."""

    def __init__(self, texts: Sequence[str], weights: tuple[float, float, float]) -> None:
        self._weights = weights
        self._having: dict[str, list[int]] = {}
        for place, text in enumerate(texts):
            for word in set(_words(text)):
                self._having.setdefault(word, []).append(place)

    @cached_property
    def _vocabulary(self) -> tuple[str, list[str], list[int]]:
        """All words in one text, for one fast scan, with the place where each begins."""
        words = list(self._having)
        starts, at = [], 1
        for word in words:
            starts.append(at)
            at += len(word) + 1
        return "\n" + "\n".join(words) + "\n", words, starts

    def find(self, term: str) -> dict[int, float]:
        """How near the term is to a word of each tool that has one."""
        found: dict[int, float] = {}
        ranked = sorted(self._matches(term), key=lambda match: match[1])
        for word, weight in ranked:  # the better ones overwrite the others
            found.update(dict.fromkeys(self._having[word], weight))
        return found

    def _matches(self, term: str) -> Iterator[tuple[str, float]]:
        whole, beginning, inside = self._weights
        if term in self._having:
            yield term, whole
        if len(term) < 2:
            return
        text, words, starts = self._vocabulary
        # A term of two letters is inside of too much to tell anything.
        for match in re.finditer(re.escape(term if len(term) > 2 else f"\n{term}"), text):
            at = match.start() + (len(term) <= 2)
            place = bisect_right(starts, at) - 1
            if words[place] != term:
                yield words[place], beginning if starts[place] == at else inside


class ToolIndex:
    """Searches a fixed list of tools."""

    def __init__(self, tools: Sequence[CatalogTool]) -> None:
        self._tools = tuple(tools)
        self._names = _Field([tool.name for tool in tools], _NAME_WEIGHTS)
        self._descriptions = _Field(
            [tool.manifest.description[:_MAX_DESCRIPTION_CHARS] for tool in tools], _DESCRIPTION_WEIGHTS
        )

    def search(self, query: str, limit: int = 10) -> list[CatalogTool]:
        """The tools that fit the query best; without one, the first tools."""
        terms = _terms(query)
        if not terms:
            return list(self._tools[: max(0, limit)])
        scores = self._scores(terms, limit)
        best = sorted(sorted(scores), key=scores.__getitem__, reverse=True)
        return [self._tools[place] for place in best[: max(0, limit)]]

    def _scores(self, terms: list[str], enough: int) -> dict[int, float]:
        """How well each tool fits. What very many have only adds to those that rarer words have found."""
        fields = (self._names, self._descriptions)
        scores: dict[int, float] = {}
        for found in sorted((field.find(term) for term in terms for field in fields), key=len):
            rarity = math.log(1 + len(self._tools) / (1 + len(found)))
            common = len(found) > _MANY and len(scores) >= enough
            for place in list(scores) if common else found:
                scores[place] = scores.get(place, 0.0) + found.get(place, 0.0) * rarity
        return scores


def search(tools: Sequence[CatalogTool], query: str, limit: int = 10) -> list[CatalogTool]:
    """Search *tools* once. Whoever searches them again keeps a `ToolIndex`."""
    return ToolIndex(tools).search(query, limit)


def _words(text: str) -> Iterator[str]:
    """The words of a text in lower case and singular, `camelCase` as a whole and in its parts."""
    for word in _WORD.findall(text):
        lowered = word.lower()
        yield _singular(lowered)
        if word != lowered or not word.isalpha():
            yield from (_singular(part.lower()) for part in _PART.findall(word))


def _terms(query: str) -> list[str]:
    """The words to look for: those that say something, if any does."""
    words = list(dict.fromkeys(_words(query)))
    telling = [word for word in words if word not in _STOP_WORDS]
    return (telling or words)[:_MAX_TERMS]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


# As tools


def discovery(
    catalog: ToolCatalog, resolve: Resolve, language: Language = Language.PYTHON
) -> list[RegisteredTool]:
    """`search_tools`, `describe_tool` and `list_tools` over one catalog: nothing else can be found."""
    made = [
        _search_tools(catalog, resolve, language),
        _describe_tool(catalog, resolve, language),
        _list_tools(catalog),
    ]
    return [replace(each.registered, owner=OWNER) for each in made]


def searching(catalog: ToolCatalog, resolve: Resolve) -> RegisteredTool:
    """`search_tools` alone, for models that call what it finds by native calls."""
    return replace(_search_tools(catalog, resolve, Language.PYTHON).registered, owner=OWNER)


def _search_tools(catalog: ToolCatalog, resolve: Resolve, language: Language) -> Tool[Any, Any]:
    index = _once(lambda: ToolIndex(catalog.searchable()))

    def look_up(query: str, limit: int) -> list[tuple[CatalogTool, str]]:
        hits = index().search(query, min(max(limit, 1), MAX_RESULTS))
        return [(hit, _signature_line(hit.name, resolve, language)) for hit in hits]

    @tool(side_effect="none")
    async def search_tools(
        ctx: RunContext[Any], query: Annotated[str, _QUERY], limit: Annotated[int, _LIMIT] = 10
    ) -> list[dict[str, Any]]:
        """Find tools by what they do: name, signature, description and may_call of each, the best first."""
        hits = await asyncio.to_thread(look_up, query, limit)  # an index of many tools takes its time
        found = await _found(ctx, [hit for hit, _ in hits])
        return [_hit(hit, line, hit.name in found) for hit, line in hits]

    return search_tools


async def _found(ctx: RunContext[Any], hits: Sequence[CatalogTool]) -> set[str]:
    """Note that the model has found these tools, for the session; the names of those that it may call."""
    far = [hit.name for hit in hits if hit.availability < ToolAvailability.CALLABLE]
    callable_now = {hit.name for hit in hits} - set(far)
    if not far:
        return callable_now
    for _ in range(_MOST_TRIES):
        try:
            state = await ctx.host.tool_state(ctx.session_id)
            await ctx.host.apply_tool_state(ctx.session_id, state.with_found(far))
        except ServiceUnavailable:  # there is no session to find them for
            return callable_now
        except GenerationMismatch:
            continue  # another call has changed the tools in between
        return callable_now | set(far)
    return callable_now


def _describe_tool(catalog: ToolCatalog, resolve: Resolve, language: Language) -> Tool[Any, Any]:
    @tool(side_effect="none")
    async def describe_tool(ctx: RunContext[Any], name: Annotated[str, _NAME]) -> dict[str, Any]:
        """Describe one tool in full: its signature, description, schemas, side_effect and approval."""
        found = catalog.find(name)
        if found is None:
            raise UnknownTool(f"there is no tool {name[:80]!r}", hint=_suggestion(name, catalog.names))
        may_call = name in await _found(ctx, [found])
        return _description(await asyncio.to_thread(resolve, name), language, may_call)

    return describe_tool


def _list_tools(catalog: ToolCatalog) -> Tool[Any, Any]:
    @tool(side_effect="none")
    def list_tools() -> list[dict[str, str]]:
        """List every tool that can be found: its name, and the first line of its description."""
        return [
            {"name": each.name, "description": _first_line(each.manifest.description)}
            for each in catalog.searchable()
        ]

    return list_tools


def _once(make: Callable[[], ToolIndex]) -> Callable[[], ToolIndex]:
    """The index, made when it is first asked for: most sessions never search."""
    made: list[ToolIndex] = []

    def get() -> ToolIndex:
        if not made:
            made.append(make())
        return made[0]

    return get


def _hit(hit: CatalogTool, signature: str, may_call: bool) -> dict[str, Any]:
    return {
        "name": hit.name,
        "signature": signature,
        "description": _first_line(hit.manifest.description),
        "may_call": may_call,
    }


def _signature_line(name: str, resolve: Resolve, language: Language) -> str:
    """A tool's declaration in one line. A source that fails to give one tool does not spoil the search."""
    try:
        found = resolve(name)
    except StandfastError as error:
        return f"{name}() is not available: {error}"
    if language is Language.TYPESCRIPT:
        return brief_declaration_of(found.capability)
    return stub_of(found).removesuffix(": ...")


def _description(registered: RegisteredTool, language: Language, may_call: bool) -> dict[str, Any]:
    capability = registered.capability
    policy = capability.approval_policy
    return {
        "name": capability.name,
        "signature": signature_of(registered, language),
        "description": capability.description,
        "input_schema": capability.input_schema,
        "output_schema": capability.output_schema,
        "side_effect": str(capability.side_effect),
        "approval": policy if isinstance(policy, str) else "auto",
        "may_call": may_call,
    }


def _suggestion(name: str, names: Sequence[str]) -> str:
    import difflib  # only mistakes need it

    close = difflib.get_close_matches(name[:80], names, n=3, cutoff=0.6)
    return (
        f"did you mean {' or '.join(close)}?" if close else "search_tools(query) finds tools by what they do"
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
