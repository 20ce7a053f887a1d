"""Safety of pages: they execute no text of a model, tool, file name or person, and call no other server."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from payloads import PAYLOADS
from playwright.sync_api import Browser, Page, expect
from workbench_stage import PIXEL, Workbench

import standfast.workbench
from standfast import Attachment

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WATCH = """
window.hits = [];
window.xss = () => { window.hits.push(new Error().stack); return 1; };
document.addEventListener("securitypolicyviolation", (event) => window.hits.push(event.violatedDirective));
"""


@pytest.fixture(scope="module")
def attacked(stage: Workbench) -> Workbench:
    """Start a server whose sessions have every payload in every field that others fill."""
    for payload in PAYLOADS:
        stage.say("words", f"say {payload}")
    for chunk in (PAYLOADS[:31], PAYLOADS[31:]):
        calls = [["order", {"order_id": payload, payload: payload}] for payload in chunk]
        calls += [["order", {"order_id": payload}] for payload in chunk]
        stage.say("tools", f"calls {json.dumps(calls)}")
    files = [
        Attachment(PIXEL, "image/png" if place % 2 else "text/plain", name)
        for place, name in enumerate(PAYLOADS)
    ]
    stage.say("files", ["look", *files])
    stage.say("asked", f"calls {json.dumps([['refund', {'order_id': one, 'cents': 1}] for one in PAYLOADS])}")
    for one in stage.run(stage.runtime.approvals(session="asked", pending=True))[:30]:
        stage.run(
            stage.runtime.deny(one.approval_id, reason=str(one.kwargs["order_id"]), decided_by="<b>x</b>")
        )
    lines = [f"print({payload!r})\nv{place} = {payload!r}" for place, payload in enumerate(PAYLOADS)]
    stage.say("code", "\n".join([*lines, f"order({PAYLOADS[0]!r})"]), agent="coder")
    made = [f"order({payload!r})" for payload in PAYLOADS[:30]]
    stage.run_code("runs", "\n".join([*lines, *made, f"raise ValueError({PAYLOADS[0]!r})"]))
    for payload in PAYLOADS:
        until = stage.runtime.now_ms() + 86_400_000
        stage.run(
            stage.runtime.grant(
                "order", given_by=payload, expires_at=until, session="words", rule="True", reason=payload
            )
        )

    async def queue() -> None:
        session = await stage.runtime.session("asked", agent=stage.runtime.agents["clerk"])
        for payload in PAYLOADS[:10]:
            await session.queue(payload)

    stage.run(queue())
    return stage


@pytest.fixture(scope="module")
def watched(attacked: Workbench, browser: Browser) -> Iterator[Page]:
    with attacked.person(browser, name="<img src=x onerror=xss()>") as page:
        page.add_init_script(WATCH)
        yield page


async def _first_turn(stage: Workbench, session_id: str) -> str:
    return (await stage.runtime.session_handle(session_id).turns())[0].turn_id


def quiet(page: Page) -> Any:
    """Return the scripts that a page has run illegally, after a moment for late events."""
    page.wait_for_timeout(150)
    return page.evaluate("window.hits")


ADDRESSES = [
    "/",
    "/?q=%3Cscript%3Exss()%3C/script%3E",
    "/sessions/words",
    "/sessions/words/message?node={said}.0",
    "/sessions/words/message?node={said}.1",
    "/sessions/words/branches",
    "/sessions/tools",
    "/sessions/files",
    "/sessions/asked",
    "/sessions/code",
    "/approvals",
    "/approvals?skip=25",
    "/approvals?state=decided",
    "/approvals?state=decided&skip=25",
    "/approvals?q=%22%3E%3Cimg%20src=x%20onerror=xss()%3E",
    "/sessions/tools/turns/{turn}/journal?step=2",
    "/sessions/tools/turns/{turn}/waterfall",
    "/sessions/tools/turns/{turn}/prompt?call=2",
    "/sessions/tools/turns/{turn}/prompt?call=2&changes=true",
    "/sessions/tools/turns/{turn}/calls/1",
    "/sessions/code/turns/{cell}/calls/1",
    "/sessions/code/turns/{cell}/prompt?call=2&whole=true",
    "/sessions/runs",
    "/sessions/runs/turns/{run}/calls/1",
    "/sessions/runs/turns/{run}/waterfall",
    "/sessions/words/compare?other=tools",
    "/sessions/words/plugins",
    "/grants",
    "/tools",
    "/operations",
    "/usage",
]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_untrusted_text_is_executed(attacked: Workbench, watched: Page, address: str) -> None:
    """Ours: 60 payloads in every field that a model, a tool, a file name or a person fills; none executes."""
    names = {"turn": "tools", "cell": "code", "run": "runs", "said": "words"}
    turns = {name: attacked.run(_first_turn(attacked, session)) for name, session in names.items()}
    answer = watched.goto(f"{attacked.url}{address.format(**turns)}")
    assert answer.status == 200
    for _ in range(8):
        watched.mouse.wheel(0, -100_000)
        watched.wait_for_timeout(60)
    for summary in watched.locator("summary").all()[:140]:
        summary.evaluate("one => one.parentElement.open = true")
    assert quiet(watched) == []


def test_there_are_sixty_payloads_and_the_page_contains_all_of_them(
    attacked: Workbench, watched: Page
) -> None:
    """Ours: the test above must look at pages that contain the payloads."""
    assert len(PAYLOADS) >= 60
    watched.goto(f"{attacked.url}/sessions/files")
    shown = watched.locator("#turns .files").first.evaluate(
        "one => [...one.querySelectorAll('img')].map(i => i.alt).concat(one.innerText)"
    )
    text = "\n".join(shown)
    assert sum(" ".join(one.split())[:20] in " ".join(text.split()) for one in PAYLOADS) == len(PAYLOADS)


def test_streamed_text_is_not_executed_either(attacked: Workbench, watched: Page) -> None:
    """Ours: htmx inserts streamed pieces, which must contain no markup."""
    watched.goto(f"{attacked.url}/sessions/words")
    expect(watched.locator("html:not(.offline)")).to_have_count(1)
    for payload in PAYLOADS[::6]:
        attacked.say("words", f"say {payload}")
    attacked.say("words", "say the end")
    expect(watched.locator("#turns")).to_contain_text("the end")
    assert quiet(watched) == []


def test_pages_send_requests_to_no_other_server(stage: Workbench, browser: Browser) -> None:
    """Ours: the network log of every view has requests to our own server only."""
    stage.say("net", "say ![x](https://example.org/x.png) [y](https://example.org)")
    turn = f"/sessions/net/turns/{stage.run(_first_turn(stage, 'net'))}"
    views = [f"/sessions/net{view}" for view in ("", "/branches", "/plugins", "/compare?other=net")]
    views += [f"{turn}/{view}" for view in ("waterfall", "prompt", "journal")]
    views += ["/", "/approvals", "/grants", "/tools", "/usage", "/operations", "/nowhere", "/signin"]
    asked: list[str] = []
    with stage.person(browser) as page:
        page.on("request", lambda request: asked.append(request.url))
        for address in views:
            page.goto(f"{stage.url}{address}")
            page.wait_for_timeout(100)
    assert asked
    assert all(url.startswith(stage.url) for url in asked)


def test_scripts_are_small_and_the_content_security_policy_is_strict(stage: Workbench, page: Page) -> None:
    """Ours: at most 40 kB of compressed JavaScript; a strict policy; no inline script or style."""
    import gzip

    answer = page.goto(stage.url)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    scripts = page.locator("script").evaluate_all("all => all.map(one => one.src)")
    assert len(scripts) == 1
    assert all(scripts)
    sizes = [len(gzip.compress(page.request.get(url).body())) for url in scripts]
    assert sum(sizes) <= 40_000
    assert page.locator("[style], style").count() == 0


def test_third_party_scripts_are_those_that_the_build_hook_pins() -> None:
    """Ours: they come from a registry package, are checked by digest, and include their licences."""
    static = Path(standfast.workbench.__file__).parent / "static"
    hook = ast.parse((ROOT / "scripts" / "build_hook.py").read_text(encoding="utf-8"))
    pinned = next(
        ast.literal_eval(one.value)
        for one in hook.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "FILES"
    )
    assert {path.name for path in static.glob("*.min.js")} == {name for name, _ in pinned.values()}
    for name, digest in pinned.values():
        assert hashlib.sha256((static / name).read_bytes()).hexdigest() == digest
        assert name in (static / "LICENSES.txt").read_text(encoding="utf-8")


def test_another_site_can_link_to_a_page_but_change_nothing(stage: Workbench, page: Page) -> None:
    """Ours: a shared link works; a change needs our header and our origin."""
    cookie = page.context.cookies()[0]
    headers = {"cookie": f"{cookie['name']}={cookie['value']}", "accept": "text/html"}
    opened = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    import httpx2

    with httpx2.Client(base_url=stage.url, headers=headers) as other:
        assert other.get("/approvals", headers=opened).status_code == 200
        assert other.get("/v1/sessions", headers=opened).status_code == 403
        image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        assert other.get("/approvals", headers=image).status_code == 403
        for extra in ({}, {"origin": "https://evil.example", "standfast-request": "1"}, opened):
            answer = other.post("/sessions/net/cancel", headers=extra)
            assert answer.status_code == 403


def test_pages_without_a_credential_say_how_to_sign_in(stage: Workbench, browser: Browser) -> None:
    """Ours: a page without a credential is refused, and says what to do."""
    page = browser.new_page()
    assert page.goto(f"{stage.url}/sessions/any").status == 401
    expect(page.locator("#problem")).to_contain_text("standfast tokens link")
    page.close()


def test_signing_out_invalidates_the_credential(stage: Workbench, browser: Browser) -> None:
    """Ours: after signing out, the cookie is invalid."""
    with stage.person(browser, name="Eve") as page:
        cookies = page.context.cookies()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{stage.url}/signin")
        page.context.add_cookies(cookies)  # type: ignore[arg-type]
        stage.run(_pause())
        assert page.goto(stage.url).status == 401


async def _pause() -> None:
    import asyncio

    await asyncio.sleep(1.1)  # a revoked token may be cached for a second
