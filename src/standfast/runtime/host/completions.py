"""Direct model calls of plugins and tools, without a session around them.

Within a turn, the call counts against the turn's limits and its usage is journaled with the turn's. Outside
of turns, and once the turn has ended, its usage is added to the session's ledger at once, under
`usage_source`.
"""

from __future__ import annotations

import dataclasses
import secrets

import msgspec

from standfast.errors import InvalidArgument, ServiceUnavailable
from standfast.model.host_requests import DirectCompletion, DirectRequest
from standfast.model.limits import UsageEntry
from standfast.model.message import UserMessage
from standfast.model.session import SessionHead, SessionPolicy
from standfast.plugins.turn_hooks import priced, whole_reply
from standfast.ports.host import DirectLlmCompletion
from standfast.ports.model_provider import ModelProvider, ModelRequest, ReplyEnded
from standfast.runtime.host.service import HostService
from standfast.runtime.turn import RUNNING_TURN
from standfast.tools.no_host import SERVICES


class CompletionService(HostService):
    """The `DirectCompletionHost` of a session."""

    __slots__ = ()

    async def direct_completion(self, request: DirectRequest, usage_source: str) -> DirectCompletion:
        """Ask a model for a text; the session's own, unless the request names one."""
        method = "direct_completion"
        if not request.prompt and not isinstance(request.prompt, str):
            raise InvalidArgument("a direct completion has no prompt", hint="pass a text or messages")
        prompt = request.prompt
        head = await self._head(method, self.session_id)
        policy = await self._policy(head)
        model = self._model(method, head, request.model, policy)
        settings = policy.settings if policy is not None and not request.model else {}
        asked = ModelRequest(
            messages=[UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt),
            instructions=request.instructions,
            output_schema=request.output_schema,
            settings={**settings, **request.settings},
        )
        reply, entry = await self._ask(head, asked, usage_source, model, own=not request.model)
        return DirectCompletion(text=reply.text, usage=entry.usage)

    async def direct_llm_completion(self, request: ModelRequest, usage_source: str) -> DirectLlmCompletion:
        """Ask the session's model with a request of one's own; its numbers and keys are made here."""
        method = "direct_llm_completion"
        head = await self._head(method, self.session_id)
        model = self._model(method, head, None, await self._policy(head))
        reply, entry = await self._ask(head, request, usage_source, model, own=True)
        return DirectLlmCompletion(response=reply, usage=entry.usage)

    async def _policy(self, head: SessionHead) -> SessionPolicy | None:
        """What the session runs with, if its agent is known here."""
        live = await self._directory.at_work(head)
        return None if live is None else (await live.current()).policy

    def _model(
        self, method: str, head: SessionHead, wanted: str | None, policy: SessionPolicy | None
    ) -> ModelProvider:
        live = self._directory.live(self.session_id)
        name = wanted or (policy.model if policy is not None else "")
        if not name:
            raise ServiceUnavailable(
                SERVICES[method], f"no model is known here for session {head.session_id!r}"
            )
        if live.prepared is not None and name == live.prepared.agent.model_id:
            return live.prepared.model
        self._require_open(method)
        return self.services.models.named(name, self.session_id)

    async def _ask(
        self, head: SessionHead, request: ModelRequest, source: str, model: ModelProvider, *, own: bool
    ) -> tuple[ReplyEnded, UsageEntry]:
        """The whole reply, and its line of the ledger, which is written or in the turn's account."""
        if not source or not isinstance(source, str):
            raise InvalidArgument(
                "a direct completion has no usage source",
                hint="pass usage_source=, the name this call is charged to",
            )
        here = RUNNING_TURN.get()
        turn = here if here is not None and here.session_id == self.session_id else None
        if turn is not None and not turn.account.is_over:
            reply, entry = await turn.account.ask(request, source, None if own else model)
            if turn.account.is_over:
                await self._charge(entry)
        else:
            reply, entry = await self._ask_alone(head, request, source, model)
        if self.is_open:
            body = {"source": entry.source, "model": entry.model, "tokens": entry.usage.total}
            turn_id = "" if turn is None else turn.turn_id
            self.services.record(self.session_id, turn_id, "", "direct_completion", body)
        return reply, entry

    async def _ask_alone(
        self, head: SessionHead, request: ModelRequest, source: str, model: ModelProvider
    ) -> tuple[ReplyEnded, UsageEntry]:
        self._require_open("direct_completion")
        numbered = dataclasses.replace(
            request,
            session_id=self.session_id,
            turn_id="",
            call_number=head.model_calls + 1,
            idempotency_key=f"{self.session_id}.direct.{secrets.token_hex(8)}",
            read_blob=request.read_blob or self.services.store.blob,
        )
        reply = await whole_reply(model, numbered)
        usage = priced(self.services.cost_of(model.model_id), model.model_id, reply)
        entry = UsageEntry(
            source=source,
            model=reply.model or model.model_id,
            usage=msgspec.structs.replace(usage, calls=1),
        )
        await self._charge(entry)
        return reply, entry

    async def _charge(self, entry: UsageEntry) -> None:
        await self._directory.store.add_usage(self.session_id, (entry,), 1, self._directory.now_ms())
