"""A session as one document that needs nothing else to be read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import click
import msgspec

from standfast.cli.agent_host import known_session, said_so_far
from standfast.cli.output import write_private
from standfast.model.approval import Approval
from standfast.model.current_turn import CurrentTurn
from standfast.model.head import SessionHead
from standfast.model.message import AttachmentPart, InputPart, ToolMessage, UserMessage
from standfast.model.node import Node, Payload
from standfast.model.turn import TurnRecord
from standfast.model.usage import UsageEntry
from standfast.runtime.agent_runtime import Runtime


class SessionExport(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` are those of the active path, oldest first; `attachments` are named by their digests.

    `current` is the turn that has not ended, if there is one; what was said in it is no part of `nodes` yet.
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
    said = (*(node.payload for node in nodes), *(() if current is None else current.messages))
    mine = {turn.turn_id for turn in turns}
    parts = {part.digest: part for part in _attachments(said)}
    if attachments is not None:
        for digest in parts:
            _write_attachment(attachments, digest, await session.attachment(digest))
    return SessionExport(
        head=head,
        nodes=tuple(nodes),
        turns=turns,
        usage=head.usage,
        approvals=tuple(one for one in await session.approvals() if one.run_id in mine),
        attachments=tuple(parts.values()),
        current=current,
    )


def _write_attachment(directory: Path, digest: str, data: bytes) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{directory} cannot be written: {error.strerror or error}") from None
    write_private(directory / digest, data)


def _attachments(said: Iterable[Payload]) -> Iterable[AttachmentPart]:
    for payload in said:
        if isinstance(payload, UserMessage) and not isinstance(payload.content, str):
            for part in payload.content:
                if isinstance(part, AttachmentPart):
                    yield part
                elif isinstance(part, InputPart):
                    yield AttachmentPart(
                        digest=part.digest, media_type=part.media_type, size=part.size, name=part.name
                    )
        elif isinstance(payload, ToolMessage):
            yield from payload.attachments
