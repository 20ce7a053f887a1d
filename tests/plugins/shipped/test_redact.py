"""Redact: removes secrets from records, streams and prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import Place, StagedModel, asks, events_of, of_kind, said

from standfast import Agent, ToolError, tool
from standfast.errors import InvalidArgument, ModelError
from standfast.model.canonical import Json
from standfast.model.events import ReasoningStreamed, TextRetracted, TextStreamed
from standfast.model.message import AssistantMessage, Reasoning, ToolMessage, UserMessage
from standfast.plugins import Plugin, ShortCircuitTool, ToolResultHookContext, TurnTransformContext, hook
from standfast.plugins.shipped import Redact, ToolOutputBudget
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.providers.scripted import ScriptedModel
from standfast.testing.clock import FakeClock
from standfast.testing.stored_bytes import stored_bytes
from standfast.tools.secret_finder import DEFAULT_PATTERNS, SecretFinder

# Written in halves: they are not secrets, but a scanner of this repository would take them for some.
OPENAI = "sk-" + "proj-Ab12Cd34Ef56Gh78Ij90"
AWS = "AKIA" + "ABCDEFGHIJKLMNOP"
GITHUB = "ghp_" + "a1B2" * 9
SLACK = "xoxb-" + "123456789012-abcdef"
BEARER = "Bearer " + "eyJhbGciOi.J9x-_=="
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n+/==\n-----END RSA PRIVATE KEY-----"
GOOGLE = "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q"
GROQ = "gsk_" + "a1B2" * 12
TOKEN = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0In0" + ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9Pl"
KEYS = (OPENAI, AWS, GITHUB, SLACK, BEARER, PEM, GOOGLE, GROQ, TOKEN)
PASSWORD = 'corr"ect\nhorse'
GONE = "[redacted]"

FINDER = SecretFinder(DEFAULT_PATTERNS, (PASSWORD,), GONE)


class Vault:
    """Tools that return secrets and log their arguments."""

    def __init__(self, value: Json = None) -> None:
        self.value = value
        self.given: list[str] = []

    def tools(self) -> list[Any]:
        @tool(side_effect="read")
        def reveal(key: str = "") -> Any:
            """Return a secret."""
            self.given.append(key)
            return self.value

        @tool(side_effect="read")
        def fail() -> str:
            """Raise an error that contains a secret."""
            raise ToolError("REFUSED", f"the key {OPENAI} is wrong", hint=f"not {AWS}")

        return [reveal, fail]


def guarded(model: Any, *more: Plugin, value: Json = None, secrets: Sequence[str] = ()) -> Agent[Any, Any]:
    return Agent(model, tools=Vault(value).tools(), plugins=[Redact(secrets=secrets), *more])


def results(messages: Any) -> list[ToolMessage]:
    return [one for one in messages if isinstance(one, ToolMessage)]


async def revealed(place: Place, value: Json, **options: Any) -> Json:
    """Return the result of a call after redaction."""
    async with place.runtime() as runtime:
        model = ScriptedModel([asks(("reveal", {})), "end"])
        session = await runtime.session("s", agent=guarded(model, value=value, **options))
        (message,) = results((await session.turn("go")).messages)
        assert message.error is None
        return message.value


# Detection


@pytest.mark.parametrize("key", KEYS)
def test_common_keys_are_found_anywhere_in_a_text(key: str) -> None:
    """Seed: common keys are found by their form."""
    for before, after in [("", ""), ("key=", "\n"), ("“", "”"), ("密钥", "。"), ("_", " x"), ("(", ")")]:
        assert FINDER.clean_text(before + key + after) == before + GONE + after


@pytest.mark.parametrize(
    "text",
    [
        "a task-force-of-twenty-people",
        "risk-averse-and-very-careful-people",
        "sk-short",
        "bearer of bad news",
        "Bearer authentication",
        "AKIA",
        "the toolbox-is-open-now-123",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "",
    ],
)
def test_ordinary_words_are_not_redacted(text: str) -> None:
    """Ours: users would switch off a plugin that redacts too much."""
    assert FINDER.clean_text(text) == text


def test_a_private_key_without_its_end_is_found_and_the_text_after_it_is_kept() -> None:
    """Ours: a key in truncated output is often incomplete."""
    cut = PEM[:45]
    assert FINDER.clean_text(f"a {cut}") == f"a {GONE}"
    assert FINDER.clean_text(f"a {cut}\n(and so on), {OPENAI}") == f"a {GONE}(and so on), {GONE}"


def test_an_exact_secret_is_found_in_its_json_encoding() -> None:
    """Ours: a secret inside a JSON text is escaped."""
    assert FINDER.clean_text(f"{PASSWORD} {json.dumps(PASSWORD)}") == f'{GONE} "{GONE}"'


def test_overlapping_secrets_are_both_removed_completely() -> None:
    """Ours: replacing one secret must not reveal a part of the other."""
    finder = SecretFinder((), ("abcd", "abcdefgh", "ghijkl", "mnop"), "*")
    assert finder.clean_text("abcdefgh abcd abcdefghijklmnop") == "* * **"
    assert FINDER.clean_text(f"{OPENAI}{BEARER}!") == f"{GONE}!"


def test_a_replacement_is_inserted_literally() -> None:
    r"""Ours: a `\1` in the replacement is not a group reference."""
    assert SecretFinder((), ("abcd",), r"\1\g<0>").clean_text("abcd") == r"\1\g<0>"


# Tool results


def test_results_are_cleaned_at_any_nesting(place: Place) -> None:
    """Seed: values are cleaned recursively, including keys."""
    value = {
        "a": [1, None, True, 2.5, f"x {OPENAI} y", {"deep": [[AWS]]}],
        OPENAI: "first",
        AWS: "second",
        "é漢🦜": GITHUB + "🦜",
    }
    assert asyncio.run(revealed(place, value)) == {
        "a": [1, None, True, 2.5, f"x {GONE} y", {"deep": [[GONE]]}],
        GONE: "first",
        f"{GONE} 2": "second",
        "é漢🦜": GONE + "🦜",
    }


@pytest.mark.parametrize("value", [None, 0, "", [], {}, "nothing here", {"a": [1, "b"]}])
def test_results_without_secrets_are_unchanged(memory: Place, value: Json) -> None:
    """Ours: no event reports a replacement that did not happen."""
    assert asyncio.run(revealed(memory, value)) == value


def test_a_long_result_is_cleaned(memory: Place) -> None:
    """Ours: a megabyte with secrets at both ends is cleaned."""
    middle = "word " * 190_000
    found = asyncio.run(revealed(memory, f"{OPENAI} {middle}{PASSWORD}", secrets=[PASSWORD]))
    assert found == f"{GONE} {middle}{GONE}"


def test_a_deeply_nested_result_is_cleaned(memory: Place) -> None:
    """Ours: values are cleaned at any depth that results may have."""
    value: Json = OPENAI
    expected: Json = GONE
    for _ in range(127):
        value, expected = [value], [expected]
    assert asyncio.run(revealed(memory, value)) == expected


def test_errors_are_cleaned_in_result_and_record(place: Place) -> None:
    """Seed: error messages are cleaned too."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=guarded(ScriptedModel([asks(("fail", {})), "end"])))
            (message,) = results((await session.turn("go")).messages)
            assert message.error is not None
            assert message.record is not None
            assert (message.error.code, message.error.message) == ("REFUSED", f"the key {GONE} is wrong")
            assert message.error.hint == f"not {GONE}"
            assert message.record.error == message.error

    asyncio.run(main())


def test_the_full_output_that_other_plugins_keep_is_cleaned(place: Place) -> None:
    """Ours: both plugins take effect in any order, for a result and for an error."""

    class Loud(Plugin):
        @hook
        async def after_tool_call(self, ctx: ToolResultHookContext) -> ShortCircuitTool | None:
            if ctx.error is None:
                return None
            longer = f"{ctx.error.message} {OPENAI}\n" * 2_000
            error = type(ctx.error)(code=ctx.error.code, message=longer)
            return ShortCircuitTool(error=error)

    async def main() -> None:
        calls = asks(("reveal", {}), ("fail", {}))
        plugins = [Loud(), Redact(), ToolOutputBudget()]
        vault = Vault(f"{OPENAI}\n" * 2_000)
        async with place.runtime() as runtime:
            agent = Agent(ScriptedModel([calls, "end"]), tools=vault.tools(), plugins=plugins)
            session = await runtime.session("s", agent=agent)
            value, error = results((await session.turn("go")).messages)
            assert OPENAI not in str(value) + str(error)
            assert len(str(value)) + len(str(error)) < 60_000
            for one in (value, error):
                kept = await session.attachment(one.attachments[0].digest)
                assert OPENAI.encode() not in kept
                assert kept.count(GONE.encode()) >= 2_000

    asyncio.run(main())


# The model's replies


def test_replies_and_arguments_are_cleaned(place: Place) -> None:
    """Seed: assistant_response cleans the text and the arguments of tool calls."""

    async def main() -> None:
        odd = '{"key": "\\u0073k-' + OPENAI[3:] + '"}'
        doubled = f'{{"key": "{AWS}", "key": "b"}}'
        broken = f"{{'key': {GITHUB}"
        calls = asks(
            ("reveal", {"key": f"-{PASSWORD}-"}), ("reveal", odd), ("reveal", doubled), ("reveal", broken)
        )
        model = StagedModel(ScriptedModel([calls, f"it is {OPENAI}!"]).stream)
        vault = Vault("ok")
        async with place.runtime() as runtime:
            agent = Agent(model, tools=vault.tools(), plugins=[Redact(secrets=[PASSWORD])])
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert result.output == f"it is {GONE}!"
            assert sorted(vault.given) == sorted([f"-{GONE}-", GONE, "b"])  # the calls ran concurrently
            (asked,) = [
                one for one in result.messages if isinstance(one, AssistantMessage) and one.tool_calls
            ]
            assert asked.tool_calls[3].raw == f"{{'key': {GONE}"
            assert "sk-" not in str(asked)

    asyncio.run(main())


def test_reasoning_that_contains_a_secret_is_kept_cleaned_and_not_sent_back(memory: Place) -> None:
    """Ours: signed reasoning cannot be modified, so it is dropped."""
    thoughts = (
        Reasoning(origin="o", text="nothing secret", opaque={"signature": "s"}),
        Reasoning(origin="o", text=f"the key is {OPENAI}", opaque={"signature": "t"}),
        Reasoning(origin="o", text="", opaque={"data": [AWS]}),
    )

    async def stream(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        yield ReplyEnded(text="ok", reasoning=thoughts)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=guarded(StagedModel(stream)))
            said = (await session.turn("go")).messages[-1]
            assert isinstance(said, AssistantMessage)
            assert said.reasoning == (
                thoughts[0],
                Reasoning(origin="o", text=f"the key is {GONE}"),
                Reasoning(origin="o"),
            )

    asyncio.run(main())


def test_a_stream_shows_the_whole_reply_without_its_secrets(memory: Place) -> None:
    """Seed: secrets may be split across chunks; nothing is lost at the end."""

    async def main() -> None:
        text = f"The key is {OPENAI}. 密钥{AWS} and {BEARER}\n{PEM}\nBearer of news s"
        clean = FINDER.clean_text(text)
        for size in (1, 2, 3, 7, 50, 1_000):
            script = [{"text": text, "chunk_size": size, "reasoning": f"hm, {OPENAI} b"}]
            async with memory.runtime() as runtime:
                session = await runtime.session(f"s{size}", agent=guarded(ScriptedModel(script)))
                events = await events_of(session.turn("go"))
            assert "".join(one.text for one in of_kind(TextStreamed, events)) == clean
            assert "".join(one.text for one in of_kind(ReasoningStreamed, events)) == f"hm, {GONE} b"
            assert all(one.text for one in of_kind(TextStreamed, events))

    asyncio.run(main())


def test_ordinary_text_is_streamed_word_by_word(memory: Place) -> None:
    """Ours: text that cannot begin a secret is streamed immediately, in any script."""

    async def main() -> None:
        for text, least in (("one two three four five six", 6), ("一二三四五六七八九十", 10)):
            async with memory.runtime() as runtime:
                agent = guarded(ScriptedModel([{"text": text, "chunk_size": 1}]))
                session = await runtime.session(f"s{least}", agent=agent)
                events = of_kind(TextStreamed, await events_of(session.turn("go")))
            assert len(events) >= least

    asyncio.run(main())


def test_text_held_back_by_a_failed_attempt_is_not_shown_in_the_next(memory: Place) -> None:
    """Ours: the text of a failed attempt is discarded, including text that was held back."""

    async def main() -> None:
        attempts = 0

        async def play(request: ModelRequest) -> AsyncIterator[ModelDelta]:
            nonlocal attempts
            attempts += 1
            yield TextArrived("shown held")
            if attempts == 1:
                raise ModelError("broken", retryable=True)
            yield ReplyEnded(text="shown held")

        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=guarded(StagedModel(play)))
            events = await events_of(session.turn("go"))
        assert [one.text for one in of_kind(TextStreamed, events)] == ["shown ", "shown ", "held"]
        assert [one.chars for one in of_kind(TextRetracted, events)] == [6]

    asyncio.run(main())


def test_with_custom_patterns_text_is_streamed_line_by_line(memory: Place) -> None:
    """Ours: the plugin cannot know where an unknown pattern might begin."""

    async def main() -> None:
        text = "the code is 12 34 56 ok\nend 12 34"
        async with memory.runtime() as runtime:
            plugin = Redact([r"\d\d \d\d \d\d"], replacement="*")
            agent = Agent(ScriptedModel([{"text": text, "chunk_size": 1}]), plugins=[plugin])
            session = await runtime.session("s", agent=agent)
            events = of_kind(TextStreamed, await events_of(session.turn("go")))
        assert [one.text for one in events] == ["the code is * ok\n", "end 12 34"]

    asyncio.run(main())


PIECES = st.sampled_from(
    [
        *KEYS,
        PASSWORD,
        PASSWORD[:7],
        OPENAI[:9],
        BEARER[:7],
        PEM[:40],
        PEM[20:],
        " ",
        "\n",
        "word ",
        "é",
        "漢",
        ".",
        "x" * 300,
    ]
)


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(st.lists(PIECES, max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_no_chunking_of_a_reply_reveals_a_secret(pieces: list[str], sizes: list[int]) -> None:
    """Ours: for any chunking, the streamed text equals the cleaned reply."""
    text = "".join(pieces)
    shown, held, start, turn = "", "", 0, 0
    while start < len(text):
        size = sizes[turn % len(sizes)]
        held += text[start : start + size]
        end = FINDER.safe_length(held)
        shown, held = shown + FINDER.clean_text(held[:end]), held[end:]
        start, turn = start + size, turn + 1
    shown += FINDER.clean_text(held)
    assert shown == FINDER.clean_text(text)


def test_a_word_longer_than_any_key_is_streamed_as_it_arrives() -> None:
    """Ours: a long encoded text is not held back, and a key inside it is not shown."""
    text = "x" * 9_000
    assert FINDER.safe_length(text) == 9_000 - 4_096
    assert FINDER.safe_length(f"{text}/{OPENAI * 200}") == 9_001


# The model's view


def test_the_model_reads_a_users_secret_redacted_and_the_session_keeps_it(place: Place) -> None:
    """Seed: the stored user message is what the user typed; the model's view is clean."""

    async def main() -> None:
        model = StagedModel(ScriptedModel(["one", "two", "three"]).stream)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=guarded(model))
            await session.turn(f"use {OPENAI}")
            await session.turn([f"or {AWS}", "thanks"])
            await session.turn("bye")
            assert said(await session.messages()) == [f"use {OPENAI}", f"or {AWS}\nthanks", "bye"]
        assert said(model.requests[-1].messages) == [f"use {GONE}", f"or {GONE}\nthanks", "bye"]

    asyncio.run(main())


def test_history_older_than_the_plugin_is_cleaned_on_its_way_to_the_model(place: Place) -> None:
    """Ours: a session may be older than its plugin."""

    async def main() -> None:
        calls = asks(("reveal", {"key": OPENAI}), ("reveal", f"[{GITHUB}"))
        model = StagedModel(ScriptedModel([calls, f"so {AWS}", "ok"]).stream)
        async with place.runtime() as runtime:
            careless = Agent(model, tools=Vault([OPENAI]).tools())
            await (await runtime.session("s", agent=careless)).turn("go")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=guarded(model))
            await session.turn("again")
        seen = str(model.requests[-1].messages)
        assert all(key not in seen for key in KEYS)
        assert seen.count(GONE) == 4

    asyncio.run(main())


def test_content_that_other_plugins_add_to_the_view_is_cleaned(memory: Place) -> None:
    """Ours: this holds for any order of the plugins."""

    class Helpful(Plugin):
        @hook(priority=-5)
        async def context_transform(self, ctx: TurnTransformContext, messages: list[Any]) -> list[Any]:
            return [UserMessage(content=f"psst, {OPENAI}"), *messages]

    async def main() -> None:
        model = StagedModel(ScriptedModel(["ok"]).stream)
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=guarded(model, Helpful()))).turn("go")
        assert said(model.requests[0].messages) == [f"psst, {GONE}", "go"]

    asyncio.run(main())


# Storage


def test_no_byte_of_a_secret_reaches_the_disk(tmp_path: Path, clock: FakeClock) -> None:
    """Seed: neither the journal nor the commit contains the secret."""
    secrets = [PASSWORD, *KEYS]
    place = Place(tmp_path / "standfast.db", clock)

    async def main() -> None:
        value = {"all": secrets, **dict.fromkeys(KEYS, 1)}
        script: list[Any] = [
            {"text": f"so {OPENAI}", **asks(*(("reveal", {"key": key}) for key in secrets), ("fail", {}))},
            asks(("reveal", f"broken {PASSWORD}")),
            f"they are {' and '.join(secrets)}",
        ]
        async with place.runtime() as runtime:
            agent = guarded(ScriptedModel(script), ToolOutputBudget(512, 10), value=value, secrets=[PASSWORD])
            await (await runtime.session("s", agent=agent)).turn("tell me")
            on_disk()

    def on_disk() -> None:
        data = stored_bytes(tmp_path)
        assert b"tell me" in data
        assert GONE.encode() in data
        for secret in secrets:
            for form in (secret, json.dumps(secret)[1:-1], secret[5:25]):
                assert form.encode() not in data

    asyncio.run(main())
    on_disk()


def test_a_session_opened_with_its_own_secrets_keeps_them(place: Place) -> None:
    """Ours: secrets can be given with a session as well as with an agent."""

    async def main() -> None:
        model = ScriptedModel([asks(("reveal", {})), "end"])
        async with place.runtime() as runtime:
            agent = guarded(model, value="the word is swordfish")
            options = {"redact": {"secrets": ["swordfish"], "replacement": "*"}}
            session = await runtime.session("s", agent=agent, options=options)
            (message,) = results((await session.turn("go")).messages)
            assert message.value == "the word is *"

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"patterns": "sk-"},
        {"patterns": ["("]},
        {"patterns": ["x*"]},
        {"patterns": [1]},
        {"secrets": "hunter2"},
        {"secrets": [""]},
        {"secrets": ["abc"]},
        {"secrets": [None]},
        {"replacement": None},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    """Ours: invalid options raise an error when the agent is created or the session is opened."""
    with pytest.raises(InvalidArgument):
        Redact(**options)
    with pytest.raises(InvalidArgument):
        Redact().configure(options)
