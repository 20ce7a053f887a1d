"""Export of a session as one HTML file that needs no server, script or network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import htpy as h
from markupsafe import Markup

from standfast.model.call_history import CallHistory
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.session_views import SessionExport, export_session, known_session
from standfast.workbench.conversation import turns_of
from standfast.workbench.conversation_html import IMAGES, Options, item_html, turn_html
from standfast.workbench.live_turn import LiveTurn, current_items
from standfast.workbench.parts import state_badge
from standfast.workbench.session_page import session_header
from standfast.workbench.session_reader import SessionNow, read_made, read_now
from standfast.workbench.shell import static_text
from standfast.workbench.words import moment

MAX_IMAGES_BYTES: Final = 20_000_000
"""Total size of embedded images; images beyond it are only named."""


async def export_html(runtime: Runtime, session_id: str) -> str:
    """Return a session with its whole history as one HTML page. Raise `SessionNotFound` if there is none."""
    exported = await export_session(runtime, session_id)
    now = await read_now(runtime, session_id)
    session, images, left = await known_session(runtime, session_id), dict[str, str](), MAX_IMAGES_BYTES
    for part in exported.attachments:
        if part.media_type in IMAGES and part.size <= left:
            left -= part.size
            data = base64.b64encode(await session.attachment(part.digest)).decode()
            images[part.digest] = f"data:{part.media_type};base64,{data}"
    made = await read_made(runtime, exported.turns, exported.nodes)
    return render_export(exported, now, images, made, runtime.now_ms())


def render_export(
    exported: SessionExport,
    now: SessionNow,
    images: Mapping[str, str],
    made: Mapping[str, Sequence[CallHistory]],
    now_ms: int,
) -> str:
    """Render an exported session with the workbench's renderers."""
    style = static_text("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    options = Options(now_ms=now_ms, session_id=exported.head.session_id, images=images, whole=True)
    records = {one.turn_id: one for one in exported.turns}
    turns = turns_of(exported.nodes, records, exported.approvals, made)
    current = exported.current
    return str(
        h.html(lang="en")[
            h.head[
                h.meta(charset="utf-8"),
                h.meta(http_equiv="Content-Security-Policy", content=policy),
                h.title[f"{exported.head.session_id} · Standfast"],
                h.meta(name="viewport", content="width=device-width, initial-scale=1"),
                h.meta(name="color-scheme", content="light dark"),
                # Unescaped, because the policy lists the digest of its exact text.
                h.style[Markup(style)],  # noqa: S704 - a file of this package
            ],
            h.body(".bare.export")[
                h.main("#main")[
                    session_header(now, now_ms, links=False),
                    h.p(".muted.small")[f"Exported {moment(now_ms)}"],
                    h.div(".conversation")[
                        [turn_html(turn, options) for turn in turns],
                        current is not None
                        and h.section(".turn")[
                            h.header[state_badge(current.state)],
                            [
                                item_html(item, options)
                                for item in current_items(
                                    current, LiveTurn(), list(exported.approvals), now.made
                                )
                            ],
                        ],
                    ],
                ]
            ],
        ]
    )
