"""Positions in TypeScript code."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.sandbox.typescript.script import read_script

pytestmark = pytest.mark.slow

BEFORE = "var o: any = {}; var g = (x: any) => x;\ng(1);\n\n"


@pytest.mark.parametrize(
    "code",
    [
        "const z = @o.a.b",
        "let z: number = @o.a.b as any",
        "const z = {\n q: 1,\n r: @o.a.b }",
        "const z = [\n 1,\n @o.a.b]",
        "for (const x of @o.a.b) {}",
        "for (const x of @o.a) {}",
        "const @{ p } = o.a",
        "const @[p]: any = o.a",
        "const f = function (): any { return @o.a.b }; f()",
        "var f = () => { let q = @o.a.b; return q }; f()",
        "var f = () => {\n\n var q = 1;\n  return @o.a.b }; f()",
        "const z = @o.a.b()",
        "const z = @o.a.b.c.d",
        "const z = o.x\n  ? 1\n  : @o.a.b",
        "g(\n1,\n2,\n@o.a.b)",
        "[1].map(x =>\n  @x.y.z)",
        "const a = 1, z = @o.a.b",
        "const q = o.a?.b?.c; let y = 1;\nconst r = @q.z",
        "const h = {\n m() { return @o.a.b } }\nh.m()",
        "enum E { A, B }\nclass A { m(): void { @o.a.b } }\nnew A().m()",
        "throw new @Error('x')",
        "const ä: 'äö€𝒳' = 'äö€𝒳'; @nope(ä)",
        "@o.a.b\r\nlet x = 1",
        "let x: string\r\n@o.a.b",
    ],
)
def test_an_error_is_reported_at_its_position(guest: Any, code: str) -> None:
    """Bug: for a property of undefined, the engine reports the position of an earlier statement."""
    whole = BEFORE + code
    at = whole.index("@")
    place = (whole[:at].count("\n") + 1, at - whole[:at].rfind("\n"))
    assert guest.failure(whole.replace("@", ""))[1] == place


@pytest.mark.parametrize(
    "code",
    [
        "if (@o.a.b) {}",
        "while (@o.a.b) {}",
        "switch (@o.a.b) {}",
        "const z = typeof @o.a.b",
        "var f = () => @o.a.b; f()",
        "const z = `${@o.a.b}`",
        "const z = o.x ?? @o.a.b",
        "const z = await @o.a.b",
        "class A { x = @o.a.b }\nnew A()",
    ],
)
def test_an_error_is_reported_on_its_line(guest: Any, code: str) -> None:
    """Ours: if the column is that of the whole expression, the line is still right."""
    whole = BEFORE + code
    line = whole[: whole.index("@")].count("\n") + 1
    assert guest.failure(whole.replace("@", ""))[1][0] == line


def test_the_first_line_counts_like_the_others(guest: Any) -> None:
    """Bug: the engine's columns begin at 0 in the first line and at 1 in all others."""
    assert guest.failure("const a: number = 1; nope(a)")[1] == (1, 22)
    assert guest.failure("nope()")[1] == (1, 1)
    assert guest.failure("\n  nope()")[1] == (2, 3)


def test_positions_past_the_end_are_clamped_to_the_code() -> None:
    """Ours: whatever the engine reports, a position lies in the code."""
    script = read_script("const x: number = a.b\nx")
    assert script.position(99, 99) == (2, 2)
    assert script.position(0, 0) == (1, 1)
    assert script.position(1, 500)[0] in (1, 2)


PARTS = st.sampled_from(
    [
        "const a: number = b.c;",
        "let d: 'ä𝒳' | \"€\" = e.f as any;",
        "type A = { b: string }",
        "interface B {\n c: D\n}",
        "f<G>(h!, i as J.K.L);",
        "class M<N> extends O<P> { private q: R = s.t }",
        "enum U { V, W = 1 }",
        "function x<Y>(z: Y): asserts z {\n return z.y as any\n}",
        "x = (a: B): C =>\n a.b.c",
        "const { a }: B = c",
        "\t",
        "\r\n",
        "// ä: 𝒳",
        "/* €\n : number */",
        ";`${a as any}: b`",
        "'x as y'",
        "declare const y: Z",
        "label: for (;;) {}",
        "const [a, b]: [c, d] = e.f ? g.h :\n i.j",
        "export const k = l.m satisfies N",
        "\ufeff",
    ]
)


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(st.lists(PARTS, max_size=8))
def test_lines_are_kept_and_every_position_can_be_mapped_back(parts: list[str]) -> None:
    """Ours: each line keeps its width unless the script records a change."""
    code = "\n".join(parts)
    script = read_script(code)
    lines, written = re.split("\r\n|\n", code), re.split("\r\n|\n", script.javascript)
    assert len(lines) == len(written)
    moved = {script.javascript.encode()[:at].count(b"\n") for at, _, _ in script.moves.at}
    for number, (old, new) in enumerate(zip(lines, written, strict=True)):
        if number not in moved:
            assert len(new.encode()) == len(old.encode())
            assert len(new.encode("utf-16-le")) == len(old.encode("utf-16-le"))
        for column in range(2, len(new.encode()) + 2):
            line, place = script.position(number + 1, column)
            assert (line, 1 <= place <= len(old) + 2) == (number + 1, True)


@settings(max_examples=settings.default.max_examples, deadline=None)
@given(st.lists(PARTS, max_size=6))
def test_plain_javascript_is_not_changed(parts: list[str]) -> None:
    """Ours: reading plain JavaScript changes nothing."""
    once = read_script("\n".join(part for part in parts if "enum" not in part)).javascript
    assert read_script(once).javascript == once
