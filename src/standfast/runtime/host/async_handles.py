"""Async handles: tasks that live as long as their session refers to them.

Theory of operation
-------------------
A task that was registered with `handle=True` is an async handle. A session holds a handle as long as its id
occurs, whole, in a message of the current frame, in queued input, in the state of its plugins, blobs
included, or in the variables of its code. A handle is checked when its session has changed since the last
check: immediately after a commit or rewind here, otherwise by the recovery loop. A handle that is no longer
held is cancelled.

Rules
-----
1. In doubt, a handle is kept: ids are searched as plain text, and if any of the data cannot be read, no
   handle is cancelled.
2. Handles are not checked while a turn is unfinished, because its messages are not written yet.
3. Only the session that a handle belongs to is searched; after `transfer_async_handles`, the receiving one.
4. A session without handles has no overhead. The process that owns a task watches its handle.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

import msgspec

from standfast.errors import RecordCorrupt, StandfastError, TaskNotFound
from standfast.graph.history import messages_of
from standfast.model.plugin_state import encode_state
from standfast.model.session import SessionHead
from standfast.model.task import TaskRecord
from standfast.plugins.stored_states import STATE, read_execution
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.materialize import durable_state

Standpoint = tuple[str | None, str | None] | None
"""The leaf and the state of a session; None if it was never checked."""


class AsyncHandles:
    """The handles that this process watches. Used on the runtime's loop."""

    def __init__(self, directory: SessionDirectory, let_go_of: Callable[[str, str], Awaitable[None]]) -> None:
        self._directory = directory
        self._store = directory.services.store
        self._let_go_of = let_go_of
        self.watched: dict[str, dict[str, Standpoint]] = {}

    async def standpoint(self, session_id: str) -> Standpoint:
        """Return the current leaf and state of a session."""
        head = await self._store.head(session_id)
        return None if head is None else (head.leaf, head.state)

    def watch(self, session_id: str, task_id: str, since: Standpoint) -> None:
        """Check a handle once its session's leaf or state differs from *since*."""
        self.watched.setdefault(session_id, {})[task_id] = since

    def forget(self, session_id: str, task_id: str) -> None:
        tasks = self.watched.get(session_id)
        if tasks is not None:
            tasks.pop(task_id, None)
            if not tasks:
                del self.watched[session_id]

    def forget_session(self, session_id: str) -> None:
        self.watched.pop(session_id, None)

    def note(self, record: TaskRecord, owner: str) -> None:
        """Stop watching a task that has ended; watch one that now belongs to *owner*."""
        if not record.handle:
            return
        if record.state.is_terminal:
            self.forget(record.session_id, record.id)
        elif record.owner == owner and record.id not in self.watched.get(record.session_id, ()):
            self.watch(record.session_id, record.id, None)

    async def look(self, session_id: str) -> None:
        """Cancel the handles that a session no longer holds. Never raises."""
        if session_id not in self.watched:
            return
        try:
            await self._look(session_id)
        except StandfastError as error:  # the next check tries again
            problem = f"the handles of {session_id} are kept for now: {error.message}"
            self._directory.services.report("", "keeper", problem)

    async def _look(self, session_id: str) -> None:
        store = self._store
        head = await store.head(session_id)
        if head is None:
            self.forget_session(session_id)
            return
        here = (head.leaf, head.state)
        watched = self.watched.get(session_id, {})
        moved = [task_id for task_id, since in watched.items() if since != here]
        if not moved or await store.open_turn(session_id) is not None:
            return
        live = {task.id for task in await store.tasks(session_id=session_id, live=True)}
        lost = await self._not_held(head, [task_id for task_id in moved if task_id in live])
        if await store.open_turn(session_id) is not None or await self.standpoint(session_id) != here:
            return  # another process has run a turn in the meantime, which may have changed what was read
        for task_id in moved:
            if task_id in live and task_id not in lost:
                self.watch(session_id, task_id, here)
            else:
                self.forget(session_id, task_id)
        for task_id in lost:
            with contextlib.suppress(TaskNotFound):
                await self._let_go_of(session_id, task_id)

    async def _not_held(self, head: SessionHead, task_ids: Collection[str]) -> set[str]:
        """Return the ids that occur nowhere in the session."""
        left = set(task_ids)
        if not left:
            return left
        async for text in self._texts(head):
            left = {  # engines store strings as ASCII or with two bytes per character
                one for one in left if one.encode() not in text and one.encode("utf-16-le") not in text
            }
            if not left:
                break
        return left

    async def _texts(self, head: SessionHead) -> AsyncIterator[bytes]:
        """Yield all text in which a handle's id can occur. Queued inputs come first: they become messages."""
        store = self._store
        yield msgspec.json.encode([item.message for item in await store.inputs(head.session_id)])
        live = await self._directory.at_work(head)
        if live is not None:
            yield msgspec.json.encode(await live.frame.messages_at(head))
        elif head.leaf is not None:
            yield msgspec.json.encode(messages_of(await store.frame(head.leaf)))
        context = None if live is None else live.made_at(head)
        if context is not None:  # it may be newer than the stored state
            remembered, pieces = context.plugins.copied()
            yield msgspec.json.encode(remembered)
            for piece in pieces.values():
                yield piece
        state = await durable_state(store, head)
        yield encode_state(state)
        for entry in state.plugins.plugins.values():
            for digest in entry.artifacts.values():
                yield await self._blob(digest)
        if (left := state.execution) is not None:
            apart = left.artifacts.get(STATE)
            yield read_execution(left, {} if apart is None else {apart: await self._blob(apart)})

    async def _blob(self, digest: str) -> bytes:
        data = await self._store.blob(digest)
        if data is None:
            raise RecordCorrupt(f"blob {digest} (it is missing)")
        return data
