"""The inbox of approvals in a browser, with one person and with two."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Browser, Page, expect
from workbench_stage import Workbench

pytestmark = pytest.mark.slow


def ask(stage: Workbench, session_id: str, cents: int = 500, order_id: str = "A1") -> str:
    """Request a refund, and return the id of the approval."""
    arguments = json.dumps({"order_id": order_id, "cents": cents}, ensure_ascii=False)
    result = stage.say(session_id, f"call refund {arguments}")
    return str(result.waits[0].wait_id)


def test_an_empty_inbox_says_what_will_appear(stage: Workbench, page: Page) -> None:
    """Ours: a new user learns what the page is for."""
    page.goto(f"{stage.url}/approvals")
    expect(page.locator(".empty")).to_contain_text("Nothing to decide")
    expect(page).to_have_title("Approvals · Standfast")


def test_a_request_appears_without_a_reload_and_is_counted_in_the_title(stage: Workbench, page: Page) -> None:
    """Ours: the inbox is live, and the page title has the count."""
    page.goto(f"{stage.url}/approvals")
    one = ask(stage, "inbox-1", 1)
    expect(page.locator(f"#request-{one}")).to_contain_text("refund")
    expect(page.locator("#pending")).to_contain_text("1")
    expect(page).to_have_title("(1) Approvals · Standfast")
    page.locator(f"#request-{one}").get_by_role("button", name="Approve").click()
    expect(page).to_have_title("Approvals · Standfast")
    page.goto(f"{stage.url}/sessions/inbox-1")
    expect(page.locator("#turns")).to_contain_text("refunded A1 1")


def test_the_number_beside_the_title_follows_the_list(stage: Workbench, page: Page) -> None:
    """Bug: the number stayed the same while requests came and went, and during a search."""
    page.goto(f"{stage.url}/approvals")
    expect(page.locator("#total")).to_have_text("0 requests waiting")
    waiting = [ask(stage, f"counted-{number}") for number in range(2)]
    expect(page.locator("#total")).to_have_text("2 requests waiting")
    page.get_by_label("Search").fill("counted-1")
    expect(page.locator("#total")).to_have_text("1 request waiting")
    for one in waiting:
        stage.run(stage.runtime.deny(one))
    expect(page.locator("#total")).to_have_text("0 requests waiting")


def test_the_turn_behind_a_request_is_updated_after_the_decision(stage: Workbench, page: Page) -> None:
    """Bug: on the page of a decided request, its call was still shown as waiting."""
    one = ask(stage, "context-follows")
    page.goto(f"{stage.url}/approvals/{one}")
    call = page.locator("#one .conversation details.call")
    expect(call).to_contain_text("Waiting")
    stage.run(stage.runtime.approve(one))
    expect(call).not_to_contain_text("Waiting")


def test_the_inbox_shows_a_request_made_just_before(stage: Workbench, page: Page) -> None:
    """Bug: the page was half a second out of date, so keys pressed at once found no request."""
    for number in range(3):
        assert page.request.get(f"{stage.url}/approvals").ok
        one = ask(stage, f"just-made-{number}", 1)
        assert f"request-{one}" in page.request.get(f"{stage.url}/approvals").text()
        stage.run(stage.runtime.deny(one))


def test_the_title_is_updated_while_the_page_is_in_the_background(stage: Workbench, page: Page) -> None:
    """Bug: htmx closes the streams of hidden pages, so the count in the title did not change."""
    page.goto(f"{stage.url}/approvals")
    expect(page).to_have_title("Approvals · Standfast")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    waits = stage.say("unseen", 'call refund {"order_id": "A1", "cents": 5}').waits
    expect(page).to_have_title("(1) Approvals · Standfast")
    stage.run(stage.runtime.deny(waits[0].wait_id))


def test_the_exact_call_and_the_turn_behind_it_are_shown(stage: Workbench, page: Page) -> None:
    """Ours: a person decides about the exact call, and sees the turn that requested it."""
    one = ask(stage, "inbox-2", 1999)
    page.goto(f"{stage.url}/approvals?q=inbox-2")
    request = page.locator(f"#request-{one}")
    expect(request.locator(".arguments").first).to_contain_text("1999")
    expect(request).to_contain_text("expires in 23 h")
    request.get_by_text("What led to this").click()
    expect(request.locator(".context .entry.user")).to_contain_text("call refund")
    request.locator(".name").first.click()
    page.wait_for_url(f"{stage.url}/approvals/{one}")
    expect(page.locator("main")).to_contain_text("I use a tool.")
    page.locator(".request").get_by_label("Reason").fill("not this week")
    page.get_by_role("button", name="Deny").click()
    expect(page.locator(".request")).to_contain_text("Denied by Ada")
    expect(page.locator(".request")).to_contain_text("not this week")


def test_a_request_of_a_session_with_a_long_id_fits_on_a_phone(stage: Workbench, page: Page) -> None:
    """Bug: an id of 64 characters was not wrapped, so the inbox scrolled sideways."""
    one = ask(stage, "x" * 64)
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{stage.url}/approvals")
    expect(page.locator(".request", has_text="x" * 64)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    stage.run(stage.runtime.deny(one))


def test_invisible_characters_of_arguments_are_shown(stage: Workbench, page: Page) -> None:
    """Bug: characters that reorder or hide text could make a call look like another one to its approver."""
    one = ask(stage, "inbox-hidden", 5, order_id="A\u202e1\u200b\u00a02")
    page.goto(f"{stage.url}/approvals/{one}")
    expect(page.locator(".arguments").first).to_contain_text('"A\\u202e1\\u200b\u00a02"')
    page.get_by_text("Edit the arguments").click()
    field = page.get_by_label("As JSON")
    assert "A\\u202e1\\u200b" in field.input_value()
    field.fill(field.input_value().replace("5", "6"))
    expect(page.locator(".diff ins")).to_contain_text("6")
    expect(page.locator(".diff")).to_contain_text("\\u202e")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".request")).to_contain_text("with edited arguments")
    (approval,) = stage.run(stage.runtime.approvals(session="inbox-hidden"))
    assert approval.arguments == {"order_id": "A\u202e1\u200b\u00a02", "cents": 6}


def test_edited_arguments_are_shown_as_a_diff_and_used_by_the_call(stage: Workbench, page: Page) -> None:
    """Ours: a person may edit the arguments, sees the difference, and the tool runs with them."""
    one = ask(stage, "inbox-3", 1999)
    page.goto(f"{stage.url}/approvals/{one}")
    page.get_by_text("Edit the arguments").click()
    field = page.get_by_label("As JSON")
    field.fill('{"order_id": "A1", "cents": 10')
    expect(page.locator("#toasts")).to_contain_text("not JSON")
    field.fill('{"order_id": "A1", "cents": 10}')
    expect(page.locator(".diff del")).to_contain_text("1999")
    expect(page.locator(".diff ins")).to_contain_text("10")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".request")).to_contain_text("with edited arguments")
    page.goto(f"{stage.url}/sessions/inbox-3")
    expect(page.locator("#turns")).to_contain_text("refunded A1 10")


def test_invalid_edited_arguments_are_refused(stage: Workbench, page: Page) -> None:
    """Ours: the tool's contract applies to edited arguments, and the request stays open.

    Bug: the message disappeared as soon as the diff of the arguments arrived.
    """
    one = ask(stage, "inbox-4")
    page.goto(f"{stage.url}/approvals/{one}")
    page.get_by_text("Edit the arguments").click()
    page.get_by_label("As JSON").fill('{"order_id": "A1", "cents": "many"}')
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#toasts")).to_contain_text("are invalid")
    expect(page.locator(".diff ins")).to_contain_text("many")
    expect(page.locator("#toasts")).to_contain_text("are invalid")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    stage.run(stage.runtime.deny(one))


def test_if_two_people_decide_a_request_only_one_succeeds(
    stage: Workbench, browser: Browser, page: Page
) -> None:
    """Ours: a request is decided once, and each person sees who decided."""
    one = ask(stage, "inbox-5")
    with stage.person(browser, "read", "approve", name="Bob") as bob:
        bob.goto(f"{stage.url}/approvals/{one}")
        page.goto(f"{stage.url}/approvals/{one}")
        bob.evaluate("document.querySelector('#live').remove()")  # Bob's page is out of date
        page.get_by_role("button", name="Approve").click()
        expect(page.locator(".request")).to_contain_text("Approved by Ada")
        bob.get_by_role("button", name="Deny").click()
        expect(bob.locator("#toasts")).to_contain_text("Conflict")
        bob.reload()
        expect(bob.locator(".request")).to_contain_text("Approved by Ada")


def test_a_grant_takes_effect_only_with_the_approval(stage: Workbench, browser: Browser, page: Page) -> None:
    """Bug: `Approve and grant` on a request that another person had denied left the grant in force."""
    one = ask(stage, "inbox-late-grant")
    page.goto(f"{stage.url}/approvals/{one}")
    page.evaluate("document.querySelector('#live').remove()")  # this page is out of date
    stage.run(stage.runtime.deny(one))
    page.get_by_text("Approve similar calls in the future").click()
    page.get_by_role("button", name="Approve and grant").click()
    expect(page.locator("#toasts")).to_contain_text("Conflict")
    grants = stage.run(stage.runtime.grants())
    assert not [grant for grant in grants if grant.is_in_force(stage.runtime.now_ms())]


def test_another_persons_decision_appears_without_a_reload(
    stage: Workbench, browser: Browser, page: Page
) -> None:
    """Ours: several people can work at once."""
    one = ask(stage, "inbox-6")
    with stage.person(browser, name="Bob") as bob:
        bob.goto(f"{stage.url}/approvals/{one}")
        page.goto(f"{stage.url}/approvals?q=inbox-6")
        page.locator(f"#request-{one}").get_by_role("button", name="Approve").click()
        expect(bob.locator(".request")).to_contain_text("Approved by Ada")
    page.goto(f"{stage.url}/approvals?state=decided&q=inbox-6")
    expect(page.locator(".request")).to_contain_text("Approved by Ada")


def test_an_update_does_not_clear_a_form_that_is_being_filled_in(stage: Workbench, page: Page) -> None:
    """Ours: an update of the list keeps the text that a person is writing."""
    one = ask(stage, "inbox-7")
    page.goto(f"{stage.url}/approvals")
    request = page.locator(f"#request-{one}")
    request.get_by_text("Edit the arguments").click()
    request.get_by_label("Reason").fill("half a sent")
    request.get_by_text("What led to this").click()
    expect(request.locator(".context .entry.user")).to_contain_text("call refund")
    other = ask(stage, "inbox-8")
    expect(page.locator(f"#request-{other}")).to_be_visible()
    assert request.get_by_label("Reason").input_value() == "half a sent"
    expect(request.get_by_label("As JSON")).to_be_visible()
    expect(request.locator(".context .entry.user")).to_contain_text("call refund")
    for waiting in (one, other):
        stage.run(stage.runtime.deny(waiting))
    expect(page.locator(".request")).to_have_count(0)


def test_the_inbox_works_with_the_keyboard_alone(stage: Workbench, page: Page) -> None:
    """Ours: every view works keyboard-first, and `?` lists the keys."""
    one = ask(stage, "inbox-9")
    page.goto(stage.url)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Go to Approve or Deny")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.wait_for_url(f"{stage.url}/approvals")
    page.keyboard.press("/")
    page.keyboard.type("inbox-9")
    expect(page.locator(".request")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{stage.url}/approvals/{one}")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.locator(".request")).to_contain_text("Approved by Ada")


def test_a_form_that_was_just_inserted_can_be_submitted(stage: Workbench, page: Page) -> None:
    """Ours: a submit before htmx has processed the form is sent, and does not load another page."""
    one = ask(stage, "inbox-10")
    page.goto(f"{stage.url}/approvals/{one}")
    page.evaluate(
        """() => {
            const form = document.querySelector("[data-approve]").form;
            form.outerHTML = form.outerHTML.replaceAll("data-htmx-powered", "data-was");
            document.querySelector("[data-approve]").click();
        }"""
    )
    expect(page.locator(".request")).to_contain_text("Approved by Ada")
