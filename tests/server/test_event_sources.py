"""Streams as other programs' EventSource reads them: npm's, and a browser's with the sign-in cookie."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "encoders"))

from node_client import run_node
from server_stage import ServerStage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("streams")) as running:
        yield running


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [one["text"] for one in events if one["type"] == "text_streamed"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/sessions/one/events", "/v1/events"])
def test_an_npm_event_source_continues_after_a_lost_connection(stage: ServerStage, path: str) -> None:
    """Seed: `Last-Event-ID` resumes the stream; every event arrives exactly once."""
    session = "one" if "one" in path else "all"
    with stage.client() as client:
        client.post("/v1/sessions", json={"session_id": session, "agent": "clerk"}).raise_for_status()
    stage.agent_model.pause_s = 0.02
    found = run_node(
        "eventsource.mjs",
        url=stage.url,
        token=stage.token("read", "run"),
        path=path,
        turns=f"/v1/sessions/{session}/turns",
        say="stream 100",
        cut=3,
    )
    assert len(found["requests"]) == 2
    assert found["requests"][1]["after"] is not None
    assert texts(found["events"]) == [f"{number} " for number in range(100)]


@pytest.fixture
def page(stage: ServerStage) -> Iterator[Page]:
    """Return a page of the server in Chromium, signed in; the page's policy forbids scripts."""
    code = stage.run(stage.app.state.tokens.make_code(scopes=("read", "run")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_context(bypass_csp=True).new_page()
        opened.goto(f"{stage.url}/signin?code={code}")
        opened.get_by_role("button").click()
        yield opened
        browser.close()


READ = """([path, turns]) => {
  window.seen = [];
  window.opened = 0;
  const source = new EventSource(path);
  for (const name of ["text_streamed", "turn_committed", "session_event"]) {
    source.addEventListener(name, (event) => {
      const data = JSON.parse(event.data);
      window.seen.push(data.event ?? data);
      if (window.seen.at(-1).type === "turn_committed") source.close();
    });
  }
  source.addEventListener("open", () => {
    window.opened += 1;
    if (window.opened > 1) return;
    fetch(turns, {
      method: "POST",
      headers: { "content-type": "application/json", "standfast-request": "1" },
      body: JSON.stringify({ input: "stream 200" }),
    });
  });
}"""


@pytest.mark.slow
def test_a_browser_with_the_cookie_reads_streams_and_reconnects(stage: ServerStage, page: Page) -> None:
    """Seed: a browser's EventSource works with the sign-in cookie."""
    with stage.client() as client:
        client.post("/v1/sessions", json={"session_id": "tab", "agent": "clerk"}).raise_for_status()
    stage.agent_model.pause_s, streams = 0.02, stage.app.state.streams

    async def cut() -> None:
        streams.end_all()

    for path in ("/v1/sessions/tab/events", "/v1/events"):
        page.evaluate(READ, [path, "/v1/sessions/tab/turns"])
        page.wait_for_function("() => window.seen.length >= 5")
        stage.run(cut())
        page.wait_for_function("() => window.seen.at(-1).type === 'turn_committed'", timeout=60_000)
        assert texts(page.evaluate("window.seen")) == [f"{number} " for number in range(200)]
        assert page.evaluate("window.opened") == 2
