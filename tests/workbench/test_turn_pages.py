"""The pages of a turn in a browser: its waterfall, and its journal with forks from the middle."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect
from workbench_stage import Workbench

pytestmark = pytest.mark.slow


def open_turn(page: Page, stage: Workbench, session_id: str, view: str) -> None:
    page.goto(f"{stage.url}/sessions/{session_id}")
    page.locator("#turns .turn header").last.get_by_role("link", name=view).click()
    page.wait_for_url(f"{stage.url}/sessions/{session_id}/turns/*/{view}*")


def test_the_waterfall_shows_the_spans_of_a_turn(stage: Workbench, page: Page) -> None:
    """Ours: spans with tokens come from the journal, without any set-up; failures can be filtered."""
    stage.say("drawn", 'call order {"order_id": "none"}')
    open_turn(page, stage, "drawn", "waterfall")
    spans = page.locator(".waterfall .span")
    expect(spans.filter(has_text="order()")).to_have_count(1)
    expect(page.locator(".waterfall")).to_contain_text("1.2k → 80 tokens")
    expect(page.locator(".span .bar.bad")).to_have_count(1)
    before = spans.count()
    page.get_by_role("link", name="Failures").click()
    expect(spans.filter(has_text="order()")).to_have_count(1)
    assert spans.count() < before


def test_waits_are_hatched_and_takeovers_are_marked(stage: Workbench, page: Page) -> None:
    """Ours: waiting looks different from running."""
    waits = stage.say("waited", 'call refund {"order_id": "A1", "cents": 5}').waits
    stage.run(stage.runtime.session_handle("waited").approve(waits[0].wait_id))
    open_turn(page, stage, "waited", "waterfall")
    expect(page.locator(".span .bar.wait")).to_have_count(1)


def test_the_journal_can_be_stepped_through(stage: Workbench, page: Page) -> None:
    """Ours: at each input the page shows the input, the machine's decisions, and its state."""
    stage.say("stepped", 'call order {"order_id": "A1"}')
    open_turn(page, stage, "stepped", "journal")
    expect(page.locator(".panel h2").first).to_contain_text("Turn started")
    expect(page.get_by_label("Decisions")).to_contain_text("call_model")
    last = page.locator(".steps a").count()
    for _ in range(last - 1):
        page.get_by_role("link", name="Next").click()
    expect(page.locator("main")).to_contain_text(f"Input {last} of {last}")
    expect(page.locator(".turn .prose").last).to_contain_text("The tool said")
    page.go_back()
    expect(page.locator("main")).to_contain_text(f"Input {last - 1} of {last}")


def test_a_fork_continues_with_an_edited_tool_result(stage: Workbench, page: Page) -> None:
    """Ours: a tool's result can be edited in the journal, and a fork continues from it."""
    stage.say("edited", 'call order {"order_id": "A1"}')
    open_turn(page, stage, "edited", "journal")
    page.locator(".steps a").filter(has_text="tool settled").click()
    page.get_by_label("Replace the tool's result").fill('{"id": "A1", "cents": 1}')
    page.get_by_role("button", name="Fork after this input").click()
    page.wait_for_url(f"{stage.url}/sessions/edited-*")
    expect(page.locator("#turns")).to_contain_text("'cents': 1}")
    page.goto(f"{stage.url}/sessions/edited")
    expect(page.locator("#turns")).to_contain_text("'cents': 1999")


def test_a_fork_continues_with_an_edited_model_reply(stage: Workbench, page: Page) -> None:
    """Ours: the model's reply can be edited, and a fork continues from it."""
    stage.say("reworded", "say one thing")
    open_turn(page, stage, "reworded", "journal")
    page.locator(".steps a").filter(has_text="model replied").click()
    page.get_by_label("Replace the model's reply").fill("another thing")
    page.get_by_role("button", name="Fork after this input").click()
    page.wait_for_url(f"{stage.url}/sessions/reworded-*")
    expect(page.locator("#turns .prose")).to_have_text("another thing")


def test_the_prompt_page_shows_what_the_model_received_and_what_changed(stage: Workbench, page: Page) -> None:
    """Ours: the prompt is shown by contributor, with a diff to the previous call and the cached part."""
    stage.say("asked-of-model", "say hello")
    stage.say("asked-of-model", 'call order {"order_id": "A1"}')
    open_turn(page, stage, "asked-of-model", "prompt")
    expect(page.locator("main")).to_contain_text("Model call 1 of 2")
    expect(page.get_by_label("Tools", exact=True)).to_contain_text("order")
    expect(page.get_by_label("Instructions", exact=True)).to_contain_text("Instructions of the agent")
    expect(page.locator(".cover")).to_contain_text("read from the cache")
    said = page.get_by_label("Messages", exact=True)
    expect(said.locator(".said-part")).to_have_count(3)
    expect(said.locator(".said-part").first).to_contain_text("unchanged")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("main")).to_contain_text("Model call 2 of 2")
    expect(said).to_contain_text('{"id": "A1", "cents": 1999, "days_late": 6}')
    page.get_by_role("link", name="Changes").click()
    added = page.locator("pre.diff ins")
    expect(added.filter(has_text="Result of order")).to_have_count(1)
    expect(page.locator("pre.diff del")).to_have_count(0)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save as JSON").click()
    assert json.loads(saved.value.path().read_text())["messages"][0]["content"] == "say hello"


def test_a_retried_call_shows_its_attempts(stage: Workbench, page: Page) -> None:
    """Ours: a call shows its arguments, result, duration, retries and approval."""
    stage.say("retried", 'call slow_once {"key": "retried"}')
    page.goto(f"{stage.url}/sessions/retried")
    call = page.locator("details.call").first
    call.locator("summary").click()
    expect(call.locator(".attempts")).to_contain_text("2 attempts, 1 retry")
    expect(call.locator(".attempts li").first).to_contain_text("Timed out")
    expect(call).to_contain_text("at last")


def test_a_cell_shows_its_calls_and_its_variables_before_and_after(stage: Workbench, page: Page) -> None:
    """Ours: a cell shows its variables before and after, and each call with arguments and result."""
    stage.say("varied", "a = 1\nfound = order('A1')", agent="coder")
    stage.say("varied", "a = a + 1\nfound = order('B2')\nlast = order('C3')", agent="coder")
    page.goto(f"{stage.url}/sessions/varied")
    cell = page.locator(".cell").last
    expect(cell.locator(".at-line")).to_have_count(2)
    cell.get_by_text("Calls and variables").click()
    rows = cell.locator("table.vars tbody tr")
    expect(rows.filter(has_text="last")).to_have_text(
        ["last–{'id': 'C3', 'cents': 1999, 'days_late': 6} dict"]
    )
    expect(rows.nth(0)).to_contain_text("1 int2 int")
    expect(rows.locator("code.changed")).to_have_count(3)
    made = cell.locator("details.call")
    expect(made).to_have_count(2)
    made.first.locator("summary").click()
    expect(made.first).to_contain_text('"id": "B2"')


def test_turns_of_a_fork_link_to_the_session_that_ran_them(stage: Workbench, page: Page) -> None:
    """Bug: the journal of a turn before a fork was looked up in the fork."""
    stage.say("forked-from", 'call order {"order_id": "A1"}')
    stage.run(stage.runtime.fork("forked-from", "forked-to"))
    page.goto(f"{stage.url}/sessions/forked-to")
    page.locator("#turns .turn header").last.get_by_role("link", name="journal").click()
    expect(page.locator(".panel h2").first).to_contain_text("Turn started")


def test_a_waiting_turn_is_drawn_up_to_now(stage: Workbench, page: Page) -> None:
    """Bug: a wait was drawn only once it was over."""
    stage.say("still-waits", 'call refund {"order_id": "A1", "cents": 5}')
    page.goto(f"{stage.url}/sessions/still-waits")
    page.locator("#current").get_by_role("link", name="waterfall").click()
    expect(page.locator(".span .bar.wait")).to_have_count(1)
    expect(page.locator(".waterfall")).to_contain_text("still waiting")


def test_the_waterfall_shows_subagents_and_crashes(stage: Workbench, page: Page) -> None:
    """Ours: crashes and takeovers are marked, replayed effects are pale, subagents are inline."""
    stage.say("manages", "say done", agent="manager")
    open_turn(page, stage, "manages", "waterfall")
    below = page.locator(".waterfall .what.d2").filter(has_text="clerk")
    expect(below).to_have_count(1)
    crashed = stage.say("crashed", 'call refund {"order_id": "A1", "cents": 5}')
    stage.run(stage.runtime.session_handle("crashed").approve(crashed.waits[0].wait_id))
    open_turn(page, stage, "crashed", "waterfall")
    expect(page.locator(".span .bar.replayed")).not_to_have_count(0)
    expect(page.locator(".waterfall")).to_contain_text("Taken over")


def test_waterfall_journal_and_prompt_follow_a_running_turn(stage: Workbench, page: Page) -> None:
    """Ours: each view updates live."""
    stage.model.held.clear()
    stage.say("followed", "say one")
    page.goto(f"{stage.url}/sessions/followed")
    page.get_by_label("Message").fill("hold")
    page.get_by_role("button", name="Send").click()
    page.locator("#current").get_by_role("link", name="waterfall").click()
    expect(page.locator(".waterfall")).to_contain_text("still running")
    other = page.context.new_page()
    other.goto(page.url.replace("waterfall", "journal"))
    expect(other.locator(".steps a")).to_have_count(1)
    third = page.context.new_page()
    third.goto(page.url.replace("waterfall", "prompt"))
    expect(third.locator("#prompt")).to_contain_text("No model call has ended yet")
    stage.loop.call_soon_threadsafe(stage.model.held.set)
    expect(page.locator(".waterfall")).not_to_contain_text("still running")
    expect(other.locator(".steps a")).to_have_count(2)
    expect(third.locator("#prompt")).to_contain_text("Instructions of the agent")
    other.close()
    third.close()


def test_back_and_forward_return_to_the_same_views(stage: Workbench, page: Page) -> None:
    """Ours: the browser's own buttons work."""
    stage.say("browsed", 'call order {"order_id": "A1"}')
    page.goto(f"{stage.url}/?q=browsed")
    page.locator("#rows .line .name").click()
    page.wait_for_url("**/sessions/browsed")
    page.locator("#turns .turn header").last.get_by_role("link", name="journal").click()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("main")).to_contain_text("Input 2 of")
    for shown in ("Input 1 of", "Conversation", "New session"):
        page.go_back()
        expect(page.locator("main")).to_contain_text(shown)
    for shown in ("Conversation", "Input 1 of", "Input 2 of"):
        page.go_forward()
        expect(page.locator("main")).to_contain_text(shown)


def test_a_fork_can_start_after_a_call(stage: Workbench, page: Page) -> None:
    """Ours: fork from any message or call."""
    stage.say("forked-call", 'call order {"order_id": "A1"}')
    page.goto(f"{stage.url}/sessions/forked-call")
    page.locator("details.call summary").click()
    page.get_by_role("button", name="Fork after this call").click()
    page.wait_for_url(f"{stage.url}/sessions/forked-call-*")
    expect(page.locator("#session-head")).to_contain_text("3 messages")
