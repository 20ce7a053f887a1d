"""A model whose calls are recorded as spans: for the calls of plugins, tools and code beside the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

from standfast.errors import StandfastError
from standfast.model.canonical import Json
from standfast.model.trace_record import TraceStatus
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.trace.tracer import span_under
from standfast.trace.turn_spans import TurnSpans, reply_facts


class TracedModel:
    """A `ModelProvider` over another one."""

    def __init__(self, model: ModelProvider, spans: TurnSpans) -> None:
        self._model = model
        self._spans = spans

    @property
    def model_id(self) -> str:
        return self._model.model_id

    async def close(self) -> None:
        await self._model.close()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        spans = self._spans
        parent_id, started_ms = span_under(spans.turn_id), spans.now_ms()
        is_recorded = False

        def record(status: TraceStatus, facts: dict[str, Json]) -> None:
            nonlocal is_recorded
            if not is_recorded:
                is_recorded = True
                body: Json = {"model": self.model_id, "attempt": request.attempt, **facts}
                spans.record_side_call(request.idempotency_key, started_ms, parent_id, status, body)

        stream = self._model.stream(request)
        try:
            async for delta in stream:
                if isinstance(delta, ReplyEnded):
                    record("ok", reply_facts(delta))
                yield delta
        except Exception as error:
            code = error.code if isinstance(error, StandfastError) else type(error).__name__
            record("error", {"error": code})
            raise
        finally:
            record("cancelled", {})
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
