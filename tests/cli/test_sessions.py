"""`standfast sessions`: the conversations of agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import Agent, Attachment, Runtime, tool
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.session_views import SessionExport


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)


@pytest.fixture
def talked(standfast: Any) -> None:
    """Run two turns in the session `chat`."""
    standfast("chat", "order A1")
    standfast("chat", "hello")


def _nodes(standfast: Any, session: str = "chat") -> list[Any]:
    return list(standfast("sessions", "show", session, "--json").document["nodes"])


@pytest.mark.usefixtures("talked")
def test_the_list_shows_state_turns_and_model(standfast: Any) -> None:
    """Ours: sessions are listed by last use, with their state."""
    standfast("chat", "refund A1", "--session", "asks")
    asks, chat = standfast("sessions", "list", "--json").document
    assert (asks["session_id"], asks["state"], asks["turns"]) == ("asks", "waiting", 1)
    assert (chat["session_id"], chat["state"], chat["turns"]) == ("chat", "idle", 2)
    assert chat["model"] == "scripted:demo"
    assert chat["last_used_at"] >= chat["created_at"]
    shown = standfast("sessions", "list").stdout
    assert shown.splitlines()[0].split() == [
        "session", "state", "turns", "nodes", "model", "or", "engine", "last", "used",
    ]  # fmt: skip
    assert "waiting" in shown


def test_an_empty_list_says_so(standfast: Any) -> None:
    """Ours: an empty list is not an error."""
    assert "no sessions yet" in standfast("sessions", "list").stdout
    assert standfast("sessions", "list", "--json").document == []


@pytest.mark.usefixtures("talked")
def test_a_conversation_is_shown_with_nodes_calls_and_usage(standfast: Any) -> None:
    """Ours: the ids that `fork` and `rewind` need can be copied from the output."""
    shown = standfast("sessions", "show", "chat")
    nodes = _nodes(standfast)
    assert all(node["id"] in shown.stdout for node in nodes)
    assert "user: order A1" in shown.stdout
    assert "order(order_id='A1')" in shown.stdout
    assert "reasoning" in shown.stdout


def test_pending_approvals_are_shown_with_the_conversation(standfast: Any) -> None:
    """Ours: the output shows what a session waits for and the command that decides it."""
    standfast("chat", "refund A1")
    ran = standfast("sessions", "show", "chat")
    view = standfast("sessions", "show", "chat", "--json").document
    (asked,) = view["approvals"]
    assert (view["state"], view["unfinished"]["turn_id"]) == ("waiting", asked["run_id"])
    assert f"approvals approve {asked['approval_id']}" in ran.stderr


def test_a_waiting_turn_is_shown_after_the_conversation_and_exported(standfast: Any) -> None:
    """Bug: `show` and `export` hid the turn that was waiting for a decision."""
    standfast("chat", "hello")
    standfast("chat", "refund A1")
    shown = standfast("sessions", "show", "chat").stdout
    before, _, after = shown.partition("waits")
    assert "user: hello" in before
    assert "user: refund A1" not in before
    assert "user: refund A1" in after
    assert "refund(" in after
    for words in ("show", "export"):
        document = standfast("sessions", words, "chat", "--json").document
        assert (len(document["nodes"]), document["current"]["state"]) == (2, "waiting")
        said = document["current"]["messages"]
        assert (said[0]["content"], said[-1]["tool_calls"][0]["name"]) == ("refund A1", "refund")
        assert document["current"]["waits"][0]["kind"] == "approval"


def test_the_attachments_of_a_waiting_turn_are_exported(standfast: Any, home: Path, tmp_path: Path) -> None:
    """Ours: an export is self-contained."""

    @tool(approval="manual")
    def refund() -> str:
        return "paid"

    async def main() -> None:
        asking = {"tool_calls": [{"name": "refund", "arguments": {}}]}
        agent = Agent(ScriptedModel([asking], strict=False), tools=[refund])
        async with Runtime(home / "standfast.db") as runtime:
            session = await runtime.session("pictures", agent=agent)
            await session.turn(["Refund this", Attachment(b"a picture", media_type="image/png")])

    asyncio.run(main())
    standfast("sessions", "export", "pictures", "--attachments", str(tmp_path / "files"), "--json")
    assert [file.read_bytes() for file in (tmp_path / "files").iterdir()] == [b"a picture"]


def test_an_unknown_session_is_an_error_that_names_the_list_command(standfast: Any) -> None:
    """Ours: the hint names the list of these sessions, not the sandbox's."""
    for words in (("show", "nope"), ("delete", "nope"), ("fork", "nope", "b"), ("rewind", "nope"),
                  ("export", "nope"), ("cancel", "nope")):  # fmt: skip
        error = standfast("sessions", *words, "--json").document["error"]
        assert (error["code"], "standfast sessions list" in error["hint"]) == ("SESSION_NOT_FOUND", True)


@pytest.mark.usefixtures("talked")
def test_a_fork_is_independent(standfast: Any) -> None:
    """Seed: a fork shares the history up to its end or a node."""
    nodes = _nodes(standfast)
    assert standfast("sessions", "fork", "chat", "copy").stdout == "copy\n"
    assert standfast("sessions", "fork", "chat", "early", "--at", nodes[3]["id"]).status == 0
    standfast("chat", "who are you", "--session", "copy")
    assert (len(_nodes(standfast, "copy")), len(_nodes(standfast, "early"))) == (8, 4)
    assert _nodes(standfast) == nodes
    again = standfast("sessions", "fork", "chat", "copy", "--json")
    assert (again.status, "already" in again.document["error"]["message"]) == (1, True)


@pytest.mark.usefixtures("talked")
def test_a_rewind_can_be_undone(standfast: Any) -> None:
    """Seed: rewind moves the leaf and rewrites nothing."""
    nodes = _nodes(standfast)
    assert nodes[3]["id"] in standfast("sessions", "rewind", "chat").stdout
    assert len(_nodes(standfast)) == 4
    assert standfast("sessions", "rewind", "chat", "--to", nodes[-1]["id"]).status == 0
    assert _nodes(standfast) == nodes
    assert standfast("sessions", "rewind", "chat", "--to", "t_1.0", "--turns", "1").status == 2
    assert standfast("sessions", "rewind", "chat", "--turns", "9", "--json").status == 1


@pytest.mark.usefixtures("talked")
def test_an_export_is_one_document_that_matches_its_schema(standfast: Any, tmp_path: Path) -> None:
    """Ours: head, nodes, turns, usage and approvals can be read back unchanged."""
    standfast("chat", "refund A1")
    printed = standfast("sessions", "export", "chat").stdout
    exported = msgspec.json.decode(printed, type=SessionExport)
    assert (exported.head.depth, len(exported.nodes), len(exported.turns)) == (6, 6, 3)
    assert (exported.usage, exported.approvals[0].capability) == (exported.head.usage, "refund")
    assert msgspec.json.decode(msgspec.json.encode(exported)) == json.loads(printed)
    assert msgspec.json.schema(SessionExport)["$ref"] == "#/$defs/SessionExport"
    out = tmp_path / "chat.json"
    assert standfast("sessions", "export", "chat", "--out", str(out)).status == 0
    assert (out.read_text(), out.stat().st_mode & 0o777) == (printed, 0o600)


def test_attachments_are_exported_by_digest(standfast: Any, home: Path, tmp_path: Path) -> None:
    """Ours: the document has no bytes; each attachment is a file named by its digest."""

    async def talk() -> None:
        async with Runtime(home / "standfast.db") as runtime:
            session = await runtime.session("pictures", agent=Agent(ScriptedModel(["nice"])))
            await session.turn(["look", Attachment(b"\x89PNG", "image/png", "a.png")])

    home.mkdir(mode=0o700)
    asyncio.run(talk())
    ran = standfast("sessions", "export", "pictures", "--attachments", str(tmp_path / "files"), "--json")
    (part,) = ran.document["attachments"]
    assert (part["name"], part["media_type"], part["size"]) == ("a.png", "image/png", 4)
    assert (tmp_path / "files" / part["digest"]).read_bytes() == b"\x89PNG"
    assert "[a.png, image/png, 4 bytes]" in standfast("sessions", "show", "pictures").stdout


@pytest.mark.usefixtures("talked")
def test_pruning_requires_confirmation(standfast: Any) -> None:
    """Ours: the command lists what it would delete, and needs --yes without a terminal."""
    standfast("sessions", "rewind", "chat")
    assert standfast("sessions", "prune").status == 2
    asked = standfast("sessions", "prune", "--branches")
    assert (asked.status, "--yes" in asked.stderr) == (2, True)
    assert standfast("sessions", "prune", "--older-than", "soon", "--yes").status == 2
    ran = standfast("sessions", "prune", "--branches", "--yes")
    assert ran.stdout.startswith("removed 0 sessions, 1 segment, ")
    assert ran.stdout.rstrip().endswith("freed")
    assert len(_nodes(standfast)) == 4


@pytest.mark.usefixtures("talked")
def test_pruning_deletes_old_sessions_but_not_waiting_ones(standfast: Any) -> None:
    """Ours: retention by age never deletes unfinished sessions."""
    standfast("chat", "refund A1", "--session", "asks")
    kept = standfast("sessions", "prune", "--older-than", "1d", "--yes", "--json").document
    assert kept["sessions"] == 0
    gone = standfast("sessions", "prune", "--older-than", "0s", "--yes", "--json").document
    assert (gone["sessions"], "bytes_freed" in gone) == (1, True)
    assert [row["session_id"] for row in standfast("sessions", "list", "--json").document] == ["asks"]


@pytest.mark.usefixtures("talked")
def test_a_deleted_session_no_longer_exists(standfast: Any) -> None:
    """Ours: `delete` does not ask for confirmation, and reports what it did."""
    assert "removed" in standfast("sessions", "delete", "chat").stdout
    assert standfast("sessions", "show", "chat").status == 1


def test_a_waiting_turn_can_be_cancelled(standfast: Any) -> None:
    """Ours: its call gets a result, its request is closed, and the next turn can start."""
    standfast("chat", "refund A1")
    assert "cancelled" in standfast("sessions", "cancel", "chat").stdout
    assert standfast("approvals", "list", "--pending", "--json").document == []
    tool = next(node for node in _nodes(standfast) if node["payload"]["type"] == "tool")
    assert tool["payload"]["error"]["code"] == "CANCELLED"
    assert standfast("chat", "hello").status == 0
    assert standfast("sessions", "cancel", "chat").status == 1


# Page checksums


def _open_with_another_program(database: Path) -> None:
    """Write to the file like a SQLite program without page checksums."""
    with contextlib.closing(sqlite3.connect(database)) as other, other:
        other.execute("PRAGMA user_version = 1")


@pytest.mark.usefixtures("talked")
def test_after_another_program_wrote_to_the_database_the_error_names_the_command_to_accept_it(
    standfast: Any, home: Path
) -> None:
    """Bug: restoring a backup was the only remedy, although nothing was damaged."""
    _open_with_another_program(home / "standfast.db")
    failed = standfast("sessions", "list")
    assert failed.status != 0
    hint = " ".join(failed.stderr.split())
    assert "backup" in hint
    assert "standfast sessions rewrite-checksums" in hint

    done = standfast("sessions", "rewrite-checksums", "--json").document
    assert done["rewritten"] is True
    assert done["records"] >= 3
    (session,) = standfast("sessions", "list", "--json").document
    assert session["turns"] == 2
    again = standfast("sessions", "rewrite-checksums")
    assert "nothing to do" in again.stdout


@pytest.mark.usefixtures("talked")
def test_rewriting_checksums_still_reports_a_damaged_record(standfast: Any, home: Path) -> None:
    """Ours: a damaged record is refused by name."""
    _open_with_another_program(home / "standfast.db")
    with contextlib.closing(sqlite3.connect(home / "standfast.db")) as other, other:
        other.execute("UPDATE sessions SET fence = fence + 1")
    refused = standfast("sessions", "rewrite-checksums", "--json")
    assert refused.status != 0
    assert "session chat does not match its digest" in refused.document["error"]["message"]
    assert "backup" in refused.document["error"]["hint"]


def test_rewriting_checksums_does_not_create_a_database(standfast: Any, home: Path) -> None:
    """Ours: a wrong --data-dir is an error."""
    refused = standfast("sessions", "rewrite-checksums")
    assert refused.status != 0
    assert "does not exist" in refused.stderr
    assert not (home / "standfast.db").exists()


@pytest.mark.usefixtures("talked")
def test_a_journal_is_shown_and_a_turn_can_be_forked_in_the_middle(standfast: Any) -> None:
    """Ours: the fork waits for a program that has its agent."""
    turn_id = standfast("sessions", "show", "chat", "--json").document["turns"][0]["turn_id"]
    steps = standfast("sessions", "journal", "chat", turn_id, "--json").document
    kinds = [step["input"]["type"] for step in steps]
    assert kinds[:3] == ["turn_started", "model_replied", "tool_settled"]
    assert "run_tool" in standfast("sessions", "journal", "chat", turn_id).stdout
    place = ("--at", turn_id, "--input", "3")
    forked = standfast("sessions", "fork", "chat", "what-if", *place, "--edit", '{"value": 6}', "--json")
    assert forked.document == {"session_id": "what-if", "forked_from": "chat"}
    assert standfast("sessions", "list", "--json").document[0]["state"] == "interrupted"
    assert standfast("sessions", "fork", "chat", "x", *place, "--edit", '{"v": 6}').status == 2
