"""Attachments over HTTP: upload bytes, refer to them by digest in a turn, read them back in ranges.

Rule: an upload belongs to its tenant and is kept for a day. Once a turn has referred to it, it is part of the
session and is read from there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.responses import Response

from standfast.errors import Code, InvalidArgument, RequestRefused
from standfast.model.canonical import digest_bytes
from standfast.ports.session_store import BlobPart
from standfast.runtime.agent_session import Attachment
from standfast.runtime.http_values import Uploaded, UploadQuery
from standfast.runtime.session_views import export_session
from standfast.server.calls import BINARY, Call, Routes
from standfast.server.credentials import Scope

_OWNER: Final = "standfast.server"
_KEPT_MS: Final = 24 * 3600 * 1000
_MEDIA_TYPE: Final = re.compile(r"[a-zA-Z0-9!#$&^_.+-]{1,64}/[a-zA-Z0-9!#$&^_.+-]{1,64}", re.ASCII)
_BEYOND: Final = 1 << 62
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_RANGE_HEADER = {"Range": "A range of bytes, such as `bytes=0-99`."}
ROUTES: Final = Routes()


class _Upload(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of an upload."""

    media_type: str
    at_ms: int
    data: bytes
    name: str | None = None


@ROUTES.add("POST", "/v1/attachments", Scope.RUN, body=bytes, query=UploadQuery, answer=Uploaded, status=201)
async def upload(call: Call) -> Uploaded:
    """Upload an attachment. A turn's input refers to it by its digest."""
    data: bytes = call.body
    asked: UploadQuery = call.query
    media_type = call.headers.get("content-type", BINARY).partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(media_type) is None:
        raise InvalidArgument(f"{media_type[:80]!r} is not a media type", hint="send Content-Type: image/png")
    now, digest = call.runtime.now_ms(), digest_bytes(data)
    kept = _Upload(media_type=media_type, at_ms=now, data=data, name=asked.name)
    store, scope = call.runtime.store, _scope(call)
    await store.put_plugin_record(_OWNER, scope, digest, msgspec.msgpack.encode(kept), now)
    index = msgspec.msgpack.encode(now)
    await store.put_plugin_record(_OWNER, f"{scope}:times", digest, index, now)
    for other, at in await store.plugin_records(_OWNER, f"{scope}:times"):
        if msgspec.msgpack.decode(at, type=int) < now - _KEPT_MS:
            await store.put_plugin_record(_OWNER, scope, other, None, now)
            await store.put_plugin_record(_OWNER, f"{scope}:times", other, None, now)
    return Uploaded(digest=digest, media_type=media_type, size=len(data), name=asked.name)


async def load_upload(call: Call, digest: str) -> Attachment:
    """Return an attachment that the tenant has uploaded."""
    body = await call.runtime.store.plugin_record(_OWNER, _scope(call), digest)
    if body is None:
        raise _not_found(digest)
    kept = msgspec.msgpack.decode(body, type=_Upload)
    return Attachment(kept.data, kept.media_type, kept.name)


def _scope(call: Call) -> str:
    return f"uploads:{call.tenant}"


def _not_found(digest: str) -> RequestRefused:
    return RequestRefused(
        404,
        Code.INPUT_NOT_FOUND,
        f"there is no attachment {digest[:80]!r}",
        hint="upload it: POST /v1/attachments",
    )


@ROUTES.add(
    "GET", "/v1/attachments/{digest}", Scope.READ, answer=bytes, headers=_RANGE_HEADER, other_statuses=(206,)
)
async def read_upload(call: Call) -> Response:
    """Read an uploaded attachment, or a range of its bytes."""
    found = await load_upload(call, call.path["digest"])

    async def read(start: int, stop: int | None) -> BlobPart:
        return BlobPart.of(found.data, start, stop)

    return await _bytes_response(call, read, found.media_type)


@ROUTES.add(
    "GET",
    "/v1/sessions/{session_id}/attachments/{digest}",
    Scope.READ,
    answer=bytes,
    headers=_RANGE_HEADER,
    other_statuses=(206,),
)
async def read_attachment(call: Call) -> Response:
    """Read an attachment of a session, or a range of its bytes."""
    session, digest = await call.session(), call.path["digest"]
    exported = await export_session(call.runtime, session.session_id)
    part = next((one for one in exported.attachments if one.digest == digest), None)
    if part is None:
        raise _not_found(digest)

    async def read(start: int, stop: int | None) -> BlobPart:
        return await session.attachment_part(digest, start, stop)

    return await _bytes_response(call, read, part.media_type)


async def _bytes_response(
    call: Call, read: Callable[[int, int | None], Awaitable[BlobPart]], media_type: str
) -> Response:
    """Return all bytes or the requested range, with headers that keep browsers from rendering them."""
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": "attachment",
        "x-attachment-type": media_type,
        "etag": f'"{call.path["digest"]}"',
    }
    wanted = call.headers.get("range")
    found = None if wanted is None else _RANGE.fullmatch(wanted.strip())
    first, last = found.groups() if found else ("", "")
    if wanted is None or not (first or last):  # several ranges: send the whole body
        return Response((await read(0, None)).data, 200, headers, BINARY)
    if first:
        part = await read(int(first), int(last) + 1 if last else None)
    else:
        part = await read(-int(last) if int(last) else _BEYOND, None)
    if not part.data:
        raise RequestRefused(
            416,
            Code.INVALID_ARGUMENT,
            f"range {wanted[:80]!r} is outside of {part.size} bytes",
            headers={"content-range": f"bytes */{part.size}"},
        )
    headers["content-range"] = f"bytes {part.start}-{part.start + len(part.data) - 1}/{part.size}"
    return Response(part.data, 206, headers, BINARY)
