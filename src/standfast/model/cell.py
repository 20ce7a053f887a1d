"""What came of a cell: of one piece of code that a model wrote and a turn ran."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject
from standfast.model.call import CallStatus
from standfast.model.canonical import Json
from standfast.model.diagnostic import Diagnostic


class CallMade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a cell made, in short: its arguments are cut text, its result is not here."""

    call_id: int
    name: str
    arguments: str = ""
    status: CallStatus = CallStatus.OK
    error: ErrorObject | None = None


class CellReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a cell printed, returned and did. It is kept whole.

    `index` is the cell's place in `history`. `notes` are what the runtime has to say to the model about it.
    """

    index: int
    stdout: str = ""
    stderr: str = ""
    result: Json = None
    error: ErrorObject | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    calls: tuple[CallMade, ...] = ()
    notes: tuple[str, ...] = ()
    truncated: bool = False
    finished: bool = False
