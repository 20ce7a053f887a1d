"""Tables of ended turns in memory, the older ones packed.

Most turns are never read again: the messages of sessions in use are cached elsewhere. As objects, a turn's
record and its segment take more memory than their text; packed together, they take a quarter of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from standfast.model.session import Segment, TurnRecord
from standfast.store.packing import pack_nodes, unpack_nodes

V = TypeVar("V")
_PARTS: Final = (TurnRecord, Segment)
_NAMES: Final = [tuple(field.name for field in msgspec.structs.fields(part)) for part in _PARTS]
_TYPES: Final = [tuple(field.type for field in msgspec.structs.fields(part)) for part in _PARTS]
# Without the names of their fields: those would take half of the packed turn.
_decoder: Final = msgspec.json.Decoder(tuple[tuple[_TYPES[0]], tuple[_TYPES[1]]])  # type: ignore[valid-type]
_encode: Final = msgspec.json.Encoder().encode
_values: Final = msgspec.structs.astuple


class ArchiveTable(dict[str, Any], Generic[V]):
    """Records by id, each whole or packed. A packed turn is in two tables, and each reads its own *part*."""

    def __init__(self, part: int) -> None:
        self._part = part

    def __getitem__(self, key: str) -> V:
        found: V = self._whole(super().__getitem__(key))
        return found

    def get(self, key: str, default: Any = None) -> Any:
        return self._whole(super().get(key, default))

    def pop(self, key: str, *default: Any) -> Any:
        return self._whole(super().pop(key, *default))

    def values(self) -> Iterable[V]:  # type: ignore[override]
        return map(self._whole, super().values())

    def items(self) -> Iterable[tuple[str, V]]:  # type: ignore[override]
        return zip(self.keys(), self.values(), strict=True)

    def _whole(self, found: Any) -> Any:
        if type(found) is not bytes:
            return found
        values = _decoder.decode(unpack_nodes(found, ""))[self._part]
        return _PARTS[self._part](**dict(zip(_NAMES[self._part], values, strict=True)))


def archive(turns: ArchiveTable[TurnRecord], segments: ArchiveTable[Segment], turn_id: str) -> None:
    """Pack a turn that has ended, unless it has been deleted or has no segment."""
    record, segment = turns.get(turn_id), segments.get(turn_id)
    if record is not None and segment is not None:
        turns[turn_id] = segments[turn_id] = pack_nodes(_encode((_values(record), _values(segment))))
