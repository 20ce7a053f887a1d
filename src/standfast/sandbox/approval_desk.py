"""Requests to people: made when a run parks, decided once, and claimed by whoever continues the run.

Rules
-----
1. A request is bound to the contract, the arguments, the session, the run and the call it was made for.
2. A decision that could not be carried out here is refused before it is spent.
3. A run is continued by the process that claimed it. A claim of a process that died can be taken over.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from standfast.errors import ApprovalNotFound, InvalidArgument
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.call import SettledCall
from standfast.model.canonical import digest_json
from standfast.ports.journal import PendingCall
from standfast.ports.sandbox_store import WaitingRun
from standfast.sandbox.services import SandboxServices
from standfast.sandbox.snapshots import PausedRun
from standfast.tools.settlement import request_digest

_LEFT_BEHIND_MS: Final = 10_000
"""A decided run that nobody took up for this long may be taken up by whoever asks."""


class ApprovalDesk:
    """Blocking; used on threads."""

    def __init__(self, services: SandboxServices) -> None:
        self._services = services
        self._store = services.store
        self._clock = services.clock
        self._config = services.config

    def ask(
        self, pending: list[PendingCall], run_id: str, session_id: str
    ) -> tuple[list[PendingCall], list[Approval]]:
        """Make requests for the calls that have none yet; they are stored by whoever parks the run."""
        asked: list[PendingCall] = []
        requests: list[Approval] = []
        for call in pending:
            if not call.approval_id:
                call = msgspec.structs.replace(call, approval_id=f"apr_{secrets.token_hex(10)}")
                requests.append(self._request(call, run_id, session_id))
            asked.append(call)
        return asked, requests

    def all(self, session_id: str | None) -> list[Approval]:
        """All requests, oldest first; those past their time count as expired."""
        now = self._clock.now_ms()
        return [as_of(item, now) for item in self._store.approvals(session_id=session_id)]

    def get(self, approval_id: str) -> Approval:
        found = self._store.approval(approval_id)
        if found is None:
            raise ApprovalNotFound(approval_id)
        return as_of(found, self._clock.now_ms())

    def check(self, approval: Approval, run: WaitingRun, decision: Decision) -> None:
        """Refuse, before it is spent, a decision that could not be carried out."""
        call = next((item for item in self.paused(run)[0].pending if item.call_id == approval.call_id), None)
        if call is None or _binding(call, approval.session_id, run.run_id) != approval.binding:
            raise InvalidArgument(f"approval {approval.approval_id} does not belong to the call that waits")
        if decision.args is None and decision.kwargs is None:
            return
        args, kwargs = _arguments(approval, decision)
        checked = self._services.dispatcher.check(
            self._services.registry.require(call.name),
            args,
            kwargs,
            session_id=approval.session_id,
            call_id=call.call_id,
        )
        if isinstance(checked, SettledCall) and checked.record.error is not None:
            raise InvalidArgument(f"the edited arguments do not fit: {checked.record.error.message}")

    def decide(self, approval: Approval, decision: Decision) -> Approval:
        """Decide, once. Past its time a request expires instead."""
        edited = None
        if decision.args is not None or decision.kwargs is not None:
            edited = request_digest(approval.capability, *_arguments(approval, decision))
        return self._store.decide(
            approval.approval_id, decision, now_ms=self._clock.now_ms(), edited_digest=edited
        )

    def expire(self, run_id: str) -> None:
        """Mark the run's requests that are past their time."""
        now = self._clock.now_ms()
        late = Decision(approved=False, reason="expired")
        for item in self._store.approvals(run_id=run_id):
            if item.state is ApprovalState.PENDING and now >= item.expires_at:
                self._store.decide(item.approval_id, late, now_ms=now, edited_digest=None)

    def all_expired(self, run: WaitingRun) -> bool:
        """Whether nobody can decide any of the run's open requests any more."""
        now = self._clock.now_ms()
        return not any(
            as_of(item, now).state is ApprovalState.PENDING
            for item in self._store.approvals(run_id=run.run_id)
        )

    def decided(self, run: WaitingRun) -> dict[int, Approval]:
        """Call id → request, for those that are no longer pending."""
        return {
            item.call_id: item
            for item in self._store.approvals(run_id=run.run_id)
            if item.state is not ApprovalState.PENDING
        }

    def left_behind(self, run: WaitingRun, approval: Approval) -> bool:
        """Whether the run was decided by a process that died before it continued it."""
        if approval.decided_at is None:
            return False
        if run.owner is not None:
            return self._config.owner_is_dead(run.owner)
        return self._clock.now_ms() - approval.decided_at > _LEFT_BEHIND_MS

    def claim(self, run: WaitingRun) -> None:
        """Become the process that continues the run."""
        owner, previous = self._config.owner, run.owner
        free = previous is None or previous == owner or self._config.owner_is_dead(previous)
        if not free or not self._store.claim_run(run.run_id, owner, previous):
            raise InvalidArgument(
                f"the run of session {run.session_id!r} is being continued by another process",
                hint="wait for it to finish",
            )

    def release(self, run: WaitingRun) -> None:
        self._store.release_run(run.run_id, self._config.owner)

    def paused(self, run: WaitingRun) -> tuple[PausedRun, bytes]:
        """The waiting run as it was parked, and its engine's state."""
        data = self._store.get_snapshot(run.snapshot_id)
        if data is None:
            raise InvalidArgument(f"there is no snapshot {run.snapshot_id!r}")
        header, state = self._services.unseal(data)
        if header.paused is None:
            raise InvalidArgument(f"snapshot {run.snapshot_id} holds no run that waits")
        return header.paused, state

    def _request(self, call: PendingCall, run_id: str, session_id: str) -> Approval:
        now = self._clock.now_ms()
        return Approval(
            approval_id=call.approval_id,
            state=ApprovalState.PENDING,
            session_id=session_id,
            capability=call.name,
            args=call.args,
            kwargs=call.kwargs,
            requested_at=now,
            expires_at=now + self._config.approval_ttl_ms,
            binding=_binding(call, session_id, run_id),
            run_id=run_id,
            call_id=call.call_id,
        )


def as_of(approval: Approval, now: int) -> Approval:
    """The request as it counts now: past its time it has expired, whether or not that is written yet."""
    if approval.state is ApprovalState.PENDING and now >= approval.expires_at:
        return msgspec.structs.replace(approval, state=ApprovalState.EXPIRED)
    return approval


def _arguments(approval: Approval, decision: Decision) -> tuple[list[object], dict[str, object]]:
    args = decision.args if decision.args is not None else approval.args
    return args, decision.kwargs if decision.kwargs is not None else approval.kwargs


def _binding(call: PendingCall, session_id: str, run_id: str) -> str:
    return digest_json([call.contract, call.name, call.args, call.kwargs, session_id, run_id, call.call_id])
