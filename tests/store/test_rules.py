"""The decisions that every store makes, as tables: the state before, the event, the state after."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from standfast.errors import (
    ApprovalAlreadyDecided,
    IdempotencyConflict,
    InvalidArgument,
    SessionBusy,
    SessionExists,
    StandfastError,
    TaskExists,
    TokenAlreadyUsed,
    TokenNotFound,
    TurnNotFound,
    TurnUnfinished,
)
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.code import Language
from standfast.model.limits import SessionLimits
from standfast.model.outcome import Approved, Completed, Denied, Elapsed, Expired, Wait, Waiting
from standfast.model.session import CodeSettings, SessionCharter, TurnRecord, TurnState
from standfast.model.task import TaskState
from standfast.ports.session_store import PruneRequest, SeenClock
from standfast.store import rules
from standfast.testing.session_store_tasks import a_task, a_trigger
from standfast.testing.session_values import (
    NOW,
    a_commit,
    a_head,
    a_wait,
    an_approval,
    an_input,
    claimant,
    finished,
    new_turn,
    stopped,
    waiting,
)

replace = msgspec.structs.replace
PENDING, APPROVED, DENIED, EXPIRED, CANCELLED = ApprovalState
YES, NO = Decision(approved=True), Decision(approved=False)


def none_died(owner: str) -> bool:
    return False


def all_died(owner: str) -> bool:
    return True


def in_state(state: ApprovalState) -> Approval:
    return replace(an_approval(), state=state)


def record(state: TurnState = TurnState.RUNNING, **changes: Any) -> TurnRecord:
    return replace(rules.new_record(new_turn(), NOW), state=state, **changes)


def error_of(call: Any) -> type[StandfastError] | None:
    """Return the type of the error that the call raises, or None."""
    try:
        call()
    except StandfastError as error:
        return type(error)
    return None


# Approvals


@pytest.mark.parametrize(
    ("decision", "now_ms", "after"),
    [
        (YES, NOW, APPROVED),
        (NO, NOW, DENIED),
        (YES, NOW + 999, APPROVED),
        (YES, NOW + 1_000, EXPIRED),
        (NO, NOW + 1_000, EXPIRED),
    ],
)
def test_the_first_decision_or_the_expiry_settles_a_pending_approval(
    decision: Decision, now_ms: int, after: ApprovalState
) -> None:
    """Seed: a decision counts until `expires_at`; from then on the approval has expired."""
    decided = rules.decided(an_approval(), decision, now_ms=now_ms, edited_digest=None)
    assert (decided.state, decided.decided_at) == (after, now_ms)


@pytest.mark.parametrize("state", [APPROVED, DENIED, EXPIRED, CANCELLED])
@pytest.mark.parametrize("decision", [YES, NO])
def test_an_approval_that_is_not_pending_cannot_be_decided(state: ApprovalState, decision: Decision) -> None:
    """Ours: an approval leaves `pending` once; the error of a second decision names the first one."""
    with pytest.raises(ApprovalAlreadyDecided, match=state):
        rules.decided(in_state(state), decision, now_ms=NOW, edited_digest=None)


@pytest.mark.parametrize(
    ("decision", "args", "kwargs", "digest"),
    [
        (YES, [1], {"k": 1}, None),
        (Decision(approved=True, args=[2]), [2], {"k": 1}, "e"),
        (Decision(approved=True, kwargs={}), [1], {}, "e"),
        (Decision(approved=False, args=[2], kwargs={}), [1], {"k": 1}, None),
    ],
)
def test_only_an_approving_decision_replaces_arguments(
    decision: Decision, args: list[Any], kwargs: dict[str, Any], digest: str | None
) -> None:
    """Ours: the digest of edited arguments is recorded with them."""
    asked = replace(an_approval(), args=[1], kwargs={"k": 1})
    after = rules.decided(asked, decision, now_ms=NOW, edited_digest="e")
    assert (after.args, after.kwargs, after.edited_digest) == (args, kwargs, digest)


@pytest.mark.parametrize("state", list(ApprovalState))
def test_only_a_pending_approval_can_expire_or_be_cancelled(state: ApprovalState) -> None:
    """Ours: a decision is final."""
    approval = in_state(state)
    pending = state is PENDING
    assert rules.expired(approval, NOW + 999) is approval
    assert rules.expired(approval, NOW + 1_000).state is (EXPIRED if pending else state)
    assert rules.cancelled(approval).state is (CANCELLED if pending else state)
    assert rules.approval_is_old(approval, NOW + 1) is not pending
    assert not rules.approval_is_old(approval, NOW)


# Waits


@pytest.mark.parametrize(
    ("approval", "answer"),
    [
        (in_state(PENDING), None),
        (replace(in_state(APPROVED), decided_by="ada"), Approved(by="ada")),
        (
            replace(in_state(APPROVED), kwargs={"k": 1}, args=[2], edited_digest="e"),
            Approved(arguments={"k": 1}, args=[2]),
        ),
        (replace(in_state(APPROVED), kwargs={}, edited_digest="e"), Approved(arguments={})),
        (replace(in_state(DENIED), reason="no", decided_by="ada"), Denied(reason="no", by="ada")),
        (in_state(EXPIRED), Expired()),
        (in_state(CANCELLED), Expired()),
    ],
)
def test_a_decided_approval_answers_its_wait(approval: Approval, answer: object) -> None:
    """Ours: the waiting call gets the decision, with the arguments if the person edited them."""
    assert rules.answer_of(approval) == answer


DONE = Completed(value=1)


@pytest.mark.parametrize(
    ("wait", "now_ms", "approval", "completion", "outcome"),
    [
        (a_wait("w", "timer"), NOW + 999, None, None, None),
        (a_wait("w", "timer"), NOW + 1_000, None, None, Elapsed()),
        (a_wait("w", "completion"), NOW + 999, None, None, None),
        (a_wait("w", "completion"), NOW + 999, None, DONE, DONE),
        (a_wait("w", "completion"), NOW + 1_000, None, DONE, DONE),
        (a_wait("w", "completion"), NOW + 1_000, None, None, Expired()),
        (a_wait("w", "approval"), NOW + 999, in_state(PENDING), None, None),
        (a_wait("w", "approval"), NOW + 1_000, in_state(PENDING), None, Expired()),
        (a_wait("w", "approval"), NOW + 9_000, in_state(APPROVED), None, Approved()),
        (a_wait("w", "approval"), NOW + 1_000, None, None, Expired()),
    ],
)
def test_a_wait_ends_with_its_answer_or_at_its_due_time(
    wait: Wait, now_ms: int, approval: Approval | None, completion: Any, outcome: object
) -> None:
    """Ours: whichever comes first ends the wait; an answer in time counts even if it is read later."""
    assert rules.outcome_of(wait, now_ms, approval=approval, completion=completion) == outcome


@pytest.mark.parametrize(
    ("wait", "completion", "now_ms", "refused"),
    [
        (None, None, NOW, None),
        (None, DONE, NOW, TokenAlreadyUsed),
        (a_wait("cpl_t1.x", "completion"), None, NOW + 999, None),
        (a_wait("cpl_t1.x", "completion"), DONE, NOW, TokenAlreadyUsed),
        (a_wait("cpl_t1.x", "completion"), None, NOW + 1_000, TokenAlreadyUsed),
    ],
)
def test_a_completion_token_is_valid_once_and_until_it_expires(
    wait: Wait | None, completion: Any, now_ms: int, refused: type[StandfastError] | None
) -> None:
    """Ours: a completion may arrive before its wait is saved."""
    assert error_of(lambda: rules.require_completable("cpl_t1.x", wait, completion, now_ms)) is refused


@pytest.mark.parametrize("token", ["", "cpl_", "cpl_.x", "cpl_t1", "cpl_t1.", "t1.x", "xcpl_t1.x"])
def test_malformed_text_is_not_a_completion_token(token: str) -> None:
    """Ours: a mistyped token must not complete a wait."""
    with pytest.raises(TokenNotFound):
        rules.turn_of_token(token)


def test_a_completion_token_names_its_turn() -> None:
    """Ours: the form is `cpl_<turn_id>.<anything>`, and the last part may contain dots."""
    assert rules.turn_of_token("cpl_t_1.a.b") == "t_1"


def test_a_turn_waits_for_the_waits_in_its_outcome() -> None:
    """Ours: an outcome without waits does not change the waits that were saved."""
    saved, outcome = (a_wait("saved"),), (a_wait("asked"),)
    assert rules.waited_for(record(), saved) == saved
    assert rules.waited_for(record(summary=waiting()), saved) == saved
    assert rules.waited_for(record(summary=waiting(*outcome)), saved) == outcome


def test_setting_the_clock_moves_timers_and_completions_but_not_approvals() -> None:
    """Ours: a timer keeps its duration; an approval keeps the time that people were shown."""
    waits = (a_wait("t", "timer"), a_wait("c", "completion"), a_wait("a", "approval"))
    moved = rules.record_moved_along(record(summary=waiting(*waits)), 500)
    assert moved.summary is not None
    assert isinstance(moved.summary.outcome, Waiting)
    assert [wait.due_at - NOW for wait in moved.summary.outcome.waits] == [1_500, 1_500, 1_000]
    assert rules.moved_along(waits[0], -10 * NOW).due_at == 0
    ended = record(summary=finished())
    assert rules.record_moved_along(ended, 500) is ended


# Leases and turns


@pytest.mark.parametrize(
    ("owner", "until_ms", "dead", "free"),
    [
        (None, NOW + 9, none_died, True),
        ("a", NOW + 1, none_died, False),
        ("a", NOW, none_died, True),
        ("a", NOW + 1, all_died, True),
    ],
)
def test_a_session_is_free_without_an_owner_with_an_expired_lease_or_a_dead_owner(
    owner: str | None, until_ms: int, dead: rules.IsDead, free: bool
) -> None:
    """Ours: port rule 2, a lease ends when it expires or when its owner dies."""
    assert rules.is_free(owner, until_ms, NOW, dead) is free


def test_a_lease_expires_by_the_lease_clock() -> None:
    """Ours: setting the time of day does not end a lease."""
    asks = replace(claimant(), lease_now_ms=5)
    lease = rules.lease_for("s1", asks, 7)
    assert (lease.owner, lease.fence, lease.until_ms) == (asks.owner, 7, 5 + asks.lease_ms)


@pytest.mark.parametrize(
    ("state", "free", "refused"),
    [
        (TurnState.RUNNING, False, SessionBusy),
        (TurnState.RUNNING, True, TurnUnfinished),
        (TurnState.WAITING, True, TurnUnfinished),
        (TurnState.WAITING, False, TurnUnfinished),
    ],
)
def test_the_error_for_a_second_turn_depends_on_the_first_turns_state(
    state: TurnState, free: bool, refused: type[StandfastError]
) -> None:
    """Ours: port rule 3, the error says whether to wait, to take over or to decide."""
    error = rules.refuse_second_turn(record(state), "owner", free)
    assert type(error) is refused


@pytest.mark.parametrize(
    ("found", "free", "refused"),
    [
        (None, True, TurnNotFound),
        (record(TurnState.ENDED), True, TurnNotFound),
        (record(TurnState.RUNNING), False, SessionBusy),
        (record(TurnState.RUNNING), True, None),
        (record(TurnState.WAITING), True, None),
    ],
)
def test_only_an_unfinished_turn_without_a_live_owner_can_be_taken_over(
    found: TurnRecord | None, free: bool, refused: type[StandfastError] | None
) -> None:
    """Ours: a missing or ended turn is not found; a turn with a live owner is busy."""
    assert error_of(lambda: rules.require_takeable("t1", found, "owner", free)) is refused


@pytest.mark.parametrize(
    ("state", "cancel", "free", "wait_over", "continues"),
    [
        (TurnState.RUNNING, False, False, False, False),
        (TurnState.RUNNING, True, False, True, False),
        (TurnState.RUNNING, False, True, False, True),
        (TurnState.WAITING, False, True, False, False),
        (TurnState.WAITING, False, True, True, True),
        (TurnState.WAITING, True, True, False, True),
    ],
)
def test_a_turn_can_continue_when_it_is_abandoned_its_wait_is_over_or_it_is_cancelled(
    state: TurnState, cancel: bool, free: bool, wait_over: bool, continues: bool
) -> None:
    """Ours: a turn whose owner is alive is left to that owner."""
    turn = record(state, cancel_requested=cancel)
    assert rules.can_continue(turn, free=free, wait_over=wait_over) is continues


@pytest.mark.parametrize(
    ("summary", "cancel", "injected", "reason"),
    [
        (finished(), False, False, None),
        (finished(), True, False, "cancelled"),
        (finished(), False, True, "injected"),
        (finished(), True, True, "cancelled"),
        (stopped(), True, True, None),
    ],
)
def test_a_finished_turn_is_not_committed_past_a_message_or_a_cancellation(
    summary: Any, cancel: bool, injected: bool, reason: str | None
) -> None:
    """Ours: any other outcome is accepted."""
    refused = rules.refuse_commit(a_commit(summary=summary), cancel, injected)
    assert (None if refused is None else refused.reason) == reason


def test_the_record_of_a_turn_follows_its_life_cycle() -> None:
    """Ours: running, waiting with a summary, running without one, ended with one."""
    begun = rules.new_record(new_turn(key="k"), NOW)
    assert (begun.state, begun.created_at, begun.idempotency_key) == (TurnState.RUNNING, NOW, "k")
    parked = rules.parked(begun, waiting())
    assert (parked.state, parked.summary) == (TurnState.WAITING, waiting())
    assert rules.taken_over(parked) == begun
    ended = rules.ended(begun, finished(), NOW + 5)
    assert (ended.state, ended.ended_at, ended.summary) == (TurnState.ENDED, NOW + 5, finished())


def test_an_idempotency_key_belongs_to_one_input() -> None:
    """Ours: the same key with another input is a conflict."""
    turn = new_turn(key="k")
    rules.require_same_input(rules.new_record(turn, NOW), turn)
    with pytest.raises(IdempotencyConflict):
        rules.require_same_input(record(input_digest="other"), turn)


# Sessions


def test_a_fork_starts_afresh_at_the_leaf() -> None:
    """Ours: usage, notes and charter stay with the original; agent and settings are shared."""
    head = replace(a_head(), leaf="t0.1", depth=2, revision=4, metadata={"user": "ada"})
    fork = rules.forked(head, "s2", NOW + 5, None)
    assert (fork.session_id, fork.forked_from, fork.leaf, fork.depth) == ("s2", "s1", "t0.1", 2)
    assert (fork.created_at, fork.updated_at, fork.revision) == (NOW + 5, NOW + 5, 0)
    assert (fork.usage, fork.charter, fork.blocked, fork.metadata) == ((), None, None, {"user": "ada"})


def test_describing_a_session_replaces_only_the_given_values() -> None:
    """Ours: metadata and code settings stay unless they are given; the host is a copy."""
    host: dict[str, Any] = {"tools": []}
    head = replace(a_head(), metadata={"user": "ada"}, code=settings())
    after = rules.described(head, agent="a", model="m", host=host)
    host["tools"] = None
    assert (after.agent, after.model, after.host) == ("a", "m", {"tools": []})
    assert (after.metadata, after.code) == ({"user": "ada"}, settings())
    other = rules.described(head, agent="a", model="m", host={}, metadata={}, code=settings(NOW))
    assert (other.metadata, other.code) == ({}, settings(NOW))


def test_sessions_are_listed_by_last_use() -> None:
    """Ours: the last used first, then by id, so that time and id mark where a page begins."""
    heads = [
        replace(a_head(name), created_at=created, updated_at=updated)
        for name, created, updated in (("a", 1, 5), ("c", 2, 9), ("b", 2, 9), ("d", 3, 9))
    ]
    found = sorted(heads, key=rules.head_order, reverse=True)
    assert [head.session_id for head in found] == ["d", "c", "b", "a"]


def test_creating_a_session_again_requires_the_same_charter() -> None:
    """Ours: creating a child twice returns one session; a different charter is a conflict."""
    charter = SessionCharter(parent_session_id="p")
    child = replace(a_head(), charter=charter)
    rules.require_same_session(child, child)
    assert rules.parent_of(child) == "p"
    for found, new in ((a_head(), a_head()), (a_head(), child), (child, a_head())):
        with pytest.raises(SessionExists):
            rules.require_same_session(found, new)


@pytest.mark.parametrize(
    ("owner", "dead", "refused"),
    [(None, none_died, None), ("a", none_died, SessionBusy), ("a", all_died, None)],
)
def test_a_session_can_be_deleted_unless_a_live_owner_runs_it(
    owner: str | None, dead: rules.IsDead, refused: type[StandfastError] | None
) -> None:
    """Ours: data in use by a process is not deleted."""
    assert error_of(lambda: rules.require_no_owner("s1", owner, dead)) is refused


def test_a_session_with_an_unfinished_turn_is_busy() -> None:
    """Ours: the error names the owner, or the turn that has no process."""
    rules.require_at_rest("s1", None, None)
    with pytest.raises(SessionBusy, match="worker-7"):
        rules.require_at_rest("s1", "worker-7", "t1")
    with pytest.raises(SessionBusy, match="turn t1"):
        rules.require_at_rest("s1", None, "t1")


def settings(expires_at: int | None = None) -> CodeSettings:
    return CodeSettings(
        language=Language.PYTHON, engine="monty", limits=SessionLimits(), expires_at=expires_at
    )


@pytest.mark.parametrize(
    ("updated_at", "expires_at", "request_", "idle", "running", "goes"),
    [
        (NOW, None, PruneRequest(sessions_before_ms=NOW + 1), True, False, True),
        (NOW, None, PruneRequest(sessions_before_ms=NOW), True, False, False),
        (NOW, None, PruneRequest(sessions_before_ms=NOW + 1), False, False, False),
        (NOW, None, PruneRequest(now_ms=NOW + 1), True, False, False),
        (NOW, NOW + 1, PruneRequest(now_ms=NOW), True, False, False),
        (NOW, NOW, PruneRequest(now_ms=NOW), True, False, True),
        (NOW, NOW, PruneRequest(now_ms=NOW), False, False, True),
        (NOW, NOW, PruneRequest(now_ms=NOW), False, True, False),
        (NOW, NOW, PruneRequest(branches=True), True, False, False),
    ],
)
def test_an_idle_or_expired_session_may_be_pruned(
    updated_at: int, expires_at: int | None, request_: PruneRequest, idle: bool, running: bool, goes: bool
) -> None:
    """Ours: a session is pruned if it was idle for a long time, or has expired and is not running."""
    head = replace(a_head(), updated_at=updated_at, code=settings(expires_at))
    assert rules.may_be_pruned(head, request_, idle=idle, running=running) is goes


# Clocks, inputs, tasks, triggers


@pytest.mark.parametrize(
    ("known", "offset_ms", "seen"),
    [
        (None, 70, SeenClock(lease_offset_ms=70)),
        ((70, 70), 1_070, SeenClock(lease_offset_ms=70)),
        ((70, 70), 1_071, SeenClock(lease_offset_ms=70, shift_ms=1_001)),
        ((70, 90), -911, SeenClock(lease_offset_ms=70, shift_ms=-1_001)),
    ],
)
def test_a_clock_that_jumps_by_more_than_a_second_was_set(
    known: tuple[int, int] | None, offset_ms: int, seen: SeenClock
) -> None:
    """Ours: leases keep the offset that they began with."""
    assert rules.seen_clock(known, offset_ms) == seen


def test_the_content_digest_of_an_input_covers_session_kind_and_message() -> None:
    """Ours: the digest is stored in files, so it must never change."""
    known = rules.input_content(an_input())
    assert known.hex() == "f6c2d66afb125756345019b6242843e2"
    rules.require_same_content(replace(an_input(), created_at=NOW + 5), known)
    for other in (an_input(kind="inject"), an_input(session_id="s2"), an_input(text="another")):
        with pytest.raises(IdempotencyConflict):
            rules.require_same_content(other, known)


def test_blobs_are_named_by_their_digest() -> None:
    """Ours: any 64 hexadecimal digits in a text count as the name of a blob."""
    digest = b"0123456789abcdef" * 4
    assert rules.blob_digests(b'{"a":"' + digest + b'"} ' + digest[:-1]) == [digest]
    assert rules.blob_digests(digest.upper() + b"g" + digest[1:] + b"0") == [digest[1:] + b"0"]
    assert rules.blob_digests(digest + digest[::-1] + digest[:-1]) == [digest, digest[::-1]]


@pytest.mark.parametrize("state", list(TaskState))
def test_an_ended_task_never_changes_and_its_id_can_be_reused(state: TaskState) -> None:
    """Ours: the end of a task is final."""
    task = replace(a_task(), state=state)
    after = rules.changed_task(task, lambda it: replace(it, updated_at=NOW + 9))
    assert (after is task) is state.is_terminal
    assert error_of(lambda: rules.require_room(task)) is (None if state.is_terminal else TaskExists)


def test_changing_a_task_cannot_move_it_to_another_session() -> None:
    """Ours: only `move_tasks` moves a task, and the task keeps its place."""
    task = a_task()
    with pytest.raises(InvalidArgument):
        rules.changed_task(task, lambda it: replace(it, session_id="s2"))
    moved = rules.moved_task(task, "s2", NOW + 9)
    assert (moved.session_id, moved.updated_at, moved.created_at) == ("s2", NOW + 9, task.created_at)
    assert rules.task_order(rules.PlacedTask(moved, 3)) == (task.created_at, 3)


def test_a_trigger_advances_only_from_the_state_that_the_caller_has_seen() -> None:
    """Ours: a slow process neither moves a trigger back nor undoes a change to it."""
    stored = replace(a_trigger(), enabled=True, next_at=NOW)
    later = replace(stored, next_at=NOW + 1)
    assert rules.due_at(stored) == NOW
    assert rules.due_at(replace(stored, enabled=False)) is None
    assert rules.moves_on(stored, later)
    assert rules.moves_on(stored, replace(stored, next_at=None, enabled=False))
    assert not rules.moves_on(None, later)
    assert not rules.moves_on(stored, stored)
    assert not rules.moves_on(later, stored)
    assert not rules.moves_on(replace(stored, enabled=False), later)
    assert not rules.moves_on(replace(stored, session_id="s2"), later)


def test_rules_are_pure() -> None:
    """Ours: the module decides without a clock, a file or a table."""
    names = {value.__name__ for value in vars(rules).values() if isinstance(value, type(dataclasses))}
    assert names <= {"hashlib", "zlib", "re", "msgspec", "standfast.errors", "standfast.ports.session_store"}
