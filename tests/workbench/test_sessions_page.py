"""The list of sessions in a browser."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from workbench_stage import Workbench

pytestmark = pytest.mark.slow


def names(page: Page) -> list[str]:
    return page.locator(".sessions .name").all_inner_texts()


def test_an_empty_list_says_how_to_create_sessions(page: Page) -> None:
    """Ours: a new user learns what to do."""
    expect(page.locator(".empty")).to_contain_text("No sessions yet")


def test_a_session_appears_and_changes_its_state_without_a_reload(stage: Workbench, page: Page) -> None:
    """Ours: every view updates live."""
    page.goto(stage.url)
    stage.say("live-1", "say hello")
    row = page.locator("#s-live-1")
    expect(row).to_contain_text("Idle")
    expect(row).to_contain_text("hello")
    stage.say("live-1", 'call refund {"order_id": "A1", "cents": 5}')
    expect(row).to_contain_text("Waiting for a decision")
    expect(page.locator("#pending")).to_contain_text("1")


def test_filters_narrow_the_list_and_are_in_the_url(stage: Workbench, page: Page) -> None:
    """Ours: each view has a URL that can be shared; back and forward work.

    Bug: changing a filter made two requests, and the back button had to be pressed twice.
    """
    stage.say("apple", "say one")
    stage.say("pear", 'call refund {"order_id": "A1", "cents": 5}')
    stage.say("plum", "1 + 1", agent="coder")
    page.goto(f"{stage.url}/?q=p")
    page.locator(".filters").get_by_label("State").select_option("waiting")
    expect(page.locator(".sessions .name")).to_have_text(["pear"])
    assert "state=waiting" in page.url
    apple = page.locator(".sessions .name").filter(has_text="apple")
    page.locator(".filters").get_by_label("State").select_option("")
    expect(apple).to_have_count(1)
    page.locator(".filters").get_by_label("Agent").select_option("coder")
    expect(page.locator(".sessions .name")).to_have_text(["plum"])
    page.go_back()
    expect(apple).to_have_count(1)
    page.go_back()
    expect(page.locator(".sessions .name")).to_have_text(["pear"])
    expect(page).to_have_url(re.compile("state=waiting"))
    page.reload()
    assert names(page) == ["pear"]
    page.goto(f"{stage.url}/?cost=1")
    expect(page.locator(".empty")).to_contain_text("No matching sessions")
    page.goto(f"{stage.url}/?age=1h&q=PEA")
    assert names(page) == ["pear"]


def test_a_session_can_be_started_from_the_list(stage: Workbench, page: Page) -> None:
    """Ours: the button starts a session with an agent and a first message."""
    page.goto(stage.url)
    page.get_by_role("button", name="New session").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Session ID").fill("mine")
    dialog.get_by_label("First message").fill("say welcome")
    dialog.get_by_role("button", name="Start session").click()
    page.wait_for_url(f"{stage.url}/sessions/mine")
    expect(page.locator("#turns")).to_contain_text("welcome")


def test_a_tenant_sees_only_its_own_sessions(stage: Workbench, browser: Browser) -> None:
    """Ours: the credential decides what pages show."""
    stage.say("plain", "say secret")
    stage.say("_acme_own", "say ours")
    with stage.person(browser, "read", tenant="acme") as theirs:
        assert names(theirs) == ["_acme_own"]
        assert theirs.goto(f"{stage.url}/sessions/plain").status == 404
        expect(theirs.locator("#problem")).to_contain_text("Not found")


def test_long_lists_are_paginated(stage: Workbench, page: Page) -> None:
    """Ours: a page of the list stays small however many sessions there are."""
    for number in range(45):
        stage.run(stage.runtime.session(f"many-{number:02}", agent=stage.runtime.agents["clerk"]))
    page.goto(f"{stage.url}/?q=many")
    expect(page.locator(".sessions .line")).to_have_count(40)
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".sessions .line")).to_have_count(5)
    page.get_by_role("link", name="Previous").click()
    expect(page.locator(".sessions .line")).to_have_count(40)


def test_a_page_is_live_however_slowly_its_scripts_load(stage: Workbench, page: Page) -> None:
    """Bug: htmx started before its extension for streams had loaded, and the page never changed."""
    requests = itertools.count()

    def delay(route: Route) -> None:
        time.sleep(0.4 * next(requests))
        route.continue_()

    page.route("**/static/*.js*", delay)
    page.goto(stage.url)
    stage.say("came-later", "say hello")
    expect(page.locator("#rows")).to_contain_text("came-later")
