"""The messages of a conversation: from the user, the model, and the tools that it called.

Media is never inside a message: an `AttachmentPart` or an `InputPart` refers to a blob by its digest. A
model's reasoning is sent back only to its `Reasoning.origin`. A tool call whose arguments were not a JSON
object keeps them as `raw`; they are never read as `{}`.
"""

from __future__ import annotations

import msgspec

from standfast.errors.caller import InvalidArgument
from standfast.errors.codes import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import ExternalCallRecord
from standfast.model.limits import Usage


class TextPart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="text"):
    """A piece of text."""

    text: str


class AttachmentPart(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="attachment", omit_defaults=True
):
    """An image or a file, by the digest of its bytes. In a tool's result, the model sees those `shown`."""

    digest: str
    media_type: str
    size: int
    name: str | None = None
    shown: bool = False

    def __post_init__(self) -> None:
        for text in (self.media_type, "" if self.name is None else self.name):
            if not isinstance(text, str) or text.encode("utf-8", "ignore").decode() != text:
                raise InvalidArgument(
                    "the media type and the name of an attachment must be text without lone surrogates, "
                    f"got {text!r:.80}"
                )


class InputPart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="input"):
    """Text or JSON that code can read under `name`, by the digest of its bytes; the model sees the name."""

    name: str
    digest: str
    media_type: str
    size: int


Part = TextPart | AttachmentPart | InputPart
Content = str | tuple[Part, ...]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call that the model requested. `call_id` counts within the turn; `provider_id` is the model's own.

    A call made by code has as its `parent` the call that runs the code, and may have positional `args`.
    `line` is the line of that code that made it, from 1; 0 if other code did, such as a function of an
    earlier cell; None if the engine could not determine it.
    """

    call_id: int
    name: str
    arguments: dict[str, Json] | None = None
    raw: str | None = None
    provider_id: str = ""
    args: tuple[Json, ...] = ()
    parent: int = 0
    line: int | None = None


class RequestedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call as the provider sent it: the arguments are complete but unchecked text."""

    name: str
    arguments: str = "{}"
    provider_id: str = ""


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A model's reasoning before a reply, as text and in the form that its provider accepts back (`opaque`).

    `origin` identifies the provider, the endpoint and the model; the reasoning is sent to no other.
    """

    origin: str
    text: str = ""
    opaque: Json = None


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="user", omit_defaults=True):
    """A message from the user, or one that the host injected into a running turn (with its `input_id`)."""

    content: Content
    input_id: str | None = None


class AssistantMessage(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="assistant", omit_defaults=True
):
    """One reply of the model. `raw` is everything that it wrote, if `text` is only the prose.

    `model` is the one that served it and `response_id` the provider's id of the reply.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    model: str = ""
    usage: Usage = Usage()
    stop_reason: str = ""
    raw: str | None = None
    reasoning: tuple[Reasoning, ...] = ()
    response_id: str = ""


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool", omit_defaults=True):
    """The result of one call: `value`, or `error` if it failed.

    `edited_arguments` are those it ran with, if a person or a plugin changed them. `attachments` are stored
    with the result, such as a whole long output; the model sees only those that are `shown`. `texts` are read
    by the model after the value, but not passed to code. `shown`, if set, is the text that the model reads
    instead of the value.
    """

    call_id: int
    name: str
    value: Json = None
    error: ErrorObject | None = None
    record: ExternalCallRecord | None = None
    provider_id: str = ""
    edited_arguments: dict[str, Json] | None = None
    attachments: tuple[AttachmentPart, ...] = ()
    shown: str | None = None
    texts: tuple[str, ...] = ()


Message = UserMessage | AssistantMessage | ToolMessage


class InjectedTurnInput(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a running turn. The sender can withdraw it by its `id`."""

    message: UserMessage
    id: str | None = None


def text_of(content: Content) -> str:
    """Return the text of *content*, without attachments and inputs."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))
