"""A trace in a third-party collector, which accepts the trace and forwards it."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from trace_stand_ins import agent_of, asks

from standfast import Runtime, tool
from standfast.model.trace_record import span_id_of, trace_id_of
from standfast.trace import OtelTrace

ON_OFFER = sys.platform == "linux" and importlib.util.find_spec("rotel") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ON_OFFER, reason="the collector has a wheel for Linux on x86-64 only"),
]


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on `port`, or `process` has ended."""
    while process.poll() is None:
        with suppress(ConnectionRefusedError), closing(socket.create_connection(("127.0.0.1", port))):
            return
    pytest.fail(f"the collector ended with {process.returncode}")


@pytest.fixture
def receiver() -> Iterator[Any]:
    from otlp_receiver import OtlpReceiver

    with OtlpReceiver() as found:
        yield found


@pytest.fixture
def collector(receiver: Any) -> Iterator[str]:
    """Return the address of a collector that forwards everything to *receiver*."""
    import rotel

    port = free_port()
    command = [
        *(str(Path(rotel.__file__).with_name("rotel-agent")), "start"),
        *("--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"),
        *("--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", receiver.url),
        *("--batch-timeout", "50ms"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_open(port, process)
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        process.terminate()
        process.wait()


@tool(side_effect="none")
async def weigh(grams: int) -> str:
    """Return the weight of an item."""
    return f"{grams} g"


def test_an_exported_trace_passes_through_a_collector(receiver: Any, collector: str) -> None:
    """Ours: a collector decodes the trace with its own code, and no span is lost."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from otlp_receiver import attributes

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector)))

    async def main() -> str:
        async with Runtime(trace=OtelTrace(provider)) as runtime:
            agent = agent_of(asks(("weigh", {"grams": 5})), "five grams", tools=[weigh])
            session = await runtime.session("scales", agent=agent)
            return str((await session.turn("how heavy?")).turn_id)

    turn_id = asyncio.run(main())
    provider.shutdown()
    wanted = {"invoke_agent agent", "execute_tool weigh"}
    assert receiver.wait_for(lambda: wanted <= {span.name for span in receiver.spans})
    turn, call = receiver.named("invoke_agent agent"), receiver.named("execute_tool weigh")
    assert (turn.trace_id.hex(), turn.span_id.hex()) == (trace_id_of(turn_id), span_id_of(turn_id))
    assert call.parent_span_id == turn.span_id
    assert attributes(call)["gen_ai.tool.name"] == "weigh"
    assert attributes(turn)["gen_ai.conversation.id"] == "scales"
