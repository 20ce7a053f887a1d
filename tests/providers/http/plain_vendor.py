"""A minimal dialect and server, to test the behaviour that all vendors share."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from standfast.errors import ModelError
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.dialect import ErrorReport, HttpCall, PreparedRequest, ServerEvent
from standfast.providers.http.model import HttpModel
from standfast.providers.script import Reply
from standfast.testing.servers.http_server import ModelServer, SeenRequest

KEY = "plain-key-0123456789abcdef"


class Said(msgspec.Struct):
    text: str | None = None
    done: bool = False
    error: str | None = None


_decode = msgspec.json.Decoder(Said).decode


class PlainReader:
    def __init__(self) -> None:
        self._texts: list[str] = []

    def feed(self, event: ServerEvent) -> Sequence[ModelDelta]:
        said = _decode(event.data)
        if said.error is not None:
            raise ModelError(said.error)
        if said.done:
            return (ReplyEnded(text="".join(self._texts)),)
        if said.text is None:
            return ()
        self._texts.append(said.text)
        return (TextArrived(said.text),)


class PlainDialect:
    provider = "plain"

    def call(self, asked: PreparedRequest) -> HttpCall:
        return HttpCall("/say", {"model": asked.model, "stream": True, "media": sorted(asked.media)})

    def reader(self, asked: PreparedRequest) -> PlainReader:
        return PlainReader()

    def authorize(self, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}

    def read_error(self, status: int, body: bytes) -> ErrorReport:
        return ErrorReport(msgspec.json.decode(body)["error"])


class PlainServer(ModelServer):
    def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
        said = [{"text": piece} for piece in reply.pieces()] + [{"done": True}]
        return [b"data: %s\n\n" % msgspec.json.encode(event) for event in said]

    def whole(self, request: SeenRequest, reply: Reply) -> dict[str, Any]:
        return {"text": reply.whole_text(), "done": True}

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"error": message}


def plain_model(base_url: str, *, deadlines: Deadlines | None = None, key: str | None = KEY) -> HttpModel:
    return HttpModel(
        PlainDialect(), "m", base_url=base_url, api_key=key, deadlines=deadlines, key_hint="set PLAIN_API_KEY"
    )


ASKED = ModelRequest(messages=[])


async def heard(model: HttpModel, request: ModelRequest = ASKED) -> list[ModelDelta]:
    return [delta async for delta in model.stream(request)]


async def text_of(model: HttpModel, request: ModelRequest = ASKED) -> str:
    """Return the text of a reply, and check that its deltas add up to it."""
    *pieces, ended = await heard(model, request)
    assert isinstance(ended, ReplyEnded)
    assert ended.text == "".join(piece.text for piece in pieces)
    return ended.text


async def failure_of(model: HttpModel, request: ModelRequest = ASKED) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await heard(model, request)
    return caught.value


def everything_about(error: BaseException) -> str:
    """Return all text of an exception and its chain."""
    said = [repr(error), str(error), repr(vars(error))]
    for other in (error.__cause__, error.__context__):
        if other is not None:
            said.append(everything_about(other))
            said.append(repr(getattr(getattr(other, "_request", None), "headers", None)))
    return "\n".join(said)


def variables_of(error: BaseException) -> str:
    """Return the variables of our frames, as a debugger shows them."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return "\n".join(repr(frame.f_locals) for frame in frames if "/standfast/" in frame.f_code.co_filename)
