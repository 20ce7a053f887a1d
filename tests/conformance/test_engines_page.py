"""The page about engines says what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest
from behaviours import GROUPS
from behaviours.printing import page_section

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "engines.md"
_MARK = "This list is made of the table\nthat the tests run.\n\n"


def test_the_page_lists_what_each_engine_cannot_do(pytestconfig: pytest.Config) -> None:
    """Ours: every cell that an engine cannot fill is named in the docs, with its code."""
    kept, mark, listed = PAGE.read_text(encoding="utf-8").partition(_MARK)
    if pytestconfig.getoption("--conformance-write", default=False):
        PAGE.write_text(kept + mark + page_section(GROUPS), encoding="utf-8")
    else:
        assert listed == page_section(GROUPS), "pytest tests/conformance --conformance-write brings it there"
