"""The tables on the engines page match the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from behaviours import GROUPS
from behaviours.printing import page_section

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "engines.md"
_MARK = "<!-- written by pytest tests/conformance --conformance-write -->\n\n"


def test_the_page_lists_what_each_engine_does_not_support(pytestconfig: pytest.Config) -> None:
    """Ours: the docs list every behaviour that an engine does not support, with its error code."""
    kept, mark, listed = PAGE.read_text(encoding="utf-8").partition(_MARK)
    if pytestconfig.getoption("--conformance-write", default=False):
        PAGE.write_text(kept + mark + page_section(GROUPS), encoding="utf-8")
    else:
        assert listed == page_section(GROUPS), "run pytest tests/conformance --conformance-write"
