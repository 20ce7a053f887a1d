"""An OTLP/HTTP receiver that decodes what exporters post to `/v1/traces`, using the protocol's own types.

The message types are those that the OpenTelemetry project generates from the protocol's definition. Like a
collector, it answers with `ExportTraceServiceResponse`, or with 400 if it cannot decode the request.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


class OtlpReceiver:
    """`with OtlpReceiver() as receiver`: `url` is its address, `spans` are the spans received so far."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.scopes: set[str] = set()
        self.resource: dict[str, Any] = {}
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                self._answer(*receiver._take(self.path, self.headers["Content-Type"], body))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def named(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def wait_for(self, happened: Callable[[], bool], seconds: float = 30) -> bool:
        """Wait until enough has arrived."""
        with self._arrived:
            return self._arrived.wait_for(happened, seconds)

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, path: str, content_type: str, body: bytes) -> tuple[int, bytes]:
        if path != "/v1/traces" or content_type != "application/x-protobuf":
            return 404, b""
        request = ExportTraceServiceRequest()
        try:
            request.ParseFromString(body)
        except Exception:
            return 400, b""
        with self._arrived:
            for of_resource in request.resource_spans:
                self.resource |= attributes(of_resource.resource)
                for of_scope in of_resource.scope_spans:
                    self.scopes.add(of_scope.scope.name)
                    self.spans.extend(of_scope.spans)
            self._arrived.notify_all()
        return 200, ExportTraceServiceResponse().SerializeToString()


def attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource as plain values."""
    return {one.key: _value(one.value) for one in holder.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind or "")
    return [_value(one) for one in found.values] if kind == "array_value" else found
