"""The appearance of pages: axe-core finds no violation, nothing overflows; screenshots for the documentation.

`STANDFAST_TEST_SEED=all STANDFAST_SCREENSHOTS=docs/guides/workbench` writes the screenshots there, wide ones
light and narrow ones dark; `STANDFAST_OTHER_SCREENSHOTS` is a folder for the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from workbench_stage import Workbench, picture

from standfast import Attachment

pytestmark = pytest.mark.slow
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
SHOTS = os.environ.get("STANDFAST_SCREENSHOTS", "")
OTHER_SHOTS = os.environ.get("STANDFAST_OTHER_SCREENSHOTS", "")
LOOP = """\
total = 0
for number in ["A1", "A2", "A3"]:
    found = order(number)
    total += found["cents"]
    refund(number, found["cents"])
print("refunded", total)
total"""
REPORT = """\
def check(number):
    found = order(number)
    return found["cents"] if found["days_late"] > 3 else 0

for number in range(20):
    total += check(f"A{number}")
late.append(order("B1")["id"])
print("checked", total)
total"""
RTL = "say مرحبا! هذا **نص** من اليمين إلى اليسار مع `code` وسط الجملة."
LONG = "say " + "Donaudampfschifffahrtsgesellschaftskapitän" * 6
ANSWER = """say Order **A1** came six days late. I can

1. refund it in full, or
2. refund the shipping alone.

| order | paid | late |
|---|---|---|
| A1 | $19.99 | 6 days |

> Late orders are refunded on request.

```python
refund("A1", 1999)
```"""
PAGES = {
    "sessions": "/",
    "session": "/sessions/support-42",
    "code": "/sessions/refund-loop",
    "approvals": "/approvals",
    "approval": "/approvals/{approval}",
    "branches": "/sessions/support-42/branches",
    "waterfall": "/sessions/managed/turns/{managed}/waterfall",
    "waiting": "/sessions/support-42/turns/{turn}/waterfall",
    "prompt": "/sessions/support-42/turns/{turn}/prompt",
    "changes": "/sessions/support-42/turns/{turn}/prompt?changes=true",
    "journal": "/sessions/support-42/turns/{turn}/journal?step=3",
    "compare": "/sessions/support-42/compare?other=support-42-b",
    "plugins": "/sessions/planned/plugins",
    "decided": "/approvals?state=decided",
    "variables": "/sessions/variables",
    "runs": "/sessions/nightly-report",
    "tools": "/tools",
    "usage": "/usage",
    "operations": "/operations",
    "grants": "/grants",
    "words": "/sessions/words",
    "words-run": "/sessions/words-run",
    "empty": "/?q=nothing-has-this-name",
    "problem": "/sessions/nowhere",
    "signin": "/signin",
}
SIZES = [("light", 1440, 900), ("dark", 360, 780), ("dark", 1440, 900), ("light", 360, 780)]


@pytest.fixture(scope="module")
def shown(stage: Workbench) -> Workbench:
    """Start a server with sessions of every kind."""
    stage.say("words", LONG)
    stage.say("words", f'call order {{"order_id": "{"a long one, " * 20}"}}')
    stage.say("words", RTL)
    stage.run_code("words-run", f"order({'Donaudampfschifffahrt' * 8!r})")
    stage.say(
        "words",
        [
            "look at this",
            Attachment(picture(240, 90), "image/png", "gradient.png"),
            Attachment(b"x", name="n.txt"),
        ],
    )
    stage.say("support-42", ANSWER)
    stage.say("support-42", 'call order {"order_id": "A1"}')
    stage.say("support-42", 'call order {"order_id": "none"}')
    stage.run(stage.runtime.fork("support-42", "support-42-b"))
    stage.say("support-42-b", "say Another answer, in another branch.")
    stage.run(stage.runtime.rewind("support-42-b"))
    stage.say("support-42-b", "say A better answer.")
    stage.say("support-42", 'call refund {"order_id": "A1", "cents": 1999}')
    stage.say("refund-loop", LOOP, agent="coder")
    stage.say("variables", 'found = order("A1")\ntotal = found["cents"]', agent="coder")
    stage.say("variables", 'found = order("A2")\ntotal += found["cents"]\nlast = order("A3")', agent="coder")
    stage.run_code("nightly-report", "total = 0\nlate = []")
    stage.run_code("nightly-report", REPORT)
    stage.say("planned", "say hello", agent="planner")
    stage.say("managed", 'call order {"order_id": "A1"}', agent="manager")
    for number, state in enumerate(("approve", "deny")):
        waits = stage.say(f"earlier-{number}", f'call refund {{"order_id": "B{number}", "cents": 700}}').waits
        decide = getattr(stage.runtime.session_handle(f"earlier-{number}"), state)
        stage.run(decide(waits[0].wait_id, decided_by="Grace"))
    stage.run(
        stage.runtime.grant(
            "refund",
            given_by="Ada",
            expires_at=stage.runtime.now_ms() + 86_400_000,
            rule="kwargs['cents'] <= 500",
            agent="clerk",
        )
    )
    return stage


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}-{size[1]}")
def looking(request: pytest.FixtureRequest, shown: Workbench, browser: Browser) -> Iterator[Page]:
    scheme, width, height = request.param
    with shown.person(browser, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": height})
        yield page


def address(stage: Workbench, name: str) -> str:
    waiting = stage.run(stage.runtime.approvals(session="support-42", pending=True))
    (managed,) = stage.run(stage.runtime.session_handle("managed").turns())
    return stage.url + PAGES[name].format(
        approval=waiting[0].approval_id, turn=waiting[0].run_id, managed=managed.turn_id
    )


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation_and_nothing_overflows(looking: Page, shown: Workbench, name: str) -> None:
    """Ours: axe-core reports no violation, light and dark, narrow and wide; no page scrolls sideways."""
    looking.goto(address(shown, name))
    expect(looking.locator("main")).to_be_visible()
    for summary in looking.locator("summary").all()[:6]:
        summary.evaluate("one => one.parentElement.open = true")
    looking.wait_for_timeout(100)
    assert violations(looking) == []
    overflow = looking.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    scheme, width = looking_at(looking)
    folder = SHOTS if (scheme, width) in (("light", 1440), ("dark", 360)) else OTHER_SHOTS
    if folder:
        looking.reload()
        looking.wait_for_timeout(400)
        if name in ("variables", "runs"):
            looking.get_by_text("Calls and variables").last.click()
            expect(looking.locator("table.vars")).to_be_visible()
        Path(folder).mkdir(parents=True, exist_ok=True)
        looking.screenshot(path=Path(folder) / f"{name}-{width}.png")


@pytest.mark.parametrize("dialog", ["Keys", "New session"])
def test_axe_finds_no_violation_in_a_dialog(looking: Page, shown: Workbench, dialog: str) -> None:
    """Ours: dialogs are accessible, too, and fit on a phone."""
    looking.goto(shown.url)
    looking.get_by_role("button", name=dialog).click()
    expect(looking.get_by_role("dialog", name=dialog)).to_be_visible()
    assert violations(looking) == []
    box = looking.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= looking.evaluate("innerWidth")


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return the violations that axe-core finds: the rules, each with some elements that break it."""
    found: Any = page.evaluate(f"{AXE}; axe.run(document, {{resultTypes: ['violations']}})")
    return [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found["violations"]]


def looking_at(page: Page) -> tuple[str, int]:
    """Return the colour scheme and the width of a page."""
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    return "dark" if dark else "light", page.evaluate("innerWidth")
