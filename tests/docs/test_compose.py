"""The compose file on the page about running on many machines."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parent))
from docblocks import ROOT, blocks

from standfast.cli.main import main

PAGE = ROOT / "docs" / "guides" / "scale-out.md"
SERVICE = {
    "build", "command", "depends_on", "deploy", "environment", "healthcheck", "image", "ports", "profiles",
    "restart", "stop_grace_period", "volumes",
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> Any:
    (block,) = [block for block in blocks(PAGE) if block.language == "yaml"]
    return yaml.safe_load(block.text)


def test_the_compose_file_has_every_component_and_no_undefined_names(compose: Any) -> None:
    """Seed: PostgreSQL, Restate, server and workers."""
    services = compose["services"]
    assert set(services) == {"postgres", "server", "worker", "restate", "restate-worker"}
    for name, service in services.items():
        assert set(service) <= SERVICE, name
        assert ("image" in service) != ("build" in service), name
        assert set(service.get("depends_on", ())) <= set(services), name
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"], volume


def test_the_commands_in_the_compose_file_exist(compose: Any) -> None:
    """Ours: renaming an option must not break the page."""
    checked = 0
    for service in compose["services"].values():
        program, *words = service["command"] if "build" in service else ("", "")
        if program != "standfast":
            continue
        with click.Context(main) as context:
            command = main.get_command(context, words[0])
            assert command is not None, words
            parsed = command.make_context(words[0], words[1:], parent=context)
        assert parsed.params["app"] == "shop.py:agents"
        checked += 1
    assert checked == 3


def test_the_variables_in_the_compose_file_are_documented(compose: Any) -> None:
    """Ours: renaming a variable must not break the page."""
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    named = {name for service in compose["services"].values() for name in service.get("environment", ())}
    ours = {name for name in named if name.startswith("STANDFAST_")}
    assert len(ours) == 3
    assert ours <= set(re.findall(r"`(STANDFAST_\w+)`", settings))
