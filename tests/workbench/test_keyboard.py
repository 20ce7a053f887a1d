"""Every view with the keyboard alone: these tests never touch the pointer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from workbench_stage import Workbench

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keys(stage: Workbench, browser: Browser) -> Iterator[Page]:
    """Return the page of a person without a mouse."""
    with stage.person(browser, name="Kim") as opened:
        yield opened


def press(page: Page, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


def tab_to(page: Page, text: str, most: int = 120) -> None:
    """Press Tab until the focus is on an element with this text or label."""
    for _ in range(most):
        page.keyboard.press("Tab")
        own, label = page.evaluate(
            "[document.activeElement.textContent.trim(),"
            " document.activeElement.closest('label')?.textContent ?? '']"
        )
        if own == text or label.startswith(text):
            return
    raise AssertionError(f"Tab never comes to {text!r}")


def test_the_question_mark_lists_the_keys_in_every_view(stage: Workbench, keys: Page) -> None:
    """Ours: a user can discover the keys."""
    stage.say("keyed", "say hello")
    for path in ("/", "/approvals", "/grants", "/tools", "/usage", "/operations", "/sessions/keyed"):
        keys.goto(stage.url + path)
        press(keys, "?")
        expect(keys.get_by_role("dialog", name="Keys")).to_contain_text("Next or previous line")
        press(keys, "Escape")
        expect(keys.get_by_role("dialog")).to_have_count(0)


def test_a_session_can_be_found_opened_and_written_to(stage: Workbench, keys: Page) -> None:
    """Ours: the list and the conversation, keyboard only."""
    stage.say("keyed-talk", "say hello")
    keys.goto(stage.url)
    press(keys, "/")
    keys.keyboard.type("keyed-talk")
    expect(keys.locator("#rows .line")).to_have_count(1)
    press(keys, "Escape j Enter")
    keys.wait_for_url(f"{stage.url}/sessions/keyed-talk")
    press(keys, "c")
    keys.keyboard.type('call order {"order_id": "K1"}')
    press(keys, "Control+Enter")
    expect(keys.locator("#turns")).to_contain_text("The tool said")
    press(keys, "Escape j j j")
    expect(keys.locator("details.call > summary")).to_be_focused()
    press(keys, "Enter")
    expect(keys.locator("details.call")).to_contain_text('"K1"')


def test_the_views_of_a_session_and_of_a_turn_can_be_reached(stage: Workbench, keys: Page) -> None:
    """Ours: branches, plugins, waterfall, prompt and journal, keyboard only."""
    stage.say("keyed-views", 'call order {"order_id": "K1"}')
    address = f"{stage.url}/sessions/keyed-views"
    keys.goto(address)
    for view in ("branches", "plugins", ""):
        press(keys, "v")
        keys.wait_for_url(f"{address}/{view}" if view else address)
    tab_to(keys, "Waterfall")
    press(keys, "Enter")
    keys.wait_for_url("**/waterfall")
    for view in ("prompt", "journal"):
        press(keys, "v")
        keys.wait_for_url(f"**/{view}")
    expect(keys.locator("main")).to_contain_text("Input 1 of")
    press(keys, "n")
    expect(keys.locator("main")).to_contain_text("Input 2 of")
    press(keys, "p")
    expect(keys.locator("main")).to_contain_text("Input 1 of")
    press(keys, "j j Enter")
    expect(keys.locator("main")).to_contain_text("Input 2 of")
    tab_to(keys, "Fork after this input")
    press(keys, "Enter")
    keys.wait_for_url(f"{address}-*")


def test_branches_can_be_compared(stage: Workbench, keys: Page) -> None:
    """Ours: the graph and the comparison, keyboard only."""
    stage.say("keyed-fork", "say one")
    stage.run(stage.runtime.fork("keyed-fork", "keyed-fork-b"))
    stage.say("keyed-fork-b", "say two")
    keys.goto(f"{stage.url}/sessions/keyed-fork/branches")
    tab_to(keys, "Compare with")
    press(keys, "Tab Enter")
    keys.wait_for_url("**/compare?other=keyed-fork-b")
    expect(keys.locator(".columns")).to_contain_text("two")


def test_requests_can_be_denied_and_grants_revoked(stage: Workbench, keys: Page) -> None:
    """Ours: the inbox, earlier decisions and the grants, keyboard only."""
    stage.say("keyed-ask", 'call refund {"order_id": "K1", "cents": 5}')
    stage.run(
        stage.runtime.grant(
            "refund", given_by="Kim", expires_at=stage.runtime.now_ms() + 86_400_000, session="keyed-ask"
        )
    )
    keys.goto(stage.url)
    press(keys, "g a")
    keys.wait_for_url(f"{stage.url}/approvals")
    press(keys, "j d")
    expect(keys.get_by_role("button", name="Deny")).to_be_focused()
    press(keys, "Enter")
    expect(keys.locator(".request.pending")).to_have_count(0)
    press(keys, "v")
    keys.wait_for_url("**/approvals?state=decided")
    expect(keys.locator(".request").first).to_contain_text("Denied by Kim")
    press(keys, "v")
    keys.wait_for_url("**/grants")
    tab_to(keys, "Revoke")
    press(keys, "Enter")
    expect(keys.locator(".request").first).to_contain_text("Revoked by Kim")


def test_a_tool_can_be_tried(stage: Workbench, keys: Page) -> None:
    """Ours: the catalog and try-it, keyboard only."""
    keys.goto(stage.url)
    press(keys, "g t")
    keys.wait_for_url(f"{stage.url}/tools")
    press(keys, "j Enter")
    tab_to(keys, "Try it with")
    press(keys, "Control+a")
    keys.keyboard.type('{"order_id": "K9"}')
    press(keys, "Control+Enter")
    keys.wait_for_url(f"{stage.url}/sessions/try-*")
    expect(keys.locator("#turns")).to_contain_text("The tool has answered.")


def test_usage_and_operations_can_be_read_and_the_store_pruned(stage: Workbench, keys: Page) -> None:
    """Ours: the figures and pruning, keyboard only."""
    stage.say("keyed-usage", "say hello")
    keys.goto(stage.url)
    press(keys, "g u")
    keys.wait_for_url(f"{stage.url}/usage")
    press(keys, "v")
    keys.wait_for_url("**/usage?age=1d")
    press(keys, "g o")
    keys.wait_for_url(f"{stage.url}/operations")
    keys.once("dialog", lambda dialog: dialog.accept())
    tab_to(keys, "Prune")
    press(keys, "Enter")
    expect(keys.locator("#pruned")).to_contain_text("Deleted 0 sessions")
