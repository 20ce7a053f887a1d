"""Compression of a turn's data: the nodes of its segment, and its kept journal.

Theory of operation
-------------------
A body is compressed by DEFLATE with a preset dictionary, so that text which occurs in the dictionary costs
three bytes. The dictionary of a segment is `_WORDS`, the parts of JSON that all turns repeat. A kept journal
repeats most of its turn's nodes, so its dictionary also contains the nodes. The window is no larger than the
data, because zlib clears it first: with the default size, a short body takes four times as long.

    nodes     JSON as it is, if it is short | byte 2, the number of digests, the digests in quotes, DEFLATE
    journal   byte 2, DEFLATE; of earlier versions: byte 0, as it is | byte 1, zlib's format

Rules
-----
1. A released `_WORDS` never changes, because data packed with it could not be read. A new one needs another
   first byte.
2. Everything that may be the digest of a blob is stored uncompressed, because SQL searches for it (`prune`).
   It is part of the dictionary.
3. Unpacking with other nodes gives other bytes, not an error. So the digest of a kept journal's row covers
   the unpacked bytes. A segment's row has everything that is needed to unpack its body.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import RecordCorrupt
from standfast.ports.session_store import JournalEntry
from standfast.store.rules import blob_digests

if TYPE_CHECKING:
    from zlib import _Compress as Packer

_PACKED: Final = b"\2"
_WORDS: Final = (
    b',"warns":true}\x83\xa3key\xb6execution@4294967298.1\xa4kind\xa4past\xa4body\xc4\x00\x83\xa3key\xa9execution'
    b'\xa4kind\xa5state\xa4body\xc5{"meta":{"plugin_id":"code","plugin_version":"1","revision":2,"state":{"data":"'
    b'{"type":"hooks_ran","at_ms":17,"stage":"{"type":"call_prepared","at_ms":17,"number":1,'
    b'{"type":"finish_requested","at_ms":17,"call_id":1,"text":"\x83\xa3key\xa8finish.1\xa4kind\xa5input\xa4body\xc4'
    b'{"type":"cell_paused","at_ms":17,"call_id":1,"number":1,"calls":[{"name":"","arguments":{"'
    b'\x83\xa3key\xa8cell.1.1\xa4kind\xa5input\xa4body\xc4"raw":"```python\\n\\n```","calls":[{"name":"run_code",'
    b'"arguments":"{\\"code\\":\\""tool_calls":[{"call_id":1,"name":"run_code","arguments":{"code":""}}],"model":"'
    b'"value":{"index":1,"result":,"calls":[{"call_id":2,"name":"","arguments":""}],"finished":true},'
    b'"stdout":""shown":"[cell 1] ok\\nresult:\\n\\ncalls:\\n -> ok","attachments":[],"reasoning":[{"'
    b"\x83\xa3key\xa8tool.1.1\xa4kind\xa6intent\xa4body\xc4\x00\x83\xa3key\xa6tool.1\xa4kind\xa5input\xa4body\xc5\x01"
    b'{"type":"checkpoint_passed","at_ms":17,"kind":"after_work","output":{}}\x83\xa3key\xaccheckpoint.1'
    b'\xa4kind\xa5input\xa4body\xc4R{"type":"tool_settled","at_ms":17,"call_id":1,"value":"'
    b'"calls":[{"name":"","arguments":"{\\"","provider_id":""}],"usage":{"input":,"output":},"model":"'
    b'"},"limits":{},"nonce":""}\x91\x83\xa3key\xa7model.1\xa4kind\xa5input\xa4body\xc5\x02'
    b'"},"stop_reason":"end","request":"{"type":"turn_started","at_ms":17,"turn_id":"t_","message":{"type":"user",'
    b'"content":"{"type":"model_replied","at_ms":17,"text":","usage":{"input":10,"output":10},"model":"'
    b'"payload":{"type":"assistant","tool_calls":[{"call_id":1,"name":"","arguments":{""},"provider_id":"c1"}],'
    b'"payload":{"type":"tool","call_id":1,"name":"","value":"","record":{"name":"","side_effect":"external_system",'
    b'"duration_ms":0,"status":"ok","request_digest":"","response_digest":"","error":null},"provider_id":"c1"}},'
    b'"cached_input":,"reasoning_output":,"stop_reason":"tool_calls"[{"at_ms":17,"payload":{"type":"user","content":"'
    b'"}},{"at_ms":17,"payload":{"type":"assistant","text":"","model":"","usage":{"input":,"output":},'
    b'"stop_reason":"end"}}]'
)
_LEAST_BYTES: Final = 128
"""The smallest body that is packed."""
_MEMORY_LEVEL: Final = 5
_DIGEST_BYTES: Final = 64
_MAX_DIGESTS: Final = 255

_encode = msgspec.msgpack.Encoder().encode


def pack_nodes(nodes: bytes) -> bytes:
    """Return the JSON of a segment's *nodes* in its stored form."""
    if len(nodes) < _LEAST_BYTES:
        return nodes
    digests = dict.fromkeys(blob_digests(nodes))  # in their order, each once
    if len(digests) > _MAX_DIGESTS:
        return nodes
    named = b"".join([b'"%b"' % digest for digest in digests])
    bits = _window_bits(len(_WORDS) + len(named) + len(nodes))
    packer = _packer(bits, _WORDS + named) if named else _word_packer(bits).copy()
    return b"%b%c%b%b%b" % (_PACKED, len(digests), named, packer.compress(nodes), packer.flush())


def unpack_nodes(stored: bytes, segment_id: str) -> bytes:
    """Return the JSON of the nodes in a segment's body; raise `RecordCorrupt`, which names the segment."""
    if stored[:1] != _PACKED:
        return stored
    end = 2 + stored[1] * (_DIGEST_BYTES + 2)
    words = _WORDS if end == 2 else _WORDS + stored[2:end]  # a copy of the words takes longer than the rest
    unpacker = zlib.decompressobj(-15, words)
    try:
        nodes = unpacker.decompress(stored[end:])
    except zlib.error:
        raise RecordCorrupt(f"segment {segment_id}") from None
    if not unpacker.eof:
        raise RecordCorrupt(f"segment {segment_id}")
    return nodes


def encode_journal(first: bytes, entries: tuple[JournalEntry, ...]) -> bytes:
    """Return the first input and the entries of a turn as one record."""
    return _encode((first, entries))


def decode_journal(journal: bytes, what: str) -> tuple[bytes, tuple[JournalEntry, ...]]:
    """Return the first input and the entries of an encoded journal; raise `RecordCorrupt`, naming *what*."""
    try:
        return msgspec.msgpack.decode(journal, type=tuple[bytes, tuple[JournalEntry, ...]])
    except msgspec.DecodeError:
        raise RecordCorrupt(what) from None


def pack_journal(journal: bytes, nodes: bytes) -> bytes:
    """Return an encoded *journal* in its stored form, compressed against the JSON of its turn's *nodes*."""
    packer = _packer(_window_bits(len(_WORDS) + len(nodes) + len(journal)), _WORDS + nodes)
    return _PACKED + packer.compress(journal) + packer.flush()


def unpack_journal(stored: bytes, segment: bytes | None, what: str) -> tuple[bytes, bytes]:
    """Return an encoded journal, and the bytes that the digest of its row covers.

    *segment* is the stored body of the turn's segment. `RecordCorrupt` names *what*.
    """
    try:
        match stored[:1]:
            case b"\2":
                nodes = unpack_nodes(segment or b"", f"of {what}")
                journal = zlib.decompressobj(-15, _WORDS + nodes).decompress(stored[1:])
                return journal, journal
            case b"\1":
                return zlib.decompress(stored[1:]), stored
            case _:
                return stored[1:], stored
    except zlib.error:
        raise RecordCorrupt(what) from None


def _window_bits(size: int) -> int:
    """Return the bits of the smallest window for dictionary and body, or of the largest window."""
    return min(15, size.bit_length())


def _packer(window_bits: int, dictionary: bytes) -> Packer:
    return zlib.compressobj(
        1, zlib.DEFLATED, -window_bits, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, dictionary
    )


@cache
def _word_packer(window_bits: int) -> Packer:
    """Return a packer with the dictionary. Callers copy it, which takes half as long as creating one."""
    return _packer(window_bits, _WORDS)
