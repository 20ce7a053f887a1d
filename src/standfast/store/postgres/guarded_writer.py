"""Sends guarded writes in groups, and caches the rows of their sessions.

Theory of operation
-------------------
A group of writes is one transaction in one round trip (`pipeline`). The writer thread calls `run`, which also
reads rows that are not cached, and waits. The thread of an event loop must not wait: it calls `launch`, which
sends the writes to cached sessions, and `land` whenever the socket becomes ready.

Rules
-----
1. One thread at a time uses this object. Nothing else uses the connection between `launch` and the end of
   `land`.
2. A write that cannot be sent, or is rejected, is not lost: it is returned, to be run without a guard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from standfast.store.postgres.connection import NOW_MS, pipelined
from standfast.store.postgres.dialect import to_postgres
from standfast.store.postgres.guarded import GuardedPlan, GuardedWrite, KnownSession
from standfast.store.postgres.pipeline import Pipeline, Statement, StatementFailed, read_ints
from standfast.store.sql.connection import Row
from standfast.store.sql.group_writer import Job

_MAX_SESSIONS: Final = 4_096
_ATTEMPTS: Final = 3
_OF_ONE_WRITE: Final = ("22", "23", "SF")
"""Prefixes of the codes of errors that concern one write of a group only: values, keys, the guard."""


class _Planned(NamedTuple):
    """A job whose write is being sent; `begin` is the index of its first statement."""

    job: Job[Any]
    plan: GuardedPlan
    begin: int


class GroupOutcome(NamedTuple):
    """The jobs of a group that are `done`, and those to run without a guard. The connection may be `lost`."""

    done: list[Job[Any]]
    refused: list[Job[Any]]
    lost: bool = False


class GuardedWriter:
    """Sends the guarded writes of a group."""

    def __init__(self, *, database_clock: bool, announce: Callable[[list[str]], None]) -> None:
        self._database_clock = database_clock
        self._announce = announce
        self._known: dict[str, KnownSession] = {}
        self._raw: psycopg.Connection[Row] | None = None
        self._pipeline: Pipeline | None = None
        self._read_at: tuple[int, float] | None = None
        self._flying: list[_Planned] = []

    def forget(self, session_id: str) -> None:
        """Drop the cached rows of a session that another kind of write has changed."""
        self._known.pop(session_id, None)

    def saved_bytes(self, session_id: str) -> int:
        """Return the size of the journal that the session's running turn has saved, 0 if it is not known."""
        known = self._known.get(session_id)
        return 0 if known is None or known.turn is None else known.turn.saved.size

    # For a thread that may wait

    def run(self, raw: psycopg.Connection[Row], jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Send the guarded writes of *jobs* and commit; return the jobs to run without a guard.

        After any error, the connection is closed and the writes are `uncertain`.
        """
        self._use(raw)
        assert self._pipeline is not None
        wanted = _first_of_each_session(jobs)
        done: set[int] = set()
        for _ in range(_ATTEMPTS):
            self._load(raw, [job for job in wanted if not self._knows(_write_of(job))])
            planned, statements = self._plan(wanted)
            if not planned:
                break
            try:
                self._settle(planned, self._pipeline.transact(statements))
                done.update(id(one.job) for one in planned)
                break
            except StatementFailed as failed:
                refused = self._refused(planned, failed)
                if refused is None:
                    break
                wanted = [one.job for one in planned if one.job is not refused]
            except BaseException:
                self._lose(planned)
                raw.close()
                raise
        return [job for job in jobs if id(job) not in done]

    # For the thread of an event loop

    def pipeline_of(self, raw: psycopg.Connection[Row] | None) -> Pipeline | None:
        """Return the pipeline for `launch`; None if `run` has to use the connection first."""
        return None if raw is None or raw is not self._raw or self._is_clock_unknown() else self._pipeline

    def launch(self, jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Send the brief guarded writes to cached sessions; return the other jobs. Call `land` afterwards.

        If all jobs are returned, nothing was sent.
        """
        assert self._pipeline is not None
        planned, statements = self._plan(_first_of_each_session([job for job in jobs if job.brief]))
        if not planned:
            return jobs
        try:
            self._pipeline.send(statements)
        except StatementFailed:
            return jobs  # `run` determines which write has the invalid value
        except Exception:  # `run` retries on a new connection
            self._lose(planned)
            assert self._raw is not None
            self._raw.close()
            return jobs
        self._flying = planned
        if len(planned) == len(jobs):
            return []
        sent = {id(one.job) for one in planned}
        return [job for job in jobs if id(job) not in sent]

    def land(self, *, wait: bool = False) -> GroupOutcome | None:
        """Return the outcome of the jobs that were sent; None if there is no answer yet, unless *wait*."""
        assert self._pipeline is not None
        planned = self._flying
        try:
            results = self._pipeline.wait() if wait else self._pipeline.receive()
            if results is None:
                return None
            self._settle(planned, results)
        except StatementFailed as failed:
            self._refused(planned, failed)
            return GroupOutcome([], [one.job for one in planned])
        except Exception:  # their outcome is determined on a new connection
            self._lose(planned)
            return GroupOutcome([], [one.job for one in planned], lost=True)
        return GroupOutcome([one.job for one in planned], [])

    # For both

    def _use(self, raw: psycopg.Connection[Row]) -> None:
        if self._raw is not raw:
            if self._pipeline is not None:
                self._pipeline.close()
            self._raw, self._pipeline, self._read_at = raw, Pipeline(raw), None
        if self._is_clock_unknown():
            found = raw.execute(b"SELECT " + NOW_MS).fetchone()
            assert found is not None
            self._read_at = int(found[0]), time.monotonic()

    def _is_clock_unknown(self) -> bool:
        return self._database_clock and self._read_at is None

    def _plan(self, jobs: list[Job[Any]]) -> tuple[list[_Planned], list[Statement]]:
        """Return the jobs whose sessions are cached, and the statements of all of them."""
        now_ms = None  # a lower bound of the server's time: the last time it reported, plus the time since
        if self._read_at is not None:
            now_ms = self._read_at[0] + int((time.monotonic() - self._read_at[1]) * 1000)
        planned: list[_Planned] = []
        statements: list[Statement] = []
        for job in jobs:
            write = _write_of(job)
            known = self._known.get(write.session_id)
            if known is None or not write.knows(known):
                continue
            try:
                plan = write.plan(known, now_ms)
            except Exception:  # noqa: S112 - `run` meets it again, and reports it
                continue
            if plan is not None:
                planned.append(_Planned(job, plan, len(statements)))
                statements.append(plan.guard)
                statements += plan.db.statements
        return planned, statements

    def _knows(self, write: GuardedWrite) -> bool:
        known = self._known.get(write.session_id)
        return known is not None and write.knows(known)

    def _load(self, raw: psycopg.Connection[Row], jobs: list[Job[Any]]) -> None:
        """Read the rows that are not cached, for all jobs in one round trip."""
        if not jobs:
            return
        asked: list[tuple[GuardedWrite, list[psycopg.Cursor[Row]]]] = []
        with pipelined(raw):
            for write in map(_write_of, jobs):
                reads = write.reads()
                asked.append(
                    (
                        write,
                        [raw.cursor(binary=True).execute(to_postgres(sql), values) for sql, values in reads],
                    )
                )
        for write, cursors in asked:
            found = [row for cursor in cursors if (row := cursor.fetchone()) is not None]
            try:
                known = write.learn(found) if len(found) == len(cursors) else None
            except Exception:  # noqa: S112 - `run` meets it again, and reports it
                continue
            if known is not None:
                self._known.pop(write.session_id, None)
                self._known[write.session_id] = known
        while len(self._known) > _MAX_SESSIONS:
            self._known.pop(next(iter(self._known)))

    def _settle(self, planned: list[_Planned], results: list[PGresult]) -> None:
        """Set the result of each committed job."""
        for job, plan, begin in planned:
            answer = read_ints(results[begin])
            plan.settle(answer)
            job.result, job.error = _write_of(job).result, None
            if plan.db.announced:
                self._announce(plan.db.announced)
        if self._database_clock:
            self._read_at = answer[0], time.monotonic()

    def _refused(self, planned: list[_Planned], failed: StatementFailed) -> Job[Any] | None:
        """Return the job that failed, and drop its session; None if the failure may concern all jobs."""
        _, last, begin = planned[-1]
        if failed.sqlstate[:2] not in _OF_ONE_WRITE or failed.index > begin + len(last.db.statements):
            return None
        job = [one.job for one in planned if one.begin <= failed.index][-1]
        self.forget(_write_of(job).session_id)
        return job

    def _lose(self, planned: list[_Planned]) -> None:
        """Mark the writes as `uncertain`, because their outcome is unknown."""
        for one in planned:
            _write_of(one.job).uncertain = True
            self.forget(_write_of(one.job).session_id)


def is_guarded(job: Job[Any]) -> bool:
    """Return whether the write of *job* can be sent with a guard: not if an earlier answer to it was lost."""
    return job.scope is not None and job.scope.guarded is not None and not job.scope.guarded.uncertain


def _write_of(job: Job[Any]) -> GuardedWrite:
    assert job.scope is not None
    write: GuardedWrite = job.scope.guarded
    return write


def _first_of_each_session(jobs: list[Job[Any]]) -> list[Job[Any]]:
    """Return the first guarded write of each session, in the order in which sessions are locked."""
    if len(jobs) == 1 and is_guarded(jobs[0]):
        return jobs
    first = {job.scope.session_id: job for job in reversed(jobs) if job.scope is not None and is_guarded(job)}
    return [first[session_id] for session_id in sorted(first)]
