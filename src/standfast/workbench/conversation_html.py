"""Renderers for the items of a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import htpy as h

from standfast.model.approval import Approval
from standfast.model.call_history import CallAttempt
from standfast.model.session import SessionHead
from standfast.workbench.conversation import (
    CallView,
    CellView,
    EventView,
    FileView,
    Item,
    MessageView,
    ReplyView,
    TurnItems,
)
from standfast.workbench.markdown import MAX_CHARS, render_markdown
from standfast.workbench.parts import (
    arguments_table,
    diff,
    error_text,
    exactly,
    state_badge,
    took,
    value_block,
    when,
)
from standfast.workbench.words import cost, count, duration, moment, one_line, pretty, size, tokens, visible

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"})
"""The media types displayed inline; other files are offered as downloads."""
_STATES: Final = {
    "approval_pending": "waiting",
    "ok": "succeeded",
    "error": "failed",
    "timeout": "timed out",
    "denied": "denied",
}
_MOST_LINES: Final = 400
_MOST_CHARS: Final = 20_000
"""A longer message of a user is cut; so is a reply that is too long for Markdown."""
_MOST_CALLS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Rendering options of a conversation. `files` is the base URL of attachments; `forks` adds fork buttons.

    `turn` is the URL of the turn being rendered, from which the details of its calls are loaded, and
    `last_node` is its last node. With `runs` (code without a model), every fork is taken after that node.
    In an exported page, `images` maps digests to data URLs, and there are no links.
    """

    now_ms: int
    session_id: str
    files: str = ""
    images: Mapping[str, str] | None = None
    forks: bool = False
    runs: bool = False
    whole: bool = False
    turn: str = ""
    last_node: str = ""
    turn_views: tuple[str, ...] = ()

    @property
    def links(self) -> bool:
        """Whether links to other pages work."""
        return self.images is None


def turn_html(turn: TurnItems, options: Options) -> h.Element:
    """Render a turn that has ended."""
    state = turn.state.partition(" ")[0]
    spent = cost(turn.usage)
    options = replace(options, last_node=turn.last_node)
    if options.links and turn.state:
        options = replace(
            options, turn=f"/sessions/{turn.session_id or options.session_id}/turns/{turn.turn_id}"
        )
    return h.section(".turn", id=f"turn-{turn.turn_id}")[
        h.header[
            h.a(href=f"#turn-{turn.turn_id}", class_="muted", data_row=True)[
                when(turn.at_ms, options.now_ms, " ago") if options.links else exactly(turn.at_ms)
            ],
            h.span(".end")[
                bool(options.turn)
                and [h.a(href=f"{options.turn}/{view}")[view.capitalize()] for view in options.turn_views],
                state == "stopped" and state_badge("stopped", turn.state.replace("_", " ")),
                turn.usage.total > 0
                and h.span(title="input and output tokens")[f"{tokens(turn.usage.total)} tokens"],
                spent and h.span[spent],
                took(turn.duration_ms),
            ],
        ],
        [item_html(item, options) for item in turn.items],
    ]


def views_of_turn(head: SessionHead) -> tuple[str, ...]:
    """Return the views of a session's turns, as the last segments of their URLs."""
    return ("waterfall", "journal") if head.code is not None else ("waterfall", "prompt", "journal")


def item_html(item: Item, options: Options) -> h.Node:
    match item:
        case MessageView():
            return _said(item, options)
        case ReplyView():
            return _replied(item, options)
        case EventView():
            return _noted(item)


def _said(item: MessageView, options: Options) -> h.Element:
    return h.article(".entry.user", id=f"n-{item.node_id}")[
        h.div(".speaker")["Injected" if item.injected else "User"],
        h.div(".body")[
            item.text and said_text(item.text, item.node_id, options),
            files_html(item.files, options),
            _actions(item.node_id, options),
        ],
    ]


def _replied(item: ReplyView, options: Options) -> h.Element:
    return h.article(".entry.model", id=f"n-{item.node_id}")[
        h.div(".speaker", title=item.model or None)["Code" if _is_run(item) else "Model"],
        h.div(".body")[
            item.thoughts
            and h.details[
                h.summary(".muted.small")["Reasoning"], h.div(".thought", dir="auto")[item.thoughts]
            ],
            item.text and reply_text(item.text, item.node_id, options),
            [
                cell_html(call, options, item.node_id)
                if isinstance(call, CellView)
                else call_html(call, options, item.node_id)
                for call in item.calls
            ],
            _actions(item.node_id, options),
        ],
    ]


def said_text(text: str, node_id: str, options: Options) -> h.Element:
    """Render the text of a user's message."""
    if options.whole or len(text) <= _MOST_CHARS:
        return h.div(".text", dir="auto")[text]
    return h.div(".text", dir="auto")[text[:_MOST_CHARS], "…", _rest(len(text), node_id, options)]


def reply_text(text: str, node_id: str, options: Options) -> h.Element:
    """Render the text of a model's reply."""
    if options.whole or len(text) <= MAX_CHARS:
        return h.div(".text.prose")[render_markdown(text)]
    return h.div(".text.prose")[
        h.pre(".plain", dir="auto")[text[:_MOST_CHARS], "…"], _rest(len(text), node_id, options)
    ]


def _rest(length: int, node_id: str, options: Options) -> h.Element:
    """Render the length of a message that was cut, as a button that loads the whole message if it can."""
    words = f"all {length:,} characters"
    if "." not in node_id:
        return h.p(".muted.small")[f"Cut; {words} are in the conversation."]
    return h.p[
        h.button(
            ".quiet.start",
            type="button",
            hx_get=f"/sessions/{options.session_id}/message?node={node_id}",
            hx_target="closest .text",
            hx_swap="outerHTML",
        )[f"Show {words}"]
    ]


def _is_run(item: ReplyView) -> bool:
    """Return whether the item is code of a session without a model."""
    return not (item.model or item.text) and any(isinstance(call, CellView) for call in item.calls)


def _noted(item: EventView) -> h.Element:
    return h.article(".entry", id=f"n-{item.node_id}")[
        h.div(".speaker")[item.kind.capitalize()],
        h.div(".body")[
            error_text(item.error) if item.error is not None else h.p(".note.small", dir="auto")[item.text]
        ],
    ]


def _actions(node_id: str, options: Options) -> h.Node:
    if options.runs:
        button = _fork_button(options.last_node, options, "Fork after this run")
    else:
        button = _fork_button(node_id, options, "Fork from here")
    return button and h.div(".tools")[button]


def _fork_button(node_id: str, options: Options, words: str) -> h.Element | None:
    if not options.forks or "." not in node_id:
        return None
    return h.button(
        ".quiet.start",
        type="button",
        hx_post=f"/sessions/{options.session_id}/fork",
        hx_vals=json.dumps({"at": node_id}),
        hx_swap="none",
        title="Create a session whose history ends here",
    )[words]


def files_html(files: Sequence[FileView], options: Options) -> h.Node:
    """Render attachments: images inline, other files as downloads."""
    if not files:
        return None
    shown: list[h.Node] = []
    for file in files:
        address = f"{options.files}/{file.digest}" if options.files else ""
        if options.images is not None:
            address = options.images.get(file.digest, "")
        label = f"{file.name} · {file.media_type} · {size(file.size)}"
        if file.media_type in IMAGES and address:
            image = h.img(src=address, alt=file.name, title=label, loading="lazy")
            shown.append(h.a(href=address)[image] if options.links else image)
        else:
            shown.append(
                h.a(".chip", href=address, download=True)[label] if address else h.span(".chip")[label]
            )
    return h.div(".files")[shown]


def call_html(call: CallView, options: Options, node_id: str) -> h.Element:
    """Render a call as a line that expands."""
    loads = {
        "hx-get": f"{options.turn}/calls/{call.call_id}",
        "hx-trigger": "toggle once",
        "hx-target": "find .history",
    }
    lacks_attempts = bool(options.turn) and not call.attempts
    return h.details(".call", loads if lacks_attempts else {}, id=f"c-{node_id}-{call.call_id}")[
        h.summary[
            h.span(".name")[call.name],
            h.span(".brief", dir="auto")[call.brief],
            _call_state(call),
            took(call.duration_ms),
        ],
        h.div(".inside")[
            h.p(".label")["Arguments"],
            arguments_table(call.arguments)
            if call.arguments is not None
            else value_block(call.raw or "", label="Arguments as the model wrote them"),
            call.edited is not None
            and [
                h.p(".label")["Edited"],
                diff(pretty_lines(call.arguments or {}), pretty_lines(call.edited)),
            ],
            call.approval is not None and _decision(call.approval, options),
            call.progress and h.p(".muted", dir="auto")[call.progress],
            call.error is not None and error_text(call.error),
            call.has_value
            and [h.p(".label")["Result"], value_block(call.value, label="Result", whole=options.whole)],
            call.texts
            and [
                h.p(".label")["Additional text"],
                value_block("\n".join(call.texts), label="Additional text", whole=options.whole),
            ],
            files_html(call.files, options),
            h.div(".history", hx_morph_skip_children=True)
            if lacks_attempts
            else bool(call.attempts) and attempts_html(call.attempts),
            _fork_button(call.result_node, options, "Fork after this call"),
        ],
    ]


_OUTCOMES: Final = {
    "running": "Running",
    "timed_out": "Timed out",
    "interrupted": "Interrupted: its process ended",
    "approval": "Requested approval",
    "timer": "Waited for a timer",
    "completion": "Waited for an external result",
    "ok": "Succeeded",
    "error": "Failed",
    "timeout": "Timed out",
    "denied": "Denied",
}


def attempts_html(attempts: Sequence[CallAttempt]) -> h.Element:
    """Render the attempts of a call and their outcomes."""
    ran = sum(one.outcome not in ("approval", "timer", "completion") for one in attempts)
    retries = f", {count(ran - 1, 'retry', 'retries')}" if ran > 1 else ""
    return h.div(".attempts")[
        h.p(".label")[f"{count(ran, 'attempt')}{retries}"],
        h.ol[
            [
                h.li[
                    h.span[_OUTCOMES.get(one.outcome, one.outcome)],
                    h.span(".muted", title=moment(one.began_ms))[
                        f" · began {moment(one.began_ms)[11:]}",
                        one.ended_ms is not None and f", took {duration(one.ended_ms - one.began_ms)}",
                    ],
                ]
                for one in attempts
            ]
        ],
    ]


def pretty_lines(value: object) -> str:
    return visible(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True))


def _call_state(call: CallView) -> h.Node:
    if call.state == "ok":
        return h.span(".hide")["Succeeded"]
    shown = "waiting" if call.state == "approval_pending" else call.state
    return state_badge(shown, _STATES.get(call.state, call.state))


def _decision(approval: Approval, options: Options) -> h.Node:
    if approval.state == "pending":
        return h.p[h.a(href=f"/approvals/{approval.approval_id}")["Decide"]] if options.links else None
    who = f" by {approval.decided_by}" if approval.decided_by else ""
    return h.p(".small", dir="auto")[
        state_badge(str(approval.state)), who, approval.reason and h.span(".muted")[f": {approval.reason}"]
    ]


def cell_html(cell: CellView, options: Options, node_id: str) -> h.Element:
    """Render code line by line, each call below the line that made it, then the output and the result."""
    report = cell.report
    shown = cell.lines[:_MOST_LINES]
    lines: list[h.Node] = []
    for number, line in enumerate(shown, 1):
        here = any(one.state in ("running", "waiting") for one in cell.placed.get(number, ()))
        lines.append(h.code(class_={"bad": number == cell.bad_line, "here": here})[line or " "])
        if number in cell.placed:
            lines.append(h.div(".at-line")[_calls(cell.placed[number], options)])
    beside = [
        ("Output", "" if report is None else report.stdout),
        ("Error output", "" if report is None else report.stderr),
    ]
    return h.div(".cell", id=f"c-{node_id}-{cell.call_id}", role="group", aria_label=cell.title)[
        h.div(".head")[
            h.strong[cell.title],
            cell.state != "ok" and state_badge(cell.state, "failed" if cell.state == "error" else ""),
            took(cell.duration_ms),
        ],
        h.div(".lines", tabindex="0", role="group", aria_label="Code")[
            lines,
            len(cell.lines) > _MOST_LINES
            and h.span(".muted")[f"… and {len(cell.lines) - _MOST_LINES:,} more lines"],
        ],
        _cell_end(cell, beside, options),
        options.turn
        and h.details(
            ".more-of-cell",
            hx_get=f"{options.turn}/calls/{cell.call_id}",
            hx_trigger="toggle once",
            hx_target="find .history",
        )[
            h.summary(".small")["Calls and variables"],
            h.div(".history", hx_morph_skip_children=True)[h.p(".muted.small")["Loading…"]],
        ],
    ]


def _cell_end(cell: CellView, beside: Iterable[tuple[str, str]], options: Options) -> h.Node:
    report = cell.report
    inside: list[h.Node] = [
        [
            [h.p(".label")[label], h.div(".stack.tight")[_calls(calls, options)]]
            for label, calls in (
                ("Calls by functions of earlier cells", cell.loose),
                ("Calls whose line is uncertain", cell.unsure),
            )
            if calls
        ],
        [
            [h.p(".label")[label], value_block(text, label=label, whole=options.whole)]
            for label, text in beside
            if text.strip()
        ],
        cell.error is not None and error_text(cell.error),
    ]
    has_result = report is not None and report.result is not None and report.error is None
    if report is not None:
        if has_result:
            inside += [
                h.p(".label")["Result"],
                value_block(report.result, label="Result", whole=options.whole),
            ]
        inside += [h.p(".muted.small", dir="auto")[note] for note in report.notes]
    empty = not (
        cell.loose or cell.unsure or cell.error or has_result or any(text.strip() for _, text in beside)
    )
    if empty and not (report and report.notes):
        return None
    return h.div(".inside")[inside]


def _calls(calls: Sequence[CallView], options: Options) -> h.Node:
    """Render the calls of a line. Of many, show the first and last few and those that failed, wait or run."""
    if options.whole or len(calls) <= _MOST_CALLS:
        return [_made(call, options) for call in calls]
    shown: list[h.Node] = []
    left_out = 0
    for place, call in enumerate(calls):
        if 2 <= place < len(calls) - 5 and (call.state == "ok" or len(shown) > 3 * _MOST_CALLS):
            left_out += 1
            continue
        if left_out:
            shown.append(h.p(".muted.small")[f"… {count(left_out, 'more call')}"])
            left_out = 0
        shown.append(_made(call, options))
    return shown


def _made(call: CallView, options: Options) -> h.Element:
    """Render a call made by code, on one line."""
    waits = call.state in ("waiting", "approval_pending")
    kind = (
        "waiting" if waits else "running" if call.state == "running" else "" if call.state == "ok" else "bad"
    )
    result = one_line(pretty(call.value), 100) if call.has_value and call.value is not None else ""
    given = call.brief if call.brief.startswith(("{", "(")) else f"({call.brief})"
    return h.div(f".made.{kind}" if kind else ".made")[
        h.span(".call-text")[h.b[call.name], h.bdi(".muted")[given]],
        result and h.span(".brief", dir="auto")[f"→ {result}"],
        call.texts and h.span(".brief", dir="auto")[one_line("\n".join(call.texts), 100)],
        call.error is not None and h.span(dir="auto")[f"{call.error.code}: {one_line(call.error.message)}"],
        (kind or None) and _call_state(call),
        waits
        and options.links
        and call.approval is not None
        and h.a(href=f"/approvals/{call.approval.approval_id}")["Decide"],
        call.duration_ms is not None and h.span(".took")[duration(call.duration_ms)],
    ]
