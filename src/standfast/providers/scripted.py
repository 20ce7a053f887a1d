"""A model that replays a script.

A script of replies is indexed by the request's `call_number`, which counts the calls of a session across all
processes. The model has no state that matters: one script serves many sessions, and resumes after a restart.
A recording may have several replies for one number, from several sessions: then the request selects one. A
script of rules is matched against the last message instead. A call without a reply is an error, and so are
unused replies. Replies are prepared before the first call, so that a chunk costs one step of a generator.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from standfast.errors import ModelError, RepliesLeftOver, UnexpectedModelCall
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.providers.request_digest import request_digest
from standfast.providers.script import (
    Entries,
    Expectation,
    ModelScript,
    PreparedReply,
    Reply,
    Rule,
    checked,
    prepare_reply,
    read_script,
)

__all__ = ["Reply", "Rule", "ScriptedModel"]


class ScriptedModel:
    """A `ModelProvider` that replays a script."""

    def __init__(self, replies: Entries, *, strict: bool = True, name: str = "script") -> None:
        found = checked(replies, Reply, source=f"script {name!r}")
        self._load(ModelScript(replies=found, strict=strict), f"scripted:{name}")

    @classmethod
    def from_file(cls, path: str | Path, *, name: str | None = None) -> ScriptedModel:
        """Read the script of a model from a `.json` or `.jsonl` file; the path is its default *name*."""
        model = cls.__new__(cls)
        model._load(read_script(Path(path)), f"scripted:{name or path}")
        return model

    def _load(self, script: ModelScript, model_id: str) -> None:
        self.model_id = model_id
        self._replies: dict[int, list[PreparedReply]] = {}
        for place, reply in enumerate(script.replies, 1):
            number = reply.call or place
            self._replies.setdefault(number, []).append(prepare_reply(reply, number, model_id))
        self._total = len(script.replies)
        self._served: set[PreparedReply] = set()
        self._rules = script.rules
        self._strict = script.strict and not script.rules
        self._asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        if self._rules:
            rule = next((rule for rule in self._rules if _fits(rule, request)), None)
            if rule is None:
                raise _unexpected(request, "no rule of the script matches")
            if rule.text is not None and "{" in rule.text:
                last = request.messages[-1] if request.messages else None
                value = _words_of(last) if isinstance(last, ToolMessage) else ""
                known = {"text": _last_said(request.messages), "value": value}
                text = re.sub(r"\{(text|value)\}", lambda found: known[found[1]], rule.text)
                rule = msgspec.structs.replace(rule, text=text)
            prepared = prepare_reply(rule, request.call_number, self.model_id)
        else:
            prepared = self._numbered(request)
        reply = prepared.reply
        if reply.expect is not None:
            _check(reply.expect, request)
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        for number, delta in enumerate(prepared.deltas):
            if reply.chunk_delay_ms and number:
                await asyncio.sleep(reply.chunk_delay_ms / 1000)
            yield delta
        if reply.failure is not None:
            failure = reply.failure
            raise ModelError(
                failure.message,
                code=failure.code,
                retryable=failure.retryable,
                retry_after_ms=failure.retry_after_ms,
            )
        yield prepared.ended

    async def close(self) -> None:
        """Raise `RepliesLeftOver` if the script is strict and has unused replies; once only."""
        unused = [number for number in sorted(self._replies) if number > self._asked]
        left = [one for number in unused for one in self._replies[number]]
        if self._strict and left:
            self._strict = False
            first = left[0].reply
            summary = first.whole_text() or "calls " + ", ".join(call.name for call in first.tool_calls)
            if first.failure is not None:
                summary = f"failure: {first.failure.message}"
            raise RepliesLeftOver(
                self.model_id, total=self._total, asked=self._total - len(left), first=_shortened(summary)
            )

    def _numbered(self, request: ModelRequest) -> PreparedReply:
        number = request.call_number
        known = self._replies.get(number)
        if known is None:
            raise _unexpected(request, f"the script has {self._total} replies")
        self._asked = max(self._asked, number)
        if len(known) == 1:
            return known[0]
        # Of several replies to one call, choose the first unused one that expects this request.
        expected = (None, request_digest(request))
        fits = [one for one in known if one.reply.expect is None or one.reply.expect.request in expected]
        chosen = next((one for one in fits if one not in self._served), (fits or known)[-1])
        self._served.add(chosen)
        return chosen


def _unexpected(request: ModelRequest, problem: str) -> UnexpectedModelCall:
    asked = _shortened(_words_of(request.messages[-1])) if request.messages else "nothing"
    return UnexpectedModelCall(request.call_number, problem, asked)


def _check(expect: Expectation, request: ModelRequest) -> None:
    """Raise `UnexpectedModelCall` if the request is not the expected one."""
    words = _words_of(request.messages[-1]) if request.messages else ""
    problem = None
    if expect.last_contains is not None and expect.last_contains not in words:
        problem = f"the last message should contain {expect.last_contains!r}"
    elif expect.instructions_contain is not None and expect.instructions_contain not in request.instructions:
        problem = f"the instructions should contain {expect.instructions_contain!r}"
    elif expect.tools is not None and set(expect.tools) != (offered := {t.name for t in request.tools}):
        problem = f"the tools should be {sorted(expect.tools)}, not {sorted(offered)}"
    elif expect.request is not None and expect.request != request_digest(request):
        problem = "the request differs from the recorded one"
    if problem is not None:
        raise _unexpected(request, problem)


def _fits(rule: Rule, request: ModelRequest) -> bool:
    """Return whether the rule matches the last message, and its tools are on offer."""
    last = request.messages[-1] if request.messages else None
    if rule.when_told is not None and rule.when_told not in request.instructions:
        return False
    if rule.when_tool is not None and not (isinstance(last, ToolMessage) and last.name == rule.when_tool):
        return False
    if rule.when:
        if rule.when_tool is None and not isinstance(last, UserMessage):
            return False
        said = _last_said(request.messages).casefold()
        words = (rule.when,) if isinstance(rule.when, str) else rule.when
        if not all(word.casefold() in said for word in words):
            return False
    return {call.name for call in rule.tool_calls} <= {tool.name for tool in request.tools}


def _last_said(messages: list[Message]) -> str:
    """Return the text of the last user message."""
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return text_of(message.content)
    return ""


def _words_of(message: Message) -> str:
    """Return the text of a message; for a tool's result, the text that the model reads."""
    if isinstance(message, UserMessage):
        return text_of(message.content)
    if isinstance(message, AssistantMessage):
        return message.text
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        return message.error.message
    return message.value if isinstance(message.value, str) else msgspec.json.encode(message.value).decode()


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
