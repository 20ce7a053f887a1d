"""Recording of a model's replies as a script that `scripted:FILE` replays.

Each call is one line of a `.jsonl` file: a `Reply` with the number of its call and a digest of its request.
On replay both select the line, so one file holds any number of sessions, and a changed prompt is detected.
Nothing else of a request is written, and a failure's text contains no key. A line is written under a lock in
a single write, so that several processes can record to one file; a cancelled call leaves no line.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from standfast.errors import InvalidArgument, ModelError
from standfast.ports import model_provider
from standfast.providers.request_digest import request_digest
from standfast.providers.resolve import resolve_model
from standfast.providers.script import Expectation, Reply, ReplyRecorder


class Recorded(model_provider.ModelWrapper):
    """A model whose replies are appended to a `.jsonl` file: `Recorded("openai:gpt-5", "calls.jsonl")`."""

    def __init__(self, model: str | model_provider.ModelProvider, path: str | os.PathLike[str]) -> None:
        super().__init__(resolve_model(model))
        self._path = Path(path)
        if self._path.suffix != ".jsonl":
            raise InvalidArgument(f"a recording is a .jsonl file, not {self._path.name!r}")

    async def stream(self, request: model_provider.ModelRequest) -> AsyncIterator[model_provider.ModelDelta]:
        # Digest the request before the call: nothing else of it is ever needed or written.
        number, expect = request.call_number, Expectation(request=request_digest(request))
        recorder, ended = ReplyRecorder(), False
        try:
            async with model_provider.open_stream(self._model, request) as deltas:
                async for delta in deltas:
                    if isinstance(delta, model_provider.ReplyEnded):
                        self._write(recorder.ended(delta), number, expect)
                        ended = True
                    else:
                        recorder.add(delta)
                    yield delta
        except Exception as error:
            if not ended:
                self._write(recorder.failed(error), number, expect)
            raise
        if not ended:
            self._write(recorder.broken_off(), number, expect)

    def _write(self, reply: Reply, number: int, expect: Expectation) -> None:
        """Append a line, after ending an unfinished one."""
        reply = msgspec.structs.replace(reply, call=number, expect=expect)
        try:
            line = msgspec.json.encode(reply) + b"\n"
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                end = os.lseek(descriptor, 0, os.SEEK_END)
                if end and os.pread(descriptor, 1, end - 1) != b"\n":
                    line = b"\n" + line
                while line:
                    line = line[os.write(descriptor, line) :]
            finally:
                os.close(descriptor)
        except UnicodeEncodeError:
            raise ModelError("the model's reply is not Unicode text", retryable=True) from None
        except OSError as error:
            raise ModelError(f"the recording {self._path} cannot be written: {error.strerror}") from None
