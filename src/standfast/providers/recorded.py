"""Recording: what a model says, as a script that `scripted:FILE` replays.

Theory of operation
-------------------
Each call is one line of a `.jsonl` file: a `Reply` with the number of its call and a digest of its request.
Replayed, the number and the digest pick the line, so one file holds any number of sessions, and a prompt that
has changed since is noticed.

Rules
-----
1. A request is digested, never written; what a failure says holds no key, as the port has it.
2. A line is written under a lock and in one piece, so that several processes can record into one file.
3. A call that was cancelled leaves no line.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from standfast.errors import InvalidArgument, ModelError
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.providers.listening import listening
from standfast.providers.request_digest import request_digest
from standfast.providers.resolve import resolve_model
from standfast.providers.script import Expectation, Reply
from standfast.providers.transcript import Transcript


class Recorded:
    """A model whose replies are appended to a `.jsonl` file: `Recorded("openai:gpt-5", "calls.jsonl")`."""

    def __init__(self, model: str | ModelProvider, path: str | os.PathLike[str]) -> None:
        self._model = resolve_model(model)
        self._path = Path(path)
        if self._path.suffix != ".jsonl":
            raise InvalidArgument(f"a recording is a .jsonl file, not {self._path.name!r}")

    @property
    def model_id(self) -> str:
        return self._model.model_id

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        line, heard, ended = _Line(self._path, request), Transcript(), False
        try:
            async with listening(self._model, request) as deltas:
                async for delta in deltas:
                    if isinstance(delta, ReplyEnded):
                        line.write(heard.ended(delta))
                        ended = True
                    else:
                        heard.hear(delta)
                    yield delta
        except Exception as error:
            if not ended:
                line.write(heard.failed(error))
            raise
        if not ended:
            line.write(heard.broken_off())

    async def close(self) -> None:
        await self._model.close()

    def __repr__(self) -> str:
        return f"<Recorded {self.model_id}>"


class _Line:
    """One call's place in the recording. The request is digested at once: it must not be kept."""

    def __init__(self, path: Path, request: ModelRequest) -> None:
        self._path = path
        self._number = request.call_number
        self._expect = Expectation(request=request_digest(request))

    def write(self, reply: Reply) -> None:
        reply = msgspec.structs.replace(reply, call=self._number, expect=self._expect)
        try:
            _append(self._path, msgspec.json.encode(reply) + b"\n")
        except UnicodeEncodeError:
            raise ModelError("the model's reply is not Unicode text", retryable=True) from None
        except OSError as error:
            raise ModelError(f"the recording {self._path} cannot be written: {error.strerror}") from None


def _append(path: Path, line: bytes) -> None:
    """Add a line, after the end of one that was not finished if there is such."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)
