"""A model that says what a script says.

Theory of operation
-------------------
A script of replies is indexed by the request's `call_number`, which counts the calls of a session over all
processes. The model itself remembers nothing that matters: one script serves many sessions, and goes on
where it was after a restart. A recording may have several replies to the call of one number, of several
sessions: then the request picks one. A script of rules looks at the last message instead.

Rules
-----
1. A call that the script has no reply for is an error, and so are replies that nobody asked for.
2. Everything that can be prepared is prepared before the first call: a chunk costs one step of a generator.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from standfast.errors import CallerError, ModelError
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.providers.plan import Plan, error_of, planned
from standfast.providers.request_digest import request_digest
from standfast.providers.script import (
    Entries,
    Expectation,
    Reply,
    Rule,
    Script,
    checked,
    read_script,
)

__all__ = ["RepliesLeftOver", "Reply", "Rule", "ScriptedModel", "UnexpectedModelCall"]


class UnexpectedModelCall(ModelError):
    """The model was asked something that its script does not provide for."""

    def __init__(self, call_number: int, problem: str, request: ModelRequest) -> None:
        asked = _shortened(_words_of(request.messages[-1])) if request.messages else "nothing"
        super().__init__(f"call {call_number} was not expected: {problem}; the last message is {asked!r}")
        self.call_number = call_number


class RepliesLeftOver(CallerError):
    """The model is closed before all of its script was asked for."""

    def __init__(self, model_id: str, total: int, asked: int, first: Reply) -> None:
        super().__init__(
            f"{total - asked} of the {total} replies of {model_id} were not asked for; "
            f"the first of them is reply {asked + 1}: {_shortened(_gist_of(first))!r}",
            hint="remove them from the script, or make it with strict=False",
        )
        self.count = total - asked


class ScriptedModel:
    """A `ModelProvider` that replays a script."""

    def __init__(self, replies: Entries, *, strict: bool = True, name: str = "script") -> None:
        found = checked(replies, Reply, source=f"script {name!r}")
        self._take(Script(replies=found, strict=strict), f"scripted:{name}")

    @classmethod
    def from_file(cls, path: str | Path, *, name: str | None = None) -> ScriptedModel:
        """The model of a `.json` or `.jsonl` file, called after the path if it has no other *name*."""
        model = cls.__new__(cls)
        model._take(read_script(Path(path)), f"scripted:{name or path}")
        return model

    def _take(self, script: Script, model_id: str) -> None:
        self.model_id = model_id
        self._plans: dict[int, list[Plan]] = {}
        for place, reply in enumerate(script.replies, 1):
            number = reply.call or place
            self._plans.setdefault(number, []).append(planned(reply, number, model_id))
        self._total = len(script.replies)
        self._served: set[Plan] = set()
        self._rules = script.rules
        self._strict = script.strict and not script.rules
        self._asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        plan = self._ruled(request) if self._rules else self._numbered(request)
        reply = plan.reply
        if reply.expect is not None:
            _check(reply.expect, request)
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        for number, delta in enumerate(plan.deltas):
            if reply.chunk_delay_ms and number:
                await asyncio.sleep(reply.chunk_delay_ms / 1000)
            yield delta
        if reply.failure is not None:
            raise error_of(reply.failure)
        yield plan.ended

    async def close(self) -> None:
        """Raise `RepliesLeftOver` if the script is strict and was not asked to its end; once only."""
        left = [
            plan for number in sorted(self._plans) if number > self._asked for plan in self._plans[number]
        ]
        if self._strict and left:
            self._strict = False
            raise RepliesLeftOver(self.model_id, self._total, self._total - len(left), left[0].reply)

    def _numbered(self, request: ModelRequest) -> Plan:
        number = request.call_number
        known = self._plans.get(number)
        if known is None:
            raise UnexpectedModelCall(number, f"the script has {self._total} replies", request)
        self._asked = max(self._asked, number)
        return known[0] if len(known) == 1 else self._fitting(known, request)

    def _fitting(self, known: list[Plan], request: ModelRequest) -> Plan:
        """Of the replies to one call, the first for this request that was not given yet."""
        digest = request_digest(request)
        fits = [plan for plan in known if _expected_digest(plan.reply) in (None, digest)]
        chosen = next((plan for plan in fits if plan not in self._served), (fits or known)[-1])
        self._served.add(chosen)
        return chosen

    def _ruled(self, request: ModelRequest) -> Plan:
        for rule in self._rules:
            if _fits(rule, request):
                return planned(_filled(rule, request.messages), request.call_number, self.model_id)
        raise UnexpectedModelCall(request.call_number, "no rule of the script fits", request)


def _check(expect: Expectation, request: ModelRequest) -> None:
    """Refuse a request that is not what the script expects."""
    words = _words_of(request.messages[-1]) if request.messages else ""
    problem = None
    if expect.last_contains is not None and expect.last_contains not in words:
        problem = f"the last message should contain {expect.last_contains!r}"
    elif expect.instructions_contain is not None and expect.instructions_contain not in request.instructions:
        problem = f"the instructions should contain {expect.instructions_contain!r}"
    elif expect.tools is not None and set(expect.tools) != (offered := {t.name for t in request.tools}):
        problem = f"the tools should be {sorted(expect.tools)}, not {sorted(offered)}"
    elif expect.request is not None and expect.request != request_digest(request):
        problem = "it does not ask what was asked when this was recorded"
    if problem is not None:
        raise UnexpectedModelCall(request.call_number, problem, request)


def _expected_digest(reply: Reply) -> str | None:
    return None if reply.expect is None else reply.expect.request


def _fits(rule: Rule, request: ModelRequest) -> bool:
    """Whether the rule is about the last message, and the tools that it calls are there."""
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


def _filled(rule: Rule, messages: list[Message]) -> Rule:
    """The rule with what the user said and the tool returned in its text."""
    if rule.text is None or "{" not in rule.text:
        return rule
    last = messages[-1] if messages else None
    known = {"text": _last_said(messages), "value": _words_of(last) if isinstance(last, ToolMessage) else ""}
    text = re.sub(r"\{(text|value)\}", lambda found: known[found[1]], rule.text)
    return msgspec.structs.replace(rule, text=text)


def _last_said(messages: list[Message]) -> str:
    """What the user said last."""
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return text_of(message.content)
    return ""


def _words_of(message: Message) -> str:
    """A message as text: what was said, or what the model reads of a tool's result."""
    if isinstance(message, UserMessage):
        return text_of(message.content)
    if isinstance(message, AssistantMessage):
        return message.text
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        return message.error.message
    return message.value if isinstance(message.value, str) else msgspec.json.encode(message.value).decode()


def _gist_of(reply: Reply) -> str:
    """What a reply is about, in a line."""
    if reply.failure is not None:
        return f"failure: {reply.failure.message}"
    return reply.whole_text() or "calls " + ", ".join(call.name for call in reply.tool_calls)


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
