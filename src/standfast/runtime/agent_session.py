"""A conversation that outlives its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from standfast.errors import ApprovalNotFound, InvalidArgument, SessionNotFound
from standfast.graph import messages_of, nodes_of
from standfast.model.approval import Approval, Decision
from standfast.model.canonical import Json, to_json
from standfast.model.frame import FrameSwitch
from standfast.model.limits import UsageEntry, UsageLimits
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.prompt import PromptContribution, PromptLayer
from standfast.model.session import (
    Blocked,
    CurrentTurn,
    FrameOpened,
    Node,
    Payload,
    SessionHead,
    TurnRecord,
    TurnState,
)
from standfast.plugins.session_context import Overlay, as_layer
from standfast.ports.session_store import Blob, QueuedInput, SessionStore
from standfast.runtime.agent_definition import checked_limits
from standfast.runtime.attachments import Prompt, read_prompt, with_inputs
from standfast.runtime.result import AwaitedResult
from standfast.runtime.sessions.approvals import (
    Arguments,
    checked_arguments,
    decide,
    get_approval,
    list_approvals,
)
from standfast.runtime.sessions.current_turn import SessionMessages, blocked_in, current_turn
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.sessions.observation import Cursor, Observed, Observer
from standfast.runtime.sessions.session_plugins import SessionPlugins, SessionTools, append_nodes
from standfast.runtime.turn import Turn, TurnRequest, new_input_id, new_turn_id
from standfast.tools.provider import ToolProvider
from standfast.tools.registered_tool import ARGS, from_native, is_positional

Output = TypeVar("Output")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Deps = _TypeVar("Deps", default=Any)
else:  # before Python 3.13, only typing_extensions knows defaults, and we do not depend on it
    Deps = TypeVar("Deps")


class Session(Generic[Output, Deps]):
    """One session of a runtime. Several of these may stand for the same session."""

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
    ) -> Turn[Output]:
        """A turn with this input. It starts when it is awaited or iterated over.

        With an `idempotency_key`, the same key and prompt stand for the same turn, in any process; another
        prompt under the same key is `IdempotencyConflict`. *inputs* are values that the model's code can read
        by name, however large: JSON, or text. *system* goes into the system prompt of this turn; *extension*
        is for the session's protocol.
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
            )
        )

    async def unfinished(self) -> TurnRecord | None:
        """The turn that waits or was left by its process, if there is one."""
        return await self._store.open_turn(self.session_id)

    async def blocked(self) -> Blocked | None:
        """Why the next turn of the session cannot run, as the last process that tried noted; None if it can.

        That is a turn that stands still, or an input that stays queued, for want of deps or of its agent.
        """
        return await blocked_in(self._store, await self.head())

    async def resume(self) -> Turn[Output] | None:
        """Go on with the unfinished turn, as far as that is possible now; None if there is none.

        Awaiting it raises `WrongAgent` if it belongs to an agent that is not known here, and `DepsMissing` if
        there are no deps for it.
        """
        record = await self.unfinished()
        if record is None:
            return None
        turn: Turn[Output] = self._live.turn_of(record.turn_id)
        turn.start()
        return turn

    def follow(self, turn_id: str) -> Turn[Output]:
        """The turn of this id. Awaiting it gives its result, whoever runs or has run it."""
        return self._live.turn_of(turn_id)

    async def cancel(self) -> bool:
        """End the unfinished turn, if there is one."""
        driver = self._live.driver
        if driver is not None:
            return await self._live.cancel(driver.turn_id)
        record = await self.unfinished()
        return record is not None and await self._live.cancel(record.turn_id)

    async def turns(self) -> list[TurnRecord]:
        """All turns, oldest first."""
        return await self._store.turns(self.session_id)

    # Plugins, tools and prompt

    @property
    def plugins(self) -> SessionPlugins:
        """The session's plugins: what they bring, their actions, the settings that they watch over."""
        return SessionPlugins(self._live, self._directory.require_open(), self._directory.background.spawn)

    @property
    def tools(self) -> SessionTools:
        """The session's tools: the catalog, their availability, sources that come and go."""
        return SessionTools(self._live, self._directory.require_open())

    async def set_context_overlay(
        self,
        tool_providers: Sequence[ToolProvider] = (),
        prompt_contributions: Sequence[PromptContribution | str] = (),
        include_base_tools: bool = True,
    ) -> bool:
        """Lay tools and words over the session's own, in this process; false if they lie there already.

        A tool with the id or the name of another covers it. Nothing is changed if they do not fit together.
        """
        words = as_layer(prompt_contributions).contributions
        return await self.tools.set_context_overlay(Overlay(tuple(tool_providers), words, include_base_tools))

    async def refresh_tool_catalog(self) -> None:
        """See what has changed in the session's own tools since the overlay was set."""
        await self.tools.refresh()

    async def invalidate_runtime_caches(self) -> None:
        """Make catalog and prompt anew when they are next wanted."""
        await self.tools.invalidate()

    # Approvals

    async def approvals(self, *, pending: bool = False) -> list[Approval]:
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
        """Let a call happen, with other arguments if given, and go on with its turn.

        *decided_by* names the person who decided; it is kept with the approval.
        If the turn cannot go on here, nothing is decided: `WrongAgent`, or `DepsMissing`. `Runtime.approve`
        decides without going on.
        """
        kwargs = None if arguments is None else to_json(dict(arguments))[0]
        decision = Decision(approved=True, reason=reason, kwargs=kwargs, decided_by=decided_by)
        return await self._decide(approval_id, decision)

    async def deny(
        self, approval_id: str, *, reason: str | None = None, decided_by: str | None = None
    ) -> AwaitedResult[Output]:
        """Refuse a call and go on with its turn; the model is told. It needs what `approve` needs."""
        decision = Decision(approved=False, reason=reason, decided_by=decided_by)
        return await self._decide(approval_id, decision)

    async def _decide(self, approval_id: str, decision: Decision) -> AwaitedResult[Output]:
        """Decide, and go on with the turn until it has heard of that: it may have been under way already."""
        asked = await self._store.approval(approval_id)
        if asked is None or asked.session_id != self.session_id:
            raise ApprovalNotFound(approval_id)
        record = await self._store.turn(asked.run_id)
        if record is not None and record.state is not TurnState.ENDED:
            self._directory.runner_of(self._live).require_runnable(record)
        approval = await decide_call(self._directory, approval_id, decision)
        while True:
            result: AwaitedResult[Output] = await self._live.turn_of(approval.run_id)
            if all(wait.wait_id != approval.approval_id for wait in result.waits):
                return result

    # Input while a turn runs

    async def inject(self, prompt: Prompt | InjectedTurnInput, *, id: str | None = None) -> str:
        """A message for the running turn, delivered at its next checkpoint; if none runs, for the next."""
        if isinstance(prompt, InjectedTurnInput):
            return await self._put("inject", prompt.message, (), id or prompt.id)
        content, blobs = read_prompt(prompt)
        return await self._put("inject", UserMessage(content=content), blobs, id)

    async def queue(self, prompt: Prompt, *, id: str | None = None) -> str:
        """A message that starts a turn of its own once the session is free."""
        content, blobs = read_prompt(prompt)
        input_id = await self._put("queue", UserMessage(content=content), blobs, id)
        self._live.queue.drain()
        return input_id

    async def withdraw(self, input_id: str) -> bool:
        """Take an input back; false once it was claimed."""
        return await self._store.withdraw_input(input_id)

    async def inputs(self) -> list[QueuedInput]:
        """What waits to be claimed, oldest first."""
        return await self._store.inputs(self.session_id)

    # History

    async def head(self) -> SessionHead:
        head = await self._store.head(self.session_id)
        if head is None:
            raise SessionNotFound(self.session_id)
        return head

    async def nodes(self) -> list[Node]:
        """The whole active path, oldest first."""
        leaf = (await self.head()).leaf
        return [] if leaf is None else nodes_of(await self._store.path(leaf))

    async def messages(self) -> SessionMessages:
        """The messages of the current frame, with those of a turn that runs or waits.

        `.current` is that turn, if there is one: its messages are the last ones, and its last calls may have
        no results yet.
        """
        current = await self.current_turn()
        leaf = (await self.head()).leaf
        segments = () if leaf is None else await self._store.frame(leaf)
        if current is not None and any(segment.segment_id == current.turn_id for segment in segments):
            current = None  # it has ended since, and is in the history now
        return SessionMessages(messages_of(segments), current)

    async def current_turn(self) -> CurrentTurn | None:
        """The turn that runs, waits or was interrupted, if there is one, with what was said in it so far."""
        return await current_turn(self._store, self.session_id, self._live.driver, self._directory.now_ms())

    async def usage(self) -> tuple[UsageEntry, ...]:
        """What model calls used, a line for each source and model."""
        return (await self.head()).usage

    async def attachment(self, digest: str) -> bytes:
        """The bytes of an attachment."""
        data = await self._store.blob(digest)
        if data is None:
            raise InvalidArgument(f"there is no attachment {digest[:80]!r}")
        return data

    async def append(self, payloads: Sequence[Payload], *, requires: str | None = None) -> SessionHead:
        """Add nodes to the history; `StaleBranch` if the node *requires* is not on the active path.

        The session's protocol is told of them; if it fails, that is raised, and the nodes stay.
        """
        return await append_nodes(self._live, self._directory.require_open(), payloads, requires)

    async def open_frame(
        self, *, reason: str = "continue_as", seed: Sequence[str] = (), frame_id: str | None = None
    ) -> SessionHead:
        """Begin a new context: from here on the model sees *seed* and what follows. Nothing is lost."""
        switch = FrameSwitch(
            frame_id=frame_id or new_turn_id().replace("t_", "f_"),
            reason=reason,
            seed=tuple(UserMessage(content=text) for text in seed),
        )
        return await self.append([FrameOpened(switch=switch)])

    async def fork(self, new_id: str, *, at: str | None = None) -> Session[Output, Deps]:
        """A new session over the same history, up to the node *at* if given."""
        return Session(self._directory, await self._directory.fork(self.session_id, new_id, at))

    async def rewind(self, to: str | None = None, *, turns: int = 1) -> SessionHead:
        """Go back to the node *to*, or by a number of turns."""
        return await self._directory.rewind(self.session_id, to, turns)

    # Observation

    async def cursor(self) -> Cursor:
        """The place where the session stands now."""
        head = await self.head()
        return Cursor(head.depth, self._directory.services.settings.epoch, self._live.feed.last_seq)

    def observe(self, after: Cursor | str | None = None) -> AsyncIterator[Observed]:
        """Everything after a cursor: committed nodes, then what happens now. It has no end."""
        cursor = Cursor.parse(after) if isinstance(after, str) else after or Cursor()
        epoch = self._directory.services.settings.epoch
        return Observer(self._live, self._store, epoch, self._directory.poll_s).follow(cursor)

    @property
    def _store(self) -> SessionStore:
        return self._directory.store

    async def _put(
        self, kind: Literal["inject", "queue"], message: UserMessage, blobs: tuple[Blob, ...], id: str | None
    ) -> str:
        item = QueuedInput(
            input_id=id or new_input_id(),
            session_id=self.session_id,
            kind=kind,
            message=message,
            created_at=self._directory.now_ms(),
        )
        await self._store.put_input(item, blobs)
        return item.input_id

    def __repr__(self) -> str:
        return f"<Session {self.session_id}>"


async def decide_call(directory: SessionDirectory, approval_id: str, decision: Decision) -> Approval:
    """Decide a request, once, and let its turn be resumed."""
    now = directory.now_ms()
    approval = await get_approval(directory.store, now, approval_id)

    async def edited(approval: Approval, decision: Decision) -> Arguments:
        """Split a person's arguments by position and by name."""
        given = decision.kwargs or {}
        live = await directory.put_to_work(approval.session_id)
        if live is None or live.prepared is None:  # the tool is unknown here: go by the form of the call
            if approval.args and len(given) == 1 and isinstance(listed := given.get(ARGS), list):
                return listed, {}
            return [], given
        context, threads = await live.context(), directory.services.threads
        await context.prepare(approval.capability)
        tool = context.called_tool(approval.capability)
        args = from_native(tool.capability, given) if is_positional(tool.capability) else []
        arguments = (args, {} if is_positional(tool.capability) else given)
        return await checked_arguments(tool, approval, arguments, live.prepared.dispatcher, threads)

    decided = await decide(directory.store, now, approval, decision, edited)
    directory.changed.set()
    return decided
