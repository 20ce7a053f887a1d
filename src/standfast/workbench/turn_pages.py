"""The pages of one turn: its waterfall, and its journal step by step, each a point to fork from."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.model.journal import EditedCall, JournalEdit, JournalStep
from standfast.model.session import SessionId
from standfast.runtime.http_values import Fork
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import malformed
from standfast.server.sessions import fork_session
from standfast.workbench.conversation import items_of
from standfast.workbench.conversation_html import Options, item_html, views_of_turn
from standfast.workbench.forms import field, read_form
from standfast.workbench.parts import empty, live_part, pager, value_block, when
from standfast.workbench.session_page import session_header, session_tabs
from standfast.workbench.session_reader import read_now
from standfast.workbench.shell import page, redirect
from standfast.workbench.waterfall import bars_of, waterfall_html
from standfast.workbench.words import count, duration, moment, pretty, tokens

_MOST_CHARS: Final = 20_000
_PATH: Final = "/sessions/{session_id}/turns/{turn_id}"
ROUTES: Final = Routes()


class WaterfallQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to show only failed spans."""

    failures: bool = False


@ROUTES.add("GET", f"{_PATH}/waterfall", Scope.READ, query=WaterfallQuery)
async def waterfall_page(call: Call) -> Response:
    """Show the spans of a turn over time."""
    asked: WaterfallQuery = call.query
    session, turn_id = await call.session(), call.path["turn_id"]
    bars = bars_of(await session.spans(turn_id), failures=asked.failures)
    place = f"/sessions/{session.session_id}/turns/{turn_id}/waterfall"
    main = [
        *await turn_top(call, turn_id, "waterfall"),
        h.nav(".row.small-buttons", aria_label="Filter")[
            h.a(".button", href=place, aria_current=None if asked.failures else "page")["All spans"],
            h.a(".button", href=f"{place}?failures=true", aria_current="page" if asked.failures else None)[
                "Failures only"
            ],
        ],
        live_part(
            "spans",
            f"{place}?failures=true" if asked.failures else place,
            h.div(".panel")[waterfall_html(bars)]
            if bars
            else empty("No failures", "Every span of this turn has succeeded so far.")
            if asked.failures
            else empty("No spans", "The spans of this turn are no longer stored."),
        ),
    ]
    stream = f"/live?session={session.session_id}"
    return await page(call, title=f"Waterfall of {turn_id}", place="sessions", main=main, stream=stream)


async def turn_top(call: Call, turn_id: str, current: str) -> list[h.Node]:
    """Render the session's header and tabs, and the time and tabs of the turn."""
    head, now_ms = await call.head(), call.runtime.now_ms()
    now = await read_now(call.runtime, head.session_id)
    record = await call.runtime.store.turn(turn_id)
    path = f"/sessions/{head.session_id}"
    views = [
        (f"{path}#turn-{turn_id}", "Messages", ""),
        *((f"{path}/turns/{turn_id}/{view}", view.capitalize(), view) for view in views_of_turn(head)),
    ]
    return [
        session_header(now, now_ms),
        session_tabs(head.session_id, ""),
        h.section(".turn-top", aria_label="Turn")[
            h.div(".facts")[
                h.b["Turn"],
                record is not None and h.span["started ", when(record.created_at, now_ms, " ago")],
                record is not None
                and record.ended_at is not None
                and h.span["took ", duration(record.ended_at - record.created_at)],
            ],
            h.nav(".tabs.sub.views", aria_label="Views of this turn")[
                [
                    h.a(href=address, aria_current="page" if name == current else None)[title]
                    for address, title, name in views
                ]
            ],
        ],
    ]


# Time travel


class StepQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the journaled input to show, from 1; `whole` shows it uncut."""

    step: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    whole: bool = False


@ROUTES.add("GET", f"{_PATH}/journal", Scope.READ, query=StepQuery)
async def journal_page(call: Call) -> Response:
    """Step through a turn's journal: the machine's state and decisions after each input."""
    asked: StepQuery = call.query
    session, turn_id = await call.session(), call.path["turn_id"]
    steps = await session.journal(turn_id)
    number = min(asked.step, len(steps))
    titles = step_titles(steps)
    place = f"/sessions/{session.session_id}/turns/{turn_id}/journal"
    options = Options(
        now_ms=call.runtime.now_ms(),
        session_id=session.session_id,
        files=f"/sessions/{session.session_id}/files",
        whole=asked.whole,
    )
    main = [
        *await turn_top(call, turn_id, "journal"),
        h.div(".travel")[
            live_part(
                "steps",
                f"{place}?step={number}",
                h.nav(".steps", aria_label="Inputs of the journal")[
                    [
                        h.a(
                            href=f"{place}?step={one.number}",
                            aria_current="step" if one.number == number else None,
                            data_row=True,
                        )[h.span(".n")[str(one.number)], titles[one.number]]
                        for one in steps
                    ]
                ],
            ),
            h.div(".stack")[
                live_part("at", f"{place}?step={number}", _steps_nav(place, number, len(steps))),
                _step_html(steps, number, titles[number], options),
                call.credential.allows(Scope.RUN)
                and (await call.head()).code is None
                and _fork_form(session.session_id, turn_id, steps[number - 1]),
            ],
        ],
    ]
    stream = f"/live?session={session.session_id}"
    return await page(call, title=f"Journal of {turn_id}", place="sessions", main=main, stream=stream)


def step_titles(steps: Iterable[JournalStep]) -> dict[int, str]:
    """Return the title of each input by number: its kind, and the tool, stage or call that it concerns."""
    names: dict[object, str] = {}
    titles: dict[int, str] = {}
    for step in steps:
        names.update({one["call_id"]: str(one["name"]) for one in step.commands if one.get("name")})
        kind = str(step.input.get("type", "input")).replace("_", " ").capitalize()
        call_id = step.input.get("call_id")
        about = step.input.get("name") or step.input.get("stage") or names.get(call_id)
        about = about or (f"call {call_id}" if call_id else "")
        titles[step.number] = f"{kind}: {about}" if about else kind
    return titles


def _steps_nav(place: str, number: int, last: int) -> h.Element:
    before = f"{place}?step={number - 1}" if number > 1 else None
    after = f"{place}?step={number + 1}" if number < last else None
    return pager("Steps", f"Input {number} of {last}", before, after)


def _step_html(steps: list[JournalStep], number: int, title: str, options: Options) -> h.Node:
    """Render one input, the machine's decisions, and its state at that point."""
    step = steps[number - 1]
    said = [message for one in steps[:number] for message in one.messages]
    numbered = [(f"step{place}", message) for place, message in enumerate(said)]
    return [
        h.section(".panel")[
            h.h2[title],
            h.div(".facts")[
                h.span[moment(step.at_ms)],
                number > 1 and h.span[h.b[duration(max(0, step.at_ms - steps[0].at_ms))], " after the start"],
                h.span["Phase ", h.b[step.phase]],
                h.span[count(step.model_calls, "model call")],
                step.usage.total > 0 and h.span[f"{tokens(step.usage.total)} tokens"],
                bool(step.running) and h.span["Running calls ", h.b[", ".join(map(str, step.running))]],
                bool(step.waits) and h.span["Waiting for ", h.b[", ".join(wait.kind for wait in step.waits)]],
            ],
            h.p(".label")["Input"],
            len(pretty(step.input)) > _MOST_CHARS
            and not options.whole
            and h.p(".small")[h.a(href=f"?step={number}&whole=true")["Show this input uncut"]],
            value_block(step.input, label="Input", most=_MOST_CHARS, whole=options.whole),
            h.p(".label")["Decisions of the machine"],
            value_block(list(step.commands), label="Decisions", most=_MOST_CHARS, whole=options.whole)
            if step.commands
            else h.p(".muted")["None: the machine needs another input first."],
        ],
        h.h2["What the machine knew"],
        h.div(".turn")[[item_html(item, options) for item in items_of(numbered, "", {}, step.waits)]],
    ]


def _fork_form(session_id: str, turn_id: str, step: JournalStep) -> h.Element:
    """Render a form that forks after this input, optionally with a different outcome."""
    kind = str(step.input.get("type"))
    edits: list[h.Node] = []
    if kind == "tool_settled":
        edits = [
            h.label[
                h.span["Replace the tool's result, as JSON (empty: keep it)"],
                h.textarea(".code", name="value", rows="3", spellcheck="false"),
            ],
            h.label[
                h.span["Or replace it with this error message"], h.input(name="error", autocomplete="off")
            ],
        ]
    elif kind == "model_replied":
        edits = [
            h.label[
                h.span["Replace the model's reply (empty: keep it)"],
                h.textarea(name="text", rows="3", dir="auto"),
            ],
            h.label[
                h.span["Calls of the new reply, as JSON (empty: none)"],
                h.textarea(
                    ".code", name="calls", rows="2", spellcheck="false", placeholder='[["tool", {"name": 1}]]'
                ),
            ],
        ]
    return h.form(".panel", hx_post=f"/sessions/{session_id}/turns/{turn_id}/continue", hx_swap="none")[
        h.h2["Continue from here in a fork"],
        h.p(".muted.small")[
            "A new session replays the journal up to this input and continues from there. "
            "Calls without a result run again."
        ],
        h.input(type="hidden", name="step", value=str(step.number)),
        edits,
        h.div[h.button(".primary")["Fork after this input"]],
    ]


@ROUTES.add("POST", f"{_PATH}/continue", Scope.RUN, body=bytes)
async def continue_from(call: Call) -> Response:
    """Fork a session in the middle of a turn, optionally with a different outcome, and redirect to it."""
    form, head = read_form(call), await call.head()
    number = field(form, "step")
    if not number.isdigit():
        raise malformed(f"step must be a number, got {number[:20]!r}")
    call.body = Fork(
        session_id=SessionId(f"{head.session_id[:50]}-{secrets.token_hex(3)}"),
        at=call.path["turn_id"],
        input=int(number),
        edit=_edit(form),
    )
    return redirect(f"/sessions/{(await fork_session(call)).session_id}")


def _edit(form: Mapping[str, list[str]]) -> JournalEdit | None:
    """Return the edit that the form describes, None if it has none."""
    value, error, text, calls = (field(form, name) for name in ("value", "error", "text", "calls"))
    if value or error:
        return JournalEdit(value=_json(value, "the result") if value else None, error=error or None)
    if text or calls:
        asked = _json(calls, "the calls") if calls else []
        try:
            made = tuple(EditedCall(name=str(name), arguments=dict(given)) for name, given in asked)
        except (TypeError, ValueError):
            raise malformed('the calls must look like [["tool", {"name": 1}]]') from None
        return JournalEdit(text=text, calls=made)
    return None


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"{what} is not JSON: {error}") from None
