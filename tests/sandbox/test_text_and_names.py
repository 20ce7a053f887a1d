"""Text that is not Unicode, and parameters whose names a language or the sandbox uses itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from standfast import BlockingSandbox, tool


@tool(side_effect="read")
def t(x: Any = 0) -> Any:
    """Return the argument."""
    return x


@tool(side_effect="read")
def odd(
    self: int = 0,
    name: int = 0,
    context: int = 0,
    args: int = 0,
    kwargs: int = 0,
    call: int = 0,
    tool: int = 0,
) -> list[int]:
    """Take parameters with unusual names."""
    return [self, name, context, args, kwargs, call, tool]


@tool(side_effect="read")
def half() -> str:
    """Return half of a surrogate pair."""
    return "\ud800"


@tool(side_effect="read")
def fail() -> str:
    """Raise an exception whose message has half of a surrogate pair."""
    raise ValueError("a \ud800")


@pytest.fixture(scope="module", params=["monty", "cpython", "auto", "quickjs"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def sbox(engine: str) -> Iterator[BlockingSandbox]:
    language = "typescript" if engine == "quickjs" else "python"
    with BlockingSandbox(tools=[t, odd, half, fail], engine=engine, language=language) as made:
        yield made


def outcome(sbox: BlockingSandbox, code: str) -> Any:
    result = sbox.run(code)
    return result.result if result.error is None else str(result.error.code)


REFUSED = {"monty": "UNSUPPORTED_FEATURE", "cpython": "RESULT_NOT_SERIALIZABLE"}
REFUSED |= {"auto": REFUSED["cpython"], "quickjs": REFUSED["cpython"]}


@pytest.mark.parametrize(
    ("python", "typescript"),
    [
        (r"'\ud800'", r"'\ud800'"),
        (r"['a\udfffb']", r"['a\udfffb']"),
        (r"{'\ud800': 1}", r"({'\ud800': 1})"),
        (r"x = '\U0000d800'" + "\nx", r"String.fromCharCode(0xd800)"),
        (r"f'\ud800{1}'", r"`\ud800${1}`"),
        (r"""eval("'\\ud800'")""", r"""JSON.parse('"\\ud800"')"""),
        ("#" * 70_000 + "\n" + r"'\ud800'", r"'😀'.slice(0, 1)"),
    ],
)
def test_a_lone_surrogate_is_not_a_result(
    sbox: BlockingSandbox, engine: str, python: str, typescript: str
) -> None:
    """Bug: Monty replaced it by U+FFFD without an error."""
    code = typescript if engine == "quickjs" else python
    assert outcome(sbox, code) == REFUSED[engine]


def test_a_lone_surrogate_is_not_an_argument(sbox: BlockingSandbox, engine: str) -> None:
    """Bug: the tool was called with a different text than the one in the code."""
    refused = "UNSUPPORTED_FEATURE" if engine == "monty" else "INVALID_ARGUMENT"
    await_ = "await " if engine == "quickjs" else ""
    assert outcome(sbox, await_ + r"t('\ud800')") == refused
    assert outcome(sbox, await_ + r"t({'\ud800': 1})") == refused


def test_a_lone_surrogate_is_printed_as_its_escape(sbox: BlockingSandbox, engine: str) -> None:
    """Bug: CPython printed a question mark, QuickJS U+FFFD."""
    if engine == "monty":
        assert outcome(sbox, r"print('\ud800')") == "UNSUPPORTED_FEATURE"
        return
    code = r"console.log('a\ud800b😀\udfff')" if engine == "quickjs" else r"print('a\ud800b😀\udfff')"
    assert sbox.run(code).stdout == "a\\ud800b😀\\udfff\n"
    raised = r"throw new Error('\ud800')" if engine == "quickjs" else r"raise ValueError('\ud800')"
    failed = sbox.run(raised)
    assert failed.error is not None
    assert failed.error.message.endswith("Error: \\ud800")


def test_a_lone_surrogate_cannot_enter_the_guest(sbox: BlockingSandbox, engine: str) -> None:
    """Ours: neither as code, nor as an input, nor as the result or the error of a tool."""
    for given in ("\ud800", ["a\udfff"], {"\ud800": 1}):
        refused = sbox.run("1", inputs={"a": given})
        assert refused.error is not None
        assert refused.error.code == "INVALID_ARGUMENT"
    code = sbox.run("'\ud800'")
    assert code.error is not None
    assert code.error.code == "INVALID_ARGUMENT"
    await_ = "await " if engine == "quickjs" else ""
    assert outcome(sbox, f"{await_}half()") == "SERIALIZE_ERROR"
    failed = sbox.run(f"{await_}fail()")
    assert failed.error is not None
    assert "a \\ud800" in failed.error.message


@pytest.mark.parametrize("text", [r"'\\ud800'", r"'\u00e9\u2028'", "'😀'"])
def test_text_that_only_resembles_a_lone_surrogate_is_accepted(sbox: BlockingSandbox, text: str) -> None:
    """Ours: escaped backslashes, other characters and complete pairs are valid."""
    assert outcome(sbox, text) == eval(text)


def test_parameters_may_have_any_name(sbox: BlockingSandbox, engine: str) -> None:
    """Bug: `t(**{'self': 1})` raised an error about `Tool.__call__`, and such a parameter was unusable."""
    if engine == "quickjs":
        code = "await odd({self: 1, name: 2, context: 3, args: 4, kwargs: 5, call: 6, tool: 7})"
        assert outcome(sbox, code) == [1, 2, 3, 4, 5, 6, 7]
        assert outcome(sbox, "String(t)") == "function t() { [native code] }"
        return
    arguments = "self=1, name=2, context=3, args=4, kwargs=5, call=6, tool=7"
    assert outcome(sbox, f"odd({arguments})") == [1, 2, 3, 4, 5, 6, 7]
    assert outcome(sbox, f"await odd({arguments})") == [1, 2, 3, 4, 5, 6, 7]
    for name in ("self", "name", "args", "kwargs", "_bridge", "later"):
        refused = sbox.run(f"t(**{{{name!r}: 1}})")
        assert refused.error is not None
        assert refused.error.message == f"t(): Object contains unknown field `{name}`"


def test_a_tool_can_be_called_directly_with_a_parameter_named_self() -> None:
    """Bug: a direct call from the host's Python code had the same fault."""
    assert odd(self=1, name=2)[:2] == [1, 2]
    with pytest.raises(TypeError, match=r"t\(\) got an unexpected keyword argument 'self'"):
        t(self=1)
