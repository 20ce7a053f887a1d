"""A trace in an OTLP receiver."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_stand_ins import Kept, agent_of, asks

from standfast import Runtime, tool
from standfast.model.limits import Usage
from standfast.model.trace_record import TraceRecord, span_id_of, trace_id_of
from standfast.plugins import Plugin, hook
from standfast.ports.model_provider import ModelRequest, ReplyEnded, RequestedCall
from standfast.store.memory_sessions import MemorySessionStore
from standfast.testing.clock import FakeClock
from standfast.trace import OtelTrace
from standfast.trace.gen_ai import attributes_of, name_of

pytestmark = pytest.mark.slow

CLIENT, INTERNAL, ERROR = 3, 1, 2


@pytest.fixture
def receiver() -> Iterator[Any]:
    from otlp_receiver import OtlpReceiver

    with OtlpReceiver() as found:
        yield found


def provider_to(receiver: Any, **options: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "clerk"}), **options)
    exporter = OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Caching:
    """A model whose replies have every optional field."""

    model_id = "anthropic:claude-x"

    def __init__(self) -> None:
        self.replies = [
            ReplyEnded(
                text="",
                calls=(RequestedCall(name="refund", arguments='{"cents": 5}', provider_id="toolu_1"),),
                usage=Usage(input=10, cache_read=90, output=7, reasoning=2, calls=1),
                model="anthropic:claude-x-2",
                stop_reason="tool_calls",
                response_id="msg_1",
            ),
            ReplyEnded(text="no", usage=Usage(input=1, output=1, calls=1), model="anthropic:claude-x-2"),
        ]

    async def stream(self, request: ModelRequest) -> Any:
        yield self.replies.pop(0)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


@tool
async def refund(cents: int) -> str:
    """Refund."""
    raise ValueError("the bank is closed")


class Watching(Plugin):
    id = "watching"

    @hook
    async def before_turn(self, ctx: Any) -> None:
        """Observe the beginning of a turn."""


def test_an_otlp_receiver_accepts_an_exported_trace(receiver: Any, clock: FakeClock) -> None:
    """Ours: names, parents and attributes of spans follow the semantic conventions."""
    from otlp_receiver import attributes

    from standfast import Agent

    provider = provider_to(receiver)

    async def main() -> str:
        agent = Agent(Caching(), name="clerk", tools=[refund], plugins=[Watching()])
        async with Runtime(trace=OtelTrace(provider), clock=clock) as runtime:
            return str((await (await runtime.session("support", agent=agent)).turn("refund")).turn_id)

    turn_id = asyncio.run(main())
    provider.shutdown()
    assert receiver.resource["service.name"] == "clerk"
    assert receiver.scopes == {"standfast"}
    turn, called = receiver.named("invoke_agent clerk"), receiver.named("execute_tool refund")
    chats = [span for span in receiver.spans if span.name == "chat claude-x"]
    of_turn = [span for span in receiver.spans if attributes(span).get("standfast.turn.id") == turn_id]
    assert {span.trace_id.hex() for span in of_turn} == {trace_id_of(turn_id)}
    assert (turn.span_id.hex(), turn.parent_span_id) == (span_id_of(turn_id), b"")
    assert {span.parent_span_id for span in (called, *chats)} == {turn.span_id}
    assert receiver.named("hook before_turn").parent_span_id == turn.span_id
    assert (turn.kind, called.kind, {chat.kind for chat in chats}) == (INTERNAL, INTERNAL, {CLIENT})
    assert (called.status.code, turn.status.code) == (ERROR, 0)
    assert turn.start_time_unix_nano == clock.now_ms() * 1_000_000
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans)
    first = next(one for one in map(attributes, chats) if one["standfast.model_call.number"] == 1)
    assert {key: value for key, value in first.items() if key.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.response.model": "claude-x-2",
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 90,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.conversation.id": "support",
    }
    told = attributes(called)
    assert told["gen_ai.operation.name"] == "execute_tool"
    assert (told["gen_ai.tool.name"], told["gen_ai.tool.call.id"]) == ("refund", "toolu_1")
    assert (told["gen_ai.tool.type"], told["error.type"]) == ("function", "TOOL_ERROR")
    whole = attributes(turn)
    assert (whole["gen_ai.operation.name"], whole["gen_ai.agent.name"]) == ("invoke_agent", "clerk")
    assert (whole["gen_ai.usage.input_tokens"], whole["gen_ai.conversation.id"]) == (101, "support")
    assert "bank is closed" not in str(receiver.spans)


@tool(approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return "paid"


def test_two_processes_export_parts_of_the_same_trace(receiver: Any, clock: FakeClock) -> None:
    """Ours: ids are derived from the turn, so the parts fit together at the receiver."""
    store, replies = (
        MemorySessionStore(owner_is_dead=lambda owner: True),
        (asks(("pay", {"cents": 1})), "end"),
    )

    async def step(wait_id: str | None) -> Any:
        provider = provider_to(receiver)
        async with Runtime(store, trace=OtelTrace(provider), clock=clock) as runtime:
            session = await runtime.session("s", agent=agent_of(*replies, tools=[pay]))
            if wait_id is None:
                found = await session.turn("pay").settled()
            else:
                found = await session.approve(wait_id)
        provider.shutdown()
        return found

    waiting = asyncio.run(step(None))
    clock.advance(60)
    asyncio.run(step(waiting.waits[0].wait_id))
    spans = {span.name: span for span in receiver.spans if not span.name.startswith("hook")}
    turn, call, wait = spans["invoke_agent agent"], spans["execute_tool pay"], spans["wait approval"]
    assert (call.parent_span_id, wait.parent_span_id) == (turn.span_id, call.span_id)
    assert {span.trace_id for span in spans.values()} == {turn.trace_id}
    assert wait.end_time_unix_nano - wait.start_time_unix_nano == 60 * 10**9


def test_a_turn_started_by_a_call_is_linked_to_it(receiver: Any) -> None:
    """Ours: the turn has a separate trace, which links back to the call."""
    provider = provider_to(receiver)

    async def main() -> None:
        async with Runtime(trace=OtelTrace(provider)) as runtime:

            @tool(loop="runtime")
            async def delegate() -> str:
                child = await runtime.session("child", agent=agent_of("done", name="helper"))
                return str((await child.turn("work")).output)

            boss = agent_of(asks(("delegate", {})), "end", tools=[delegate], name="boss")
            await (await runtime.session("parent", agent=boss)).turn("go")

    asyncio.run(main())
    provider.shutdown()
    call, child = receiver.named("execute_tool delegate"), receiver.named("invoke_agent helper")
    (link,) = child.links
    assert (link.trace_id, link.span_id) == (call.trace_id, call.span_id)
    assert child.trace_id != call.trace_id


def test_a_trace_is_sampled_as_a_whole(receiver: Any) -> None:
    """Ours: the provider's sampler decides once for all spans of a turn."""
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    provider = provider_to(receiver, sampler=ParentBasedTraceIdRatio(0.5))

    async def main() -> int:
        async with Runtime(trace=OtelTrace(provider)) as runtime:
            agent = agent_of(*["end"] * 40)
            session = await runtime.session("s", agent=agent)
            return len([await session.turn("go") for _ in range(40)])

    asyncio.run(main())
    provider.shutdown()
    by_trace: dict[bytes, list[str]] = {}
    for span in receiver.spans:
        if not span.name.startswith("hook"):
            by_trace.setdefault(span.trace_id, []).append(span.name)
    assert 0 < len(by_trace) < 40
    assert all(sorted(names) == ["chat script", "invoke_agent agent"] for names in by_trace.values())


def test_contents_and_secrets_are_treated_as_in_a_file(receiver: Any) -> None:
    """Ours: contents are exported only on request, and redacted."""
    from otlp_receiver import attributes

    key = "sk-" + "a1B2" * 8
    provider = provider_to(receiver)

    @tool
    async def look(place: str) -> dict[str, str]:
        return {"seen": key}

    async def main() -> None:
        agent = agent_of(asks(("look", {"place": "here"})), "end", tools=[look])
        async with Runtime(trace=OtelTrace(provider, contents=True)) as runtime:
            await (await runtime.session("s", agent=agent)).turn("go")

    asyncio.run(main())
    provider.shutdown()
    told = attributes(receiver.named("execute_tool look"))
    assert json.loads(told["gen_ai.tool.call.arguments"]) == {"place": "here"}
    assert json.loads(told["gen_ai.tool.call.result"]) == {"seen": "[redacted]"}
    whole = attributes(receiver.named("invoke_agent agent"))
    assert json.loads(whole["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "go"}]}
    ]
    assert key not in str(receiver.spans)


PROGRAM = """
import asyncio
from standfast import Agent, Runtime
from standfast.providers.scripted import ScriptedModel
from standfast.trace import OtelTrace

async def main():
    with OtelTrace() as trace:
        async with Runtime(trace=trace) as runtime:
            await (await runtime.session("s", agent=Agent(ScriptedModel(["end"]), name="clerk"))).turn("go")

asyncio.run(main())
"""


def test_without_a_provider_spans_go_to_the_endpoint_of_the_environment(
    receiver: Any, tmp_path: Path
) -> None:
    """Ours: only the address of the receiver has to be configured."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "shop", "PATH": ""}
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=env, check=True, cwd=tmp_path)
    assert receiver.resource["service.name"] == "shop"
    assert receiver.named("invoke_agent clerk").trace_id


def test_attribute_names_follow_the_conventions() -> None:
    """Ours: OpenTelemetry defines every gen_ai attribute that we export."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    usage = dict.fromkeys(("input", "cache_read", "cache_write", "output", "reasoning", "calls", "priced"), 1)
    told: set[str] = set()
    for kind in ("turn", "model_call", "tool_call", "cell", "wait", "hook", "task", "event"):
        body: dict[str, Any] = {
            "model": "google:gemini", "served": "google:gemini", "response_id": "r", "stop_reason": "end",
            "usage": usage, "provider_id": "c", "content": {"input": "i", "output": "o", "arguments": {}},
        }  # fmt: skip
        record = TraceRecord(at_ms=1, name="n", kind=kind, session_id="s", turn_id="t", body=body)
        found = attributes_of(record)
        told |= {name for name in found if name.startswith("gen_ai.")}
    assert told <= known
    assert len(told) > 15
    chat = TraceRecord(at_ms=1, name="google:gemini", kind="model_call", body={"model": "google:gemini"})
    assert (name_of(chat), attributes_of(chat)["gen_ai.provider.name"]) == ("chat gemini", "gcp.gemini")


def test_two_sinks_can_share_a_provider(receiver: Any) -> None:
    """Ours: each of them exports its spans under the ids of its records."""
    provider = provider_to(receiver)
    kept = Kept()
    one, other = OtelTrace(provider), OtelTrace(provider)
    asyncio.run(_one_turn([one, kept]))
    asyncio.run(_one_turn([other, kept]))
    provider.shutdown()
    turns = [span.span_id.hex() for span in receiver.spans if span.name == "invoke_agent agent"]
    assert turns == [record.span_id for record in kept.of("turn")]


async def _one_turn(sinks: list[Any]) -> None:
    async with Runtime(trace=sinks) as runtime:
        await (await runtime.session("s", agent=agent_of("end"))).turn("go")
