"""The store that forgets: the rules of the port in their plainest form.

What the rules say about values (what a decision makes of an approval, which errors there are) is written
here once, and other stores use it. What goes in and out is copied, as a file would.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar

import msgspec

from standfast.errors import ApprovalAlreadyDecided, ApprovalNotFound, StaleState
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.call import SettledCall
from standfast.ports.sandbox_store import StoredSession, WaitingRun

T = TypeVar("T", bound=msgspec.Struct)


def decided(approval: Approval, decision: Decision, *, now_ms: int, edited_digest: str | None) -> Approval:
    """What *decision* makes of *approval*. Only a yes can bring arguments of its own."""
    if approval.state != ApprovalState.PENDING:
        raise ApprovalAlreadyDecided(approval.approval_id, approval.state)
    replace = msgspec.structs.replace
    if now_ms >= approval.expires_at:
        return replace(approval, state=ApprovalState.EXPIRED, decided_at=now_ms)
    if not decision.approved:
        return replace(
            approval,
            state=ApprovalState.DENIED,
            decided_at=now_ms,
            reason=decision.reason,
            decided_by=decision.decided_by,
        )
    edited = decision.args is not None or decision.kwargs is not None
    return replace(
        approval,
        state=ApprovalState.APPROVED,
        decided_at=now_ms,
        reason=decision.reason,
        decided_by=decision.decided_by,
        args=approval.args if decision.args is None else decision.args,
        kwargs=approval.kwargs if decision.kwargs is None else decision.kwargs,
        edited_digest=edited_digest if edited else None,
    )


def cancelled(approval: Approval) -> Approval:
    """An open approval that nobody needs to decide any more."""
    return msgspec.structs.replace(approval, state=ApprovalState.CANCELLED)


def approval_order(approval: Approval) -> tuple[int, str, int, str]:
    """Oldest first; calls made at once in the order of the code."""
    return approval.requested_at, approval.run_id, approval.call_id, approval.approval_id


def session_order(session: StoredSession) -> tuple[int, str]:
    """Oldest first."""
    return session.meta.created_at, session.meta.id


def stale_session(session: StoredSession) -> StaleState:
    return StaleState(
        f"session {session.meta.id!r} was changed by another process after epoch {session.epoch} was read",
        hint="load it again",
    )


def already_waiting(session_id: str, run_id: str) -> StaleState:
    return StaleState(f"session {session_id!r} already has the waiting run {run_id}")


def already_requested(approval_id: str) -> StaleState:
    return StaleState(f"approval {approval_id} was already requested")


def call_in_the_way(run_id: str, call_id: int) -> StaleState:
    """Another process has been at this call, or the run took another path than before."""
    return StaleState(f"call {call_id} of run {run_id} is already in the journal, as another one")


class MemorySandboxStore:
    """A `SandboxStore` in dicts. It holds for one process, so `hold` has nothing to keep out."""

    durable = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, StoredSession] = {}
        self._retired_epoch = 0
        self._snapshots: dict[str, bytes] = {}
        self._runs: dict[str, WaitingRun] = {}
        self._approvals: dict[str, Approval] = {}
        self._calls: dict[str, dict[int, tuple[str, SettledCall | None]]] = {}

    def hold(self, session_id: str) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """Nothing to let go of."""

    # Sessions

    def load_session(self, session_id: str) -> StoredSession | None:
        return self._sessions.get(session_id)

    def stamp(self, session_id: str) -> tuple[int | None, bool]:
        session = self._sessions.get(session_id)
        return None if session is None else session.epoch, self.waiting_run(session_id) is not None

    def save_session(self, session: StoredSession, *, finished_run: str | None = None) -> StoredSession:
        with self._lock:
            current = self._sessions.get(session.meta.id)
            if session.epoch != (0 if current is None else current.epoch):
                raise stale_session(session)
            epoch = (self._retired_epoch if current is None else session.epoch) + 1
            saved = msgspec.structs.replace(session, epoch=epoch)
            self._sessions[session.meta.id] = saved
            if finished_run is not None:
                self._forget_run(finished_run)
            return saved

    def delete_session(self, session_id: str) -> bool:
        with self._lock:
            session = self._sessions.pop(session_id, None)
            if session is not None:
                self._retired_epoch = max(self._retired_epoch, session.epoch)
            run = self._run_of(session_id)
            if run is not None:
                self._forget_run(run.run_id)
            self._cancel([a for a in self._approvals.values() if a.session_id == session_id])
            return session is not None or run is not None

    def list_sessions(self) -> list[StoredSession]:
        with self._lock:
            stateless = [msgspec.structs.replace(session, state=b"") for session in self._sessions.values()]
        return sorted(stateless, key=session_order)

    def session_state_bytes(self, session_id: str) -> int:
        session = self._sessions.get(session_id)
        return 0 if session is None else len(session.state)

    # Snapshots

    def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, created_at: int) -> None:
        self._snapshots[snapshot_id] = data

    def get_snapshot(self, snapshot_id: str) -> bytes | None:
        return self._snapshots.get(snapshot_id)

    # Waiting runs

    def park(self, run: WaitingRun, snapshot: bytes, approvals: list[Approval]) -> None:
        parked = _copy(msgspec.structs.replace(run, owner=None))
        requested = {approval.approval_id: _copy(approval) for approval in approvals}
        with self._lock:
            waiting = self._run_of(run.session_id)
            if waiting is not None and waiting.run_id != run.run_id:
                raise already_waiting(run.session_id, waiting.run_id)
            self._check_new(approvals)
            self._runs[run.run_id] = parked
            self._snapshots[run.snapshot_id] = snapshot
            self._approvals.update(requested)

    def waiting_run(self, session_id: str) -> WaitingRun | None:
        with self._lock:
            run = self._run_of(session_id)
        return None if run is None else _copy(run)

    def get_run(self, run_id: str) -> WaitingRun | None:
        run = self._runs.get(run_id)
        return None if run is None else _copy(run)

    def claim_run(self, run_id: str, owner: str, previous: str | None) -> bool:
        return self._change_owner(run_id, owner, previous)

    def release_run(self, run_id: str, owner: str) -> None:
        self._change_owner(run_id, None, owner)

    def drop_run(self, run_id: str) -> bool:
        with self._lock:
            return self._forget_run(run_id)

    def _change_owner(self, run_id: str, owner: str | None, previous: str | None) -> bool:
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or run.owner != previous:
                return False
            self._runs[run_id] = msgspec.structs.replace(run, owner=owner)
            return True

    def _run_of(self, session_id: str) -> WaitingRun | None:
        return next((run for run in self._runs.values() if run.session_id == session_id), None)

    def _forget_run(self, run_id: str) -> bool:
        self._calls.pop(run_id, None)
        self._cancel([a for a in self._approvals.values() if a.run_id == run_id])
        return self._runs.pop(run_id, None) is not None

    # Approvals

    def approvals(self, *, session_id: str | None = None, run_id: str | None = None) -> list[Approval]:
        with self._lock:
            found = [
                _copy(approval)
                for approval in self._approvals.values()
                if session_id in (None, approval.session_id) and run_id in (None, approval.run_id)
            ]
        return sorted(found, key=approval_order)

    def approval(self, approval_id: str) -> Approval | None:
        approval = self._approvals.get(approval_id)
        return None if approval is None else _copy(approval)

    def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        with self._lock:
            approval = self._approvals.get(approval_id)
            if approval is None:
                raise ApprovalNotFound(approval_id)
            after = _copy(decided(approval, decision, now_ms=now_ms, edited_digest=edited_digest))
            self._approvals[approval_id] = after
        return _copy(after)

    def _check_new(self, approvals: list[Approval]) -> None:
        seen = set(self._approvals)
        for approval in approvals:
            if approval.approval_id in seen:
                raise already_requested(approval.approval_id)
            seen.add(approval.approval_id)

    def _cancel(self, approvals: list[Approval]) -> None:
        for approval in approvals:
            if approval.state == ApprovalState.PENDING:
                self._approvals[approval.approval_id] = cancelled(approval)

    # The journal of calls

    def intend(self, run_id: str, call_id: int, request_digest: str) -> None:
        with self._lock:
            calls = self._calls.setdefault(run_id, {})
            if call_id in calls:
                raise call_in_the_way(run_id, call_id)
            calls[call_id] = (request_digest, None)

    def settle(self, run_id: str, call_id: int, settled: SettledCall) -> None:
        digest = settled.record.request_digest
        with self._lock:
            calls = self._calls.setdefault(run_id, {})
            intended, outcome = calls.get(call_id, (digest, None))
            if intended != digest or outcome not in (None, settled):
                raise call_in_the_way(run_id, call_id)
            calls[call_id] = (digest, _copy(settled))

    def found(self, run_id: str, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None:
        with self._lock:
            intended, outcome = self._calls.get(run_id, {}).get(call_id, (None, None))
        if intended is None:
            return None
        if intended != request_digest:
            raise call_in_the_way(run_id, call_id)
        return True if outcome is None else _copy(outcome)


def _copy(value: T) -> T:
    """A value that shares no list or dict with *value*."""
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))
