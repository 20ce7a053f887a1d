"""Branches, comparison, tools, plugins, usage and grants in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from workbench_stage import Workbench, WorkbenchModel

from standfast import Agent, tool
from standfast.model.capability import ToolManifest
from standfast.testing.postgres_server import PostgresServer
from standfast.tools.registry import StaticTools
from standfast.workbench import branches_page

pytestmark = pytest.mark.slow


def test_a_fork_from_a_message_is_drawn_and_compared(stage: Workbench, page: Page) -> None:
    """Ours: fork from any message; the graph shows the branches; two are shown side by side."""
    for word in ("one", "two", "three"):
        stage.say("trunk", f"say {word}")
    page.goto(f"{stage.url}/sessions/trunk")
    entry = page.locator("#turns .turn").nth(1).locator(".entry").last
    entry.hover()
    entry.get_by_role("button", name="Fork from here").click()
    page.wait_for_url(f"{stage.url}/sessions/trunk-*")
    forked = page.url.rpartition("/")[2]
    expect(page.locator("#turns .turn")).to_have_count(2)
    page.get_by_role("textbox", name="Message").fill("say other")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#turns .turn")).to_have_count(3)
    page.get_by_role("link", name="Branches").click()
    graph = page.locator(".graph")
    expect(graph.locator("circle")).to_have_count(4)
    expect(graph.locator("circle.head")).to_have_count(2)
    expect(graph).to_contain_text("this session")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(f"{stage.url}/sessions/{forked}/compare?other=trunk")
    expect(page.locator("main")).to_contain_text("Shared history: 2 turns")
    left, right = page.locator(".columns > section").all()
    expect(left.locator(".prose")).to_have_text("other")
    expect(right.locator(".prose")).to_have_text("three")
    page.go_back()
    expect(graph).to_be_visible()


def test_a_comparison_says_how_many_turns_it_omits(
    stage: Workbench, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a comparison of long branches shows the last turns of each and the number of the others."""
    stage.say("root", "say one")
    stage.run(stage.runtime.fork("root", "root-2"))
    for word in ("two", "three", "four"):
        stage.say("root", f"say {word}")
    monkeypatch.setattr(branches_page, "_MOST_TURNS", 2)
    page.goto(f"{stage.url}/sessions/root/compare?other=root-2")
    left, right = page.locator(".columns > section").all()
    expect(left).to_contain_text("… 1 earlier turn not shown")
    expect(left.locator(".prose")).to_have_text(["three", "four"])
    expect(right).not_to_contain_text("not shown")


def test_a_rewound_turn_stays_in_the_graph(stage: Workbench, page: Page) -> None:
    """Ours: the graph shows the turns that a rewind left."""
    for word in ("one", "two"):
        stage.say("back", f"say {word}")
    stage.run(stage.runtime.rewind("back"))
    stage.say("back", "say else")
    page.goto(f"{stage.url}/sessions/back/branches")
    expect(page.locator(".graph circle")).to_have_count(3)
    expect(page.locator(".graph circle.off")).to_have_count(1)


def test_a_tool_can_be_tried_with_dispatch_and_approval(stage: Workbench, page: Page) -> None:
    """Ours: the catalog has a form that makes a call as a model would, approval included."""
    page.goto(f"{stage.url}/tools")
    tool = page.locator("#agent-clerk details").filter(has_text="Refund an order")
    expect(tool).to_contain_text("Needs approval")
    tool.locator("summary").click()
    tool.get_by_label("Try it with these arguments").fill('{"order_id": "B2", "cents": 7}')
    tool.get_by_role("button", name="Try it").click()
    page.wait_for_url(f"{stage.url}/sessions/try-*")
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.locator("#turns")).to_contain_text("The tool has answered.")
    page.locator("#turns details.call summary").click()
    expect(page.locator("#turns").get_by_label("Result")).to_contain_text("refunded B2 7")


def test_invalid_arguments_are_reported_as_a_failed_call(stage: Workbench, page: Page) -> None:
    """Ours: try-it shows the tool's own error."""
    page.goto(f"{stage.url}/tools")
    tool = page.locator("#agent-clerk details").filter(has_text="Look an order up")
    tool.locator("summary").click()
    tool.get_by_label("Try it with these arguments").fill("not json")
    tool.get_by_role("button", name="Try it").click()
    expect(page.locator("#toasts")).to_contain_text("not JSON")
    tool.get_by_label("Try it with these arguments").fill('{"wrong": 1}')
    tool.get_by_role("button", name="Try it").click()
    page.wait_for_url(f"{stage.url}/sessions/try-*")
    expect(page.locator("#turns .call")).to_contain_text("Failed")


def test_the_plugins_of_a_session_are_listed_with_their_hooks(stage: Workbench, page: Page) -> None:
    """Ours: the page has what each plugin adds, its options, and the hooks in the order in which they run."""
    stage.run(
        stage.runtime.session(
            "plugged", agent=stage.runtime.agents["planner"], options={"late": {"words": 3}}
        )
    )
    stage.say("plugged", "say hello", agent="planner")
    page.goto(f"{stage.url}/sessions/plugged/plugins")
    plugins = page.get_by_label("Plugins")
    expect(plugins.locator("tr").filter(has_text="late")).to_contain_text("words = 3")
    expect(plugins.locator("tr").filter(has_text="plan")).to_contain_text("max_items = 50")
    hooks = page.get_by_label("Hooks").locator("tr").filter(has_text="prompt_contributor")
    expect(hooks).to_contain_text("early (+5) → late")


def test_an_added_tool_appears_and_typed_text_is_kept(stage: Workbench, page: Page) -> None:
    """Ours: the catalog is live; an update does not remove what a person types or has opened."""
    page.goto(f"{stage.url}/tools")
    known = page.locator("#agent-clerk details").filter(has_text="Look an order up")
    known.locator("summary").click()
    known.get_by_label("Try it with these arguments").fill('{"order_id": "typed"}')

    @tool
    def added() -> str:
        """Come later."""
        return "here"

    registry = stage.app.state.agents["clerk"].registry
    stage.loop.call_soon_threadsafe(lambda: registry.upsert("later", StaticTools([added.registered])))
    expect(page.locator("#agent-clerk")).to_contain_text("Come later.")
    expect(known.get_by_label("Try it with these arguments")).to_have_value('{"order_id": "typed"}')
    stage.loop.call_soon_threadsafe(lambda: registry.remove("later"))
    expect(page.locator("#agent-clerk")).not_to_contain_text("Come later.")
    expect(known.get_by_label("Try it with these arguments")).to_have_value('{"order_id": "typed"}')


class Remote(StaticTools):
    """A tool source whose tools can change, or that cannot be reached."""

    source = "remote"
    revision = 1
    is_down = False

    def manifests(self) -> Sequence[ToolManifest]:
        if self.is_down:
            raise ConnectionError("no route to the server")
        return super().manifests()

    async def close(self) -> None:
        pass


def test_tools_of_a_connected_source_are_listed_and_a_broken_one_is_named(tmp_path: Path) -> None:
    """Ours: an MCP server's tools are listed before a turn uses them; if it is down, the page says why."""
    from server_stage import refund

    remote = Remote([refund.registered])
    agent = Agent(WorkbenchModel(), name="far", tools=[remote])
    with (
        Workbench(tmp_path, agents=[agent]) as stage,
        stage.client() as client,
    ):
        assert "Refund an order" in client.get("/tools").text
        remote.is_down, remote.revision = True, 2
        shown = client.get("/tools")
        assert shown.status_code == 200
        assert "no route to the server" in shown.text


def test_the_plugins_page_follows_its_session(stage: Workbench, page: Page) -> None:
    """Ours: every view is live."""
    stage.say("followed", "say hello", agent="planner")
    page.goto(f"{stage.url}/sessions/followed/plugins")
    expect(page.locator("#session-head")).to_contain_text("2 messages")
    stage.say("followed", "say more", agent="planner")
    expect(page.locator("#session-head")).to_contain_text("4 messages")


def test_usage_is_shown_by_agent_model_and_session(stage: Workbench, page: Page) -> None:
    """Ours: tokens are shown by agent, model, source and session."""
    stage.say("spent", "say hello")
    page.goto(f"{stage.url}/usage")
    expect(page.locator(".cards")).to_contain_text("Model calls")
    expect(page.locator("main")).to_contain_text("test:workbench")
    expect(page.get_by_label("By day").locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="spent").click()
    page.wait_for_url(f"{stage.url}/sessions/spent")


def test_a_grant_approves_later_calls_until_it_is_revoked(stage: Workbench, page: Page) -> None:
    """Ours: a grant may have a rule; it is listed with the person who gave it, and can be revoked."""
    ask = 'call refund {"order_id": "A1", "cents": %d}'
    stage.say("granted", ask % 500)
    page.goto(f"{stage.url}/sessions/granted")
    page.get_by_text("Approve similar calls in the future").click()
    page.get_by_label("Only if this rule").fill("kwargs['cents'] <= 600")
    page.get_by_role("button", name="Approve and grant").click()
    expect(page.locator("#turns")).to_contain_text("refunded A1 500")
    assert "refunded" in stage.say("granted", ask % 600).output
    assert stage.say("granted", ask % 700).waits
    stage.run(stage.runtime.session_handle("granted").cancel())
    page.goto(f"{stage.url}/grants")
    expect(page.locator(".request")).to_contain_text("kwargs['cents'] <= 600")
    expect(page.locator(".request")).to_contain_text("granted by Ada")
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator(".request")).to_contain_text("Revoked by Ada")
    assert stage.say("granted", ask % 600).waits


def test_the_operations_page_shows_waiting_and_stuck_turns(stage: Workbench, page: Page) -> None:
    """Ours: an operator sees counts of turns, triggers and stuck turns, and can prune."""
    stage.say("asks", 'call refund {"order_id": "A1", "cents": 5}')
    stage.run(stage.runtime.add_trigger("nightly", "cron", "asks", schedule="0 3 * * *"))
    page.goto(f"{stage.url}/operations")
    expect(page.locator(".card").filter(has_text="Waiting turns")).not_to_contain_text("0")
    expect(page.locator("main")).to_contain_text("every turn that can run is running.")
    expect(page.get_by_label("Triggers", exact=True)).to_contain_text("nightly")
    expect(page.get_by_label("Waiting turns")).to_contain_text("asks")
    expect(page.get_by_label("Records in the store")).to_contain_text("turns")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Prune").click()
    expect(page.locator("#pruned")).to_contain_text("Deleted 0 sessions")
    stage.run(stage.runtime.remove_trigger("nightly"))


def test_the_operations_page_also_works_with_postgresql(
    browser: Browser, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Ours: the view is the same on every store."""
    with Workbench(tmp_path, store=postgres.new_url()) as stage, stage.person(browser) as page:
        stage.say("asks", 'call refund {"order_id": "A1", "cents": 5}')
        page.goto(f"{stage.url}/operations")
        expect(page.locator(".card").filter(has_text="Waiting turns")).not_to_contain_text("0")
        expect(page.get_by_label("Waiting turns")).to_contain_text("asks")
        expect(page.get_by_label("Records in the store")).to_contain_text("turns")
