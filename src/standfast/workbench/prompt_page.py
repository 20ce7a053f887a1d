"""The prompt of a model call: exactly what the model received, and the difference from the previous call."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.errors import StandfastError
from standfast.model.limits import Usage
from standfast.model.prompt_record import ModelPrompt
from standfast.model.session import node_id, split_node_id
from standfast.runtime.agent_runtime import Runtime
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.parts import diff, empty, error_text, live_part, pager, value_block
from standfast.workbench.prompts import (
    PromptView,
    SectionView,
    exact_json,
    prompt_lines,
    prompt_view,
)
from standfast.workbench.shell import page
from standfast.workbench.turn_pages import turn_top
from standfast.workbench.words import cost, count, moment, tokens

_PATH: Final = "/sessions/{session_id}/turns/{turn_id}"
_MOST_MESSAGES: Final = 60
ROUTES: Final = Routes()


class PromptQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The call's position in the turn, from 1. `changes` shows only the diff, `whole` uncut messages."""

    call: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    changes: bool = False
    whole: bool = False


@ROUTES.add("GET", f"{_PATH}/prompt", Scope.READ, query=PromptQuery)
async def prompt_page(call: Call) -> Response:
    """Show one model call of a turn."""
    asked: PromptQuery = call.query
    session, turn_id = await call.session(), call.path["turn_id"]
    found = await session.prompts(turn_id)
    place = f"/sessions/{session.session_id}/turns/{turn_id}/prompt"
    number = max(1, min(asked.call, len(found)))
    shown: list[h.Node] = [
        empty("No model call has ended yet", "A call appears here when the model has replied.")
    ]
    if found:
        prompt = found[number - 1]
        before = found[number - 2] if number > 1 else await _last_before(call.runtime, turn_id)
        shown = [
            len(found) > 1 and _calls_nav(place, number, len(found), asked.changes),
            _facts(prompt),
            _views(place, number, asked.changes),
            _changes(prompt, before) if asked.changes else _whole(prompt_view(prompt, before), prompt, asked),
        ]
    given = {"call": str(number), "changes": str(asked.changes).lower(), "whole": str(asked.whole).lower()}
    main = [
        *await turn_top(call, turn_id, "prompt"),
        live_part("prompt", f"{place}?{urlencode(given)}", *shown, kind=".stack"),
    ]
    stream = f"/live?session={session.session_id}"
    return await page(call, title=f"Prompt of {turn_id}", place="sessions", main=main, stream=stream)


async def _last_before(runtime: Runtime, turn_id: str) -> ModelPrompt | None:
    """Return the last prompt of the previous turn, if its journal is kept."""
    store = runtime.store
    record = await store.turn(turn_id)
    if record is None:
        return None
    try:
        leaf = (await runtime.session_handle(record.session_id).head()).leaf
        if record.ended_at is not None:
            leaf = (await store.path(node_id(turn_id, 0)))[-1].parent
        earlier = None if leaf is None else await store.turn(split_node_id(leaf)[0])
        if earlier is None:
            return None
        found = await runtime.session_handle(earlier.session_id).prompts(earlier.turn_id)
    except StandfastError:
        return None  # the turn was pruned
    return found[-1] if found else None


def _calls_nav(place: str, number: int, last: int, changes: bool) -> h.Element:
    beside = "&changes=true" if changes else ""
    before = f"{place}?call={number - 1}{beside}" if number > 1 else None
    after = f"{place}?call={number + 1}{beside}" if number < last else None
    return pager("Calls", f"Model call {number} of {last}", before, after)


def _views(place: str, number: int, changes: bool) -> h.Element:
    address = f"{place}?call={number}"
    return h.nav(".row.small-buttons", aria_label="What to show")[
        h.a(".button", href=address, aria_current=None if changes else "page")["Whole prompt"],
        h.a(".button", href=f"{address}&changes=true", aria_current="page" if changes else None)["Changes"],
        h.a(".button", href=f"{place}.json?call={number}", download=True)["Save as JSON"],
    ]


def _facts(prompt: ModelPrompt) -> h.Node:
    used = prompt.usage
    sent = used.input + used.cache_read + used.cache_write
    return h.section(".panel")[
        h.div(".facts")[
            h.span[moment(prompt.at_ms)],
            prompt.model and h.span["Model ", h.b[prompt.model]],
            prompt.attempt > 1 and h.span[f"attempt {prompt.attempt}"],
            h.span[count(len(prompt.messages), "message")],
            h.span[count(len(prompt.tools), "tool")],
            sent > 0 and h.span[f"{tokens(sent)} → {tokens(used.output)} tokens"],
            cost(used) and h.span[cost(used)],
        ],
        prompt.error is not None and error_text(prompt.error),
        sent > 0 and _cache(used, sent),
    ]


def _cache(used: Usage, sent: int) -> h.Element:
    share = used.cache_read / sent
    words = f"{tokens(used.cache_read)} of {tokens(sent)} input tokens ({share:.0%}) were read from the cache"
    if used.cache_write:
        words += f"; {tokens(used.cache_write)} were written to it"
    return h.div(".cover")[
        h.svg(viewBox="0 0 100 6", preserveAspectRatio="none", aria_hidden="true")[
            h.rect(class_="track", x="0", y="0", width="100", height="6"),
            h.rect(class_="covered", x="0", y="0", width=f"{share * 100:.1f}", height="6"),
        ],
        h.p(".small")[words + "."],
    ]


def _whole(view: PromptView, prompt: ModelPrompt, asked: PromptQuery) -> h.Node:
    messages = view.messages if asked.whole else view.messages[-_MOST_MESSAGES:]
    hidden = len(view.messages) - len(messages)
    return [
        h.section(".stack", aria_label="Instructions")[
            h.h2["Instructions"],
            [
                _section(one, asked.whole, _SPEAKERS.get(one.title, f"Plugin {one.title}"))
                for one in view.parts
            ]
            or h.p(".muted")["This agent has no instructions."],
        ],
        h.section(".stack", aria_label="Tools")[
            h.h2["Tools"],
            [_tool(one) for one in view.tools] or h.p(".muted")["The model was offered no tools."],
        ],
        prompt.output_schema is not None
        and h.section(".stack")[
            h.h2["Output schema"], value_block(prompt.output_schema, label="Output schema")
        ],
        bool(prompt.settings)
        and h.section(".stack")[h.h2["Settings"], value_block(prompt.settings, label="Settings")],
        h.section(".stack", aria_label="Messages")[
            h.h2["Messages"],
            hidden > 0
            and h.p[
                h.a(href=f"?call={asked.call}&whole=true")[f"Show the {count(hidden, 'earlier message')}"]
            ],
            [_section(one, asked.whole, one.title) for one in messages],
        ],
    ]


def _marks(one: SectionView) -> h.Node:
    return h.span(".marks")[
        h.span(".mark-known" if one.known else ".mark-new")["unchanged" if one.known else "new"],
        one.cached
        and h.span(".mark-cached", title="Estimated from its length and the cached tokens")["cached"],
    ]


_SPEAKERS: Final = {
    "runtime": "Runtime",
    "agent": "Prompt layer of the agent",
    "instructions": "Instructions of the agent",
    "host": "Application, for this session",
    "turn": "This turn",
    "protocol": "Protocol",
    "plugins": "Plugins",
}


def _section(one: SectionView, whole: bool, title: str) -> h.Element:
    kind = f".said-part.{one.kind}" + (".cached" if one.cached else "")
    return h.article(kind)[
        h.header[h.b(dir="auto")[title], _marks(one)],
        value_block(one.text, label=title, whole=whole),
    ]


def _tool(one: SectionView) -> h.Element:
    return h.details(".call")[
        h.summary[
            h.span(".name")[one.title],
            h.span(".brief", dir="auto")[one.text.partition("\n")[0]],
            _marks(one),
        ],
        h.div(".inside")[value_block(one.text, label=f"Tool {one.title}", whole=True)],
    ]


def _changes(prompt: ModelPrompt, before: ModelPrompt | None) -> h.Node:
    if before is None:
        return empty("No earlier call to compare with", "This is the first call whose prompt is stored.")
    shown = diff(prompt_lines(before), prompt_lines(prompt), around=2)
    return shown or empty("No changes", "The model received the same prompt as in the previous call.")


@ROUTES.add("GET", f"{_PATH}/prompt.json", Scope.READ, query=PromptQuery)
async def prompt_json(call: Call) -> Response:
    """Send what the model received, as a JSON download."""
    asked: PromptQuery = call.query
    session, turn_id = await call.session(), call.path["turn_id"]
    found = await session.prompts(turn_id)
    body = exact_json(found[min(asked.call, len(found)) - 1]) if found else b"null"
    name = f"prompt-{turn_id}-{asked.call}.json"
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "x-content-type-options": "nosniff",
    }
    return Response(body, 200, headers, "application/json")
