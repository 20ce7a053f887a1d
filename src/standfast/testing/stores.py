"""What every store must do, as tests: inherit the suite and give it a `store` fixture.

class TestMine(SandboxStoreContract):
    @pytest.fixture
    def store(self) -> SandboxStore:
        return MyStore()
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from standfast.errors import ApprovalAlreadyDecided, ApprovalNotFound, StaleState, StandfastError
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.call import CallStatus, ExternalCallRecord, SettledCall
from standfast.model.canonical import Json
from standfast.model.capability import SideEffect
from standfast.model.session import SessionMeta
from standfast.ports.sandbox_store import SandboxStore, StoredSession, WaitingRun

EXPIRES_AT = 10_000


def a_session(session_id: str = "s1", state: bytes = b"state", created_at: int = 1) -> StoredSession:
    """A session that was never saved."""
    return StoredSession(meta=SessionMeta(id=session_id, created_at=created_at), state=state)


def a_run(run_id: str = "r1", session_id: str = "s1", snapshot_id: str = "snap_1") -> WaitingRun:
    return WaitingRun(
        run_id=run_id,
        session_id=session_id,
        snapshot_id=snapshot_id,
        created_at=5,
        host={"tools": ["pay"], "big": 2**70},
    )


def an_approval(
    approval_id: str = "a1", run_id: str = "r1", session_id: str = "s1", call_id: int = 1
) -> Approval:
    """A request that is open until `EXPIRES_AT`."""
    return Approval(
        approval_id=approval_id,
        state=ApprovalState.PENDING,
        session_id=session_id,
        capability="pay",
        args=[1, "é", 2**70],
        kwargs={"cents": 1.5},
        requested_at=5,
        expires_at=EXPIRES_AT,
        binding="b",
        run_id=run_id,
        call_id=call_id,
    )


def a_settled(value: Json = 1, request_digest: str = "d1") -> SettledCall:
    record = ExternalCallRecord(
        name="pay",
        side_effect=SideEffect.EXTERNAL_SYSTEM,
        duration_ms=1,
        status=CallStatus.OK,
        request_digest=request_digest,
    )
    return SettledCall(record=record, value=value)


def race(count: int, attempt: Callable[[int], object]) -> list[object]:
    """Call *attempt* from *count* threads at once; what each one returned or raised."""
    outcomes: list[object] = [None] * count
    start = threading.Barrier(count)

    def go(number: int) -> None:
        start.wait()
        try:
            outcomes[number] = attempt(number)
        except StandfastError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=go, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class SandboxStoreContract:
    """The rules of `SandboxStore`. Every test gets a store of its own."""

    @pytest.fixture
    def store(self) -> SandboxStore:
        raise NotImplementedError("give the suite a store")

    # Sessions

    def test_a_session_that_was_never_saved_is_none(self, store: SandboxStore) -> None:
        """Ours: absence is a value, the caller decides whether it is an error."""
        assert store.load_session("s1") is None
        assert store.stamp("s1") == (None, False)
        assert store.session_state_bytes("s1") == 0
        assert store.list_sessions() == []

    def test_a_saved_session_is_loaded_as_it_was(self, store: SandboxStore) -> None:
        """Seed: a session persists between runs."""
        saved = store.save_session(msgspec.structs.replace(a_session(state=b"\0\xff"), expires_at=99))
        assert saved.epoch == 1
        assert store.load_session("s1") == saved
        assert store.stamp("s1") == (1, False)
        assert store.session_state_bytes("s1") == 2

    def test_every_save_raises_the_epoch_by_one(self, store: SandboxStore) -> None:
        """Ours: port rule 2, the epoch is what a later write is compared with."""
        first = store.save_session(a_session())
        second = store.save_session(msgspec.structs.replace(first, state=b"more"))
        assert second.epoch == first.epoch + 1
        assert store.load_session("s1") == second

    def test_a_write_over_an_epoch_that_is_gone_is_refused_and_writes_nothing(
        self, store: SandboxStore
    ) -> None:
        """Ours: two runs on one session never lose state."""
        first = store.save_session(a_session())
        second = store.save_session(msgspec.structs.replace(first, state=b"second"))
        with pytest.raises(StaleState, match="s1"):
            store.save_session(msgspec.structs.replace(first, state=b"late"))
        assert store.load_session("s1") == second

    def test_a_session_is_created_once(self, store: SandboxStore) -> None:
        """Ours: of two processes that create one session, one hears that it exists."""
        store.save_session(a_session(state=b"first"))
        with pytest.raises(StaleState):
            store.save_session(a_session(state=b"other"))
        loaded = store.load_session("s1")
        assert loaded is not None
        assert loaded.state == b"first"

    def test_a_deleted_session_cannot_be_written_by_whoever_still_has_it(self, store: SandboxStore) -> None:
        """Ours: destroying a session wins over a run that had loaded it."""
        saved = store.save_session(a_session())
        assert store.delete_session("s1") is True
        with pytest.raises(StaleState):
            store.save_session(saved)
        assert store.load_session("s1") is None

    def test_a_session_made_anew_never_has_an_epoch_of_its_forerunner(self, store: SandboxStore) -> None:
        """Bug: a process that kept state by epoch would take the new session for the old one."""
        old = store.save_session(store.save_session(a_session()))
        store.delete_session("s1")
        new = store.save_session(a_session(state=b"new"))
        assert new.epoch > old.epoch
        with pytest.raises(StaleState):
            store.save_session(old)

    def test_deleting_tells_whether_there_was_anything(self, store: SandboxStore) -> None:
        """Seed: destroy_session answers with a bool."""
        store.save_session(a_session())
        assert store.delete_session("s1") is True
        assert store.delete_session("s1") is False

    def test_deleting_a_session_ends_its_run_and_keeps_its_snapshots(self, store: SandboxStore) -> None:
        """Ours: nothing waits for a session that is gone; a snapshot is a thing of its own."""
        store.save_session(a_session())
        store.park(a_run(), b"dump", [an_approval()])
        store.intend("r1", 7, "d1")
        store.delete_session("s1")
        assert store.waiting_run("s1") is None
        assert store.found("r1", 7, "d1") is None
        assert [a.state for a in store.approvals(session_id="s1")] == [ApprovalState.CANCELLED]
        assert store.get_snapshot("snap_1") == b"dump"

    def test_sessions_are_listed_oldest_first_without_their_state(self, store: SandboxStore) -> None:
        """Ours: listing must not load what may be 64 MiB each."""
        for session_id, created_at in (("b", 2), ("c", 1), ("a", 2)):
            store.save_session(a_session(session_id, b"x" * 100, created_at))
        listed = store.list_sessions()
        assert [session.meta.id for session in listed] == ["c", "a", "b"]
        assert {session.state for session in listed} == {b""}
        assert {session.epoch for session in listed} == {1}

    def test_one_of_many_threads_wins_a_save(self, store: SandboxStore) -> None:
        """Ours: port rule 2 under a race."""
        first = store.save_session(a_session())
        outcomes = race(8, lambda n: store.save_session(msgspec.structs.replace(first, state=b"%d" % n)))
        winners = [outcome for outcome in outcomes if isinstance(outcome, StoredSession)]
        assert len(winners) == 1
        assert store.load_session("s1") == winners[0]
        assert sum(isinstance(outcome, StaleState) for outcome in outcomes) == 7

    def test_a_session_can_be_held_again_and_beside_others(self, store: SandboxStore) -> None:
        """Ours: one process runs many sessions at once."""
        for _ in range(2):
            with store.hold("s1"), store.hold("s2"):
                store.save_session(a_session("s1" if store.stamp("s1")[0] is None else "s2"))
        assert len(store.list_sessions()) == 2

    # Snapshots

    def test_a_snapshot_is_read_back_byte_for_byte(self, store: SandboxStore) -> None:
        """Seed: snapshot_id names something that is stored."""
        store.put_snapshot("snap_1", "s1", bytes(range(256)), 1)
        store.put_snapshot("snap_1", "s1", bytes(range(256)), 2)
        assert store.get_snapshot("snap_1") == bytes(range(256))
        assert store.get_snapshot("snap_2") is None

    # Waiting runs

    def test_a_parked_run_is_found_by_its_session_and_by_its_id(self, store: SandboxStore) -> None:
        """Ours: a decision continues a run in any process that has the store."""
        store.park(msgspec.structs.replace(a_run(), owner="me"), b"dump", [an_approval()])
        assert store.waiting_run("s1") == a_run()
        assert store.stamp("s1")[1] is True
        assert store.get_run("r1") == a_run()
        assert store.get_snapshot("snap_1") == b"dump"
        assert store.approvals(run_id="r1") == [an_approval()]
        assert store.waiting_run("s2") is None
        assert store.stamp("s2")[1] is False
        assert store.get_run("r2") is None

    def test_a_run_that_waits_again_keeps_its_old_approvals(self, store: SandboxStore) -> None:
        """Ours: a run may stop at one call after another."""
        store.park(a_run(), b"one", [an_approval("a1")])
        assert store.claim_run("r1", "p1", None)
        store.park(a_run(snapshot_id="snap_2"), b"two", [an_approval("a2", call_id=2)])
        assert store.waiting_run("s1") == a_run(snapshot_id="snap_2")
        assert [approval.approval_id for approval in store.approvals(run_id="r1")] == ["a1", "a2"]

    def test_a_session_has_one_waiting_run(self, store: SandboxStore) -> None:
        """Ours: a second run would continue from a state that the first one changes."""
        store.park(a_run("r1"), b"one", [])
        with pytest.raises(StaleState, match="r1"):
            store.park(a_run("r2", snapshot_id="snap_2"), b"two", [an_approval(run_id="r2")])
        assert store.get_run("r2") is None
        assert store.get_snapshot("snap_2") is None
        assert store.approvals() == []

    def test_an_approval_is_requested_once_or_nothing_is_parked(self, store: SandboxStore) -> None:
        """Ours: parking is one transaction."""
        store.park(a_run("r1"), b"one", [an_approval()])
        with pytest.raises(StaleState, match="a1"):
            store.park(a_run("r2", "s2", "snap_2"), b"two", [an_approval("a2"), an_approval("a1")])
        assert store.get_run("r2") is None
        assert store.approval("a2") is None

    def test_one_of_many_threads_claims_a_run(self, store: SandboxStore) -> None:
        """Ours: a run is continued by one process."""
        store.park(a_run(), b"dump", [])
        outcomes = race(8, lambda number: store.claim_run("r1", f"p{number}", None))
        assert outcomes.count(True) == 1
        run = store.get_run("r1")
        assert run is not None
        assert run.owner == f"p{outcomes.index(True)}"

    def test_a_claim_names_the_owner_it_succeeds(self, store: SandboxStore) -> None:
        """Ours: a dead owner is succeeded once."""
        store.park(a_run(), b"dump", [])
        assert store.claim_run("r1", "p1", None) is True
        assert store.claim_run("r1", "p2", None) is False
        assert store.claim_run("r1", "p2", "p1") is True
        assert store.claim_run("r1", "p3", "p1") is False
        assert store.claim_run("r9", "p1", None) is False

    def test_only_the_owner_releases_a_run(self, store: SandboxStore) -> None:
        """Ours: whoever lost a run cannot free it under its successor."""
        store.park(a_run(), b"dump", [])
        store.claim_run("r1", "p1", None)
        store.release_run("r1", "p2")
        assert store.claim_run("r1", "p2", None) is False
        store.release_run("r1", "p1")
        assert store.claim_run("r1", "p2", None) is True

    def test_a_dropped_run_cancels_what_it_asked_for(self, store: SandboxStore) -> None:
        """Ours: an approval nobody needs must not stay open."""
        store.park(a_run(), b"dump", [an_approval("a1"), an_approval("a2", call_id=2)])
        store.decide("a1", Decision(approved=True), now_ms=6, edited_digest=None)
        store.intend("r1", 1, "d1")
        assert store.drop_run("r1") is True
        assert store.drop_run("r1") is False
        assert [a.state for a in store.approvals()] == [ApprovalState.APPROVED, ApprovalState.CANCELLED]
        assert store.found("r1", 1, "d1") is None
        with pytest.raises(ApprovalAlreadyDecided, match="cancelled"):
            store.decide("a2", Decision(approved=True), now_ms=6, edited_digest=None)

    def test_a_finished_run_is_gone_with_the_save_that_ends_it(self, store: SandboxStore) -> None:
        """Ours: journal rule 5, the last result and the commit are one transaction."""
        saved = store.save_session(a_session())
        store.park(a_run(), b"dump", [an_approval()])
        store.settle("r1", 1, a_settled())
        saved = store.save_session(saved, finished_run="r1")
        assert store.waiting_run("s1") is None
        assert store.found("r1", 1, "d1") is None
        assert [a.state for a in store.approvals()] == [ApprovalState.CANCELLED]
        assert store.save_session(saved, finished_run="r1").epoch == saved.epoch + 1

    def test_a_stale_save_finishes_no_run(self, store: SandboxStore) -> None:
        """Ours: port rule 2, a mismatch writes nothing."""
        saved = store.save_session(a_session())
        store.save_session(saved)
        store.park(a_run(), b"dump", [an_approval()])
        with pytest.raises(StaleState):
            store.save_session(saved, finished_run="r1")
        assert store.waiting_run("s1") == a_run()
        assert store.approval("a1") == an_approval()

    # Approvals

    def test_approvals_are_listed_by_session_and_by_run(self, store: SandboxStore) -> None:
        """Ours: a person sees what is open, oldest first, in the order of the code."""
        store.park(a_run("r1", "s1"), b"", [an_approval("z", call_id=1), an_approval("b", call_id=2)])
        store.park(a_run("r2", "s2"), b"", [an_approval("c", "r2", "s2")])
        assert [a.approval_id for a in store.approvals()] == ["z", "b", "c"]
        assert [a.approval_id for a in store.approvals(session_id="s1")] == ["z", "b"]
        assert [a.approval_id for a in store.approvals(run_id="r2")] == ["c"]
        assert store.approvals(session_id="s1", run_id="r2") == []

    @pytest.mark.parametrize(
        ("approved", "state"), [(True, ApprovalState.APPROVED), (False, ApprovalState.DENIED)]
    )
    def test_a_decision_is_stored_with_its_reason(
        self, store: SandboxStore, approved: bool, state: ApprovalState
    ) -> None:
        """Seed: an approval is approved, or denied with a reason."""
        store.park(a_run(), b"", [an_approval()])
        decision = Decision(approved=approved, reason="because")
        after = store.decide("a1", decision, now_ms=7, edited_digest=None)
        expected = msgspec.structs.replace(an_approval(), state=state, decided_at=7, reason="because")
        assert after == expected
        assert store.approval("a1") == expected

    def test_an_approval_is_decided_once(self, store: SandboxStore) -> None:
        """Ours: port rule 3, whoever comes second is told what it became."""
        store.park(a_run(), b"", [an_approval()])
        store.decide("a1", Decision(approved=False), now_ms=7, edited_digest=None)
        with pytest.raises(ApprovalAlreadyDecided, match="denied") as raised:
            store.decide("a1", Decision(approved=True), now_ms=8, edited_digest=None)
        assert raised.value.state == "denied"

    def test_one_of_many_threads_decides(self, store: SandboxStore) -> None:
        """Ours: deciding is a compare-and-set."""
        store.park(a_run(), b"", [an_approval()])
        outcomes = race(
            8, lambda n: store.decide("a1", Decision(approved=n % 2 == 0), now_ms=n, edited_digest=None)
        )
        winners = [outcome for outcome in outcomes if isinstance(outcome, Approval)]
        assert winners == [store.approval("a1")]
        assert sum(isinstance(outcome, ApprovalAlreadyDecided) for outcome in outcomes) == 7

    def test_an_unknown_approval_is_not_found(self, store: SandboxStore) -> None:
        """Ours: a typo is not a decision."""
        assert store.approval("a9") is None
        with pytest.raises(ApprovalNotFound, match="a9"):
            store.decide("a9", Decision(approved=True), now_ms=1, edited_digest=None)

    def test_a_decision_after_the_deadline_only_expires_it(self, store: SandboxStore) -> None:
        """Seed: an approval expires; approving late must fail closed."""
        store.park(a_run(), b"", [an_approval()])
        after = store.decide("a1", Decision(approved=True), now_ms=EXPIRES_AT, edited_digest=None)
        assert (after.state, after.decided_at) == (ApprovalState.EXPIRED, EXPIRES_AT)
        assert store.approval("a1") == after
        with pytest.raises(ApprovalAlreadyDecided, match="expired"):
            store.decide("a1", Decision(approved=True), now_ms=1, edited_digest=None)

    def test_a_yes_may_replace_the_arguments(self, store: SandboxStore) -> None:
        """Ours: approved with edited arguments, the new digest is recorded."""
        store.park(a_run(), b"", [an_approval("a1"), an_approval("a2", call_id=2)])
        after = store.decide("a1", Decision(approved=True, args=[2]), now_ms=7, edited_digest="e")
        assert (after.args, after.kwargs, after.edited_digest) == ([2], an_approval().kwargs, "e")
        after = store.decide("a2", Decision(approved=True, kwargs={}), now_ms=7, edited_digest="e")
        assert (after.args, after.kwargs, after.edited_digest) == (an_approval().args, {}, "e")
        assert store.approval("a2") == after

    def test_a_no_keeps_the_arguments_it_was_asked_about(self, store: SandboxStore) -> None:
        """Ours: the audit shows what was denied."""
        store.park(a_run(), b"", [an_approval()])
        after = store.decide("a1", Decision(approved=False, args=[2]), now_ms=7, edited_digest="e")
        assert (after.args, after.edited_digest) == (an_approval().args, None)

    def test_what_was_read_can_be_changed_without_changing_what_is_stored(self, store: SandboxStore) -> None:
        """Bug: a list inside a frozen value is still a list."""
        given = an_approval()
        store.park(a_run(), b"", [given])
        given.args.append("later")
        read = store.approval("a1")
        assert read is not None
        read.args.append("later")
        assert store.approval("a1") == an_approval()

    # The journal of calls

    def test_a_call_is_nothing_then_an_intent_then_its_outcome(self, store: SandboxStore) -> None:
        """Ours: journal rule 3, an intent without an outcome is what a crash leaves."""
        assert store.found("r1", 1, "d1") is None
        store.intend("r1", 1, "d1")
        assert store.found("r1", 1, "d1") is True
        store.settle("r1", 1, a_settled({"paid": [2**70, 1e21, None]}))
        assert store.found("r1", 1, "d1") == a_settled({"paid": [2**70, 1e21, None]})
        assert store.found("r1", 2, "d1") is None
        assert store.found("r2", 1, "d1") is None

    def test_an_outcome_needs_no_intent_and_may_be_repeated(self, store: SandboxStore) -> None:
        """Ours: an idempotent call writes no intent; writing one outcome twice changes nothing."""
        store.settle("r1", 1, a_settled())
        store.settle("r1", 1, a_settled())
        assert store.found("r1", 1, "d1") == a_settled()

    def test_a_call_is_intended_once(self, store: SandboxStore) -> None:
        """Ours: of two processes that found nothing, one may act."""
        outcomes = race(4, lambda _: store.intend("r1", 1, "d1"))
        assert outcomes.count(None) == 1
        assert sum(isinstance(outcome, StaleState) for outcome in outcomes) == 3

    def test_another_request_under_the_same_key_is_refused(self, store: SandboxStore) -> None:
        """Ours: the result of one call is never given to another."""
        store.intend("r1", 1, "d1")
        with pytest.raises(StaleState, match="call 1 of run r1"):
            store.found("r1", 1, "d2")
        with pytest.raises(StaleState, match="call 1 of run r1"):
            store.settle("r1", 1, a_settled(request_digest="d2"))
        assert store.found("r1", 1, "d1") is True

    def test_an_outcome_is_never_replaced(self, store: SandboxStore) -> None:
        """Ours: what guest code saw once it sees again."""
        store.settle("r1", 1, a_settled("first"))
        with pytest.raises(StaleState):
            store.settle("r1", 1, a_settled("second"))
        assert store.found("r1", 1, "d1") == a_settled("first")
