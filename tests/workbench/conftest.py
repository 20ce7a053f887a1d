"""Fixtures of the workbench tests: a browser, a server and a page."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))

from workbench_stage import Workbench

expect.set_options(timeout=30_000)  # a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser for the tests of a file. While it is open, `asyncio.run` fails in this thread."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: scripts/setup-engines installs it on Debian as root")
    with sync_playwright() as playwright:
        # --no-sandbox: as root, Chromium has no sandbox of its own. The pages are ours.
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """Start one server for the tests of a file; each test uses its own sessions."""
    with Workbench(tmp_path_factory.mktemp("workbench")) as running:
        yield running


@pytest.fixture(scope="module")
def page(stage: Workbench, browser: Browser) -> Iterator[Page]:
    """Return the page of Ada, who may do everything."""
    with stage.person(browser) as opened:
        yield opened
