"""Sessions that run code without a model, and the lines of calls, in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from workbench_stage import Workbench

pytestmark = pytest.mark.slow
BRANCHES = """
for name in ["A1", "A2"]:
    if name == "A1":
        order(name)
    else:
        order(name)"""
LOOP = """
for i in range(30):
    try:
        order("none" if i == 20 else str(i))
    except Exception:
        pass"""


def test_a_run_shows_its_calls_at_their_lines_and_its_variables(stage: Workbench, page: Page) -> None:
    """Ours: variables before and after a cell are shown, also without a model."""
    stage.run_code("plain-runs", "total = 1\nkept = 'same'")
    stage.run_code("plain-runs", "found = order('A1')\ntotal += found['cents']\ntotal")
    page.goto(f"{stage.url}/sessions/plain-runs")
    expect(page.locator("#turns .speaker")).to_have_text(["Code", "Code"])
    cell = page.locator("#turns .cell").last
    expect(cell.locator("code:has(+ .at-line)")).to_have_text("found = order('A1')")
    expect(cell.locator(".made")).to_contain_text('"cents": 1999')
    cell.get_by_text("Calls and variables").click()
    rows = cell.locator("table.vars tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="total").locator("td")).to_have_text(["total", "1 int", "2000 int"])
    expect(rows.filter(has_text="kept")).not_to_have_class("changed")
    page.locator("#turns .cell").first.get_by_text("Calls and variables").click()
    first = page.locator("#turns .cell").first.locator("table.vars tbody tr").filter(has_text="total")
    expect(first.locator("td")).to_have_text(["total", "–", "1 int"])


def test_a_session_without_a_model_can_be_forked_after_any_run(stage: Workbench, page: Page) -> None:
    """Ours: a fork has the variables after that run, even if it was cancelled."""
    stage.run_code("trunk-run", "a = 1")
    stage.run_code("trunk-run", "a = 2\n1 / 0")
    assert stage.run_code("trunk-run", "a = 3\nrefund('A1', 5)").status == "waiting_for_approval"
    page.goto(f"{stage.url}/sessions/trunk-run")
    forks = page.get_by_role("button", name="Fork after this run")
    expect(forks).to_have_count(2)
    page.get_by_role("button", name="Cancel run").click()
    expect(forks).to_have_count(3)
    expect(page.get_by_role("button", name="Fork from here")).to_have_count(0)
    for place, value in enumerate(["1", "2", "2"]):
        page.goto(f"{stage.url}/sessions/trunk-run")
        forks.nth(place).click()
        page.wait_for_url(f"{stage.url}/sessions/trunk-run-*")
        expect(page.locator("#session-head")).to_contain_text("Forked from trunk-run")
        page.get_by_role("textbox", name="Code").fill("a")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator("#turns .cell")).to_have_count(place + 2)
        expect(page.locator("#turns .cell").last.get_by_label("Result")).to_have_text(value)


def test_two_lines_that_call_the_same_function_each_show_their_own_call(stage: Workbench, page: Page) -> None:
    """Ours: the engine reports the line; the structure of this code does not reveal it."""
    for session_id in ("apart", "apart-agent"):
        if session_id == "apart":
            stage.run_code(session_id, BRANCHES)
        else:
            stage.say(session_id, BRANCHES, agent="coder")
        page.goto(f"{stage.url}/sessions/{session_id}")
        expect(page.locator("#turns .at-line")).to_have_count(2)
        expect(page.locator("#turns code:nth-child(3) + .at-line")).to_contain_text("A1")
        expect(page.locator("#turns code:nth-child(6) + .at-line")).to_contain_text("A2")


def test_an_agents_cells_show_the_results_of_their_calls_as_runs_do(stage: Workbench, page: Page) -> None:
    """Bug: calls beside the lines of an agent's finished cell had no results, unlike those of a run."""
    code = "found = order('A1')\nfound['cents']"
    stage.run_code("alike", code)
    stage.say("alike-agent", code, agent="coder")
    shown = []
    for session_id in ("alike", "alike-agent"):
        page.goto(f"{stage.url}/sessions/{session_id}")
        made = page.locator("#turns .cell .made")
        expect(made).to_have_count(1)
        expect(made).to_contain_text('"cents": 1999')
        shown.append(made.locator(".brief").last.inner_text())
    assert shown[0] == shown[1]


def test_a_waiting_run_shows_its_position_and_continues_when_approved(stage: Workbench, page: Page) -> None:
    """Ours: the calls before the waiting one come from the journal, even if no event reported them."""
    code = "for name in ['A1', 'A2']:\n    cents = order(name)['cents']\n    refund(name, cents)\nname"
    assert stage.run_code("waiting-run", code).status == "waiting_for_approval"
    page.goto(f"{stage.url}/sessions/waiting-run")
    current = page.locator("#current .cell")
    expect(current.locator("code.here")).to_have_text("    refund(name, cents)")
    expect(current.locator(".made")).to_have_count(2)
    for _ in range(2):
        before = page.locator(".request").first.get_attribute("id")
        page.get_by_role("button", name="Approve").first.click()
        expect(page.locator(f"#{before}")).to_have_count(0)
    expect(page.locator("#turns .cell .made")).to_have_count(4)
    expect(page.locator("#turns .cell").get_by_label("Result")).to_have_text("A2")


def test_a_long_loop_shows_its_first_and_last_calls_and_the_failed_ones(stage: Workbench, page: Page) -> None:
    """Ours: a page stays readable if a line made many calls; all of them are available on demand."""
    stage.run_code("many-calls", LOOP)
    page.goto(f"{stage.url}/sessions/many-calls")
    line = page.locator("#turns .at-line")
    expect(line.locator(".made")).to_have_count(8)
    expect(line.locator(".made.bad")).to_contain_text("ORDER_NOT_FOUND")
    expect(line).to_contain_text("… 18 more calls")
    page.get_by_text("Calls and variables").click()
    expect(page.locator("#turns .history > .stack > .stack .call")).to_have_count(30)


def test_code_can_be_run_and_cancelled_from_the_page(stage: Workbench, page: Page) -> None:
    """Ours: a session without a model accepts code where another accepts a message."""
    stage.run_code("typed", "a = 1")
    page.goto(f"{stage.url}/sessions/typed")
    field = page.get_by_role("textbox", name="Code")
    field.fill("a += 41\na")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#turns .cell")).to_have_count(2)
    expect(page.locator("#turns .cell").last.get_by_label("Result")).to_have_text("42")
    expect(field).to_have_value("")
    field.fill("refund('A1', 5)")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#current")).to_contain_text("Waiting")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator("#turns")).to_contain_text("cancelled")
    field.fill("a")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#turns .cell").last.get_by_label("Result")).to_have_text("42")


def test_the_list_of_sessions_shows_the_last_code(stage: Workbench, page: Page) -> None:
    """Ours: a session without a model has no messages, so its last code is shown instead."""
    stage.run_code("listed-run", "answer = 6 * 7")
    page.goto(f"{stage.url}/?q=listed-run")
    expect(page.locator("#s-listed-run")).to_contain_text("answer = 6 * 7")
