"""The page of a session in a browser: the conversation as it streams, calls, cells, files, the composer."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from workbench_stage import PIXEL, Workbench

from standfast import Attachment
from standfast.workbench.session_reader import read_now

pytestmark = pytest.mark.slow
LOOP = """\
total = 0
for i in range(3):
    total += order(str(i))["cents"]
    refund(str(i), 100)
total"""


@pytest.fixture(autouse=True)
def hold_again(stage: Workbench) -> None:
    """Make `hold` wait again in every test."""
    stage.loop.call_soon_threadsafe(stage.model.held.clear)


def send(page: Page, text: str, button: str = "Send") -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name=button, exact=True).click()


def test_a_reply_streams_into_the_page_and_becomes_a_turn(stage: Workbench, page: Page) -> None:
    """Ours: the conversation is shown as it streams."""
    stage.say("chat", "say hello")
    page.goto(f"{stage.url}/sessions/chat")
    send(page, "hold")
    expect(page.locator("#stream-text")).to_have_text("I am ")
    expect(page.locator("#session-head")).to_contain_text("Running")
    stage.loop.call_soon_threadsafe(stage.model.held.set)
    expect(page.locator("#turns .turn")).to_have_count(2)
    expect(page.locator("#turns")).to_contain_text("I am done")
    expect(page.locator("#current")).to_be_empty()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")


def test_a_turn_that_ends_while_the_page_is_rendered_is_shown_once(
    stage: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a turn that ended between two reads was both in the history and the current turn."""
    stage.say("ending", 'call refund {"order_id": "E1", "cents": 5}')
    handle = type(stage.runtime.session_handle("ending"))
    read_turn = handle.current_turn

    async def end_after_reading(session: Any) -> Any:
        current = await read_turn(session)
        await stage.runtime.deny(current.waits[0].wait_id)
        async for _ in session.observe():
            if await stage.runtime.store.open_turn("ending") is None:
                return current

    monkeypatch.setattr(handle, "current_turn", end_after_reading)
    now = stage.run(read_now(stage.runtime, "ending"))
    assert (now.current, now.state) == (None, "idle")
    assert now.head.depth > 0


def test_a_late_viewer_sees_the_whole_reply_in_progress(
    stage: Workbench, browser: Browser, page: Page
) -> None:
    """Ours: a late viewer first gets everything that was streamed."""
    stage.say("later", "say hello")
    page.goto(f"{stage.url}/sessions/later")
    send(page, "hold")
    expect(page.locator("#stream-text")).to_have_text("I am ")
    with stage.person(browser, name="Bob") as other:
        other.goto(f"{stage.url}/sessions/later")
        expect(other.locator("#stream-text")).to_have_text("I am ")
        stage.loop.call_soon_threadsafe(stage.model.held.set)
        for one in (page, other):
            expect(one.locator("#turns")).to_contain_text("I am done")


def test_markdown_is_rendered_as_a_fixed_set_of_elements(stage: Workbench, page: Page) -> None:
    """Ours: only a safe subset of Markdown is rendered, and HTML stays text."""
    text = "say **bold**, `code`\n\n- one\n- two\n\n<b>raw</b> [link](https://example.org) [x](javascript:x)"
    stage.say("prose", text)
    page.goto(f"{stage.url}/sessions/prose")
    prose = page.locator(".prose")
    expect(prose.locator("strong")).to_have_text("bold")
    expect(prose.locator("li")).to_have_text(["one", "two"])
    expect(prose).to_contain_text("<b>raw</b>")
    expect(prose.locator("a")).to_have_count(1)
    expect(prose.locator("a")).to_have_attribute("rel", re.compile("noreferrer"))


def test_calls_show_arguments_results_and_failures(stage: Workbench, page: Page) -> None:
    """Ours: a tool call shows its arguments, result and duration; a failed one its code and message."""
    stage.say("calls", 'call order {"order_id": "A1"}')
    stage.say("calls", 'call order {"order_id": "none"}')
    page.goto(f"{stage.url}/sessions/calls")
    good, bad = page.locator("details.call").all()
    expect(good).to_contain_text("order_id='A1'")
    good.locator("summary").click()
    expect(good.get_by_label("Result")).to_contain_text('"days_late": 6')
    expect(good.locator(".took")).to_contain_text("ms")
    expect(bad).to_contain_text("Failed")
    bad.locator("summary").click()
    expect(bad).to_contain_text("ORDER_NOT_FOUND")


def test_a_cell_shows_each_call_at_the_line_that_made_it(stage: Workbench, page: Page) -> None:
    """Ours: code that paused in a loop shows the line and the result of each call."""
    code = (
        'total = 0\nfor i in range(3):\n    total += order(str(i))["cents"]\n    refund(str(i), 100)\ntotal'
    )
    stage.say("looping", code, agent="coder")
    page.goto(f"{stage.url}/sessions/looping")
    cell = page.locator(".cell")
    expect(cell.locator(".at-line")).to_have_count(2)
    expect(cell.locator("code.here")).to_have_text("    refund(str(i), 100)")
    expect(cell.locator(".made.waiting")).to_contain_text("refund")
    for _ in range(3):
        before = page.locator(".request").first.get_attribute("id")
        page.get_by_role("button", name="Approve").first.click()
        expect(page.locator(f"#{before}")).to_have_count(0)
    expect(page.locator("#turns .cell .inside").get_by_label("Result")).to_have_text("5997")
    expect(page.locator("#turns .cell .made")).to_have_count(6)


def test_the_variables_of_code_are_shown(stage: Workbench, page: Page) -> None:
    """Ours: the page shows names, types and short values of the variables that the session stores."""
    stage.say("kept", "total = 41\nnames = ['<b>', 'b']", agent="coder")
    page.goto(f"{stage.url}/sessions/kept")
    page.get_by_text("Current variables").click()
    rows = page.locator("#variables tbody tr")
    expect(rows.filter(has_text="total")).to_contain_text("41")
    expect(rows.filter(has_text="names")).to_contain_text("['<b>', 'b']")


def test_messages_can_be_injected_queued_and_withdrawn(stage: Workbench, page: Page) -> None:
    """Ours: while a turn runs, messages are injected or queued, and queued ones can be withdrawn."""
    stage.say("busy", "say hello")
    page.goto(f"{stage.url}/sessions/busy")
    send(page, "hold")
    expect(page.get_by_role("button", name="Inject", exact=True)).to_be_visible()
    send(page, "say second", "Queue")
    send(page, "say third", "Queue")
    expect(page.locator("#queue .chip")).to_have_count(2)
    page.get_by_label("Withdraw this message").first.click()
    expect(page.locator("#queue .chip")).to_have_count(1)
    send(page, "and more", "Inject")
    expect(page.locator("#queue .chip")).to_have_count(2)
    stage.loop.call_soon_threadsafe(stage.model.held.set)
    expect(page.locator("#turns")).to_contain_text("third")
    expect(page.locator("#turns")).not_to_contain_text("second")
    expect(page.locator("#turns")).to_contain_text("and more")


def test_a_running_turn_can_be_cancelled(stage: Workbench, page: Page) -> None:
    """Ours: Cancel ends the turn, and the page says why it ended."""
    stage.say("stopped", "say hello")
    page.goto(f"{stage.url}/sessions/stopped")
    send(page, "hold")
    page.get_by_role("button", name="Cancel turn").click()
    expect(page.locator("#turns")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_attachments_are_uploaded_and_images_displayed(stage: Workbench, page: Page, tmp_path: Any) -> None:
    """Ours: attachments are part of a message; images are displayed, other files are downloaded."""
    (tmp_path / "dot.png").write_bytes(PIXEL)
    (tmp_path / "notes <b>.txt").write_text("notes")
    stage.say("files", "say hello")
    page.goto(f"{stage.url}/sessions/files")
    page.locator("input[type=file]").set_input_files([tmp_path / "dot.png", tmp_path / "notes <b>.txt"])
    expect(page.locator("#uploads .chip")).to_have_count(2)
    send(page, "look at these")
    image = page.locator("#turns .files img")
    expect(image).to_have_attribute("alt", "dot.png")
    assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") == 1
    expect(page.locator("#turns .files .chip")).to_contain_text("notes <b>.txt")
    expect(page.locator("#uploads .chip")).to_have_count(0)


def test_attachments_are_never_served_as_pages(stage: Workbench, page: Page) -> None:
    """Ours: an attachment with markup is downloaded, and its own policy forbids scripts."""
    page_bytes = b"<script>document.title='owned'</script>"
    stage.say("markup", ["look", Attachment(page_bytes, "text/html", "x.html")])
    page.goto(f"{stage.url}/sessions/markup")
    address = page.locator("#turns .files a").get_attribute("href")
    answer = page.request.get(f"{stage.url}{address}")
    assert answer.headers["content-disposition"] == "attachment"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["content-type"] == "application/octet-stream"


def test_only_actions_that_the_token_allows_are_offered(stage: Workbench, browser: Browser) -> None:
    """Ours: pages offer only what the scopes of the token allow, and routes refuse the rest."""
    stage.say("shown", 'call refund {"order_id": "A1", "cents": 5}')
    with stage.person(browser, "read", name="Rea") as reader:
        expect(reader.get_by_role("button", name="New session")).to_have_count(0)
        reader.goto(f"{stage.url}/sessions/shown")
        expect(reader.locator(".request")).to_contain_text("lacks the approve scope")
        expect(reader.get_by_role("button", name="Approve")).to_have_count(0)
        expect(reader.get_by_role("textbox", name="Message")).to_have_count(0)
        status = reader.evaluate(
            "fetch('/sessions/shown/say', {method: 'POST', headers: {'Standfast-Request': '1'},"
            " body: 'message=x'}).then(answer => answer.status)"
        )
        assert status == 403


def test_a_waiting_turn_says_from_whom_it_waits_for_a_decision(stage: Workbench, page: Page) -> None:
    """Ours: the head of a waiting turn names the scope that a person needs to decide."""
    stage.say("whom", 'call refund {"order_id": "A2", "cents": 5}')
    page.goto(f"{stage.url}/sessions/whom")
    expect(page.locator("#current")).to_contain_text("for a person with the approve scope")
    page.get_by_role("button", name="Deny").click()
    expect(page.locator("#current")).not_to_contain_text("for a person")


@pytest.mark.parametrize("width", [360, 1440])
def test_an_error_message_does_not_cover_the_buttons_of_the_composer(
    stage: Workbench, page: Page, width: int
) -> None:
    """Bug: the message of a failed action covered the Send button."""
    stage.say("covered", "say hello")
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{stage.url}/sessions/covered")
    send(page, "   ")
    expect(page.locator("#toasts")).to_contain_text("The input is blank.")
    message = page.locator("#toasts > *").first.bounding_box()
    button = page.get_by_role("button", name="Send", exact=True).bounding_box()
    assert message is not None
    assert button is not None
    below = message["y"] >= button["y"] + button["height"]
    assert below or message["y"] + message["height"] <= button["y"]


def test_a_failed_action_says_why_and_keeps_the_typed_text(stage: Workbench, page: Page) -> None:
    """Ours: the error is shown as a message, and the field keeps its text."""
    stage.say("blank", "say hello")
    page.goto(f"{stage.url}/sessions/blank")
    send(page, "   ")
    expect(page.locator("#toasts")).to_contain_text("The input is blank.")
    expect(page.locator("#toasts")).not_to_contain_text("/v1/")  # hints for programs do not help here
    assert page.get_by_role("textbox", name="Message").input_value() == "   "
    page.locator("#toasts").get_by_role("button", name="Close").click()
    expect(page.locator("#toasts")).to_be_empty()


def test_text_typed_while_a_message_is_sent_is_kept(stage: Workbench, page: Page) -> None:
    """Bug: the response to a message also cleared the text of the next one."""
    stage.say("quick", "say hello")
    page.goto(f"{stage.url}/sessions/quick")

    def slow(route: Route) -> None:
        answer = route.fetch()
        page.get_by_role("textbox", name="Message").fill("the next one")
        route.fulfill(response=answer)

    page.route("**/say", slow)
    send(page, "say one")
    expect(page.locator("#turns .turn")).to_have_count(2)
    page.wait_for_timeout(200)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("the next one")
    page.unroute("**/say")
    send(page, "say two")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")


def test_a_long_message_is_shortened_until_it_is_expanded(stage: Workbench, page: Page) -> None:
    """Bug: two long messages made a page of 2 MB; beyond 900,000 characters a message lost its end."""
    text = "say " + "word " * 30_000
    page.goto(f"{stage.url}/sessions/{stage.run(_made(stage, 'lengthy'))}")
    field = page.get_by_role("textbox", name="Message")
    field.evaluate("(one, text) => { one.value = text.repeat(8) }", text)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("Attach large texts as files")
    assert len(field.input_value()) == len(text) * 8
    send(page, text)
    expect(page.locator("#turns .turn")).to_have_count(1)
    answer = page.goto(f"{stage.url}/sessions/lengthy")
    assert len(answer.body()) < 100_000
    for kind in ("user", "model"):
        entry = page.locator(f"#turns .entry.{kind}")
        entry.get_by_role("button", name="Show all").click()
        expect(entry.get_by_role("button", name="Show all")).to_have_count(0)
        assert entry.locator(".text").inner_text().count("word") == 30_000
    page.locator("#turns").get_by_role("link", name="Journal").click()
    expect(page.get_by_role("link", name="Show this input uncut")).to_be_visible()
    assert len(page.content()) < 100_000
    page.get_by_role("link", name="Show this input uncut").click()
    expect(page.get_by_role("link", name="Show this input uncut")).to_have_count(0)
    assert page.get_by_label("Input", exact=True).inner_text().count("word") == 30_000


def test_only_messages_of_the_session_can_be_expanded(stage: Workbench, page: Page) -> None:
    """Ours: a session's page serves no other session's messages, and no other nodes."""
    stage.say("whole-1", "say one")
    stage.say("whole-2", "say two")
    (turn,) = stage.run(stage.runtime.session_handle("whole-1").turns())
    place = f"message?node={turn.turn_id}"
    assert "say one" in page.request.get(f"{stage.url}/sessions/whole-1/{place}.0").text()
    for wrong in (f"whole-2/{place}.0", f"whole-1/{place}.99"):
        assert page.request.get(f"{stage.url}/sessions/{wrong}").status == 404


async def _made(stage: Workbench, session_id: str) -> str:
    await stage.runtime.session(session_id, agent=stage.runtime.agents["clerk"])
    return session_id


def test_earlier_turns_load_when_the_reader_scrolls_to_them(stage: Workbench, page: Page) -> None:
    """Ours: a long conversation sends its end first; scrolling loads the rest."""
    for number in range(40):
        stage.say("long", f"say number {number}")
    answer = page.goto(f"{stage.url}/sessions/long")
    assert len(answer.body()) <= 250_000
    expect(page.locator("#turns")).to_contain_text("number 39")
    assert page.locator("#turns .turn").count() == 30
    page.mouse.wheel(0, -100_000)
    expect(page.locator("#turns .turn")).to_have_count(40)
    texts = page.locator("#turns .prose").all_inner_texts()
    assert texts == [f"number {number}" for number in range(40)]
