"""`Session`, a durable conversation that any process can continue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from standfast.errors import ApprovalNotFound, InvalidArgument, SessionNotFound, ValueTooLarge
from standfast.graph.history import messages_of, nodes_of
from standfast.model import session
from standfast.model.approval import Approval, Decision
from standfast.model.canonical import Json, digest_bytes, encode_sorted, to_json
from standfast.model.frame import FrameSwitch
from standfast.model.limits import UsageEntry, UsageLimits
from standfast.model.message import (
    AttachmentPart,
    Content,
    InjectedTurnInput,
    InputPart,
    Part,
    TextPart,
    UserMessage,
)
from standfast.model.prompt import PromptContribution, PromptLayer, as_layer
from standfast.plugins.session_context import Overlay
from standfast.ports.session_store import Blob, BlobPart, QueuedInput, SessionStore
from standfast.runtime.agent_definition import checked_limits
from standfast.runtime.result import AwaitedResult
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.sessions.observation import (
    Cursor,
    Observed,
    Observer,
    SessionMessages,
    blocked_in,
    current_turn,
)
from standfast.runtime.turn import Turn, TurnRequest, new_turn_id
from standfast.tools.registered_tool import ARGS, from_native, is_positional
from standfast.tools.registry import ToolProvider

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.model.call_history import CallHistory
    from standfast.model.code import CellVariables, Variable
    from standfast.model.journal import JournalEdit, JournalStep
    from standfast.model.prompt_record import ModelPrompt
    from standfast.model.trace_record import TraceRecord
    from standfast.ports.session_store import JournaledTurn
    from standfast.runtime.sessions.approvals import Arguments
    from standfast.runtime.sessions.session_plugins import SessionPlugins, SessionTools


MAX_ATTACHMENT_BYTES: Final = 64 << 20
MAX_TEXT_BYTES: Final = 16 << 20
_RESERVED_NAMES: Final = frozenset({
    "attachments", "continue_as", "describe_tool", "finish", "history", "llm", "result", "run_code",
    "search_tools", "sleep",
})  # fmt: skip
"""Names that inputs must not have, because code uses them."""


class Attachment(msgspec.Struct, frozen=True):
    """Bytes with a media type."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str | None = None

    @classmethod
    def from_path(cls, path: str | Path, media_type: str | None = None) -> Attachment:
        """Read a file; guess its media type from its name unless given."""
        import mimetypes  # reads the system's tables
        from pathlib import Path  # slow to import, and few agents read files

        file = Path(path)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InvalidArgument(f"cannot read {file}: {error.strerror or error}") from None
        guessed = media_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return cls(data, guessed, file.name.encode("utf-8", "replace").decode())


Prompt = str | Attachment | Sequence[str | Attachment]
"""A user's message: text, an attachment, or a sequence of both."""


def read_prompt(prompt: Prompt) -> tuple[Content, tuple[Blob, ...]]:
    """Return a prompt as a message's content, and the blobs to store with it."""
    if isinstance(prompt, str):
        return _checked_text(prompt), ()
    pieces = list(prompt) if isinstance(prompt, (list, tuple)) else [prompt]
    if not pieces:
        raise InvalidArgument("the prompt is empty", hint="pass a str, an Attachment, or a list of them")
    blobs: dict[str, Blob] = {}
    parts: list[Part] = []
    for piece in pieces:
        if isinstance(piece, Attachment):
            data = piece.data
            if not isinstance(data, bytes):
                raise InvalidArgument(f"an attachment's data must be bytes, got {type(data).__name__}")
            if len(data) > MAX_ATTACHMENT_BYTES:
                raise InvalidArgument(
                    f"an attachment has {len(data)} bytes, the limit is {MAX_ATTACHMENT_BYTES}"
                )
            digest = digest_bytes(data)
            blobs[digest] = Blob(digest=digest, data=data)
            parts.append(
                AttachmentPart(digest=digest, media_type=piece.media_type, size=len(data), name=piece.name)
            )
        else:
            parts.append(TextPart(text=_checked_text(piece)))
    return tuple(parts), tuple(blobs.values())


def with_inputs(
    content: Content, blobs: tuple[Blob, ...], inputs: Mapping[str, Any] | None
) -> tuple[Content, tuple[Blob, ...]]:
    """Add values that code can read by name to a message."""
    if not inputs:
        return content, blobs
    parts: list[Part] = [TextPart(text=content)] if isinstance(content, str) else list(content)
    stored = {blob.digest: blob for blob in blobs}
    for name, value in inputs.items():
        blob, media_type = _input_blob(_checked_input_name(name), value)
        stored[blob.digest] = blob
        parts.append(InputPart(name=name, digest=blob.digest, media_type=media_type, size=len(blob.data)))
    return tuple(parts), tuple(stored.values())


def _checked_input_name(name: object) -> str:
    import builtins
    import keyword

    fits = isinstance(name, str) and name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    if not fits or hasattr(builtins, str(name)) or name in _RESERVED_NAMES or str(name).startswith("__"):
        raise InvalidArgument(
            f"{str(name)[:80]!r} cannot be the name of an input",
            hint="use an ASCII Python identifier that is not a keyword, not a built-in, and none of "
            + ", ".join(sorted(_RESERVED_NAMES)),
        )
    return str(name)


def _input_blob(name: str, value: object) -> tuple[Blob, str]:
    """Return the bytes and media type of an input: text as it is, anything else as JSON."""
    if isinstance(value, str):
        _refuse_long(f"input {name!r}", value, MAX_ATTACHMENT_BYTES)
        try:
            data, media_type = value.encode(), "text/plain"
        except UnicodeEncodeError:
            raise InvalidArgument(f"input {name!r} contains a lone surrogate") from None
    else:
        try:
            data, media_type = encode_sorted(to_json(value)[0]), "application/json"
        except ValueTooLarge as error:
            raise InvalidArgument(f"input {name!r} is too large: {error.limit}") from None
        except InvalidArgument as error:
            raise InvalidArgument(f"input {name!r} is {error.message}") from None
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidArgument(f"input {name!r} has {len(data)} bytes, the limit is {MAX_ATTACHMENT_BYTES}")
    return Blob(digest=digest_bytes(data), data=data), media_type


def _refuse_long(what: str, text: str, limit: int) -> None:
    """Refuse text without encoding it if it has more characters than the limit has bytes."""
    if len(text) > limit:
        raise InvalidArgument(f"{what} has {len(text)} characters, the limit is {limit} bytes")


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(
            f"a prompt must be a str, got {type(text).__name__}",
            hint="pass a str, an Attachment, or a list of them",
        )
    _refuse_long("the prompt", text, MAX_TEXT_BYTES)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("the prompt contains a lone surrogate") from None
    if size > MAX_TEXT_BYTES:
        raise InvalidArgument(f"the prompt has {size} bytes, the limit is {MAX_TEXT_BYTES}")
    return text


Output = TypeVar("Output")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Deps = _TypeVar("Deps", default=Any)
else:  # before Python 3.13, TypeVar defaults need typing_extensions, on which we do not depend
    Deps = TypeVar("Deps")


class Session(Generic[Output, Deps]):
    """A handle of one session of a runtime. Several handles may refer to the same session."""

    __slots__ = ("_directory", "_live", "session_id")
    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # Deps may be left out

    def __init__(self, directory: SessionDirectory, live: LiveSession) -> None:
        self._directory = directory
        self._live = live
        self.session_id = live.session_id

    # Turns

    def turn(
        self,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        deps: Deps | None = None,
        limits: UsageLimits | None = None,
        idempotency_key: str | None = None,
        system: PromptLayer | Sequence[PromptContribution | str] | None = None,
        extension: Json = None,
        settings: Mapping[str, Json] | None = None,
    ) -> Turn[Output]:
        """Return a turn with this input. It starts when it is awaited or iterated over.

        The same *idempotency_key* and prompt mean the same turn, in any process; the same key with another
        prompt raises `IdempotencyConflict`. *inputs* are JSON or text values that the model's code can read
        by name. *system* is added to the system prompt of this turn; *extension* is for the session's
        protocol. *settings*, such as `temperature`, replace those of the agent's model for this turn.
        """
        content, blobs = with_inputs(*read_prompt(prompt), inputs)
        return self._live.new_turn(
            TurnRequest(
                message=UserMessage(content=content),
                blobs=blobs,
                deps=self._live.deps if deps is None else deps,
                limits=None if limits is None else checked_limits(limits),
                idempotency_key=idempotency_key,
                extension=None if extension is None else to_json(extension)[0],
                prompt=None if system is None else as_layer(system),
                settings={} if settings is None else settings,
            )
        )

    async def unfinished(self) -> session.TurnRecord | None:
        """Return the turn that is running, waiting or interrupted, if there is one."""
        return await self._store.open_turn(self.session_id)

    async def blocked(self) -> session.Blocked | None:
        """Return why the last attempt to run the next turn failed; None if it can run.

        Its agent or its deps are missing, so an unfinished turn is not resumed, or an input stays queued.
        """
        return await blocked_in(self._store, await self.head())

    async def resume(self) -> Turn[Output] | None:
        """Resume the unfinished turn as far as possible now; return None if there is none.

        If a turn was unfinished when the session was opened and the runtime has ended it since, return that
        turn, unless another followed it, so that `await session.resume() or session.turn(...)` does not
        repeat it. Awaiting it raises `WrongAgent` if its agent is not known here, and `DepsMissing` if its
        deps are missing.
        """
        record, left, self._live.left = await self.unfinished(), self._live.left, None
        if record is None:
            head = await self._store.head(self.session_id)
            is_last = left is not None and head is not None and (head.leaf or "").startswith(f"{left}.")
            return self.follow(left) if left is not None and is_last else None
        turn: Turn[Output] = self._live.turn_of(record.turn_id)
        turn.start()
        return turn

    def follow(self, turn_id: str) -> Turn[Output]:
        """Return a handle of the turn with this id. Awaiting it returns its result, in any process."""
        return self._live.turn_of(turn_id)

    async def cancel(self) -> bool:
        """Cancel the unfinished turn; return False if there is none."""
        driver = self._live.driver
        if driver is not None:
            return await self._live.cancel(driver.turn_id)
        record = await self.unfinished()
        return record is not None and await self._live.cancel(record.turn_id)

    async def turns(self) -> list[session.TurnRecord]:
        """Return all turns, oldest first."""
        return await self._store.turns(self.session_id)

    # Plugins, tools and prompt

    @property
    def plugins(self) -> SessionPlugins:
        """The session's plugins: their contributions, actions and settings."""
        from standfast.runtime.sessions.session_plugins import SessionPlugins

        return SessionPlugins(self._live, self._directory.require_open(), self._directory.background.spawn)

    @property
    def tools(self) -> SessionTools:
        """The session's tools: the catalog, their availability and their sources."""
        from standfast.runtime.sessions.session_plugins import SessionTools

        return SessionTools(self._live, self._directory.require_open())

    async def set_context_overlay(
        self,
        tool_providers: Sequence[ToolProvider] = (),
        prompt_contributions: Sequence[PromptContribution | str] = (),
        include_base_tools: bool = True,
    ) -> bool:
        """Set tools and prompt contributions on top of the session's own, in this process.

        Return False if they are already set. A tool replaces one with the same id or name. If they cannot be
        combined with the session's own, raise and change nothing.
        """
        words = as_layer(prompt_contributions).contributions
        return await self.tools.set_context_overlay(Overlay(tuple(tool_providers), words, include_base_tools))

    async def refresh_tool_catalog(self) -> None:
        """Apply the changes made to the session's own tools since the overlay was set."""
        await self.tools.refresh()

    async def invalidate_runtime_caches(self) -> None:
        """Discard the cached catalog and prompt, so that they are rebuilt at the next use."""
        await self.tools.invalidate()

    # Approvals

    async def approvals(self, *, pending: bool = False) -> list[Approval]:
        from standfast.runtime.sessions.approvals import list_approvals

        now = self._directory.now_ms()
        return await list_approvals(self._store, now, session=self.session_id, pending=pending)

    async def approve(
        self,
        approval_id: str,
        *,
        arguments: Mapping[str, Json] | None = None,
        reason: str | None = None,
        decided_by: str | None = None,
    ) -> AwaitedResult[Output]:
        """Approve a call, with other arguments if given, and continue its turn.

        *decided_by* names the person who decided; it is stored with the approval. If the turn cannot run
        here, raise `WrongAgent` or `DepsMissing` without deciding. `Runtime.approve` decides without these
        checks.
        """
        from standfast.runtime.sessions.approvals import approving

        return await self._decide(approval_id, approving(None, arguments, reason, decided_by))

    async def deny(
        self, approval_id: str, *, reason: str | None = None, decided_by: str | None = None
    ) -> AwaitedResult[Output]:
        """Deny a call and continue its turn; the model gets the reason.

        Raises the same errors as `approve`.
        """
        decision = Decision(approved=False, reason=reason, decided_by=decided_by)
        return await self._decide(approval_id, decision)

    async def _decide(self, approval_id: str, decision: Decision) -> AwaitedResult[Output]:
        """Store the decision and continue the turn, which may be running, until it has processed it."""
        from standfast.runtime.sessions.approvals import get_approval

        asked = await get_approval(self._store, self._directory.now_ms(), approval_id)
        if asked.session_id != self.session_id:
            raise ApprovalNotFound(approval_id)
        record = await self._store.turn(asked.run_id)
        if record is not None and record.state is not session.TurnState.ENDED:
            self._directory.runner_of(self._live).require_runnable(record)
        try:
            await decide_call(self._directory, asked, decision)
        except BaseException:  # the decision may be stored nevertheless
            self._directory.changed.set()
            raise
        while True:
            result: AwaitedResult[Output] = await self._live.turn_of(asked.run_id)
            if all(wait.wait_id != approval_id for wait in result.waits):
                return result

    # Input while a turn runs

    async def inject(self, prompt: Prompt | InjectedTurnInput, *, id: str | None = None) -> str:
        """Send a message to the running turn's next checkpoint, or to the next turn if none is running."""
        if isinstance(prompt, InjectedTurnInput):
            put = self._directory.put_input
            return await put(self.session_id, "inject", prompt.message, id or prompt.id)
        content, blobs = read_prompt(prompt)
        message = UserMessage(content=content)
        return await self._directory.put_input(self.session_id, "inject", message, id, blobs)

    async def queue(self, prompt: Prompt, *, id: str | None = None) -> str:
        """Queue a message that starts a turn of its own once the session is free."""
        content, blobs = read_prompt(prompt)
        message = UserMessage(content=content)
        input_id = await self._directory.put_input(self.session_id, "queue", message, id, blobs)
        self._live.queue.input_arrived()
        return input_id

    async def withdraw(self, input_id: str) -> bool:
        """Withdraw an input; return False if a turn has claimed it."""
        return await self._store.withdraw_input(input_id)

    async def inputs(self) -> list[QueuedInput]:
        """Return the inputs that no turn has claimed yet, oldest first."""
        return await self._store.inputs(self.session_id)

    # History

    async def head(self) -> session.SessionHead:
        head = await self._store.head(self.session_id)
        if head is None:
            raise SessionNotFound(self.session_id)
        return head

    async def nodes(self) -> list[session.Node]:
        """Return the whole active path, oldest first."""
        leaf = (await self.head()).leaf
        return [] if leaf is None else nodes_of(await self._store.path(leaf))

    async def messages(self) -> SessionMessages:
        """Return the messages of the current frame, followed by those of an unfinished turn.

        `.current` is that turn, if there is one; its last calls may have no results yet.
        """
        current = await self.current_turn()
        leaf = (await self.head()).leaf
        segments = () if leaf is None else await self._store.frame(leaf)
        if current is not None and any(segment.segment_id == current.turn_id for segment in segments):
            current = None  # it has ended in the meantime and is in the history
        return SessionMessages(messages_of(segments), current)

    async def current_turn(self) -> session.CurrentTurn | None:
        """Return the unfinished turn, if there is one, with its messages so far."""
        return await current_turn(self._store, self.session_id, self._live.driver, self._directory.now_ms())

    async def usage(self) -> tuple[UsageEntry, ...]:
        """Return the usage of model calls, one entry per source and model."""
        return (await self.head()).usage

    async def attachment(self, digest: str) -> bytes:
        """Return the bytes of an attachment."""
        data = await self._store.blob(digest)
        if data is None:
            raise InvalidArgument(f"there is no attachment {digest[:80]!r}")
        return data

    async def attachment_part(self, digest: str, start: int, stop: int | None = None) -> BlobPart:
        """Return the bytes `[start:stop]` of an attachment, without reading all of it if it is large."""
        part = await self._store.blob_part(digest, start, stop)
        if part is None:
            raise InvalidArgument(f"there is no attachment {digest[:80]!r}")
        return part

    async def append(
        self, payloads: Sequence[session.Payload], *, requires: str | None = None
    ) -> session.SessionHead:
        """Add nodes to the history; raise `StaleBranch` if the node *requires* is not on the active path.

        If the session's protocol fails to process them, raise its error; the nodes are kept.
        """
        from standfast.runtime.sessions.session_plugins import append_nodes

        return await append_nodes(self._live, self._directory.require_open(), payloads, requires)

    async def open_frame(
        self, *, reason: str = "continue_as", seed: Sequence[str] = (), frame_id: str | None = None
    ) -> session.SessionHead:
        """Open a new frame: from now on the model sees only *seed* and later messages. Nothing is deleted."""
        switch = FrameSwitch(
            frame_id=frame_id or new_turn_id().replace("t_", "f_"),
            reason=reason,
            seed=tuple(UserMessage(content=text) for text in seed),
        )
        return await self.append([session.FrameOpened(switch=switch)])

    async def fork(
        self, new_id: str, *, at: str | None = None, input: int | None = None, edit: JournalEdit | None = None
    ) -> Session[Output, Deps]:
        """Create a new session over the same history, up to the node *at* if given.

        With *input*, *at* is a turn, and the fork continues from the middle of it, after input number *input*
        of its journal (`journal` lists them). *edit* replaces the outcome in that input. The fork's turn is
        resumed automatically where its agent is known, or by `resume`. A call that had no result yet is
        executed again in the fork, and needs a new approval if it needed one.
        """
        return Session(self._directory, await self._directory.fork(self.session_id, new_id, at, input, edit))

    async def journal(self, turn_id: str) -> list[JournalStep]:
        """Return the inputs of a turn's machine, each with the machine's state and decisions after it.

        Raise `JournalNotKept` if the turn has ended and its journal is not kept
        (`Runtime(keep_journals=...)`).
        """
        from standfast.runtime.sessions.time_travel import journal_steps  # needed only to read journals

        return journal_steps(await self._journal(turn_id))

    async def prompts(self, turn_id: str) -> list[ModelPrompt]:
        """Return exactly what the model received in each call of a turn, with the author of each part.

        A call is listed once it has an outcome. Raise `JournalNotKept` as `journal` does.
        """
        from standfast.runtime.sessions.prompts import model_prompts  # needed only to read prompts

        turn = await self._journal(turn_id)
        return await model_prompts(self._store, await self.head(), turn)

    async def call_history(self, turn_id: str) -> dict[int, CallHistory]:
        """Return the calls of a turn by id, with every attempt, wait and result.

        May raise `JournalNotKept`.
        """
        from standfast.runtime.sessions.call_history import call_histories  # needed only to read calls

        return call_histories(await self._journal(turn_id))

    async def _journal(self, turn_id: str) -> JournaledTurn:
        from standfast.runtime.sessions.time_travel import find_journal

        return await find_journal(self._store, self.session_id, turn_id)

    async def cell_variables(self, turn_id: str, call_id: int) -> CellVariables:
        """Return the variables before and after the cell *call_id* of a turn, or of a run without a model.

        For a cell of an agent, raise `JournalNotKept` as `journal` does.
        """
        from standfast.runtime.sessions.variables import cell_variables_view  # needed only to read variables

        return await cell_variables_view(self._directory.services, self.session_id, turn_id, call_id)

    async def variables(self) -> tuple[Variable, ...]:
        """Return the variables of the session's code: names, types and short texts, as they are stored now.

        They are described in the sandbox, by the session's engine. A session without code has none.
        """
        from standfast.runtime.sessions.variables import stored_variables_view

        return await stored_variables_view(self._directory.services, await self.head())

    async def spans(self, turn_id: str, *, contents: bool = False) -> list[TraceRecord]:
        """Return the spans and events of a turn, and of its subagents' turns during it.

        They are derived from the turn's journal, so this may raise `JournalNotKept`. An operation that is
        running or waiting has a span up to now with the status `open`. With *contents*, spans include
        messages, arguments and results.
        """
        from standfast.runtime.turn_trace import turn_trace  # needed only to read traces

        now_ms = self._directory.now_ms()
        return await turn_trace(self._store, self.session_id, turn_id, now_ms, contents=contents)

    async def rewind(self, to: str | None = None, *, turns: int = 1) -> session.SessionHead:
        """Move back to the node *to*, or by a number of turns."""
        return await self._directory.rewind(self.session_id, to, turns)

    # Observation

    async def cursor(self) -> Cursor:
        """Return the current position, for `observe`."""
        head = await self.head()
        return Cursor(head.depth, self._directory.services.settings.epoch, self._live.events.feed.last_seq)

    def observe(self, after: Cursor | str | None = None) -> AsyncIterator[Observed]:
        """Yield everything after a cursor: committed nodes, then live events.

        The iterator never ends; it raises `SessionNotFound` if the session is deleted.
        """
        cursor = Cursor.parse(after) if isinstance(after, str) else after or Cursor()
        relay = self._directory.relay
        return Observer(self._live, self._store, relay, self._directory.poll_s).follow(cursor)

    @property
    def _store(self) -> SessionStore:
        return self._directory.store

    def __repr__(self) -> str:
        return f"<Session {self.session_id}>"


async def decide_call(directory: SessionDirectory, approval: Approval, decision: Decision) -> Approval:
    """Decide a request, once. The caller has to resume its turn."""
    from standfast.runtime.sessions.approvals import checked_arguments, decide  # few agents need approvals

    async def edited(approval: Approval, decision: Decision) -> Arguments:
        """Split the arguments that a person edited into positional and named ones."""
        given = decision.kwargs or {}
        live = await directory.put_to_work(approval.session_id)
        if live is None or live.prepared is None:  # the tool is unknown here: use the form of the call
            if approval.args and len(given) == 1 and isinstance(listed := given.get(ARGS), list):
                return listed, {}
            return [], given
        context, threads = await live.context(), directory.services.threads
        await context.prepare(approval.capability)
        tool = context.called_tool(approval.capability)
        args = from_native(tool.capability, given) if is_positional(tool.capability) else []
        arguments = (args, {} if is_positional(tool.capability) else given)
        return await checked_arguments(tool, approval, arguments, live.prepared.dispatcher, threads)

    return await decide(directory.store, directory.now_ms(), approval, decision, edited)
