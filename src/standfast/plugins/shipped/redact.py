"""Redact: removes secrets from data that is stored, shown or sent to the model.

Call results and model replies are redacted before any other component sees them, so that neither journal nor
history contains the secret. The messages of every model call are redacted once more before they are sent. A
streamed reply is held back from each position where a secret could begin until it is clear that none does.

Rules
-----
1. A user's message is stored unchanged. The model sees it redacted.
2. A call whose arguments contained a secret is executed with the replacement. A model cannot know a secret
   that it has never seen.
3. Plugins that store results, such as `ToolOutputBudget`, must come after this one in `Agent(plugins=[...])`.

Not here: the system prompt, attachments, numbers, errors of the model's provider. External completions are
stored unchanged, and redacted before they become the result of their call.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from standfast.errors import ErrorObject
from standfast.model.directive import ShortCircuitTool
from standfast.model.message import AssistantMessage, Message, Reasoning, RequestedCall, TextPart, ToolMessage
from standfast.plugins.contexts import (
    AssistantResponseHookContext,
    AssistantStreamHookContext,
    ToolResultHookContext,
    TurnTransformContext,
)
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin, PluginSessionContext
from standfast.ports.model_provider import ReplyEnded
from standfast.tools.secret_finder import DEFAULT_PATTERNS, SecretFinder


class Redact(Plugin):
    """A plugin for agents that may encounter keys and passwords.

    Args:
        patterns: regular expressions that match secrets. With patterns other than the defaults, replies are
            streamed line by line, because a match could begin anywhere.
        secrets: secret strings, such as the values of environment variables.
        replacement: the text that replaces a secret.
    """

    id = "redact"
    summary = "Keeps secrets out of what is stored, shown and sent to the model."

    def __init__(
        self,
        patterns: Sequence[str] = DEFAULT_PATTERNS,
        *,
        secrets: Sequence[str] = (),
        replacement: str = "[redacted]",
    ) -> None:
        self.patterns = patterns
        self.secrets = secrets
        self.replacement = replacement
        self.check_options()
        self._held: dict[str, tuple[tuple[str, int], str]] = {}
        self._known: dict[int, tuple[Message, Message]] = {}

    def check_options(self) -> None:
        self._finder = SecretFinder(self.patterns, self.secrets, self.replacement)

    def session_ready(self, ctx: PluginSessionContext) -> None:
        """Offer other plugins a function that redacts their own requests to a model."""
        ctx.extensions.put("redact", self._cleaned)

    @hook
    async def after_tool_call(self, ctx: ToolResultHookContext) -> ShortCircuitTool | None:
        clean = self._finder.clean
        value, error, texts = clean(ctx.value), self._error(ctx.error), self._texts(ctx.texts)
        traceback = "" if ctx.record is None else ctx.record.traceback or ""
        if (value, error, texts, clean(traceback)) == (ctx.value, ctx.error, ctx.texts, traceback):
            return None
        return ShortCircuitTool(value=value, error=error, texts=texts)

    @hook
    async def assistant_stream(self, ctx: AssistantStreamHookContext) -> str:
        """Redact a piece of the reply. Text held back from a failed attempt is dropped."""
        call = (ctx.turn_id, ctx.number)
        held_of, held = self._held.get(ctx.kind, (call, ""))
        text = held + ctx.chunk if held_of == call else ctx.chunk
        end = len(text) if ctx.last else self._finder.safe_length(text)
        self._held[ctx.kind] = (call, text[end:])
        return self._finder.clean_text(text[:end])

    @hook
    async def assistant_response(self, ctx: AssistantResponseHookContext) -> ReplyEnded:
        reply = ctx.response
        return msgspec.structs.replace(
            reply,
            text=self._finder.clean_text(reply.text),
            calls=tuple(self._call(call) for call in reply.calls),
            reasoning=self._thoughts(reply.reasoning),
        )

    @hook(priority=-1_000)
    async def context_transform(self, ctx: TurnTransformContext, messages: list[Message]) -> list[Message]:
        """Redact each message once, after all other plugins have added theirs."""
        known = self._known
        self._known = {id(one): known.get(id(one)) or (one, self._cleaned(one)) for one in messages}
        return [self._known[id(one)][1] for one in messages]

    def _cleaned(self, message: Message) -> Message:
        """Return the message without secrets; the same object if it has none."""
        clean = self._finder.clean
        changed: Message
        if isinstance(message, ToolMessage):
            changed = msgspec.structs.replace(
                message,
                value=clean(message.value),
                error=self._error(message.error),
                edited_arguments=clean(message.edited_arguments),
                shown=clean(message.shown),
                texts=self._texts(message.texts),
            )
        elif isinstance(message, AssistantMessage):
            calls = tuple(
                msgspec.structs.replace(call, arguments=clean(call.arguments), raw=clean(call.raw))
                for call in message.tool_calls
            )
            changed = msgspec.structs.replace(
                message,
                text=clean(message.text),
                raw=clean(message.raw),
                tool_calls=calls,
                reasoning=self._thoughts(message.reasoning),
            )
        elif isinstance(message.content, str):
            changed = msgspec.structs.replace(message, content=clean(message.content))
        else:
            parts = (
                TextPart(text=clean(part.text)) if isinstance(part, TextPart) else part
                for part in message.content
            )
            changed = msgspec.structs.replace(message, content=tuple(parts))
        return message if changed == message else changed

    def _error(self, error: ErrorObject | None) -> ErrorObject | None:
        if error is None:
            return None
        clean = self._finder.clean
        return msgspec.structs.replace(error, message=clean(error.message), hint=clean(error.hint))

    def _texts(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self._finder.clean_text(text) for text in texts)

    def _thoughts(self, thoughts: tuple[Reasoning, ...]) -> tuple[Reasoning, ...]:
        """Redact the model's reasoning. Providers sign it, so a part with a secret is not sent back."""
        clean = self._finder.clean
        return tuple(
            thought
            if clean(thought.text) == thought.text and clean(thought.opaque) == thought.opaque
            else msgspec.structs.replace(thought, text=clean(thought.text), opaque=None)
            for thought in thoughts
        )

    def _call(self, call: RequestedCall) -> RequestedCall:
        """Return a call without secrets in its arguments, even if JSON escapes hide them."""
        finder = self._finder
        try:
            given = msgspec.json.decode(call.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return msgspec.structs.replace(call, arguments=finder.clean_text(call.arguments))
        clean = finder.clean(given)
        if clean == given and finder.clean_text(call.arguments) == call.arguments:
            return call
        return msgspec.structs.replace(call, arguments=msgspec.json.encode(clean).decode())
