"""Tools as functions in the prompt of a model that acts in code.

Every showcased tool is written as a stub in the session's language if all stubs fit into the budget. If not,
the first stubs (in the catalog's order) are kept until half of the budget is used, and the other tools are
listed by name in groups. A group is the common part of names before their first `__` or `_`.

Rules
-----
1. The text never exceeds the budget, and is the same for the same catalog: prompts are cached.
2. A stub that takes more than a quarter of the budget is shown without its parameters.
3. Contracts are resolved only for stubs that are written: most of ten thousand never are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from standfast.model.language import Language
from standfast.protocols.tool_docs.stub_writer import StubWriter, TypeScriptWriter
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import CatalogTool, ToolCatalog

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
    for tool in shown:
        stub = writer.write(resolve(tool.name), max_chars=max(0, room // 4))
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
    # A budget that is too small for it holds a sentence, or its beginning.
    return f"{_count(len(shown), 0)} {_look_up(language)}"[: max(0, budget_chars)]


def signature_of(tool: RegisteredTool, language: Language = Language.PYTHON) -> str:
    """Return the stub of one tool, after the types that it needs."""
    return _WRITERS[language](taken=[tool.name]).write(tool)


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names by a prefix that at least two share; the rest is under `other`, which comes last."""
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
    # Short lines first: the others get what these leave of their share.
    for done, group in enumerate(sorted(whole, key=lambda group: len(whole[group]))):
        share = room // (len(whole) - done) - 1
        lines[group] = _cut_line(group, groups[group], share) if len(whole[group]) > share else whole[group]
        room -= len(lines[group]) + 1
    return list(lines.values())


def _fewer(groups: dict[str, list[str]], most: int) -> dict[str, list[str]]:
    """Return at most *most* groups: the largest, and all the others as one."""
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
