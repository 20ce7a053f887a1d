"""The engine of a session: requested, default, stored, or unavailable here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from standfast import BlockingSandbox, Language, RunRequest, Sandbox, tool
from standfast.errors import ApprovalAlreadyDecided, CodeExecutionUnavailable, InvalidArgument
from standfast.ports.code_engine import CodeEngine
from standfast.sandbox.engine_kinds import KINDS, EngineKind, EngineSettings
from standfast.sandbox.monty.cell_engine import MontyCells

pytestmark = pytest.mark.slow


def _missing(settings: EngineSettings) -> CodeEngine:
    raise CodeExecutionUnavailable("rare is not installed", hint="pip install rare")


RARE = EngineKind(
    language=Language.PYTHON, version=lambda: "1", open=lambda settings: MontyCells(settings.workers)
)
NOT_HERE = EngineKind(language=Language.PYTHON, version=lambda: "1", open=_missing)


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an engine that can be removed again."""
    monkeypatch.setitem(KINDS, "rare", RARE)
    return "rare"


@tool(approval="manual")
def ask() -> str:
    return "asked"


def test_one_sandbox_runs_several_languages_in_different_sessions() -> None:
    """Seed: each request names its language."""

    async def go() -> None:
        async with Sandbox() as box:
            assert (await box.run("x = 2\nx", session="p")).result == 2
            assert (await box.run("const x: number = 3; x", session="t", language="typescript")).result == 3
            request = RunRequest(session_id="t", code="x + 1", language=Language.TYPESCRIPT)
            assert (await box.execute(request)).result == 4
            made = await box.create("u", language="typescript")
            assert (made.meta.language, made.engine) == ("typescript", "quickjs")
            assert [(await box.session(name)).engine for name in "pt"] == ["monty", "quickjs"]

    asyncio.run(go())


def test_an_unknown_language_or_engine_is_refused() -> None:
    """Ours: the hint lists the available ones."""
    with pytest.raises(InvalidArgument, match="language 'cobol' is unknown"):
        BlockingSandbox(language="cobol")
    with pytest.raises(InvalidArgument, match="no engine 'warp'") as caught:
        BlockingSandbox(engine="warp")
    assert "monty" in (caught.value.hint or "")
    with pytest.raises(InvalidArgument, match="quickjs runs typescript, not python"):
        BlockingSandbox(engine="quickjs")
    with BlockingSandbox() as box:
        wrong = box.run("1", language="cobol")
        assert (wrong.status, wrong.error and wrong.error.code) == ("validation_error", "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("language", "good", "bad"),
    [
        ("python", ["x", "new", "λ"], ["class", "$x", "a b"]),
        ("typescript", ["x", "$x", "def"], ["new", "a-b", ""]),
    ],
)
def test_an_input_must_have_a_name_that_the_language_allows(
    language: Language, good: list[str], bad: list[str]
) -> None:
    """Ours: a wrong name is refused before anything runs."""
    for name in good:
        RunRequest(language=language, inputs={name: 1})
    for name in bad:
        with pytest.raises(InvalidArgument, match="identifier"):
            RunRequest(language=language, inputs={name: 1})


def test_sessions_of_an_unavailable_engine_can_be_listed_and_removed_but_not_run(
    rare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a data directory is usable with fewer engines than wrote it."""
    with BlockingSandbox(tools=[ask], data_dir=tmp_path, engine=rare) as box:
        box.run("x = 1", session="idle")
        box.run("ask()", session="waits")
        snapshot = box.export_snapshot("idle")
    monkeypatch.setitem(KINDS, rare, NOT_HERE)
    with BlockingSandbox(tools=[ask], data_dir=tmp_path) as box:
        assert {(info.meta.id, info.engine, info.state) for info in box.sessions()} == {
            ("idle", rare, "idle"),
            ("waits", rare, "waiting_for_approval"),
        }
        (approval,) = box.approvals(pending=True)
        refused = box.run("x", session="idle")
        assert (refused.status, refused.error and refused.error.hint) == (
            "validation_error",
            "pip install rare",
        )
        with pytest.raises(CodeExecutionUnavailable):
            box.approve(approval.approval_id)
        assert box.approval(approval.approval_id).state == "pending"
        assert not box.can_restore(snapshot)
        assert box.run("1 + 1", session="other").result == 2
        assert box.destroy("idle")
    monkeypatch.setitem(KINDS, rare, RARE)
    with BlockingSandbox(tools=[ask], data_dir=tmp_path) as box:
        assert box.approve(approval.approval_id).result == "asked"
        with pytest.raises(ApprovalAlreadyDecided):
            box.approve(approval.approval_id)


def test_a_session_on_auto_moves_once_and_the_result_says_so(tmp_path: Path) -> None:
    """Ours: code that Monty refuses before anything ran moves the session with its variables."""
    with BlockingSandbox(data_dir=tmp_path, engine="auto", tools=[ask]) as box:
        assert box.run("x = [1, 2]\nx", session="s").diagnostics == []
        moved = box.run("class Items(list):\n    pass\nlen(Items(x))", session="s")
        assert (moved.status, moved.result) == ("ok", 2)
        assert [(note.severity, note.code) for note in moved.diagnostics] == [("info", "ENGINE_NOTE")]
        assert "cpython" in moved.diagnostics[0].message.lower()
        stays = box.run("class More(Items):\n    pass\nlen(More(x)) + len(ask())", session="s")
        assert (stays.status, stays.diagnostics[1:]) == ("waiting_for_approval", [])
        (approval,) = box.approvals(pending=True)
        assert box.session("s").engine == "auto"
    with BlockingSandbox(data_dir=tmp_path, tools=[ask]) as box:
        assert box.approve(approval.approval_id).result == 2 + len("asked")
        assert box.run("len(More(x))", session="s").result == 2


def test_a_session_recreated_by_another_process_runs_on_its_new_engine(rare: str, tmp_path: Path) -> None:
    """Ours: the stored session determines the engine."""
    with BlockingSandbox(data_dir=tmp_path) as one, BlockingSandbox(data_dir=tmp_path, engine=rare) as other:
        one.run("x = 1", session="s")
        assert other.destroy("s")
        other.run("x = 2", session="s")
        assert one.run("x", session="s").result == 2
        assert one.session("s").engine == rare
