"""One turn in a browser: its waterfall, and its journal with forks from the middle."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from workbench_stage import Workbench

pytestmark = pytest.mark.slow


def open_turn(page: Page, stage: Workbench, session_id: str, view: str) -> None:
    page.goto(f"{stage.url}/sessions/{session_id}")
    page.locator("#turns .turn header").last.get_by_role("link", name=view).click()
    page.wait_for_url(f"{stage.url}/sessions/{session_id}/turns/*/{view}*")


def test_the_waterfall_draws_the_spans_of_a_turn(stage: Workbench, page: Page) -> None:
    """Ours: spans with tokens, from the journal, without any set-up; a filter for failures."""
    stage.say("drawn", 'call order {"order_id": "none"}')
    open_turn(page, stage, "drawn", "waterfall")
    spans = page.locator(".waterfall .span")
    expect(spans.filter(has_text="order()")).to_have_count(1)
    expect(page.locator(".waterfall")).to_contain_text("1.2k → 80 tokens")
    expect(page.locator(".waterfall .bar.bad")).to_have_count(1)
    before = spans.count()
    page.get_by_role("link", name="Failures").click()
    expect(spans.filter(has_text="order()")).to_have_count(1)
    assert spans.count() < before


def test_a_wait_is_hatched_and_a_takeover_marked(stage: Workbench, page: Page) -> None:
    """Ours: time in which the turn only waited looks different from time in which it ran."""
    waits = stage.say("waited", 'call refund {"order_id": "A1", "cents": 5}').waits
    stage.run(stage.runtime.session_handle("waited").approve(waits[0].wait_id))
    open_turn(page, stage, "waited", "waterfall")
    expect(page.locator(".bar.wait")).to_have_count(1)


def test_the_journal_is_stepped_through(stage: Workbench, page: Page) -> None:
    """Ours: at each input the page shows what came in, what the machine decided, and what it knew."""
    stage.say("stepped", 'call order {"order_id": "A1"}')
    open_turn(page, stage, "stepped", "journal")
    expect(page.locator(".panel h2").first).to_contain_text("turn started")
    expect(page.get_by_label("The commands")).to_contain_text("call_model")
    last = page.locator(".steps a").count()
    for _ in range(last - 1):
        page.get_by_role("link", name="Next").click()
    expect(page.locator("main")).to_contain_text(f"Input {last} of {last}")
    expect(page.locator(".turn .prose").last).to_contain_text("The tool said")
    page.go_back()
    expect(page.locator("main")).to_contain_text(f"Input {last - 1} of {last}")


def test_a_fork_continues_with_another_result_of_the_tool(stage: Workbench, page: Page) -> None:
    """Ours: edit a tool's result at its place in the journal and continue from it in a fork."""
    stage.say("edited", 'call order {"order_id": "A1"}')
    open_turn(page, stage, "edited", "journal")
    page.locator(".steps a").filter(has_text="tool settled").click()
    page.get_by_label("The tool's result").fill('{"id": "A1", "cents": 1}')
    page.get_by_role("button", name="Fork after this input").click()
    page.wait_for_url(f"{stage.url}/sessions/edited-*")
    expect(page.locator("#turns")).to_contain_text("'cents': 1}")
    page.goto(f"{stage.url}/sessions/edited")
    expect(page.locator("#turns")).to_contain_text("'cents': 1999")


def test_a_fork_continues_with_another_reply_of_the_model(stage: Workbench, page: Page) -> None:
    """Ours: edit the model's reply and continue from it in a fork."""
    stage.say("reworded", "say one thing")
    open_turn(page, stage, "reworded", "journal")
    page.locator(".steps a").filter(has_text="model replied").click()
    page.get_by_label("The model's reply").fill("another thing")
    page.get_by_role("button", name="Fork after this input").click()
    page.wait_for_url(f"{stage.url}/sessions/reworded-*")
    expect(page.locator("#turns .prose")).to_have_text("another thing")
