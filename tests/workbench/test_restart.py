"""A page whose server is killed and restarted."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import interpreters
import pytest
from playwright.sync_api import Browser, expect

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from server_stage import ServerProcess

pytestmark = pytest.mark.slow


def test_a_page_recovers_after_its_server_was_killed_during_a_stream(
    browser: Browser, tmp_path: Path
) -> None:
    """Ours: the page says that the connection is lost, reconnects, and shows the whole turn."""
    server = ServerProcess(tmp_path)
    server.start()
    words = ["tokens", "link", "--scope", "admin", "--url", server.url, "--data-dir", str(tmp_path)]
    link = interpreters.run(
        [sys.executable, "-m", "standfast", *words], capture_output=True, text=True, check=True
    )
    page = browser.new_page()
    try:
        page.goto(link.stdout.strip())
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="New session").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Session ID").fill("survivor")
        dialog.get_by_label("First message").fill("stream 1500")
        dialog.get_by_role("button", name="Start session").click()
        expect(page.locator("#stream-text")).to_contain_text("3 ")
        server.stop(signal.SIGKILL)
        expect(page.locator("#offline")).to_be_visible()
        server.start()
        expect(page.locator("#offline")).to_be_hidden(timeout=60_000)
        expect(page.locator("#turns .prose")).to_contain_text("1498 1499", timeout=60_000)
        assert page.locator("#turns .turn").count() == 1
        expect(page.locator("#session-head")).to_contain_text("Idle")
    finally:
        page.close()
        server.stop(signal.SIGTERM)
