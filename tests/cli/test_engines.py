"""Languages and engines on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast.errors import CodeExecutionUnavailable
from standfast.sandbox import engine_kinds

pytestmark = pytest.mark.slow

TYPESCRIPT = ("--language", "typescript", "--session-id", "ts")


def test_a_session_shows_its_language_and_its_engine(standfast: Any) -> None:
    """Ours: one data directory holds sessions of all engines."""
    standfast("run", "-e", "x = 1")
    standfast("run", *TYPESCRIPT, "-e", "const x = 2")
    listed = standfast("sessions", "list", "--json").document
    assert {(item["session_id"], item["code"]["language"], item["code"]["engine"]) for item in listed} == {
        ("default", "python", "monty"),
        ("ts", "typescript", "quickjs"),
    }
    assert "quickjs" in standfast("sessions", "list").stdout
    assert "typescript" in standfast("sessions", "show", "ts").stdout


def test_every_engine_has_its_own_default_session(standfast: Any) -> None:
    """Ours: a user who tries another language still has the earlier session."""
    standfast("run", "-e", "x = 1")
    standfast("run", "--language", "typescript", "-e", "const x = 2")
    standfast("run", "--engine", "cpython", "-e", "x = 3")
    standfast("run", "--engine", "auto", "-e", "x = 4")
    assert standfast("run", "-e", "x", "--json").document["result"] == 1
    assert standfast("run", "--language", "typescript", "-e", "x", "--json").document["result"] == 2
    assert standfast("run", "--engine", "cpython", "-e", "x", "--json").document["result"] == 3
    assert standfast("run", "--engine", "auto", "-e", "x", "--json").document["result"] == 4
    assert standfast("run", "--engine", "monty", "-e", "x", "--json").document["result"] == 1


def test_another_language_or_engine_for_a_session_is_refused(standfast: Any, tmp_path: Path) -> None:
    """Ours: both are fixed when the session is created, and the message names them."""
    standfast("run", "-e", "x = 1")
    named = ("--session-id", "default")
    wrong = standfast("run", "-e", "x", "--engine", "cpython", *named, "--json")
    assert wrong.status == 1
    assert "is python on monty, not python on cpython" in wrong.document["error"]["message"]
    script = tmp_path / "a.ts"
    script.write_text("const y: number = 1; y")
    wrong = standfast("run", "-f", str(script), *named, "--json")
    assert "is python on monty, not typescript" in wrong.document["error"]["message"]
    assert standfast("run", "-e", "x", "--engine", "monty", "--json").document["result"] == 1


def test_an_engine_for_another_language_is_a_usage_error(standfast: Any) -> None:
    """Ours: wrong usage exits with status 2."""
    wrong = standfast("run", *TYPESCRIPT, "--engine", "cpython", "-e", "1")
    assert wrong.status == 2
    assert "cpython runs python, not typescript" in wrong.stderr


def test_missing_packages_are_named_with_the_extra_that_installs_them() -> None:
    """Ours: an engine that only some users install says how to get it."""
    with pytest.raises(CodeExecutionUnavailable, match="no_such_module") as caught:
        engine_kinds._require("standfast[typescript]", "TypeScript", "sys", "no_such_module")
    assert caught.value.hint == "pip install 'standfast[typescript]'"
    assert caught.value.code == "ENGINE_UNAVAILABLE"


def test_the_doctor_lists_every_engine(standfast: Any) -> None:
    """Ours: the doctor lists which engines work here, and why others do not."""
    checks = {item["name"]: item for item in standfast("doctor", "--json").document["checks"]}
    assert "1 + 1 is 2" in checks["engine"]["detail"]
    assert "1 + 1 is 2" in checks["engine quickjs"]["detail"]
    assert checks["engine cpython"]["ok"]


def test_a_file_with_the_suffix_ts_is_typescript(standfast: Any, tmp_path: Path) -> None:
    """Ours: the file name selects the language; --language overrides it."""
    script = tmp_path / "report.ts"
    script.write_text("const total: number = [1, 2, 3].reduce((a, b) => a + b)\nconsole.log('hi')\ntotal\n")
    ran = standfast("run", "-f", str(script), "--session-id", "ts")
    assert (ran.status, ran.stdout) == (0, "hi\n6\n")
    assert standfast("validate", "-f", str(script), "--session-id", "ts").status == 0
    assert standfast("validate", "-f", str(script), "--language", "python").status == 1


def test_typescript_variables_persist_between_runs(standfast: Any) -> None:
    """Seed: a session is state that runs share."""
    standfast("run", *TYPESCRIPT, "-e", "const x = {n: 20}")
    ran = standfast("run", *TYPESCRIPT, "-e", "x.n + y", "--inputs", '{"y": 1}', "--json").document
    assert (ran["status"], ran["result"]) == ("ok", 21)


def test_a_typescript_repl_accepts_entries_of_several_lines(standfast: Any) -> None:
    """Ours: open brackets and templates continue an entry."""
    entries = "function twice(n: number) {\n  return 2 * n\n}\n`a\n${twice(2)}`\ntwice(\n  21\n)\n"
    ran = standfast("repl", *TYPESCRIPT, stdin=entries)
    assert (ran.status, ran.stdout) == (0, '"a\\n4"\n42\n')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (TYPESCRIPT, 'const x = await fee() + await refund({order_id: "A1", cents: 500}) + await fee(); x'),
        (("--engine", "cpython", "--session-id", "c"), 'x = fee() + refund("A1", 500) + fee()\nx'),
    ],
    ids=["quickjs", "cpython"],
)
def test_a_waiting_run_is_approved_in_another_process_on_its_own_engine(
    process: Any, refunds: str, ledger: Path, options: tuple[str, ...], code: str
) -> None:
    """Ours: a person can approve without knowing the engine; calls made before are not repeated."""
    waiting = process("run", *options, "--tools", refunds, "-e", code, "--json").document
    assert waiting["status"] == "waiting_for_approval"
    (asked,) = process("approvals", "list", "--pending", "--json").document
    done = process("approvals", "approve", asked["approval_id"], "--json").document
    assert (done["status"], done["result"]) == ("ok", 560)
    assert ledger.read_text().splitlines() == ["fee 30", "refund A1 500", "fee 30"]
    assert process("run", *options, "-e", "x", "--json").document["result"] == 560
