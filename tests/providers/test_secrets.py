"""Keys in every format are planted, everything that can fail fails, and all output is searched.

The promise: a key that Standfast was given, by a parameter or by the environment, is in no exception,
nor in its chain, nor in the variables of its frames; and in no record, trace, log or `repr`. Not promised:
the text of a model, a user or a tool is content, whatever it contains.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import logging
import pickle
import pprint
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "secrets"))

from betrayals import faults, is_sent_in_headers, served
from click.testing import CliRunner
from planted_keys import PLANTINGS, Planting, found_in

from standfast import (
    Agent,
    AnthropicModel,
    Cached,
    Fallback,
    GoogleModel,
    Limited,
    ModelError,
    OpenAICompatibleModel,
    OpenAIModel,
    RateLimit,
    Recorded,
    Runtime,
    TurnStopped,
    UsageLimits,
    resolve_model,
    tool,
)
from standfast.errors import StandfastError
from standfast.model.message import UserMessage
from standfast.model.trace_record import TraceRecord
from standfast.plugins.shipped import Redact
from standfast.ports.model_provider import ModelProvider, ModelRequest
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.endpoint import Secret
from standfast.providers.vendors import VENDORS, status_of
from standfast.testing.servers.http_server import Fault, ModelServer, ServedReply
from standfast.testing.stored_bytes import stored_bytes

pytestmark = pytest.mark.slow

MARKER = "a-marker-that-is-said-and-must-be-found"
AGAIN_AT_ONCE = {"retry-after": "0"}
planted = pytest.mark.parametrize("planting", PLANTINGS, ids=[one.label for one in PLANTINGS])


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in VENDORS.values():
        for name in filter(None, (*vendor.key_variables, vendor.url_variable)):
            monkeypatch.delenv(name, raising=False)


@tool(side_effect="read")
def order(order_id: str) -> int:
    """How many days late it is."""
    return 6


def run(play: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(play(), 60))


async def ask(model: ModelProvider) -> None:
    async for _ in model.stream(ModelRequest(messages=[UserMessage(content=MARKER)])):
        pass


def all_about(error: BaseException | None) -> str:
    """Return the text of an exception, its chain, and its traceback with the variables."""
    if error is None:
        return ""
    said = [str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]
    if isinstance(error, StandfastError):
        said.append(repr(error.error_object()))
    for frame in traceback.TracebackException.from_exception(error, capture_locals=True).stack:
        if Path(__file__).parent not in Path(frame.filename).parents:
            said.append(f"{frame.name}: {frame.locals}")
    return "\n".join([*said, all_about(error.__cause__), all_about(error.__context__)])


def all_of(objects: list[object]) -> str:
    """Return objects as people print them."""
    said: list[str] = []
    for one in objects:
        said += [repr(one), str(one), f"{one}", f"{one!a}", pprint.pformat(one)]
        inside = getattr(one, "__dict__", {})
        said += [repr(inside), pprint.pformat(inside), json.dumps(inside, default=str, skipkeys=True)]
    return "\n".join(said)


async def _at_once(seconds: float) -> None:
    await asyncio.sleep(0)


class Traces:
    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def record(self, record: TraceRecord, /) -> None:
        self.records.append(record)


@planted
def test_no_provider_failure_reveals_the_key(planting: Planting, caplog: pytest.LogCaptureFixture) -> None:
    """Seed: secrets never appear in an exception, which has the vendor's message without the key."""
    caplog.set_level(logging.DEBUG)
    betrayals = faults(planting)

    async def play() -> None:
        async with planting.server([served(fault) for fault in betrayals.values()]) as server:
            model = planting.by_parameter(server.base_url)
            for name, fault in betrayals.items():
                caplog.clear()
                with pytest.raises(ModelError) as caught:
                    await ask(model)
                assert not found_in(all_about(caught.value), planting.key), name
                assert caught.value.__cause__ is caught.value.__context__ is None, name
                if not is_sent_in_headers(fault, planting.key):
                    assert not found_in(caplog.text, planting.key), name
            await model.close()
        sent = [found_in(repr(request.headers), planting.key) for request in server.requests]
        assert len(sent) == len(betrayals)
        assert all(sent), "the search finds the key where it is"

    run(play)


@pytest.mark.parametrize("fault", [Fault(stall_at=0), Fault(stall_at=50)])
@planted
def test_no_expired_deadline_reveals_the_key(
    planting: Planting, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed: a server may stall."""
    caplog.set_level(logging.DEBUG)

    async def play() -> None:
        async with planting.server([served(fault)]) as server:
            deadlines = Deadlines(first_byte_s=0.05 if fault.stall_at == 0 else 5, between_chunks_s=0.05)
            model = planting.by_parameter(server.base_url, deadlines)
            with pytest.raises(ModelError, match=r"did not answer|sent nothing") as caught:
                await ask(model)
            await model.close()
        assert not found_in(all_about(caught.value) + caplog.text, planting.key)

    run(play)


@planted
def test_a_cancelled_call_leaves_no_key_in_its_traceback(planting: Planting) -> None:
    """Ours: here the traceback has frames of the HTTP library, whose variables some tools show."""

    async def play() -> None:
        async with planting.server([served(Fault(stall_at=50))]) as server:
            model = planting.by_parameter(server.base_url)
            asking = asyncio.ensure_future(ask(model))
            await server.stalled.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await asking
            await model.close()
        assert not found_in(all_about(caught.value), planting.key)

    run(play)


@planted
def test_no_output_of_a_turn_contains_the_key(
    planting: Planting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed: store, recordings, caches, traces, events and logs are searched."""
    caplog.set_level(logging.DEBUG)
    told = f"no such key: {planting.key}"
    calls = {"tool_calls": [{"name": "order", "arguments": {"order_id": "A1"}}]}
    busy = {"chunks": ["Hello", "there"], "fault": {"status": 429, "message": told, "headers": AGAIN_AT_ONCE}}
    event = {"fault": {"body": planting.error_event(told)}}
    refused = {"fault": {"status": 401, "message": told}}
    script = [
        calls,
        busy,
        "It is late.",
        event,
        event,
        refused,
        {"text": "Hi", "fault": {"cut_at": 40}},
        refused,
    ]
    written: list[str] = []
    traces = Traces()

    async def turn(agent: Agent[Any, Any], runtime: Runtime, session_id: str) -> None:
        session = await runtime.session(session_id, agent=agent)
        try:
            async for one in (going := session.turn(f"{MARKER}, {session_id}: how late is A1?")):
                written.append(repr(one))
            written.append(repr(await going))
        except TurnStopped as stopped:
            written.append(all_about(stopped) + repr(stopped.result))

    async def play() -> None:
        async with planting.server(script) as server:
            for name, value in planting.environment(server.base_url).items():
                monkeypatch.setenv(name, value)
            inner = Limited(planting.named(server.base_url), RateLimit(concurrency=2))
            model = Recorded(Cached(inner, tmp_path / "cached"), tmp_path / "calls.jsonl")
            agent = Agent(model, tools=[order], limits=UsageLimits(max_attempts=2))
            async with Runtime(tmp_path / "standfast.db", trace=traces, _sleep=_at_once) as runtime:
                for session_id in ("finished", "failed-twice", "refused", "cut-off"):
                    await turn(agent, runtime, session_id)
                written.append(all_of([runtime, agent, model, inner, *traces.records]))
                open_files = stored_bytes(tmp_path)
            await model.close()
        assert len(server.requests) == len(script)
        written.extend([repr(open_files), caplog.text])

    run(play)
    everything = "\n".join(written).encode() + stored_bytes(tmp_path)
    assert {file.name for file in tmp_path.rglob("*")} >= {"standfast.db", "calls.jsonl"}
    assert everything.count(MARKER.encode()) > 10, "the search looks where things are written"
    assert everything.count(b"no such key: [key]") > 10
    assert not found_in(everything, planting.key)


@planted
def test_no_object_that_holds_a_key_shows_it(planting: Planting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed: secrets never appear in a `repr`."""
    url = "http://127.0.0.1:9"
    for name, value in planting.environment(url).items():
        monkeypatch.setenv(name, value)
    model, named = planting.by_parameter(url), resolve_model(planting.named(url))
    shell = [model._client, model._secret, model._dialect, model._client._endpoint]
    around = [Limited(model, RateLimit(concurrency=1)), Cached(model), Fallback(model, named)]
    statuses = [status_of(vendor) for vendor in VENDORS.values()]
    assert not found_in(
        all_of([model, named, *shell, *around, Agent(model), Runtime(), *statuses]), planting.key
    )


def _taken(take: Callable[[Any], Any], model: object) -> str:
    try:
        return repr(take(model))
    except Exception as error:
        return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy, json.dumps, vars])
@planted
def test_a_key_is_not_copied_or_pickled(planting: Planting, take: Callable[[Any], Any]) -> None:
    """Ours: a secret that can be pickled may end up in a file."""
    model = planting.by_parameter("http://127.0.0.1:9")
    for one in (model, model._client._endpoint, Agent(model), Recorded(model, "never.jsonl")):
        assert not found_in(_taken(take, one), planting.key)
    with pytest.raises(TypeError, match="not pickled"):
        dataclasses.asdict(model._client._endpoint)
    with pytest.raises(TypeError, match="not pickled"):
        model._secret.__getstate__()


@pytest.mark.parametrize(
    "make",
    [
        lambda key: AnthropicModel("m", api_key=f"{key} {key}"),
        lambda key: AnthropicModel("m", api_key="k" * 20, base_url=key.replace("/", "_").replace(":", "_")),
        lambda key: OpenAIModel("m", api_key="k" * 20, base_url=f"https://user:{key}@localhost"),
        lambda key: OpenAIModel("m", api_key="k" * 20, base_url=f"ftp://user:{key}@localhost"),
        lambda key: GoogleModel("m", api_key="k" * 20, base_url=f"https://localhost/?key={key}"),
        lambda key: OpenAICompatibleModel("m", f"http://localhost/v1?key={key}"),
        lambda key: OpenAICompatibleModel("m", f"http://user:{key}@localhost/v1"),
        lambda key: resolve_model(f"openai-compatible:m@http://user:{key}@localhost/v1"),
        lambda key: resolve_model(f"openai-compatible:m@http://localhost/v1#{key}"),
    ],
)
@planted
def test_an_error_on_construction_does_not_repeat_the_key(
    planting: Planting, make: Callable[[str], ModelProvider]
) -> None:
    """Ours: keys are sometimes put into the wrong variable, or into a URL."""
    with pytest.raises(StandfastError) as caught:
        make(planting.key)
    said = "".join(traceback.format_exception(caught.value))
    assert not found_in(f"{caught.value!r} {caught.value} {said}", planting.key)


@planted
def test_a_models_text_is_not_redacted(planting: Planting) -> None:
    """Ours: the runtime does not change text; use `Redact` for that."""
    said = f"Your key is {planting.key}."

    async def play() -> None:
        async with planting.server([said, said]) as server:
            model = planting.by_parameter(server.base_url)
            assert (await Agent(model).run("What is my key?")).output == said
            clean = Agent(model, plugins=[Redact(secrets=[planting.key])])
            assert (await clean.run("What is my key?")).output == "Your key is [redacted]."
            await model.close()

    run(play)


def test_custom_headers_are_sent_but_not_recorded(tmp_path: Path) -> None:
    """Ours: gateways expect their own keys in their own headers."""
    own = "a-header-of-my-own-0123456789"
    (planting, *_) = PLANTINGS

    async def play() -> None:
        async with planting.server(["Hi."]) as server:
            model = Recorded(planting.by_parameter(server.base_url), tmp_path / "calls.jsonl")
            agent = Agent(model, settings={"extra_headers": {"x-own": own}})
            async with Runtime(tmp_path / "standfast.db") as runtime:
                session = await runtime.session("s", agent=agent)
                assert own not in repr([await session.turn("Hi"), agent, session, runtime, model])
                assert own.encode() not in stored_bytes(tmp_path)
            await model.close()
        assert server.requests[0].headers["x-own"] == own

    run(play)


def test_an_invalid_header_is_not_repeated_in_the_error() -> None:
    """Ours: the header may be a key that was read from a file with its newline."""
    own = "a-header-of-my-own-0123456789"
    (planting, *_) = PLANTINGS

    async def play() -> None:
        async with planting.server([]) as server:
            model = planting.by_parameter(server.base_url)
            with pytest.raises(TurnStopped) as caught:
                await Agent(model, settings={"extra_headers": {"x-own": f"{own}\n"}}).run("Hi")
            await model.close()
        assert "header" in caught.value.message
        assert own not in str(caught.value)

    run(play)


def test_the_beginning_of_a_key_is_redacted_where_text_was_truncated() -> None:
    """Ours: excerpts may end anywhere; the few characters of a key that vendors show may stay."""
    secret = Secret("sk-proj-0123456789abcdef-0123456789")

    assert secret.scrub("bad: sk-proj-0123456789abcdef-01234 ...") == "bad: [key] ..."
    assert secret.scrub("bad: SK-PROJ-0123456789ABCDEF-0123456789, really") == "bad: [key], really"
    assert secret.scrub("bad: sk-proj-0123****6789") == "bad: sk-proj-0123****6789"
    assert (
        secret.scrub("sk-proj-0123456789abcdef is another key") == "sk-proj-0123456789abcdef is another key"
    )


@contextmanager
def _serving(server: ModelServer) -> Iterator[ModelServer]:
    """Start a server on its own thread, because commands have their own event loops."""
    begun, ended, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with server:
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(10)
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "planting", {one.provider: one for one in PLANTINGS}.values(), ids=lambda one: one.label
)
def test_no_command_shows_the_key(
    planting: Planting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed: the command line is searched, with and without `--json`, after success and failure."""
    from standfast.cli.main import main

    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("STANDFAST_HOME", str(tmp_path / "home"))
    refused = ServedReply(fault=Fault(status=401, message=f"no such key: {planting.key}"))
    broken = ServedReply(fault=Fault(body=planting.error_event(planting.key)))
    written: list[str] = []

    def standfast(*words: str) -> None:
        done = CliRunner().invoke(main, list(words))
        assert isinstance(done.exception, (SystemExit, type(None))), done.exception
        written.append(done.output)

    with _serving(planting.server(["Hello.", "Hello.", refused, refused, broken, broken, broken])) as server:
        for name, value in planting.environment(server.base_url).items():
            monkeypatch.setenv(name, value)
        model = planting.named(server.base_url)
        for session in ("good", "bad"):
            standfast("chat", "--model", model, "--session", session, MARKER)
            standfast("chat", "--model", model, "--session", session, MARKER, "--json")
        standfast("chat", "--model", model, "--session", "broken", MARKER)
    for words in (
        ("models",),
        ("models", model),
        ("doctor",),
        ("sessions", "show", "bad"),
        ("sessions", "list"),
    ):
        standfast(*words)
        standfast(*words, "--json")
    said = "\n".join(written)
    assert said.count("no such key: [key]") >= 3
    assert "Hello." in said
    stored = stored_bytes(tmp_path)
    assert MARKER.encode() in stored
    assert not found_in(said.encode() + stored + caplog.text.encode(), planting.key)
