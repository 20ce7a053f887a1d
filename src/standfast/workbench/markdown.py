"""CommonMark rendered as elements of a closed list. HTML stays text; images become links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import htpy as h

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

MAX_CHARS: Final = 60_000
"""Longer texts are shown verbatim."""
_PLAIN: Final = {
    "paragraph": h.p, "bullet_list": h.ul, "list_item": h.li, "blockquote": h.blockquote, "strong": h.strong,
    "em": h.em, "s": h.s, "thead": h.thead, "tbody": h.tbody, "tr": h.tr, "th": h.th, "td": h.td,
}  # fmt: skip
_MARKUP: Final = re.compile(r"[*_`~\[\]#>|\\]|^\s*[-+\d]", re.MULTILINE)
_SCHEMES: Final = frozenset({"http", "https", "mailto"})


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])


def render_markdown(text: str) -> h.Node:
    """Render Markdown *text* as elements."""
    if len(text) > MAX_CHARS:
        return h.pre(".plain", dir="auto")[text]
    return _rendered(text)


@lru_cache(maxsize=1_000)
def _rendered(text: str) -> h.Node:
    """Render and cache *text*: the same turns are shown repeatedly, and parsing dominates their cost."""
    from markdown_it.tree import SyntaxTreeNode

    return h.fragment[_children(SyntaxTreeNode(_parser().parse(text)))].__html__()


@lru_cache(maxsize=1_000)
def plain_text(text: str, most: int = 400) -> str:
    """Return the first *most* characters of Markdown *text* without its markup."""
    if not _MARKUP.search(text[:most]):
        return text[:most]
    inline = (token for token in _parser().parse(text[:most]) if token.type in ("inline", "fence"))
    return " ".join(
        "".join(" " if part.type.endswith("break") else part.content for part in token.children or (token,))
        for token in inline
    )


def _children(node: SyntaxTreeNode) -> Iterator[h.Node]:
    for child in node.children:
        yield _element(child)


def _element(node: SyntaxTreeNode) -> h.Node:
    kind = node.type
    if kind in _PLAIN:
        direction = {"dir": "auto"} if kind in ("paragraph", "list_item", "th", "td") else {}
        if kind == "paragraph" and node.hidden:  # in a tight list
            return list(_children(node))
        return _PLAIN[kind](direction)[_children(node)]
    match kind:
        case "inline":
            return list(_children(node))
        case "heading":
            return h.p(".heading", dir="auto")[_children(node)]
        case "ordered_list":
            return h.ol(start=str(node.attrs.get("start", 1)))[_children(node)]
        case "table":
            return h.div(".scroll", tabindex="0")[h.table[_children(node)]]
        case "fence" | "code_block":
            return h.pre(".code", tabindex="0")[h.code[node.content.rstrip("\n")]]
        case "code_inline":
            return h.code[node.content]
        case "link":
            return _link(str(node.attrs.get("href", "")), list(_children(node)))
        case "image":
            return _link(str(node.attrs.get("src", "")), node.content or "image")
        case "softbreak":
            return "\n"
        case "hardbreak":
            return h.br
        case "hr":
            return h.hr
        case _:  # text, and every element that is not on the list
            return node.content


def _link(target: str, shown: h.Node) -> h.Node:
    """Return a link that sends no referrer, or just its text if *target* is not a web or mail address."""
    try:
        scheme = urlsplit(target).scheme.lower()
    except ValueError:
        scheme = ""
    if scheme not in _SCHEMES:
        return shown
    return h.a(href=target, rel="noreferrer noopener nofollow", target="_blank", title=target)[shown]
