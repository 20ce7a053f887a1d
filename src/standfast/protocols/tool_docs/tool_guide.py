"""The guide to tools in the prompt of a model that writes code, and the search for tools that are not in it.

Every showcased tool is written as a stub in the session's language if all stubs fit into the budget. If not,
the first stubs (in the catalog's order) are kept until half of the budget is used, and the other tools are
listed by name in groups. A group is the common part of names before their first `__` or `_`.

A search looks for each word of a query in names and descriptions. A match in a name scores higher than one in
a description, a whole word higher than a prefix, and a prefix higher than a match inside a word. A word that
few tools have scores higher than a common one.

Rules
-----
1. The text never exceeds the budget, and is the same for the same catalog, so that providers can cache
   prompts.
2. A stub that would take more than a quarter of the budget is shown without its parameters.
3. Contracts are resolved only for stubs that are written; a catalog may have ten thousand tools.
4. The same catalog and query give the same list; tools with equal scores are in catalog order.
5. A searchable tool that was found is callable for the rest of the session, beginning with the next call or
   cell.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec

from standfast.errors import GenerationMismatch, ServiceUnavailable, StandfastError, UnknownTool
from standfast.model.capability import ToolAvailability
from standfast.model.code import Language
from standfast.protocols.tool_docs.stub_writer import StubWriter, TypeScriptWriter
from standfast.tools.context import RunContext
from standfast.tools.decorator import Tool, ToolMethod, tool
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import CatalogTool, ToolCatalog
from standfast.tools.stubs import brief_declaration_of, stub_of

DEFAULT_BUDGET_CHARS: Final = 16_000
OTHER: Final = "other"
_MAX_GROUP_NAME_CHARS: Final = 40
_MIN_LINE_CHARS: Final = 100
_CALLS: Final = {
    Language.PYTHON: ("`search_tools(query)`", "`describe_tool(name)`"),
    Language.TYPESCRIPT: ("`await search_tools({query})`", "`await describe_tool({name})`"),
}
_WRITERS: Final = {Language.PYTHON: StubWriter, Language.TYPESCRIPT: TypeScriptWriter}

Resolve = Callable[[str], RegisteredTool]


def guide(
    catalog: ToolCatalog,
    resolve: Resolve,
    *,
    budget_chars: int = DEFAULT_BUDGET_CHARS,
    language: Language = Language.PYTHON,
) -> str:
    """Return the text about the tools of *catalog*; *resolve* is a registry's `require`."""
    shown = catalog.showcased()
    hidden, more = len(catalog.searchable()) - len(shown), ""
    if hidden > 0:
        things = f"{'more ' if shown else ''}tool{'' if hidden == 1 else 's'}"
        more = f"{hidden:,} {things} can be found with {_CALLS[language][0]}."
    frame = _signatures([""], "", language)
    room = budget_chars - len(more) - len(frame) - len(_count(len(shown), len(shown)))
    stubs, left = list[str](), room
    writer = _WRITERS[language](taken=catalog.names)
    for each in shown:
        stub = writer.write(resolve(each.name), max_chars=max(0, room // 4))
        left -= len(stub) + 2
        if left < 0:
            parts = _by_group(shown, stubs, room, language)
            break
        stubs.append(stub)
    else:
        parts = [_signatures(stubs, "Functions that you can call:", language)] if stubs else []
    text = "\n\n".join(part for part in (*parts, more) if part)
    if len(text) <= budget_chars:
        return text
    # The budget is too small for a list: return one sentence, or its beginning.
    return f"{_count(len(shown), 0)} {_look_up(language)}"[: max(0, budget_chars)]


def signature_of(tool: RegisteredTool, language: Language = Language.PYTHON) -> str:
    """Return the stub of one tool, after the types that it needs."""
    return _WRITERS[language](taken=[tool.name]).write(tool)


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names by a prefix that at least two share; the others are in the last group, `other`."""
    listed, prefixes = list(names), list[str]()
    for name in listed:
        bare = name.strip("_")
        prefix = bare.partition("__" if "__" in bare else "_")[0]
        prefixes.append(prefix if 0 < len(prefix) <= _MAX_GROUP_NAME_CHARS else OTHER)
    shared = {prefix for prefix, count in Counter(prefixes).items() if count > 1 and prefix != OTHER}
    groups: dict[str, list[str]] = {prefix: [] for prefix in [*sorted(shared), OTHER]}
    for name, prefix in zip(listed, prefixes, strict=True):
        groups[prefix if prefix in shared else OTHER].append(name)
    return {group: members for group, members in groups.items() if members}


def _signatures(stubs: Sequence[str], title: str, language: Language) -> str:
    inside = "\n\n".join(stubs)
    return f"{title}\n\n```{language}\n{inside}\n```"


def _by_group(shown: Sequence[CatalogTool], stubs: list[str], room: int, language: Language) -> list[str]:
    """Return the first stubs, as many as half of *room* holds, and the other functions by name."""
    half = room // 2
    for kept, stub in enumerate(stubs):
        half -= len(stub) + 2
        if half < 0:
            stubs = stubs[:kept]
            break
    count, look_up = _count(len(shown), len(stubs)), _look_up(language)
    parts = [_signatures(stubs, count, language) if stubs else count]
    title = f"{'The others' if stubs else 'They are'}, by group. {look_up}"
    used = sum(len(stub) + 2 for stub in stubs) + len(title) + 4
    lines = _group_lines(group_names(tool.name for tool in shown[len(stubs) :]), room - used)
    return [*parts, "\n".join([title, *lines]) if lines else look_up]


def _count(total: int, kept: int) -> str:
    return f"You can call {total:,} functions." + (f" The first {kept:,} of them:" if kept else "")


def _look_up(language: Language) -> str:
    search, describe = _CALLS[language]
    return f"{search} finds functions by what they do, {describe} shows how to call one."


def _group_lines(groups: dict[str, list[str]], room: int) -> list[str]:
    """Return a line for each group. If not all names fit, each group gets its share and counts the rest."""
    groups = _fewer(groups, max(0, room // _MIN_LINE_CHARS))
    whole = {group: f"- {group} ({len(each):,}): {', '.join(each)}" for group, each in groups.items()}
    lines = dict.fromkeys(groups, "")
    # Short lines first, so that long ones get the room that these do not use.
    for done, group in enumerate(sorted(whole, key=lambda group: len(whole[group]))):
        share = room // (len(whole) - done) - 1
        lines[group] = _cut_line(group, groups[group], share) if len(whole[group]) > share else whole[group]
        room -= len(lines[group]) + 1
    return list(lines.values())


def _fewer(groups: dict[str, list[str]], most: int) -> dict[str, list[str]]:
    """Return at most *most* groups: the largest, and one that merges all the others."""
    if len(groups) <= most:
        return groups
    if not most:
        return {}
    named = [group for group in groups if group != OTHER]
    largest = set(sorted(named, key=lambda group: -len(groups[group]))[: most - 1])
    kept = {group: groups[group] for group in named if group in largest}
    rest = [name for group, members in groups.items() if group not in largest for name in members]
    return {**kept, OTHER: rest}


def _cut_line(group: str, members: Sequence[str], room: int) -> str:
    """Return a line with as many names as fit and the number of the others."""
    line = f"- {group} ({len(members):,}): "
    room -= len(line) + len(f"… and {len(members):,} more")
    kept: list[str] = []
    for name in members:
        room -= len(name) + 2
        if room < 0:
            break
        kept.append(f"{name}, ")
    return f"{line}{''.join(kept)}… and {len(members) - len(kept):,} more"


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
"""The weights of matching a whole word, a prefix, and a part inside a word."""

_QUERY = msgspec.Meta(description="what the tool should do, in a few words")
_LIMIT = msgspec.Meta(description=f"how many to list, up to {MAX_RESULTS}")
_NAME = msgspec.Meta(description="the name of a tool, as search_tools() gives it")


class _Field:
    """The words of one field of all tools, and the tools that have them."""

    def __init__(self, texts: Sequence[str], weights: tuple[float, float, float]) -> None:
        self._weights = weights
        self._having: dict[str, list[int]] = {}
        for place, text in enumerate(texts):
            for word in set(_words(text)):
                self._having.setdefault(word, []).append(place)

    @cached_property
    def _vocabulary(self) -> tuple[str, list[str], list[int]]:
        """Return all words as one text, for one fast scan, and the offset of each."""
        words = list(self._having)
        starts, at = [], 1
        for word in words:
            starts.append(at)
            at += len(word) + 1
        return "\n" + "\n".join(words) + "\n", words, starts

    def find(self, term: str) -> dict[int, float]:
        """Return the weight of the term in each tool that has it."""
        found: dict[int, float] = {}
        for word, weight in sorted(self._matches(term), key=lambda match: match[1]):  # best match last
            found.update(dict.fromkeys(self._having[word], weight))
        return found

    def _matches(self, term: str) -> Iterator[tuple[str, float]]:
        whole, beginning, inside = self._weights
        if term in self._having:
            yield term, whole
        if len(term) < 2:
            return
        text, words, starts = self._vocabulary
        # A term of two letters occurs inside too many words to be useful there.
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
        """Return the tools that match the query best; the first tools if the query is empty."""
        words = list(dict.fromkeys(_words(query)))
        terms = ([word for word in words if word not in _STOP_WORDS] or words)[:_MAX_TERMS]
        if not terms:
            return list(self._tools[: max(0, limit)])
        fields = (self._names, self._descriptions)
        scores: dict[int, float] = {}
        for found in sorted((field.find(term) for term in terms for field in fields), key=len):
            rarity = math.log(1 + len(self._tools) / (1 + len(found)))
            # A very common word only adds to the scores of tools that rarer words have found.
            common = len(found) > _MANY and len(scores) >= limit
            for place in list(scores) if common else found:
                scores[place] = scores.get(place, 0.0) + found.get(place, 0.0) * rarity
        best = sorted(sorted(scores), key=scores.__getitem__, reverse=True)
        return [self._tools[place] for place in best[: max(0, limit)]]


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case and singular, `camelCase` whole and in parts."""
    for word in _WORD.findall(text):
        lowered = word.lower()
        yield _singular(lowered)
        if word != lowered or not word.isalpha():
            yield from (_singular(part.lower()) for part in _PART.findall(word))


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def discovery(
    catalog: ToolCatalog, resolve: Resolve, language: Language = Language.PYTHON, owner: str = OWNER
) -> list[RegisteredTool]:
    """Return `search_tools`, `describe_tool` and `list_tools` over one catalog."""
    made = CatalogTools(catalog, resolve, language)
    return owned(owner, made.search_tools, made.describe_tool, made.list_tools)


def searching(catalog: ToolCatalog, resolve: Resolve) -> RegisteredTool:
    """Return only `search_tools`, for models that use native calls for the tools they find."""
    return owned(OWNER, CatalogTools(catalog, resolve, Language.PYTHON).search_tools)[0]


def owned(owner: str, *methods: Tool[Any, Any] | ToolMethod[..., Any]) -> list[RegisteredTool]:
    """Return *methods* of an object as tools owned by *owner*. Contracts are built once per class."""
    tools = [method.registered for method in methods]
    for one in tools:
        msgspec.structs.force_setattr(one, "owner", owner)  # it was created for this list
    return tools


class CatalogTools:
    """The tools that find and describe the tools of one catalog."""

    def __init__(self, catalog: ToolCatalog, resolve: Resolve, language: Language) -> None:
        self._catalog = catalog
        self._resolve = resolve
        self._language = language

    @functools.cached_property
    def _index(self) -> ToolIndex:
        return ToolIndex(self._catalog.searchable())  # most sessions never search

    @tool(side_effect="none")
    async def describe_tool(self, ctx: RunContext[Any], name: Annotated[str, _NAME]) -> dict[str, Any]:
        """Describe one tool in full: its signature, description, schemas, side_effect and approval."""
        found = self._catalog.find(name)
        if found is None:
            import difflib  # needed only for unknown names

            close = difflib.get_close_matches(name[:80], self._catalog.names, n=3, cutoff=0.6)
            hint = (
                f"did you mean {' or '.join(close)}?"
                if close
                else "search_tools(query) finds tools by what they do"
            )
            raise UnknownTool(f"tool {name[:80]!r} does not exist", hint=hint)
        may_call = name in await _found(ctx, [found])
        return _description(await asyncio.to_thread(self._resolve, name), self._language, may_call)

    @tool(side_effect="none")
    def list_tools(self) -> list[dict[str, str]]:
        """List every tool that can be found: its name, and the first line of its description."""
        return [
            {"name": each.name, "description": _first_line(each.manifest.description)}
            for each in self._catalog.searchable()
        ]

    @tool(side_effect="none")
    async def search_tools(
        self, ctx: RunContext[Any], query: Annotated[str, _QUERY], limit: Annotated[int, _LIMIT] = 10
    ) -> list[dict[str, Any]]:
        """Find tools by what they do: name, signature, description and may_call of each, the best first."""
        hits = await asyncio.to_thread(self._look_up, query, limit)  # indexing many tools is slow
        found = await _found(ctx, [hit for hit, _ in hits])
        return [
            {
                "name": hit.name,
                "signature": signature,
                "description": _first_line(hit.manifest.description),
                "may_call": hit.name in found,
            }
            for hit, signature in hits
        ]

    def _look_up(self, query: str, limit: int) -> list[tuple[CatalogTool, str]]:
        hits = self._index.search(query, min(max(limit, 1), MAX_RESULTS))
        return [(hit, _signature_line(hit.name, self._resolve, self._language)) for hit in hits]


async def _found(ctx: RunContext[Any], hits: Sequence[CatalogTool]) -> set[str]:
    """Record for the session that the model found these tools; return the names of those it may call."""
    far = [hit.name for hit in hits if hit.availability < ToolAvailability.CALLABLE]
    callable_now = {hit.name for hit in hits} - set(far)
    if not far:
        return callable_now
    for _ in range(_MOST_TRIES):
        try:
            state = await ctx.host.tool_state(ctx.session_id)
            await ctx.host.apply_tool_state(ctx.session_id, state.with_found(far))
        except ServiceUnavailable:  # there is no session to record them in
            return callable_now
        except GenerationMismatch:
            continue  # another call has changed the tools in the meantime
        return callable_now | set(far)
    return callable_now


def _signature_line(name: str, resolve: Resolve, language: Language) -> str:
    """Return a tool's declaration in one line, or the error if its source failed to load it."""
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


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
