"""Models that plugins and tools ask directly, without a session around it.

Theory of operation
-------------------
Within a turn the call is one of the turn: it counts against the turn's limits, and what it used is journaled
with what the turn used. Outside of turns, and once the turn has ended, what it used is written to the
session's ledger at once. Either way the line of the ledger has the `usage_source` that was given.
"""

from __future__ import annotations

import dataclasses
import secrets

import msgspec

from standfast.errors import InvalidArgument, ServiceUnavailable
from standfast.model.host_requests import DirectCompletion, DirectRequest
from standfast.model.limits import UsageEntry
from standfast.model.message import Message, UserMessage
from standfast.model.session import SessionHead, SessionPolicy
from standfast.plugins.turn_hooks import ModelAccount, priced, whole_reply
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
        head = await self._head(method, self.session_id)
        policy = await self._policy(head)
        model = self._model(method, head, request.model, policy)
        settings = policy.settings if policy is not None and not request.model else {}
        asked = ModelRequest(
            messages=_messages(request),
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
            raise InvalidArgument("a direct completion has no usage source", hint="say who asks")
        account = self._turn_under_way()
        if account is not None:
            reply, entry = await account.ask(request, source, None if own else model)
            if account.is_over:
                await self._charge(entry)
        else:
            reply, entry = await self._ask_alone(head, request, source, model)
        self._tell(entry)
        return reply, entry

    def _turn_under_way(self) -> ModelAccount | None:
        """Return the account of this session's turn that the call is a part of."""
        here = RUNNING_TURN.get()
        if here is None or here.session_id != self.session_id or here.account.is_over:
            return None
        return here.account

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

    def _tell(self, entry: UsageEntry) -> None:
        here = RUNNING_TURN.get()
        if self.is_open:
            turn_id = "" if here is None or here.session_id != self.session_id else here.turn_id
            body = {"source": entry.source, "model": entry.model, "tokens": entry.usage.total}
            self.services.record(self.session_id, turn_id, "", "direct_completion", body)


def _messages(request: DirectRequest) -> list[Message]:
    if isinstance(request.prompt, str):
        return [UserMessage(content=request.prompt)]
    if not request.prompt:
        raise InvalidArgument("a direct completion has no prompt")
    return list(request.prompt)
