"""Tools as functions, in the prompt of a model that acts in code.

Theory of operation
-------------------
Every tool that the model is shown is a stub in the session's language, if all of them fit into the budget.
If not, the stubs of the first tools (in the catalog's order) are kept until half of the budget is used, and
every other tool is listed by name in its group. A group is what names have in common before their first `__`
or `_`.

Rules
-----
1. The text never exceeds the budget, and is the same for the same catalog: prompts are cached.
2. A stub that takes more than a quarter of the budget is shown without its parameters.
3. Contracts are asked for only as far as their stubs are written: most of ten thousand never are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from standfast.model.language import Language
from standfast.protocols.tool_docs.stub_writer import StubWriter
from standfast.protocols.tool_docs.typescript_writer import TypeScriptWriter
from standfast.tools.catalog import CatalogTool, ToolCatalog
from standfast.tools.registered_tool import RegisteredTool

DEFAULT_BUDGET_CHARS: Final = 16_000
OTHER: Final = "other"
_MAX_GROUP_NAME_CHARS: Final = 40
_MIN_LINE_CHARS: Final = 100
_SEARCH: Final = {
    Language.PYTHON: "`search_tools(query)`",
    Language.TYPESCRIPT: "`await search_tools({query})`",
}
_DESCRIBE: Final = {
    Language.PYTHON: "`describe_tool(name)`",
    Language.TYPESCRIPT: "`await describe_tool({name})`",
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
    """What the prompt says about the tools of *catalog*; *resolve* is a registry's `require`."""
    shown = catalog.showcased()
    more = _more(len(catalog.searchable()) - len(shown), language, alone=not shown)
    frame = _signatures([""], "", language)
    room = budget_chars - len(more) - len(frame) - len(_count(len(shown), len(shown)))
    stubs, complete = _stubs(catalog, resolve, room, language)
    if complete:
        parts = [_signatures(stubs, "Functions that you can call:", language)] if stubs else []
    else:
        kept = _first(stubs, room // 2)
        parts = _by_group(shown, kept, room, language)
    text = "\n\n".join(part for part in (*parts, more) if part)
    if len(text) <= budget_chars:
        return text
    # A budget that is too small for it holds a sentence, or its beginning.
    return f"{_count(len(shown), 0)} {_look_up(language)}"[: max(0, budget_chars)]


def signature_of(tool: RegisteredTool, language: Language = Language.PYTHON) -> str:
    """One tool as a stub, after the types that it needs."""
    return _WRITERS[language](taken=[tool.name]).write(tool)


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by what they have in common with at least one other, the rest under `other`, which comes last."""
    listed = list(names)
    prefixes = [_prefix(name) for name in listed]
    shared = {prefix for prefix, count in Counter(prefixes).items() if count > 1 and prefix != OTHER}
    groups: dict[str, list[str]] = {prefix: [] for prefix in [*sorted(shared), OTHER]}
    for name, prefix in zip(listed, prefixes, strict=True):
        groups[prefix if prefix in shared else OTHER].append(name)
    return {group: members for group, members in groups.items() if members}


def _prefix(name: str) -> str:
    """What a name has before its first `__`, or else before its first `_`."""
    bare = name.strip("_")
    prefix = bare.partition("__" if "__" in bare else "_")[0]
    return prefix if 0 < len(prefix) <= _MAX_GROUP_NAME_CHARS else OTHER


# Stubs


def _stubs(catalog: ToolCatalog, resolve: Resolve, room: int, language: Language) -> tuple[list[str], bool]:
    """The stubs of what is showcased, in order, and whether they all fit; writing ends where they do not."""
    writer = _WRITERS[language](taken=catalog.names)
    stubs: list[str] = []
    most = max(0, room // 4)
    for tool in catalog.showcased():
        stub = writer.write(resolve(tool.name), max_chars=most)
        room -= len(stub) + 2
        if room < 0:
            return stubs, False
        stubs.append(stub)
    return stubs, True


def _first(stubs: list[str], room: int) -> list[str]:
    """As many of the first stubs as there is room for."""
    for count, stub in enumerate(stubs):
        room -= len(stub) + 2
        if room < 0:
            return stubs[:count]
    return stubs


def _signatures(stubs: Sequence[str], title: str, language: Language) -> str:
    inside = "\n\n".join(stubs)
    return f"{title}\n\n```{language}\n{inside}\n```"


# Groups


def _by_group(shown: Sequence[CatalogTool], stubs: list[str], room: int, language: Language) -> list[str]:
    """The first functions in full, the others by name."""
    count, look_up = _count(len(shown), len(stubs)), _look_up(language)
    parts = [_signatures(stubs, count, language) if stubs else count]
    title = f"{'The others' if stubs else 'They are'}, by group. {look_up}"
    used = sum(len(stub) + 2 for stub in stubs) + len(title) + 4
    lines = _group_lines(group_names(tool.name for tool in shown[len(stubs) :]), room - used)
    return [*parts, "\n".join([title, *lines]) if lines else look_up]


def _count(total: int, kept: int) -> str:
    return f"You can call {total:,} functions." + (f" The first {kept:,} of them:" if kept else "")


def _more(count: int, language: Language, *, alone: bool) -> str:
    if count < 1:
        return ""
    things = "tool" if count == 1 else "tools"
    return f"{count:,} {things if alone else f'more {things}'} can be found with {_SEARCH[language]}."


def _look_up(language: Language) -> str:
    search, describe = _SEARCH[language], _DESCRIBE[language]
    return f"{search} finds functions by what they do, {describe} shows how to call one."


def _group_lines(groups: dict[str, list[str]], room: int) -> list[str]:
    """A line for each group. If not all names fit, each group has its share and says how many are missing."""
    groups = _fewer(groups, max(0, room // _MIN_LINE_CHARS))
    whole = {group: _line(group, members) for group, members in groups.items()}
    lines = dict.fromkeys(groups, "")
    # The short lines first: what they leave of their share is the others'.
    for done, group in enumerate(sorted(whole, key=lambda group: len(whole[group]))):
        share = room // (len(whole) - done) - 1
        lines[group] = _cut_line(group, groups[group], share) if len(whole[group]) > share else whole[group]
        room -= len(lines[group]) + 1
    return list(lines.values())


def _fewer(groups: dict[str, list[str]], most: int) -> dict[str, list[str]]:
    """At most so many groups: the largest, and all the others as one."""
    if len(groups) <= most:
        return groups
    if not most:
        return {}
    named = [group for group in groups if group != OTHER]
    largest = set(sorted(named, key=lambda group: -len(groups[group]))[: most - 1])
    kept = {group: groups[group] for group in named if group in largest}
    rest = [name for group, members in groups.items() if group not in largest for name in members]
    return {**kept, OTHER: rest}


def _line(group: str, members: Sequence[str]) -> str:
    return f"- {group} ({len(members):,}): {', '.join(members)}"


def _cut_line(group: str, members: Sequence[str], room: int) -> str:
    """As many names as fit, and how many there are more."""
    line = f"- {group} ({len(members):,}): "
    room -= len(line) + len(f"… and {len(members):,} more")
    kept: list[str] = []
    for name in members:
        room -= len(name) + 2
        if room < 0:
            break
        kept.append(f"{name}, ")
    return f"{line}{''.join(kept)}… and {len(members) - len(kept):,} more"
