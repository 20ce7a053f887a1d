"""The context of a call for its tool, and tool results that are not values.

A tool asks for it by its first parameter: `def refund(ctx: RunContext[Deps], order_id: str) -> str`. Neither
the model nor guest code sees that parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar, Union, get_args, get_origin

import msgspec

from standfast.errors import InvalidArgument, ServiceUnavailable
from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.model.message import AttachmentPart, Message, UserMessage
from standfast.tools.no_host import NO_HOST

if TYPE_CHECKING:
    from standfast.ports.host import ToolHookHost

Deps_co = TypeVar("Deps_co", covariant=True)

DEFAULT_COMPLETION_S: Final = 24 * 3600.0

MAX_TEXT_CHARS: Final = 65_536
"""The maximum length of the texts that the model reads in addition to the value of a result, or of a cell."""

_NOTE_CHARS: Final = 64


class AsksModel(Protocol):
    """A function that requests text from the session's model."""

    async def __call__(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        source: str = "",
        output_schema: dict[str, Any] | None = None,
    ) -> str: ...


class Attachments(Protocol):
    """Additions to a call's result: bytes, stored under their digest, and texts.

    The model sees the bytes that are `shown`; these are mostly images, since not every model accepts other
    media. It reads the texts after the value; code gets only the value.
    """

    def keep(
        self, data: bytes, *, media_type: str, name: str | None = None, shown: bool = False
    ) -> AttachmentPart: ...

    def add_text(self, text: str) -> None: ...

    async def read(self, digest: str) -> bytes | None: ...


class Triggers(Protocol):
    """The triggers of the runtime, for use within a call."""

    @property
    def sources(self) -> Mapping[str, str]:
        """The sources that the session's plugins announce, each with its description."""

    async def occur(self, source: str, payload: Json = None, *, key: str | None = None) -> int:
        """Report an occurrence at a source and return how many triggers start a turn for it.

        The same source and key are the same occurrence. Without a key it belongs to this call: a call that
        is repeated after a crash reports it once.
        """


class _NoTurn:
    """The `Attachments` and `Triggers` of a call outside of a turn: every method raises."""

    sources: Mapping[str, str] = {}

    def keep(
        self, data: bytes, *, media_type: str, name: str | None = None, shown: bool = False
    ) -> AttachmentPart:
        raise ServiceUnavailable("attachments", "there is no turn around the call")

    def add_text(self, text: str) -> None:
        raise ServiceUnavailable("attachments", "there is no turn around the call")

    async def read(self, digest: str) -> bytes | None:
        raise ServiceUnavailable("attachments", "there is no turn around the call")

    async def occur(self, source: str, payload: Json = None, *, key: str | None = None) -> int:
        raise ServiceUnavailable("triggers", "there is no turn around the call")


NO_TURN: Final = _NoTurn()


def cut_texts(texts: Sequence[str], room: int = MAX_TEXT_CHARS) -> tuple[str, ...]:
    """Return *texts*; if they are longer than *room* characters, the last one says how much is left out."""
    length = sum(map(len, texts))
    if length <= room:
        return tuple(texts)
    kept, room = list[str](), room - _NOTE_CHARS
    for text in texts:
        if room <= 0:
            break
        kept.append(text[:room])
        room -= len(text)
    return (*kept, f"[{length - sum(map(len, kept)):,} characters left out]")


def drop_report(kind: str, body: Json) -> None:
    """Drop an event, because the call is not part of a turn."""


class PersonAnswer(msgspec.Struct, frozen=True):
    """A person's answer to an `AskPerson`, with the `state` that the question carried.

    The `action` is `"accept"`; after a question that is `declinable` also `"decline"`, or `"cancel"` if it
    expired, and `value` is empty then.
    """

    value: dict[str, Json]
    state: Json = None
    by: str | None = None
    action: Literal["accept", "decline", "cancel"] = "accept"


class RunContext(msgspec.Struct, Generic[Deps_co], frozen=True):
    """The context of one call, for its tool.

    `idempotency_key` is the same for every execution of this call, even by another process after a crash:
    pass it to the external system. `deps` are the dependencies of the turn. `host` offers the runtime's
    services, `attachments` adds bytes and texts to the result, and `triggers` reports occurrences; outside of
    an agent's turn their methods raise `ServiceUnavailable`.
    """

    deps: Deps_co
    session_id: str = ""
    turn_id: str = ""
    call_id: int = 0
    attempt: int = 1
    idempotency_key: str = ""
    token: str = ""
    model: AsksModel | None = None
    host: ToolHookHost = NO_HOST
    limits: SessionLimits | None = None
    """The limits of the run whose code made the call, in a sandbox without a model."""
    session_limits: SessionLimits | None = None
    """The limits of its session."""
    attachments: Attachments = NO_TURN
    triggers: Triggers = NO_TURN
    answer: PersonAnswer | None = None
    """The answer to this call's `AskPerson` question, in the execution that follows the question."""
    report: Callable[[str, Json], None] = drop_report
    """Show an event of this call to the observers of the session: `ctx.report("progress", {"done": 3})`."""

    def __repr__(self) -> str:
        """Return only the call's ids, because the token is secret and services have no useful `repr`."""
        shown = ("deps", "session_id", "turn_id", "call_id", "attempt", "idempotency_key", "answer")
        return f"RunContext({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    async def complete(
        self,
        prompt: str | Sequence[Message],
        *,
        instructions: str = "",
        source: str = "tool",
        output_schema: dict[str, Any] | None = None,
    ) -> str:
        """Request text from the session's model; the usage is charged to *source* in the session's ledger."""
        if self.model is None:
            raise InvalidArgument("a model can be called only within an agent's turn")
        messages = [UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        return await self.model(
            messages, instructions=instructions, source=source, output_schema=output_schema
        )

    def completion_token(self) -> str:
        """Return the token for `Runtime.complete`; it is the same for every execution of this call."""
        if not self.token:
            raise InvalidArgument("a call can be completed from outside only within an agent's turn")
        return self.token


class CompleteLater(msgspec.Struct, frozen=True):
    """Returned by a tool whose result is delivered later, under *token*.

    After `expires_in_s` the call fails.
    """

    token: str
    expires_in_s: float = DEFAULT_COMPLETION_S


class CompleteAfter(msgspec.Struct, frozen=True):
    """Returned by a tool whose result is *value* after a time. The turn parks and occupies no worker."""

    seconds: float
    value: Json = None


class AskPerson(msgspec.Struct, frozen=True):
    """Returned by a tool to ask a person; then the call is executed again with the answer as `ctx.answer`.

    The question is an approval request with `message` as its reason. An approval contains the answer, which
    must match *answer*, the JSON Schema of an object. A denial ends the call, unless the question is
    *declinable*: then the call is executed again after a denial too. The turn parks and occupies no worker.
    *state* is stored with the question for the execution that follows.
    """

    message: str
    answer: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    state: Json = None
    declinable: bool = False


class ContinueAs(msgspec.Struct, frozen=True):
    """Returned by a tool to end the turn and continue with *task* in a new frame that begins with *seed*."""

    task: str
    seed: tuple[UserMessage, ...] = msgspec.field(default_factory=tuple)
    reason: str = "continue_as"


LATER: Final = (CompleteLater, CompleteAfter, AskPerson, ContinueAs)

Later = CompleteLater | CompleteAfter | AskPerson | ContinueAs
"""A deferred result, which a tool returns instead of a value. Only agents' turns support it."""


def without_later(annotation: Any) -> Any:
    """Return a return annotation without the types of deferred results."""
    if annotation in LATER:
        return Any
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    rest = [one for one in get_args(annotation) if one not in LATER]
    return Union[tuple(rest)] if rest else Any  # noqa: UP007 - the members are known at run time only


def is_run_context(annotation: Any) -> bool:
    return annotation is RunContext or get_origin(annotation) is RunContext
