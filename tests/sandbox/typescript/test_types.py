"""The TypeScript compiler's checks, and the message if it is not installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import Code
from standfast.model.code import Diagnostic, Severity
from standfast.sandbox.typescript import types as tsc
from standfast.sandbox.typescript.types import check_types

Found = Callable[..., list[Diagnostic]]
needs_tsc = pytest.mark.skipif(
    tsc.find_tsc() is None, reason="the TypeScript compiler (tsc) is not installed"
)


@pytest.fixture
def found(functions: Any) -> Found:
    def look(code: str, *, bound: tuple[str, ...] = ()) -> list[Diagnostic]:
        return check_types(code, bound=bound, functions=functions, inputs=("data", "history"))

    return look


def test_without_a_compiler_the_rest_is_checked_and_the_gap_is_reported(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seed: a check reports what it covered."""
    monkeypatch.setenv(tsc.VARIABLE, str(tmp_path / "nowhere"))
    wrong, said = found("add('1')")
    assert (wrong.severity, wrong.message) == (Severity.ERROR, "add(): a is '1', not integer")
    assert said.severity is Severity.INFO
    assert said.message == (
        "syntax and calls were checked, types were not: the TypeScript compiler is not installed"
    )
    assert said.hint is not None
    assert "npm install typescript" in said.hint


def test_code_that_cannot_be_parsed_needs_no_compiler(found: Found) -> None:
    """Ours: a syntax error is reported at once."""
    assert [item.code for item in found("add(")] == [Code.SYNTAX_ERROR]


def test_a_failing_compiler_is_reported(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours: a compiler failure is not an error in the code."""
    broken = tmp_path / "tsc"
    broken.write_text("#!/bin/sh\necho broken\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv(tsc.VARIABLE, str(broken))
    (said,) = found("1 + 1")
    assert (said.severity, said.message.endswith("failed: broken")) == (Severity.INFO, True)


def test_a_hanging_compiler_is_stopped(found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours: no check waits for ever."""
    slow = tmp_path / "tsc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv(tsc.VARIABLE, str(slow))
    monkeypatch.setattr(tsc, "_TIMEOUT_S", 0.05)
    (said,) = found("1 + 1")
    assert "took more than" in said.message


def test_the_compilers_output_is_parsed(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours: its columns are UTF-16 units, and an explanation may follow on separate lines."""
    fake = tmp_path / "tsc"
    fake.write_text(
        "#!/bin/sh\ncat <<'END'\ncell.ts(1,12): error TS2769: No overload matches this call.\n"
        "  Overload 1 of 2 gave an error.\n    Type 'x' is not 'y'.\n"
        "ambient.d.ts(1,1): error TS1: not ours\ncell.ts(2,7): error TS2451: declared again\nEND\nexit 2\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv(tsc.VARIABLE, str(fake))
    (item,) = found("x = '𝒳ä'; yy.zz\nlet x = 1")
    assert item.message == "No overload matches this call. Type 'x' is not 'y'. (TS2769)"
    assert item.span is not None
    assert (item.span.line, item.span.column, item.span.end_column) == (1, 11, 13)


@needs_tsc
@pytest.mark.slow
def test_types_are_checked(found: Found) -> None:
    """Seed: a strict check finds what the compiler finds; each mistake is reported once."""
    code = (
        "const x = await add({ a: 1 });\nx.toUpperCase();\nadd('1');\nserch(1);\nconst s: string = "
        "'ä𝒳'; s.nope"
    )
    items = found(code)
    assert [(item.span.line, item.code) for item in items if item.span] == [
        (2, Code.TYPE_ERROR),
        (3, Code.TYPE_ERROR),
        (4, Code.UNKNOWN_TOOL),
        (5, Code.TYPE_ERROR),
    ]
    assert "TS2339" in items[0].message
    assert items[3].span is not None
    assert items[3].span.column == 27


@needs_tsc
@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "const n: number = await add(1, 2) + await add({ a: 1 }); "
        "const s: string = await order({ item: { name: 'x' } })",
        "const u: User = {} as any; mine.foo(); new Mine(); let m: Mine; data.x.y; "
        "history.map((h) => h); result = 5",
        "await book({ day: '2026-01-01', price: 1.5 }); await search({ query: 'x', limit: null }); "
        "await listed(1, 'a')",
        "const u = new URL('http://x'); u.searchParams.get('a'); setTimeout(() => {}, 1); "
        "console.log(structuredClone({}))",
        "class A { constructor(private x: number) {} } enum E { B } export const z = E.B; "
        "for await (const q of [1]) {}",
        "const [a, ...b] = [1, 2].toSorted(); Object.groupBy; crypto.randomUUID(); "
        "new TextEncoder().encode('x').length",
    ],
)
def test_a_strict_check_has_no_false_alarms(found: Found, code: str) -> None:
    """Ours: names of the session have type any, and types of earlier programs are ignored."""
    errors = [item for item in found(code, bound=("mine", "Mine")) if "groupBy" not in item.message]
    assert errors == []
