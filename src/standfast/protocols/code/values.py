"""The read-only values of code: inputs by name, `attachments`, and `history`.

`history` lists the earlier cells: a cell is a call of `run_code`, and its report is the value of the result.
A report that is too long for a message is stored as an attachment, and the message contains a cut version of
it, which is used if the attachment is missing or too large to load.

Rules
-----
1. Every cell with a result has an index in `history`, in the order of the calls, even if it was refused.
2. A whole report replaces its cut version, but never a value by which a plugin has replaced the report.
3. Cut reports are marked: in the text, and by `"cut": True` in `history`.
4. A cell keeps its index, since the model has read it. If a frame begins in the middle of a session, the
   cells before it are empty entries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.errors import ErrorObject, InvalidArgument, UnreadableInput
from standfast.model.canonical import Json
from standfast.model.code import RUN_CODE, CellReport
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.protocols.standard.cells import WHOLE_REPORT

ReadBlob = Callable[[str], Awaitable[bytes | None]]
"""Returns the bytes with a digest; None if they are no longer stored."""
HISTORY: Final = "history"
ATTACHMENTS: Final = "attachments"
RESERVED: Final = frozenset({HISTORY, ATTACHMENTS})
_TEXT_TYPES: Final = (
    "text/", "application/json", "application/xml", "application/yaml", "application/x-yaml",
)  # fmt: skip


class CellEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cell that has a result.

    If `report` is cut, `whole` is the digest of the whole report and `whole_bytes` its size. `value` is set
    if the result is not a report. A cell that is `left_out` belongs to an earlier frame.
    """

    code: str
    report: CellReport | None = None
    whole: str | None = None
    whole_bytes: int = 0
    value: Json = None
    error: ErrorObject | None = None
    left_out: bool = False


_MOST_LEFT_OUT: Final = 100_000
_LEFT_OUT: Final = CellEntry(code="", left_out=True)


def cells_of(messages: Iterable[Message]) -> list[CellEntry]:
    """Return the cells that have a result, in the order of their calls."""
    cells: list[list[CellEntry]] = []
    called: dict[int, tuple[ToolCall, list[CellEntry]]] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            # Call ids are unique only within a turn: a later turn reuses them.
            called |= {call.call_id: (call, []) for call in message.tool_calls}
            cells += [called[call.call_id][1] for call in message.tool_calls if call.name == RUN_CODE]
        elif isinstance(message, ToolMessage) and message.name == RUN_CODE and message.call_id in called:
            call, place = called.pop(message.call_id)
            place.append(_entry(call, message))
    return [entry for place in cells for entry in place]


def place_of(value: Json, following: int) -> int:
    """Return the index of the cell with this result: the one in its report, or *following* if it has none."""
    index = value.get("index") if isinstance(value, dict) else None
    if isinstance(index, int) and 0 < index - following <= _MOST_LEFT_OUT:
        return index
    return following


def placed(entries: Iterable[CellEntry]) -> list[CellEntry]:
    """Return the cells at their indexes, with empty entries for the cells of earlier frames."""
    found: list[CellEntry] = []
    for entry in entries:
        index = 0 if entry.report is None else entry.report.index
        found += [_LEFT_OUT] * (place_of({"index": index}, len(found)) - len(found))
        found.append(entry)
    return found


async def history_value(
    entries: Sequence[CellEntry],
    read_blob: ReadBlob,
    keys: frozenset[str] | None = None,
    cap_bytes: int = 16 << 20,
) -> list[dict[str, Json]]:
    """Return `history` for the next cell.

    Whole reports are loaded from the newest to the oldest, as many as fit into *cap_bytes*; with *keys*, only
    those at the indexes that the code reads, such as `{"0", "-1"}`.
    """
    count = len(entries)
    numbers = (
        range(count) if keys is None else [int(key) for key in keys if key.removeprefix("-").isdecimal()]
    )
    wanted = {number + count if number < 0 else number for number in numbers}
    wholes: dict[int, CellReport] = {}
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if entry.whole is None or place not in wanted or entry.whole_bytes > cap_bytes:
            continue
        data = await read_blob(entry.whole)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # damaged: use the cut one
            if data is not None:
                wholes[place] = msgspec.json.decode(data, type=CellReport)
                cap_bytes -= entry.whole_bytes
    return [_seen(entry, wholes.get(place)) for place, entry in enumerate(entries)]


def _entry(call: ToolCall, result: ToolMessage) -> CellEntry:
    arguments = call.arguments if result.edited_arguments is None else result.edited_arguments
    code = (arguments or {}).get("code")
    code = code if isinstance(code, str) else call.raw or ""
    try:
        report = msgspec.convert(result.value, CellReport)
    except msgspec.ValidationError:
        return CellEntry(code=code, value=result.value, error=result.error)
    whole = next((part for part in result.attachments if part.name == WHOLE_REPORT), None)
    return CellEntry(
        code=code,
        report=report,
        whole=None if whole is None else whole.digest,
        whole_bytes=0 if whole is None else whole.size,
        error=result.error,
    )


def _seen(entry: CellEntry, whole: CellReport | None) -> dict[str, Json]:
    """Return a cell's entry in `history`."""
    report = whole or entry.report or CellReport(index=0, result=entry.value)
    error = report.error or entry.error
    seen: dict[str, Json] = {
        "code": entry.code,
        "stdout": report.stdout,
        "stderr": report.stderr,
        "result": report.result,
        "error": None if error is None else {"code": error.code, "message": error.message},
    }
    if beside := [{"name": call.name, "texts": list(call.texts)} for call in report.calls if call.texts]:
        seen["texts"] = beside
    if entry.left_out or (entry.whole is not None and whole is None):
        seen["cut"] = True
    return seen


class SessionReading:
    """The index of the next cell, and the users' inputs and attachments (the latest of each name)."""

    def __init__(self) -> None:
        self._known: list[Message] = []
        self.cells = 0
        self.inputs: dict[str, InputPart] = {}
        self.attachments: dict[str, AttachmentPart] = {}

    def follow(self, messages: Sequence[Message]) -> None:
        """Process the messages that are new since the last call."""
        if not is_followed_by(self._known, messages):
            self._known, self.cells, self.inputs, self.attachments = [], 0, {}, {}
        new = messages[len(self._known) :]
        self._known += new
        for message in new:
            if isinstance(message, ToolMessage):
                if message.name == RUN_CODE:
                    self.cells = place_of(message.value, self.cells) + 1
            elif isinstance(message, UserMessage) and not isinstance(message.content, str):
                for part in message.content:
                    if isinstance(part, InputPart):
                        self.inputs[part.name] = part
                    elif isinstance(part, AttachmentPart):
                        self.attachments[part.name or f"attachment_{len(self.attachments) + 1}"] = part


def is_followed_by(known: list[Message], messages: Sequence[Message]) -> bool:
    """Return whether *messages* begin with *known*."""
    return len(known) <= len(messages) and known == messages[: len(known)]


class ReadOnlyValues:
    """The values that code may read by name, loaded when code reads them."""

    def __init__(
        self,
        messages: Sequence[Message],
        reading: SessionReading,
        inputs: Mapping[str, InputPart],
        read_blob: ReadBlob,
    ) -> None:
        reading.follow(messages)
        self.cells = reading.cells
        self.inputs = {**inputs, **reading.inputs} if reading.inputs else dict(inputs)
        self._attachments = dict(reading.attachments)
        self._messages = messages
        self._read_blob = read_blob

    def names(self) -> frozenset[str]:
        return RESERVED | self.inputs.keys()

    async def load(self, name: str, keys: frozenset[str] | None = None) -> Any:
        """Return one value, of a collection only *keys*; raise LookupError if there is no such name."""
        if (part := self.inputs.get(name)) is not None:
            data = await self._bytes(part.digest, f"input {name!r}")
            try:
                return data.decode() if part.media_type.startswith("text/") else msgspec.json.decode(data)
            except (UnicodeDecodeError, msgspec.DecodeError) as error:
                raise UnreadableInput(f"input {name!r} cannot be read: {error}") from None
        if name == HISTORY:
            return await history_value(placed(cells_of(self._messages)), self._read_blob, keys)
        if name == ATTACHMENTS:
            found: dict[str, str | bytes] = {}
            for key, sent in self._attachments.items():
                if keys is None or key in keys:
                    data = await self._bytes(sent.digest, f"attachment {key!r}")
                    is_text = sent.media_type.startswith(_TEXT_TYPES)
                    found[key] = data.decode(errors="replace") if is_text else data
            return found
        raise LookupError(name)

    async def _bytes(self, digest: str, what: str) -> bytes:
        data = await self._read_blob(digest)
        if data is None:
            raise InvalidArgument(f"{what} is no longer stored", hint="pass it again with the next turn")
        return data
