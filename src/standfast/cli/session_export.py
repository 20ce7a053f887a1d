"""A session as one document that needs nothing else to be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import click
import msgspec

from standfast.cli.agent_host import known_session, said_so_far
from standfast.model.approval import Approval
from standfast.model.current_turn import CurrentTurn
from standfast.model.head import SessionHead
from standfast.model.message import AttachmentPart, InputPart, TextPart, ToolMessage, UserMessage
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


async def export_session(runtime: Runtime, session_id: str) -> SessionExport:
    session = await known_session(runtime, session_id)
    nodes, current = await said_so_far(session)
    head = await session.head()
    turns = tuple(await session.turns())
    said = (*(node.payload for node in nodes), *(() if current is None else current.messages))
    mine = {turn.turn_id for turn in turns}
    return SessionExport(
        head=head,
        nodes=tuple(nodes),
        turns=turns,
        usage=head.usage,
        approvals=tuple(one for one in await session.approvals() if one.run_id in mine),
        attachments=tuple({part.digest: part for part in _attachments(said)}.values()),
        current=current,
    )


def _attachments(said: Iterable[Payload]) -> Iterable[AttachmentPart]:
    for payload in said:
        if isinstance(payload, UserMessage) and not isinstance(payload.content, str):
            yield from (_as_attachment(part) for part in payload.content if not isinstance(part, TextPart))
        elif isinstance(payload, ToolMessage):
            yield from payload.attachments


def _as_attachment(part: AttachmentPart | InputPart) -> AttachmentPart:
    if isinstance(part, AttachmentPart):
        return part
    return AttachmentPart(digest=part.digest, media_type=part.media_type, size=part.size, name=part.name)


async def write_attachments(runtime: Runtime, exported: SessionExport, directory: Path) -> None:
    """Write the bytes of each attachment to a file of its digest's name."""
    session = await known_session(runtime, exported.head.session_id)
    for part in exported.attachments:
        _write_attachment(directory, part.digest, await session.attachment(part.digest))


def _write_attachment(directory: Path, digest: str, data: bytes) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_private(directory / digest, data)
    except OSError as error:
        raise click.UsageError(f"{directory} cannot be written: {error.strerror or error}") from None


def write_export(exported: SessionExport, out: Path | None) -> None:
    """Write the document, indented, to a file that only its owner may read, or to standard output."""
    data = msgspec.json.format(msgspec.json.encode(exported), indent=2) + b"\n"
    if out is None:
        sys.stdout.write(data.decode())
        return
    try:
        _write_private(out, data)
    except OSError as error:
        raise click.UsageError(f"{out} cannot be written: {error.strerror or error}") from None


def _write_private(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
