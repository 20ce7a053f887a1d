"""Reads the description of a function and its parameters from a docstring (Google, NumPy or Sphinx style)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from griffe import PerStyleOptions

_SECTION = r"^\s*(Args|Arguments|Parameters|Params|Returns|Raises|Keyword Args)\s*:?\s*$|^\s*:param"


class DocstringTexts(msgspec.Struct, frozen=True):
    description: str = ""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


def read_docstring(function: Callable[..., Any]) -> DocstringTexts:
    """Split a function's docstring into its description and its parameters' descriptions."""
    text = inspect.getdoc(function) or ""
    if not re.search(_SECTION, text, re.M):
        return DocstringTexts(description=text.strip())
    # griffe is imported only here: importing it takes longer than the rest of the package together.
    from griffe import Docstring, DocstringSectionKind, parse_auto

    # The types are in the signature, which griffe does not see here; its warnings would be noise.
    quiet: PerStyleOptions = {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}  # type: ignore[assignment]
    words: list[str] = []
    parameters: dict[str, str] = {}
    # The default is for a lone `:param` on the last line, which griffe's heuristics do not see.
    for section in parse_auto(Docstring(text), default="sphinx", per_style_options=quiet):
        if section.kind is DocstringSectionKind.text:
            words.append(section.value)
        elif section.kind is DocstringSectionKind.parameters:
            parameters.update({item.name: item.description.strip() for item in section.value})
    return DocstringTexts(description="\n\n".join(words).strip(), parameters=parameters)
