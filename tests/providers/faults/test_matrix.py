"""The matrix is complete: every fault is tried on every vendor."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path

import pytest
from fault_table import CELLS, FAULTS
from fault_vendors import ANTHROPIC, CHAT, GOOGLE, OPENAI, VENDORS

from standfast.testing.servers.http_server import ModelServer

pytestmark = pytest.mark.slow


def read_all_tests() -> None:
    """Import the test files of this folder, which fills the table."""
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            spec = importlib.util.spec_from_file_location(f"read_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_every_fault_is_tried_on_every_vendor() -> None:
    """Ours: a cell without a test would look like one that passed."""
    read_all_tests()
    assert set(CELLS) == set(product(FAULTS, (vendor.name for vendor in VENDORS)))


def test_every_vendor_that_has_a_server_is_in_the_matrix() -> None:
    """Ours: a vendor that is added later must be tested, too."""
    import standfast.testing.servers as servers

    folder = Path(str(servers.__file__)).parent
    written = {path.stem for path in folder.glob("*_server.py")} - {"http_server"}
    tried = {vendor.server.__module__.rpartition(".")[2] for vendor in VENDORS}
    assert tried == written
    assert all(issubclass(vendor.server, ModelServer) for vendor in VENDORS)


def test_known_slips_are_listed_only_for_formats_that_cannot_detect_them() -> None:
    """Ours: OpenAI numbers its events and repeats its items; unreadable events are always detected."""
    assert OPENAI.slips == {}
    for vendor in (CHAT, ANTHROPIC, GOOGLE):
        assert set(vendor.slips) == {"duplicate", "swap", "drop"}
        assert "call twice" not in set().union(*vendor.slips.values())
