"""A session as one document that can be read on its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import click
import msgspec

from standfast.cli.agent_host import known_session, said_so_far
from standfast.cli.output import write_private
from standfast.model.approval import Approval
from standfast.model.limits import UsageEntry
from standfast.model.message import AttachmentPart, InputPart, Part, ToolMessage, UserMessage
from standfast.model.session import CurrentTurn, Node, SessionHead, TurnRecord
from standfast.runtime.agent_runtime import Runtime


class SessionExport(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` are those of the active path, oldest first; `attachments` are named by their digests.

    `current` is the unfinished turn, if there is one; its messages are not in `nodes` yet.
    """

    format: Literal["standfast.session"] = "standfast.session"
    version: Literal[1] = 1
    head: SessionHead
    nodes: tuple[Node, ...]
    turns: tuple[TurnRecord, ...]
    usage: tuple[UsageEntry, ...]
    approvals: tuple[Approval, ...]
    attachments: tuple[AttachmentPart, ...]
    current: CurrentTurn | None = None


async def export_session(runtime: Runtime, session_id: str, attachments: Path | None = None) -> SessionExport:
    """Read a session; write the bytes of its attachments to the directory *attachments*, if given."""
    session = await known_session(runtime, session_id)
    nodes, current = await said_so_far(session)
    head = await session.head()
    turns = tuple(await session.turns())
    mine = {turn.turn_id for turn in turns}
    parts: dict[str, AttachmentPart] = {}
    for payload in (*(node.payload for node in nodes), *(() if current is None else current.messages)):
        found: Iterable[Part] = ()
        if isinstance(payload, UserMessage) and not isinstance(payload.content, str):
            found = payload.content
        elif isinstance(payload, ToolMessage):
            found = payload.attachments
        for part in found:
            if isinstance(part, InputPart):
                part = AttachmentPart(
                    digest=part.digest, media_type=part.media_type, size=part.size, name=part.name
                )
            if isinstance(part, AttachmentPart):
                parts[part.digest] = part
    if attachments is not None and parts:
        try:
            os.makedirs(attachments, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"{attachments} cannot be written: {error.strerror or error}") from None
        for digest in parts:
            write_private(attachments / digest, await session.attachment(digest))
    return SessionExport(
        head=head,
        nodes=tuple(nodes),
        turns=turns,
        usage=head.usage,
        approvals=tuple(one for one in await session.approvals() if one.run_id in mine),
        attachments=tuple(parts.values()),
        current=current,
    )
