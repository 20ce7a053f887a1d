"""An id generator for OpenTelemetry spans with given ids. Imported only if the SDK is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import Tracer
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from standfast.model.trace_record import TraceRecord


class GivenIds(RandomIdGenerator):
    """Returns the ids of the record that is being exported."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._record: TraceRecord | None = None

    @contextmanager
    def of(self, record: TraceRecord) -> Iterator[None]:
        with self._lock:
            self._record = record
            try:
                yield
            finally:
                self._record = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self._record is None else int(self._record.trace_id, 16)

    def generate_span_id(self) -> int:
        if self._record is None or not self._record.span_id:
            return super().generate_span_id()
        return int(self._record.span_id, 16)


def ids_of(tracer: Tracer) -> GivenIds:
    """Return the tracer's `GivenIds`, installing it if needed. All users of the tracer share it."""
    if not isinstance(tracer.id_generator, GivenIds):
        tracer.id_generator = GivenIds()
    return tracer.id_generator
