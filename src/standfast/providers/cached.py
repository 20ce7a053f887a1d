"""A cache of replies, keyed by the digest of the request and the model's id.

A cached reply counts as a call with no tokens and no cost; its `response_id` begins with `cached:`. Only
complete replies are cached. An entry that cannot be read or written is a miss.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import digest_bytes
from standfast.model.limits import Usage
from standfast.ports import model_provider
from standfast.providers.request_digest import request_digest
from standfast.providers.resolve import resolve_model
from standfast.providers.script import Reply, ReplyRecorder, prepare_reply

_log: Final = logging.getLogger("standfast")
_PREFIX: Final = "cached:"
_FREE: Final = Usage(calls=1, priced=1)


class Cached(model_provider.ModelWrapper):
    """A model that answers each distinct request once: `Cached("openai:gpt-5", "replies")`.

    Args:
        path: a directory for the replies, which several processes may share; without one they are in memory.
        max_entries: the number of replies to keep, evicting the least recently used.
    """

    def __init__(
        self,
        model: str | model_provider.ModelProvider,
        path: str | os.PathLike[str] | None = None,
        *,
        max_entries: int = 1_000,
    ) -> None:
        if max_entries < 1:
            raise InvalidArgument(f"max_entries must be a whole number of at least 1, got {max_entries!r}")
        super().__init__(resolve_model(model))
        self._replies = _MemoryCache(max_entries) if path is None else _FolderCache(path, max_entries)

    async def stream(self, request: model_provider.ModelRequest) -> AsyncIterator[model_provider.ModelDelta]:
        key = digest_bytes(f"{self.model_id}\n{request_digest(request)}".encode())
        kept = self._replies.get(key)
        if kept is not None:
            prepared = prepare_reply(kept, request.call_number, self.model_id)
            for delta in prepared.deltas:
                yield delta
            ended = prepared.ended
            yield msgspec.structs.replace(ended, usage=_FREE, response_id=_PREFIX + ended.response_id)
            return
        recorder = ReplyRecorder()
        async with model_provider.open_stream(self._model, request) as deltas:
            async for delta in deltas:
                if isinstance(delta, model_provider.ReplyEnded):
                    self._replies.put(key, recorder.ended(delta))
                else:
                    recorder.add(delta)
                yield delta


class _MemoryCache:
    """The replies of this process, most recently used last."""

    def __init__(self, max_entries: int) -> None:
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._max_entries = max_entries

    def get(self, key: str) -> Reply | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: str, reply: Reply) -> None:
        self._kept[key] = reply
        self._kept.move_to_end(key)
        while len(self._kept) > self._max_entries:
            self._kept.popitem(last=False)


class _FolderCache:
    """One file per reply, written atomically. Its modification time is the time of its last use."""

    def __init__(self, path: str | os.PathLike[str], max_entries: int) -> None:
        self._folder = Path(path).expanduser().absolute()
        self._max_entries = max_entries
        self._puts = 0
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"the cache {self._folder} cannot be created: {error.strerror}") from None

    def get(self, key: str) -> Reply | None:
        file = self._folder / f"{key}.json"
        try:
            found = msgspec.json.decode(file.read_bytes(), type=Reply)
            os.utime(file)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return found

    def put(self, key: str, reply: Reply) -> None:
        scratch = self._folder / f"{secrets.token_hex(8)}.new"
        try:
            scratch.touch(mode=0o600)
            scratch.write_bytes(msgspec.json.encode(reply))
            scratch.replace(self._folder / f"{key}.json")
            self._puts += 1
            if self._puts % max(1, self._max_entries // 10) == 0:  # counting files is slow
                ages = sorted((file.stat().st_mtime_ns, file) for file in self._folder.glob("*.json"))
                for _, file in ages[: -self._max_entries]:
                    file.unlink(missing_ok=True)
        except (OSError, UnicodeEncodeError) as error:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            _log.warning("a reply cannot be written to the cache %s: %s", self._folder, error)
