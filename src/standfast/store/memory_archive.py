"""Tables of turns in memory, those of idle sessions packed.

As objects, a turn's record and its segment take more memory than their text; packed with the other turns of
its session, a turn takes a fifth of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from standfast.model.session import Segment, TurnRecord, TurnState

V = TypeVar("V")
_PARTS: Final = (TurnRecord, Segment)
_NAMES: Final = [tuple(field.name for field in msgspec.structs.fields(part)) for part in _PARTS]
_TYPES: Final = [tuple(field.type for field in msgspec.structs.fields(part)) for part in _PARTS]
# Without the names of their fields: those would take half of a packed turn.
_decoder: Final = msgspec.json.Decoder(list[tuple[tuple[_TYPES[0]], tuple[_TYPES[1]]]])  # type: ignore[valid-type]
_encode: Final = msgspec.json.Encoder().encode
_values: Final = msgspec.structs.astuple
_MAX_TURNS: Final = 64
"""How many turns are packed together: reading one of them unpacks all."""
_MEMORY_LEVEL: Final = 5


class ArchiveTable(dict[str, Any], Generic[V]):
    """Records by id, each whole or packed. A packed turn is in two tables, and each reads its own *part*."""

    def __init__(self, part: int) -> None:
        self._part = part
        self._last: tuple[bytes, dict[str, tuple[Any, ...]]] = (b"", {})
        """The turns that were unpacked last, because the other turns of a session are often read, too."""

    def __getitem__(self, key: str) -> V:
        found: V = self._whole(key, super().__getitem__(key))
        return found

    def get(self, key: str, default: Any = None) -> V | None:
        found: V | None = self._whole(key, super().get(key, default))
        return found

    def pop(self, key: str, *default: Any) -> Any:
        return self._whole(key, super().pop(key, *default))

    def values(self) -> Iterable[V]:  # type: ignore[override]
        return [value for _, value in self.items()]

    def items(self) -> Iterable[tuple[str, V]]:  # type: ignore[override]
        """Return all records, in an order in which those packed together are unpacked once."""
        return [(key, self[key]) for key in sorted(self, key=lambda key: id(dict.__getitem__(self, key)))]

    def _whole(self, key: str, found: Any) -> Any:
        if type(found) is not bytes:
            return found
        packed, turns = self._last
        if packed is not found:
            unpacked = _decoder.decode(zlib.decompress(found))
            turns = {parts[self._part][0]: parts[self._part] for parts in unpacked}
            self._last = (found, turns)
        return _PARTS[self._part](**dict(zip(_NAMES[self._part], turns[key], strict=True)))


def archive(turns: ArchiveTable[TurnRecord], segments: ArchiveTable[Segment], turn_ids: list[str]) -> None:
    """Pack the last turns among *turn_ids* that have ended with a segment, up to one that is packed."""
    whole: list[tuple[TurnRecord, Segment]] = []
    for turn_id in reversed(turn_ids):
        record, segment = dict.get(turns, turn_id), dict.get(segments, turn_id)
        if type(record) is bytes:
            break
        if type(segment) is Segment and record is not None and record.state is TurnState.ENDED:
            whole.append((record, segment))
    for at in range(0, len(whole), _MAX_TURNS):
        some = whole[at : at + _MAX_TURNS]
        packed = _pack(_encode([(_values(record), _values(segment)) for record, segment in some]))
        for record, _ in some:
            turns[record.turn_id] = segments[record.turn_id] = packed


def _pack(data: bytes) -> bytes:
    """Compress *data* in a window of its size: clearing a full one takes longer than packing a short turn."""
    window_bits = min(max(9, len(data).bit_length()), 15)
    packer = zlib.compressobj(1, zlib.DEFLATED, window_bits, _MEMORY_LEVEL)
    return packer.compress(data) + packer.flush()
