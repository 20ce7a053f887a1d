"""The page of a session: its conversation, the running turn, the composer; and its actions."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Annotated, Final

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.errors import Code, NodeNotFound, RequestRefused
from standfast.graph.history import nodes_of
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, UserMessage, text_of
from standfast.model.outcome import Wait
from standfast.model.run import RunRequest
from standfast.model.session import CurrentTurn, SessionHead, SessionId, split_node_id
from standfast.runtime.http_values import (
    Fork,
    InputAttachment,
    InputText,
    OpenSession,
    TurnContent,
)
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import malformed
from standfast.server.sessions import cancel_session, create_session, fork_session
from standfast.server.turns import read_content, start_turn
from standfast.workbench.approvals_html import request_html
from standfast.workbench.conversation_html import (
    Options,
    item_html,
    reply_text,
    said_text,
    turn_html,
    views_of_turn,
)
from standfast.workbench.forms import field, read_form
from standfast.workbench.live_turn import LiveTurn, current_items
from standfast.workbench.parts import data_table, due, empty, error_text, exactly, state_badge, when
from standfast.workbench.session_reader import SessionNow, SessionWindow, read_now, read_window
from standfast.workbench.shell import page, redirect, respond
from standfast.workbench.words import cost, count, one_line, tokens

_LANGUAGES: Final = {"python": "Python", "typescript": "TypeScript"}
_VIEWS: Final = (("", "Conversation"), ("branches", "Branches"), ("plugins", "Plugins"))
_PATH: Final = "/sessions/{session_id}"
ROUTES: Final = Routes()


class WindowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The last node of an earlier window of the history, and that node's depth."""

    before: Annotated[str, msgspec.Meta(max_length=120)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


@ROUTES.add("GET", _PATH, Scope.READ, query=WindowQuery)
async def session_page(call: Call) -> Response:
    """Show a session; with `before`, only an earlier window of its history."""
    asked: WindowQuery = call.query
    head = await call.head()
    options = options_for(call, head)
    if asked.before is not None:
        window = await read_window(call.runtime, head.session_id, asked.before, asked.depth)
        return respond(window_html(window, options))
    now = await read_now(call.runtime, head.session_id)
    window = await read_window(call.runtime, head.session_id, now.head.leaf, now.head.depth)
    agent = call.server.agents.get(head.agent)
    runs_code = head.code is not None or (agent is not None and agent.protocol.id == "code")
    variables = f"/sessions/{head.session_id}/variables"  # read when the section is opened
    main = [
        session_header(now, options.now_ms),
        session_tabs(head.session_id, ""),
        h.div("#conversation.conversation", data_follow=True)[
            h.div("#turns.conversation")[window_html(window, options)],
            current_html(now, LiveTurn(), options, call.credential.allows(Scope.APPROVE)),
        ],
        runs_code
        and h.details(hx_get=variables, hx_trigger="toggle", hx_target="#variables")[
            h.summary(".small")["Current variables"], h.div("#variables")
        ],
        composer_html(call, now),
    ]
    stream = f"/sessions/{head.session_id}/stream?depth={now.head.depth}"
    return await page(call, title=head.session_id, place="sessions", main=main, stream=stream)


def options_for(call: Call, head: SessionHead) -> Options:
    return Options(
        now_ms=call.runtime.now_ms(),
        session_id=head.session_id,
        files=f"/sessions/{head.session_id}/files",
        forks=call.credential.allows(Scope.RUN),
        runs=head.code is not None,
        turn_views=views_of_turn(head),
    )


def window_html(window: SessionWindow, options: Options) -> h.Node:
    """Render turns below a marker that loads earlier ones when it scrolls into view."""
    earlier = None
    if window.earlier is not None:
        earlier = h.div(
            ".more",
            hx_get=f"/sessions/{options.session_id}?before={window.earlier}&depth={window.earlier_depth}",
            hx_trigger="intersect once",
            hx_swap="outerHTML",
            data_earlier=True,
        )[h.span(".muted.small")["Loading earlier turns…"]]
    return [earlier, [turn_html(turn, options) for turn in window.turns]]


def session_header(now: SessionNow, now_ms: int, *, links: bool = True) -> h.Element:
    """Render a session's id, state and figures; without *links*, name other sessions without linking."""

    def other(session_id: str) -> h.Node:
        return h.a(href=f"/sessions/{session_id}")[session_id] if links else h.b[session_id]

    head, used = now.head, Usage()
    for entry in head.usage:
        used += entry.usage
    parent = "" if head.charter is None else head.charter.parent_session_id or ""
    task = "" if head.charter is None else head.charter.task
    return h.header("#session-head.top.start")[
        h.h1(dir="auto")[head.session_id],
        state_badge(now.state),
        h.div(".facts")[
            head.code is None and h.span["Agent ", h.b[head.agent or "none"]],
            head.model and h.span["Model ", h.b[head.model]],
            head.code is not None and h.span["Engine ", h.b[head.code.engine]],
            head.depth > 0 and h.span[count(head.depth, "message")],
            used.total > 0 and h.span[f"{tokens(used.total)} tokens"],
            cost(used) and h.span[cost(used)],
            h.span[
                "Last used ", when(head.updated_at, now_ms, " ago") if links else exactly(head.updated_at)
            ],
            head.forked_from and h.span["Forked from ", other(head.forked_from)],
            parent and h.span["Created by ", other(parent)],
        ],
        task and h.p(".facts", dir="auto")[one_line(task, 300)],
    ]


def session_tabs(session_id: str, current: str) -> h.Node:
    """Render the tabs of one session's views."""
    return h.nav(".tabs.views", aria_label="Views of this session")[
        [
            h.a(
                href=f"/sessions/{session_id}{'/' if name else ''}{name}",
                aria_current="page" if name == current else None,
            )[title]
            for name, title in _VIEWS
        ]
    ]


def current_html(now: SessionNow, live: LiveTurn, options: Options, decides: bool) -> h.Element:
    """Render the unfinished turn and its waits; empty if there is none."""
    current = now.current
    if current is None:
        nothing = not now.head.depth and not now.inputs
        return h.div("#current")[
            now.blocked is not None and error_text(now.blocked.error),
            nothing and empty("No messages yet", "Write the first one below."),
        ]
    items = current_items(current, live, now.approvals, now.made)
    pending = {one.approval_id: one for one in now.approvals if one.state == "pending"}
    others = [wait for wait in current.waits if wait.wait_id not in pending]
    inner = Options(
        now_ms=options.now_ms,
        session_id=options.session_id,
        files=options.files,
        turn=f"/sessions/{options.session_id}/turns/{current.turn_id}",
    )
    return h.section("#current.turn", aria_label="Current turn", aria_live="polite", aria_busy="false")[
        h.header[
            state_badge(current.state),
            _waits_for(current, bool(pending)),
            live.resumed and h.span(title="Its journal was replayed; nothing ran twice")["Resumed"],
            h.span(".end")[
                [h.a(href=f"{inner.turn}/{view}")[view.capitalize()] for view in options.turn_views]
            ],
        ],
        [item_html(item, inner) for item in items],
        h.article(".entry.model", hidden=current.state != "running")[
            h.div(".speaker")["Model"],
            h.div(".body")[
                h.div("#stream-thoughts.thought", hidden=not live.thoughts)[live.thoughts],
                h.div("#stream-text.streaming", dir="auto")[live.text],
            ],
        ],
        live.retry and h.p(".note.wait", dir="auto")[live.retry],
        now.blocked is not None and error_text(now.blocked.error),
        [
            request_html(
                one, options.now_ms, decides=decides, context=False, session=False, agent=now.head.agent
            )
            for one in pending.values()
        ],
        [h.p(".note.wait")[_wait_text(wait, options.now_ms)] for wait in others],
    ]


def _waits_for(current: CurrentTurn, asks: bool) -> h.Node:
    """Render what an unfinished turn is waiting for, and from whom."""
    if current.state != "waiting":
        return None
    kinds = {wait.kind for wait in current.waits}
    words = [
        asks and "a person with the approve scope",
        "timer" in kinds and "a timer",
        "completion" in kinds and "an external result",
    ]
    shown = " and ".join(word for word in words if word)
    return shown and h.span[f"for {shown}"]


def _wait_text(wait: Wait, now_ms: int) -> h.Node:
    match wait.kind:
        case "timer":
            return ["Waiting for a timer that fires ", due(wait.due_at, now_ms), "."]
        case "completion":
            return ["Waiting for an external result. The wait times out ", due(wait.due_at, now_ms), "."]
        case _:
            return ["The request has been decided. The turn is about to resume."]


def composer_html(call: Call, now: SessionNow) -> h.Element:
    """Render the message field and the queued inputs."""
    if not call.credential.allows(Scope.RUN):
        return h.p(".muted.small")[
            "You can read this session but not write to it: your token lacks the run scope."
        ]
    if now.head.code is not None:
        return _code_composer(call, now)
    path = f"/sessions/{now.head.session_id}"
    return h.section(".composer", aria_label="Write")[
        queue_html(now),
        h.form(hx_post=f"{path}/say", hx_swap="none", data_reset=True)[
            h.label(".hide", for_="message")["Message"],
            h.textarea("#message", name="message", rows="2", placeholder="Message", dir="auto"),
            h.div("#uploads.row"),
            h.div(".row.apart")[
                h.div(".row")[
                    h.label(".button", for_="file")["Attach"],
                    h.input("#file.hide", type="file", multiple=True, tabindex="-1"),
                ],
                composer_actions(now),
            ],
        ],
    ]


def _code_composer(call: Call, now: SessionNow) -> h.Element:
    """Render the field for the next code of a session without a model."""
    code = now.head.code
    if call.server.sandbox is None or code is None:
        return h.p(".muted.small")["This server has no sandbox, so it cannot run code here."]
    return h.section(".composer", aria_label="Run code")[
        queue_html(now),
        h.form(hx_post=f"/sessions/{now.head.session_id}/run", hx_swap="none", data_reset=True)[
            h.label(".hide", for_="message")["Code"],
            h.textarea(
                "#message.code",
                name="code",
                rows="2",
                placeholder=f"{_LANGUAGES.get(str(code.language), str(code.language))} code",
                spellcheck="false",
            ),
            h.div(".row.apart")[
                h.span(".muted.small")["Variables persist between runs."], composer_actions(now)
            ],
        ],
    ]


def composer_actions(now: SessionNow) -> h.Element:
    """Render the composer's buttons, which depend on whether a turn is unfinished."""
    busy, runs_code = now.current is not None, now.head.code is not None
    cancel = f"/sessions/{now.head.session_id}/cancel"
    return h.div("#composer-actions.row")[
        busy
        and h.button(".danger", type="button", hx_post=cancel, hx_swap="none")[
            "Cancel run" if runs_code else "Cancel turn"
        ],
        runs_code and h.button(".primary", disabled=busy)["Run"],
        busy
        and not runs_code
        and h.button(name="mode", value="queue", title="Starts its own turn when this one has ended")[
            "Queue"
        ],
        not runs_code
        and h.button(
            ".primary",
            name="mode",
            value="inject" if busy else "turn",
            title="Joins this turn at its next checkpoint" if busy else None,
        )["Inject" if busy else "Send"],
    ]


def queue_html(now: SessionNow) -> h.Element:
    path = f"/sessions/{now.head.session_id}/withdraw"
    return h.div("#queue.queue")[
        [
            h.span(".chip")[
                h.span(".muted")["Queued" if item.kind == "queue" else "Injected"],
                h.span(dir="auto")[one_line(text_of(item.message.content), 60) or "(files only)"],
                h.button(
                    ".quiet",
                    type="button",
                    hx_post=path,
                    hx_vals=json.dumps({"input": item.input_id}),
                    hx_swap="none",
                    aria_label="Withdraw this message",
                )["✕"],
            ]
            for item in now.inputs
        ]
    ]


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The node of a message."""

    node: Annotated[str, msgspec.Meta(max_length=120)]


@ROUTES.add("GET", f"{_PATH}/message", Scope.READ, query=MessageQuery)
async def message(call: Call) -> Response:
    """Show the whole text of a message that the conversation shows cut."""
    asked: MessageQuery = call.query
    head = await call.head()
    turn_id, place = split_node_id(asked.node)
    path = () if head.leaf is None else await call.runtime.store.path(head.leaf)
    found = next((node.payload for node in nodes_of(path) if node.id == asked.node), None)
    if found is None:
        current = await (await call.session()).current_turn()
        if current is not None and current.turn_id == turn_id and place < len(current.messages):
            found = current.messages[place]
    options = replace(options_for(call, head), whole=True)
    match found:
        case UserMessage(content=content):
            return respond(said_text(text_of(content), asked.node, options))
        case AssistantMessage(text=text):
            return respond(reply_text(text, asked.node, options))
        case _:
            raise NodeNotFound(asked.node)


@ROUTES.add("GET", f"{_PATH}/variables", Scope.READ)
async def variables(call: Call) -> Response:
    """Show the stored variables of a session's code."""
    found = await (await call.session()).variables()
    if not found:
        return respond(h.p(".muted.small")["The session has no variables."])
    rows = [[h.code[one.name], h.code[one.type], h.code[one.text]] for one in found]
    return respond(data_table("Variables", ("Variable", "Type", "Value"), rows))


# Actions


@ROUTES.add("POST", f"{_PATH}/say", Scope.RUN, body=bytes)
async def say(call: Call) -> Response:
    """Send a message: as a new turn, into the running turn, or queued for its own turn."""
    form = read_form(call)
    text, digests = field(form, "message"), form.get("attachment", [])
    content: TurnContent = text
    if digests:
        said = (InputText(text=text),) if text else ()
        content = (*said, *(InputAttachment(digest=digest) for digest in digests))
    prompt = await read_content(call, content)
    session, mode = await call.working_session(), field(form, "mode")
    if mode in ("inject", "queue"):
        call.server.require_serving()
        await (session.inject if mode == "inject" else session.queue)(prompt)
    else:
        await start_turn(call, session, prompt)
    return await _queue_shown(call)


@ROUTES.add("POST", f"{_PATH}/run", Scope.RUN, body=bytes)
async def run(call: Call) -> Response:
    """Run code in a session without a model until it ends or waits."""
    head, text = await call.head(), field(read_form(call), "code")
    if head.code is None or not text.strip():
        raise malformed(
            "the code is empty" if head.code is not None else "this session has a model; send it a message"
        )
    box = call.server.require_sandbox()
    call.server.require_serving()
    with call.server.limiter.use_turn(call.credential.id):
        asked = RunRequest(session_id=head.session_id, language=head.code.language, code=text)
        result = await box.execute(asked)
    error, waits = result.error, result.status == "waiting_for_approval"
    if error is not None and not waits and (await call.head()).depth == head.depth:  # the run never began
        raise RequestRefused(409, error.code, error.message, hint=error.hint)
    return Response(None, 204)


@ROUTES.add("POST", f"{_PATH}/cancel", Scope.RUN)
async def cancel(call: Call) -> Response:
    """Cancel the unfinished turn."""
    await cancel_session(call)
    return Response(None, 204)


@ROUTES.add("POST", f"{_PATH}/withdraw", Scope.RUN, body=bytes)
async def withdraw(call: Call) -> Response:
    """Withdraw an input that no turn has claimed."""
    session, wanted = await call.session(), field(read_form(call), "input")
    if not any(item.input_id == wanted for item in await session.inputs()):
        raise RequestRefused(404, Code.INPUT_NOT_FOUND, "a turn has already taken this message")
    await session.withdraw(wanted)
    return await _queue_shown(call)


async def _queue_shown(call: Call) -> Response:
    """Show the queue as it is now, because no event reports its changes."""
    now = await read_now(call.runtime, (await call.head()).session_id)
    return respond(h.hx_partial(hx_target="#queue", hx_swap="outerMorph")[queue_html(now)])


@ROUTES.add("POST", f"{_PATH}/fork", Scope.RUN, body=bytes)
async def fork(call: Call) -> Response:
    """Fork the session at a node and redirect to the fork."""
    form, head = read_form(call), await call.head()
    new_id = field(form, "session_id") or f"{head.session_id[:50]}-{secrets.token_hex(3)}"
    call.body = Fork(session_id=SessionId(new_id), at=field(form, "at") or None)
    return redirect(f"/sessions/{(await fork_session(call)).session_id}")


@ROUTES.add("POST", "/sessions", Scope.RUN, body=bytes)
async def begin(call: Call) -> Response:
    """Create a session, start its first turn if there is a message, and redirect to it."""
    form = read_form(call)
    agent = field(form, "agent")
    session_id = field(form, "session_id") or f"{agent[:40]}-{secrets.token_hex(4)}"
    call.body = OpenSession(session_id=SessionId(session_id), agent=agent)
    head = await create_session(call)
    if text := field(form, "message"):
        session = await call.runtime.session(head.session_id, agent=call.server.agents[agent])
        await start_turn(call, session, text)
    return redirect(f"/sessions/{head.session_id}")
