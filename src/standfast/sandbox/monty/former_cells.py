"""Cells that were stored in the former format of this engine."""

from __future__ import annotations

import msgspec

from standfast.sandbox.monty.state import decode_dump, encode_dump
from standfast.sandbox.paused_cell import PausedCell, read_former_cell


def read_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, which had the fields of `CellDump` beside the common ones.

    There `at` was the engine's id of the call that the code stands at.
    """
    cell = read_former_cell(data, encode_dump(decode_dump(data)))
    at = next((number for number, call_id in cell.calls.items() if call_id == cell.at), None)
    return msgspec.structs.replace(cell, at=at)
