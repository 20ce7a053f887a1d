"""A trace as OpenTelemetry spans, in its conventions for generative AI. Needs `standfast[otel]`.

A record describes a finished span and has its ids. So a span is started and ended immediately, with the times
of the record, under a parent that may be recorded later or by another process. Ids are not random here: the
tracer gets an id generator that returns those of the record.

Rules
-----
1. The sampler decides about a trace by its root, and its decision holds for all spans of the trace.
2. A turn started by a call of another turn is a separate trace; its first span is linked to that call.
3. Secrets are removed first, as in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import NotConfigured
from standfast.model.trace_record import TraceRecord, trace_id_of
from standfast.trace.gen_ai import attributes_of, exception_of, name_of
from standfast.trace.redaction import Redaction, Redactor

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanContext

_SCOPE: Final = "standfast"
_LEFT_OUT: Final = ("turn_began", "turn_taken_up")
"""Events that the spans already express."""


class OtelTrace:
    """A trace sink for `Runtime(trace=...)`.

    Args:
        tracer_provider: a provider of OpenTelemetry's SDK; by default the global one. If there is none
            either, spans go to `OTEL_EXPORTER_OTLP_ENDPOINT` until `close`.
        contents: also export messages, and the arguments and results of calls.
        redact: changes a record before it is exported, or omits it with None.
        secrets: texts that are never exported, besides those that look like keys.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        contents: bool = False,
        redact: Redactor | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        self.contents = contents
        self._redaction = Redaction(redact, secrets=secrets)
        self._own: TracerProvider | None = None
        try:
            from opentelemetry.sdk.trace import Tracer, TracerProvider
            from opentelemetry.trace import get_tracer_provider

            provider = tracer_provider or get_tracer_provider()
            if tracer_provider is None and not isinstance(provider, TracerProvider):
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
                from opentelemetry.sdk.resources import Resource
                from opentelemetry.sdk.trace.export import BatchSpanProcessor

                provider = self._own = TracerProvider(resource=Resource.create())
                provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except ImportError:
            raise NotConfigured(
                "the OpenTelemetry SDK is not installed", hint="pip install 'standfast[otel]'"
            ) from None
        tracer = provider.get_tracer(_SCOPE)
        if not isinstance(tracer, Tracer):
            raise NotConfigured(
                "this tracer provider creates no spans", hint="check whether OTEL_SDK_DISABLED is set"
            )
        self._tracer = tracer

        from standfast.trace.otel_ids import ids_of

        self._ids = ids_of(self._tracer)

    def record(self, record: TraceRecord) -> None:
        if record.kind == "usage" or record.name in _LEFT_OUT:
            return
        clean = self._redaction.clean(record)
        if clean is None:
            return
        record = clean
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        links = []
        caller = record.body.get("parent_turn_id") if isinstance(record.body, dict) else None
        if record.kind == "turn" and record.parent_id and isinstance(caller, str):
            links.append(Link(_span_context(trace_id_of(caller), record.parent_id, sampled=True)))
        started_ms = record.at_ms if record.started_at_ms is None else record.started_at_ms
        with self._ids.of(record):
            span = self._tracer.start_span(
                name_of(record),
                context=self._parent(record),
                kind=SpanKind.CLIENT if record.kind == "model_call" else SpanKind.INTERNAL,
                attributes=attributes_of(record),
                links=links,
                start_time=started_ms * 1_000_000,
            )
        if record.status not in ("", "ok", "cancelled"):
            span.set_status(Status(StatusCode.ERROR))
        end_ns = started_ms * 1_000_000 + int((record.duration_ms or 0) * 1_000_000)
        if raised := exception_of(record):
            span.add_event("exception", raised, end_ns)
        span.end(end_ns)

    def close(self) -> None:
        """Flush the exporter, if this object created it."""
        if self._own is not None:
            self._own.shutdown()

    def __enter__(self) -> OtelTrace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _parent(self, record: TraceRecord) -> Any:
        """Return the span's parent context, an empty one for the root of a trace."""
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        if record.kind == "turn" or not record.parent_id:
            return Context()
        result = self._tracer.sampler.should_sample(Context(), int(record.trace_id, 16), _SCOPE)
        sampled = result.decision is Decision.RECORD_AND_SAMPLE
        parent = _span_context(record.trace_id, record.parent_id, sampled=sampled)
        return set_span_in_context(NonRecordingSpan(parent), Context())


def _span_context(trace_id: str, span_id: str, *, sampled: bool) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)
