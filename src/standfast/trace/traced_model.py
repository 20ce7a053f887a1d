"""A model whose calls are spans: for what plugins, tools and code ask of it beside the turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from standfast.errors import StandfastError
from standfast.model.canonical import Json
from standfast.model.trace_record import TraceStatus
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.trace.tracer import span_under
from standfast.trace.turn_spans import TurnSpans, usage_json


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

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        return self._traced(request)

    async def _traced(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        question = _Question(self._spans, request, self.model_id)
        stream = self._model.stream(request)
        try:
            async for delta in stream:
                if isinstance(delta, ReplyEnded):
                    question.answered(delta)
                yield delta
        except Exception as error:
            question.failed(error)
            raise
        finally:
            question.given_up()
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()


class _Question:
    """One call, told once."""

    def __init__(self, spans: TurnSpans, request: ModelRequest, model_id: str) -> None:
        self._spans = spans
        self._key = request.idempotency_key
        self._body: dict[str, Json] = {"model": model_id, "attempt": request.attempt}
        self._parent_id = span_under(spans.turn_id)
        self._started_ms = spans.now_ms()
        self._over = False

    def answered(self, reply: ReplyEnded) -> None:
        told: dict[str, Json] = {
            "served": reply.model,
            "stop_reason": reply.stop_reason,
            "usage": usage_json(reply.usage),
        }
        if reply.response_id:
            told["response_id"] = reply.response_id
        self._tell("ok", told)

    def failed(self, error: Exception) -> None:
        code = error.code if isinstance(error, StandfastError) else type(error).__name__
        self._tell("error", {"error": code})

    def given_up(self) -> None:
        self._tell("cancelled", {})

    def _tell(self, status: TraceStatus, told: dict[str, Json]) -> None:
        if not self._over:
            self._over = True
            body = self._body | told
            self._spans.asked_beside(self._key, self._started_ms, self._parent_id, status, body)
