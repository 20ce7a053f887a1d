"""Shared code of the encoders: conversations as sessions, media in messages, and answers to waits.

Rules
-----
1. In every protocol, a conversation's id becomes a session id by `tenants.foreign_session_id`.
2. Media is embedded in messages. The server never fetches a URL that a client names.
3. A repeated answer has no effect, so a client that lost its connection can retry it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from standfast.errors import ApprovalAlreadyDecided, ApprovalNotFound, InvalidArgument, TokenAlreadyUsed
from standfast.model.approval import ApprovalState
from standfast.model.canonical import Json
from standfast.runtime.agent_session import Attachment, Prompt, Session
from standfast.runtime.http_values import Decide
from standfast.runtime.sessions.observation import Cursor
from standfast.server.approvals import decide_approval, find_approval
from standfast.server.calls import Call
from standfast.server.encoders.client_functions import (
    ClientFunction,
    function_names,
    number_of_token,
    offer_functions,
    turn_of_tokens,
)
from standfast.server.encoders.turn_parts import TurnParts, waits_of
from standfast.server.sessions import open_session
from standfast.server.tenants import foreign_session_id

_DATA_URL: Final = re.compile(r"data:([^;,]{0,100})(?:;[^;,]{0,100})*?;base64,(.*)", re.DOTALL | re.ASCII)


async def open_conversation(call: Call, given: str, agent: str | None) -> Session[Any]:
    """Open the session of a conversation, creating it if needed.

    *agent* defaults to the session's agent, or to the server's only one.
    """
    session_id = foreign_session_id(call.tenant, given)
    if agent is None:
        head = await call.runtime.store.head(session_id)
        names = list(call.server.agents)
        agent = head.agent if head is not None else names[0] if len(names) == 1 else ""
        if not agent:
            raise InvalidArgument("this server has several agents", hint=f"name one of {', '.join(names)}")
    return await open_session(call, session_id, agent)


def prompt_of(pieces: Iterable[str | Attachment]) -> Prompt:
    """Convert the pieces of the user's messages into the input of a turn."""
    said = list(pieces)
    if not said:
        raise InvalidArgument("the last message is not the user's", hint="end with a message of the user")
    return said[0] if len(said) == 1 else said


def read_data_url(url: str, name: str | None = None) -> Attachment:
    """Decode a `data:` URL into an attachment."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise InvalidArgument(
            f"{url[:60]!r} is not a data: address in base64", hint="send the bytes inside the message"
        )
    return read_base64(found[2], found[1], name)


def read_base64(data: str, media_type: str | None = None, name: str | None = None) -> Attachment:
    """Decode base64 *data* into an attachment."""
    try:
        decoded = base64.b64decode(data, validate=True)
    except ValueError:
        raise InvalidArgument("the data of an attachment is not base64") from None
    return Attachment(decoded, media_type or "application/octet-stream", name)


def is_approval_id(text: str) -> bool:
    """Return whether *text* has the form of an approval id."""
    return text.startswith("apr_")


async def answer_waits(
    call: Call,
    session: Session[Any] | None,
    answers: Mapping[str, Decide],
    outputs: Mapping[str, Json] | None = None,
    functions: Iterable[ClientFunction] = (),
) -> tuple[TurnParts, Cursor | None]:
    """Decide approvals and complete calls of one turn; return its parts from then on, and the cursor.

    *outputs* is keyed by the calls' tokens; *functions* are the ones that the client runs. Without a
    *session*, the approvals or tokens identify it.
    """
    asked = [await find_approval(call, approval_id) for approval_id in answers]
    turns = {one.run_id for one in asked}
    open_tokens: set[str] = set()
    if outputs:
        record, session = await turn_of_tokens(call, outputs)
        turns.add(record.turn_id)
        open_tokens = {wait.wait_id for wait in waits_of(record)} & set(outputs)
        await offer_functions(call, session, functions)
    if session is None:
        session = call.runtime.session_handle(asked[0].session_id)
    for one in asked:
        if one.session_id != session.session_id:
            raise ApprovalNotFound(one.approval_id)
    if len(turns) != 1:
        raise InvalidArgument("the answers are for several turns", hint="answer one turn at a time")
    names = function_names(call, session.session_id)
    parts, cursor = TurnParts(call, session, turns.pop(), names), await session.cursor()
    pending = [one for one in asked if one.state is ApprovalState.PENDING]
    is_new = bool(pending or open_tokens)
    numbers = [one.call_id for one in asked] + [number_of_token(one) for one in outputs or ()]
    await parts.skip(None if is_new else min(numbers))
    for one in asked:
        answer = answers[one.approval_id]
        parts.answered.add(one.approval_id)
        if one.state is ApprovalState.PENDING:
            await decide_approval(call, one.approval_id, answer)
        elif (one.state is ApprovalState.APPROVED) != answer.approved:
            raise ApprovalAlreadyDecided(one.approval_id, one.state)
    for token in open_tokens:
        parts.answered.add(token)
        with suppress(TokenAlreadyUsed):  # a concurrent request completed it
            await call.runtime.complete(token, (outputs or {})[token])
    return parts, cursor if is_new else None
