"""A session as one HTML file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
from playwright.sync_api import Browser, expect
from workbench_stage import PIXEL, Workbench

from standfast import Attachment
from standfast.workbench.export import export_html

pytestmark = pytest.mark.slow


def test_an_export_is_one_file_without_requests(stage: Workbench, browser: Browser, tmp_path: Path) -> None:
    """Ours: the same renderers write one self-contained file; it has no script and makes no request.

    Bug: its times were `4 s ago`, whenever it was opened.
    """
    stage.say("kept", ["say **hello** <script>xss()</script>", Attachment(PIXEL, "image/png", "dot.png")])
    stage.say("kept", 'call order {"order_id": "A1"}')
    stage.say("kept", 'call refund {"order_id": "A1", "cents": 5}')
    file = tmp_path / "kept.html"
    file.write_text(stage.run(export_html(stage.runtime, "kept")), encoding="utf-8")
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    expect(page.locator(".prose strong").first).to_have_text("hello")
    expect(page.locator("main")).not_to_contain_text(" ago")  # the file may be read much later
    expect(page.locator(".call .name")).to_have_text(["order", "refund"])
    image = page.locator("img")
    assert image.evaluate("one => one.complete && one.naturalWidth") == 1
    assert page.locator("script, a[href^='/'], button, form").count() == 0
    assert page.locator(".top").evaluate("one => getComputedStyle(one).display") == "flex"
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    """Ours: `standfast trace export SESSION --html` writes a session of the store."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "standfast", *words, "--data-dir", str(tmp_path)]
        return interpreters.run(command, capture_output=True, text=True)

    assert run("chat", "--session", "s", "order A1").returncode == 0
    made = run("trace", "export", "s", "--html", "--out", str(tmp_path / "s.html"), "--json")
    assert json.loads(made.stdout) == {"file": str(tmp_path / "s.html")}
    assert "days_late" in (tmp_path / "s.html").read_text()
    assert run("trace", "export", "s", "--html").stdout.startswith("<!doctype html>")
    assert run("trace", "export", "s").returncode == 2
    assert run("trace", "export", "nothing", "--html").returncode == 1
