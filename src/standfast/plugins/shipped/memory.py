"""Memory: notes that the model stores and can search later.

`scope` determines where they are stored. "session" stores them in the session's state: a fork has a copy, a
rewind restores them. "user:NAME" stores them in the plugin's storage: all sessions of that
user share them, in every process on the same store, and a rewind does not affect them.

Rules
-----
1. The id of a note is derived from its call, so a call that is executed twice makes one note.
2. Notes are removed only by `forget`. If the memory is full, new notes are refused.
3. A session's notes are stored in pages, so that adding a note rewrites one page instead of all notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json, digest_bytes
from standfast.model.plugin_state import PluginSnapshotMeta
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.plugins.actions import PluginActionContext, action
from standfast.plugins.contexts import PromptHookContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin, check_numbers
from standfast.plugins.snapshot import SnapshotReader, SnapshotWriter
from standfast.tools.context import RunContext
from standfast.tools.decorator import tool

_SCOPE: Final = re.compile(r"session|user:[^\s\x00-\x1f]{1,200}")
_SHOWN_CHARS: Final = 200
_PAGE: Final = 32

Tags = Annotated[list[Annotated[str, msgspec.Meta(max_length=40)]], msgspec.Meta(max_length=10)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note. A higher `number` is more recent."""

    note_id: str
    number: int
    text: str
    tags: tuple[str, ...] = ()


class MemorySearch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `memory.search`. An empty query finds the most recent notes."""

    query: str = ""
    limit: Limit = 5


class Memory(Plugin):
    """A plugin for agents that should remember facts across turns or sessions.

    Args:
        scope: "session", or "user:NAME" for notes that all sessions of a user share.
        max_notes: the largest number of notes.
        max_note_bytes: the largest size of a note, as UTF-8.
        shown: how many of the most recent notes are part of every prompt.
    """

    id = "memory"
    summary = "Durable notes of a session or a user, which the model can search."

    def __init__(
        self, scope: str = "session", max_notes: int = 1000, max_note_bytes: int = 4096, shown: int = 5
    ) -> None:
        self.scope = scope
        self.max_notes = max_notes
        self.max_note_bytes = max_note_bytes
        self.shown = shown
        self.check_options()

    def check_options(self) -> None:
        if not isinstance(self.scope, str) or not _SCOPE.fullmatch(self.scope):
            hint = 'use "session", or "user:" and a name without spaces'
            raise InvalidArgument(f"{self.scope!r} is not a scope of plugin 'memory'", hint=hint)
        check_numbers(self, max_notes=1, max_note_bytes=1, shown=0)

    @tool(side_effect="write", idempotent=True, loop="runtime")
    async def remember(self, ctx: RunContext[Any], text: str, tags: Tags = []) -> str:  # noqa: B006 - never changed
        """Store a note about something worth knowing later: a fact, a preference, a decision. Returns its id.

        Args:
            text: one fact, in words that make sense without the conversation.
            tags: words by which the note can be found.
        """
        if not text.strip() or len(text.encode()) > self.max_note_bytes:
            raise InvalidArgument(f"a note must have between 1 and {self.max_note_bytes} bytes")
        note_id = f"n_{digest_bytes(ctx.idempotency_key.encode())[:12]}"
        notes = await self._notes()
        if any(note.note_id == note_id for note in notes):
            return note_id
        if len(notes) >= self.max_notes:
            raise InvalidArgument(
                "the memory is full", hint="remove notes that are wrong or no longer needed, with forget()"
            )
        number = max((note.number for note in notes), default=0) + 1
        await self._put(note_id, Note(note_id=note_id, number=number, text=text.strip(), tags=tuple(tags)))
        return note_id

    @tool(side_effect="read", loop="runtime")
    async def recall(self, query: str, limit: Limit = 5) -> list[Note]:
        """Find notes by their words and tags, the best match first.

        Args:
            query: words to search for; if empty, the most recent notes are returned.
            limit: the maximum number of notes.
        """
        return ranked(await self._notes(), query, limit)

    @tool(side_effect="write", idempotent=True, loop="runtime")
    async def forget(self, note_id: str) -> bool:
        """Remove a note that is wrong or no longer needed. Returns false if it does not exist.

        Args:
            note_id: the id that remember() or recall() returned.
        """
        known = any(note.note_id == note_id for note in await self._notes())
        if known:
            await self._put(note_id, None)
        return known

    @hook
    async def prompt_contributor(self, ctx: PromptHookContext) -> PromptContribution | None:
        recent = ranked(await self._notes(), "", self.shown)
        if not recent:
            return None
        texts = [(" ".join(note.text.split()), note.note_id) for note in recent]
        lines = "\n".join(
            f"- {text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + '…'} ({note_id})"
            for text, note_id in texts
        )
        words = f"Your most recent notes; recall() finds others:\n{lines}"
        return PromptContribution(content=words, slot=PromptSlot.RUNTIME_CONTEXT, priority=10)

    @action
    async def search(self, ctx: PluginActionContext, args: MemorySearch) -> list[Note]:
        """Find notes by their words and tags, the best match first."""
        return ranked(await self._notes(), args.query, args.limit)

    def snapshot(self, writer: SnapshotWriter) -> PluginSnapshotMeta:
        pages: dict[str, list[Json]] = {}  # a note always stays in the same page
        for note in (self.state or {}).values():
            pages.setdefault(f"notes.{note['number'] // _PAGE:06}", []).append(note)
        for name, page in pages.items():
            writer.write_blob(name, msgspec.json.encode(page))
        return msgspec.structs.replace(super().snapshot(writer), state=sorted(pages))

    def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
        if meta.state is not None and meta.plugin_version == self.version:
            pages = [msgspec.json.decode(reader.read_blob(name) or b"[]") for name in meta.state]
            notes = {note["note_id"]: note for page in pages for note in page}
            meta = msgspec.structs.replace(meta, state=notes)
        super().restore(meta, reader)

    async def _notes(self) -> list[Note]:
        if self.scope == "session":
            return msgspec.convert(list((self.state or {}).values()), list[Note])
        kept = await self.session.storage.list(self.scope)
        return [msgspec.json.decode(body, type=Note) for _, body in kept]

    async def _put(self, note_id: str, note: Note | None) -> None:
        if self.scope != "session":
            body = None if note is None else msgspec.json.encode(note)
            await self.session.storage.put(self.scope, note_id, body)
            return
        others = {key: value for key, value in (self.state or {}).items() if key != note_id}
        self.state = others if note is None else {**others, note_id: msgspec.to_builtins(note)}


def ranked(notes: Iterable[Note], query: str, limit: int) -> list[Note]:
    """Return the notes that share most words with *query*, the most recent first among equals."""
    wanted = _words(query)
    recent = sorted(notes, key=lambda note: (-note.number, note.note_id))
    if not wanted:
        return recent[:limit]
    scored = [(len(wanted & _words(" ".join((note.text, *note.tags)))), note) for note in recent]
    scored.sort(key=lambda one: -one[0])  # stable: notes with equal scores stay in order
    return [note for score, note in scored[:limit] if score]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
