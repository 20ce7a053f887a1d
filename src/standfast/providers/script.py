"""The scripts of scripted models: as values, as files, and as the deltas of replies.

Rules
-----
1. A script has `replies`, one of which the call number selects, or `rules`, of which the first one that
   matches the last message answers.
2. A file is validated when it is read. Errors name the file and the entry.
3. `prepare_reply` prepares everything, so that a chunk costs one step of a generator.
4. A recorded reply is what arrived. Chunks that do not add up to the text are omitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from standfast.errors import InvalidArgument, StandfastError, TurnCode
from standfast.model.canonical import Json
from standfast.model.limits import U32, Usage
from standfast.model.message import Reasoning
from standfast.ports.model_provider import (
    ModelDelta,
    ReasoningArrived,
    ReplyEnded,
    RequestedCall,
    TextArrived,
)


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool call to request. `arguments` given as a string are passed on unchanged, malformed or not."""

    name: str
    arguments: dict[str, Json] | str = msgspec.field(default_factory=dict)
    id: str = ""

    def arguments_text(self) -> str:
        given = self.arguments
        return given if isinstance(given, str) else msgspec.json.encode(given).decode()


class ScriptedFailure(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A `ModelError` to raise, after `after_chunks` chunks."""

    message: str = "the script fails this call"
    code: str = TurnCode.PROVIDER_ERROR
    retryable: bool = False
    retry_after_ms: U32 | None = None
    after_chunks: U32 = 0


class ScriptedUsage(Usage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens to report; `calls` is one whatever the script says."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Conditions on the request. `tools` are all tools on offer; `request` is the digest of everything."""

    last_contains: str | None = None
    tools: tuple[str, ...] | None = None
    instructions_contain: str | None = None
    request: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One reply. Its text arrives as one chunk, split by `chunk_size`, or as `chunks`.

    `delay_ms` passes before the first chunk, `chunk_delay_ms` between two of them. `call` is the number of
    the call that the reply is for, if that is not its position in the script; of several replies to one call,
    the first that expects the request is used. `reasoning_parts` are sent back to the provider.
    """

    text: str | None = None
    chunks: tuple[str, ...] | None = None
    chunk_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay_ms: U32 = 0
    chunk_delay_ms: U32 = 0
    failure: ScriptedFailure | None = None
    usage: ScriptedUsage | None = None
    stop_reason: str | None = None
    expect: Expectation | None = None
    call: Annotated[int, msgspec.Meta(ge=1)] | None = None
    model: str = ""
    response_id: str = ""
    reasoning_parts: tuple[Reasoning, ...] = ()

    def whole_text(self) -> str:
        return "".join(self.chunks or ()) if self.text is None else self.text

    def pieces(self) -> tuple[str, ...]:
        """Return the chunks of the text."""
        text = self.whole_text()
        if self.chunks is not None:
            return self.chunks
        size = self.chunk_size or max(1, len(text))
        return tuple(text[start : start + size] for start in range(0, len(text), size))


class Rule(Reply, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reply to matching messages: words of the user (all of them, in any case), or the result of a tool.

    With `when_told`, the instructions must contain these words. In `text`, `{text}` is the user's last
    message and `{value}` the result of the tool.
    """

    when: str | tuple[str, ...] = ()
    when_tool: str | None = None
    when_told: str | None = None


R = TypeVar("R", bound=Reply)
Entries = Iterable[Reply | Mapping[str, Any] | str]


class ModelScript(msgspec.Struct, frozen=True):
    """A script with replies or rules."""

    replies: tuple[Reply, ...] = ()
    rules: tuple[Rule, ...] = ()
    strict: bool = True


def checked(entries: Entries, kind: type[R], *, source: str, unit: str = "reply") -> tuple[R, ...]:
    """Convert the entries of a script; a plain string is a reply with that text."""
    numbered = enumerate(entries, 1)
    return tuple(_entry(entry, kind, f"{source}, {unit} {number}") for number, entry in numbered)


def read_script(path: Path) -> ModelScript:
    """Read a script from a `.json` or `.jsonl` file."""
    source = f"script {path}"
    if path.suffix not in (".json", ".jsonl"):
        raise InvalidArgument(f"{source} is neither a .json nor a .jsonl file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidArgument(f"{source} cannot be read: {reason}") from None
    if path.suffix == ".jsonl":
        lines = ((f"{source}, line {number}", line) for number, line in enumerate(text.split("\n"), 1))
        replies = [_entry(_parsed(line, where), Reply, where) for where, line in lines if line.strip()]
        return ModelScript(replies=tuple(replies))
    data = _parsed(text, str(path))
    data = {"replies": data} if isinstance(data, list) else data
    if not isinstance(data, dict) or ("replies" in data) == ("rules" in data):
        raise InvalidArgument(
            f'{source} is neither a list of replies nor an object with "replies" or "rules"'
        )
    strict = data.get("strict", "replies" in data)
    if not isinstance(strict, bool):
        raise InvalidArgument(f'{source}: "strict" must be true or false')
    if unknown := sorted(data.keys() - {"replies", "rules", "strict"}):
        raise InvalidArgument(f"{source} has an unknown field {unknown[0]!r}")
    name = "rules" if "rules" in data else "replies"
    if not isinstance(data[name], list):
        raise InvalidArgument(f'{source}: "{name}" must be a list')
    if name == "rules":
        return ModelScript(rules=checked(data[name], Rule, source=source, unit="rule"), strict=strict)
    return ModelScript(checked(data[name], Reply, source=source), strict=strict)


def _entry(entry: object, kind: type[R], where: str) -> R:
    try:
        given = {"text": entry} if isinstance(entry, str) else entry
        found = entry if isinstance(entry, kind) else msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {error}") from None
    if found.chunks is not None and found.chunk_size is not None:
        raise InvalidArgument(f'{where}: give "chunks" or "chunk_size", not both')
    if found.chunks is not None and "".join(found.chunks) != found.whole_text():
        raise InvalidArgument(f'{where}: "chunks" do not add up to "text"')
    return found


def _parsed(text: str, where: str) -> Json:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON value")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise InvalidArgument(f"{where} is not JSON: {error.msg} ({at})") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where} is not JSON: {error}") from None


class PreparedReply(msgspec.Struct, frozen=True, eq=False):
    """A scripted reply with its deltas and its end."""

    deltas: tuple[ModelDelta, ...]
    ended: ReplyEnded
    reply: Reply


def prepare_reply(reply: Reply, number: int, model_id: str) -> PreparedReply:
    """Convert a scripted reply into the deltas of call *number*."""
    text, pieces, usage = reply.whole_text(), reply.pieces(), reply.usage
    if reply.failure is not None:
        pieces = pieces[: reply.failure.after_chunks]
    deltas: list[ModelDelta] = [ReasoningArrived(reply.reasoning)] if reply.reasoning else []
    deltas += [TextArrived(piece) for piece in pieces]
    if usage is None:
        counted = Usage(input=1, output=max(1, len(text) // 4), calls=1)
    else:
        counted = Usage(**{**msgspec.structs.asdict(usage), "calls": 1})
    ended = ReplyEnded(
        text=text,
        calls=tuple(
            RequestedCall(
                name=call.name,
                arguments=call.arguments_text(),
                provider_id=call.id or f"call_{number}_{place}",
            )
            for place, call in enumerate(reply.tool_calls, 1)
        ),
        usage=counted,
        model=reply.model or model_id,
        stop_reason=reply.stop_reason or ("tool_calls" if reply.tool_calls else "end"),
        reasoning=reply.reasoning_parts,
        response_id=reply.response_id,
    )
    return PreparedReply(tuple(deltas), ended, reply)


class ReplyRecorder:
    """Collects the deltas of one reply; `ended`, `failed` or `broken_off` converts them into a `Reply`."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._reasoning: list[str] = []

    def add(self, delta: TextArrived | ReasoningArrived) -> None:
        (self._chunks if isinstance(delta, TextArrived) else self._reasoning).append(delta.text)

    def ended(self, end: ReplyEnded) -> Reply:
        chunks = tuple(self._chunks)
        return Reply(
            text=end.text,
            chunks=chunks if len(chunks) > 1 and "".join(chunks) == end.text else None,
            reasoning="".join(self._reasoning),
            reasoning_parts=end.reasoning,
            tool_calls=tuple(
                ScriptedCall(name=call.name, arguments=call.arguments, id=call.provider_id)
                for call in end.calls
            ),
            usage=ScriptedUsage(**msgspec.structs.asdict(end.usage)),
            stop_reason=end.stop_reason,
            model=end.model,
            response_id=end.response_id,
        )

    def failed(self, error: Exception) -> Reply:
        """Record a failure. Only the type of a foreign exception is recorded: its text may say anything."""
        if not isinstance(error, StandfastError):
            return self._cut_off(ScriptedFailure(message=f"the model raised {type(error).__name__}"))
        return self._cut_off(
            ScriptedFailure(
                message=error.message,
                code=str(error.code),
                retryable=error.retryable,
                retry_after_ms=getattr(error, "retry_after_ms", None),
            )
        )

    def broken_off(self) -> Reply:
        """Record a reply that was cut off."""
        message = "the model's reply was cut off"
        return self._cut_off(ScriptedFailure(message=message, retryable=True))

    def _cut_off(self, failure: ScriptedFailure) -> Reply:
        failure = msgspec.structs.replace(failure, after_chunks=len(self._chunks))
        return Reply(chunks=tuple(self._chunks) or None, reasoning="".join(self._reasoning), failure=failure)
