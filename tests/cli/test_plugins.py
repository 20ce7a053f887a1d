"""`standfast plugins`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.plugins.hook import HOOKS

SHIPPED = [
    "code-mode", "compaction", "guard", "memory", "plan", "redact", "rolling-history", "subagents",
    "tool-output-budget",
]  # fmt: skip

Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install a package that offers a plugin where Python finds packages, as an installer would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def put(name: str, target: str, source: str = "", package: str = "third") -> None:
        metadata = site / f"{package}-2.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.5\n")
        (metadata / "entry_points.txt").write_text(f"[standfast.plugins]\n{name} = {target}\n")
        if source:
            (site / f"{target.partition(':')[0]}.py").write_text(source)

    return put


def listed(standfast: Any) -> dict[str, Any]:
    ran = standfast("plugins", "list", "--json")
    assert ran.status == 0
    return {one["name"]: one for one in ran.document}


def test_the_list_has_the_plugins_that_ship_with_standfast(standfast: Any) -> None:
    """Ours: shipped plugins are entry points like any others."""
    found = listed(standfast)
    assert set(SHIPPED) <= set(found)
    assert found["plan"]["package"] == "standfast"
    assert found["plan"]["summary"] == "A checklist that the model keeps and the user sees."
    assert [name for name in SHIPPED if found[name]["error"] is not None] == []
    shown = standfast("plugins", "list")
    assert "Rules over tool calls: allow, deny, or ask a person." in " ".join(shown.stdout.split())


def test_a_broken_plugin_is_listed_with_its_error(standfast: Any, offer: Offer) -> None:
    """Ours: one package that cannot be imported does not hide the others."""
    offer("broken", "broken_third:Broken", "raise RuntimeError('no \\x1b[31m licence')")
    found = listed(standfast)
    assert found["plan"]["error"] is None
    assert (found["broken"]["package"], found["broken"]["version"]) == ("third", "2.5")
    assert found["broken"]["error"]["code"] == "PLUGIN_ERROR"
    shown = standfast("plugins", "list")
    assert (shown.status, "licence" in shown.stdout, "\x1b" in shown.stdout) == (0, True, False)
    refused = standfast("plugins", "show", "broken", "--json")
    assert (refused.status, refused.document["error"]["code"]) == (1, "PLUGIN_ERROR")


def test_a_module_that_exits_or_is_not_a_plugin_is_listed_as_broken(standfast: Any, offer: Offer) -> None:
    """Ours: listing plugins is safe, whatever they do."""
    offer("leaver", "leaver:Leaver", "raise SystemExit(3)", package="one")
    offer("number", "number_third:value", "value = 5", package="two")
    offer("gone", "gone_third:Gone", package="three")
    found = listed(standfast)
    assert "SystemExit" in found["leaver"]["error"]["message"]
    assert "is not a plugin" in found["number"]["error"]["message"]
    assert "ModuleNotFoundError" in found["gone"]["error"]["message"]


def test_a_name_offered_by_two_packages_is_listed_with_both(standfast: Any, offer: Offer) -> None:
    """Ours: the list shows the conflict, and the other plugins stay usable."""
    source = "from standfast import Plugin\nclass Mine(Plugin): ...\n"
    offer("plan", "mine_third:Mine", source)
    lines = [one for one in standfast("plugins", "list", "--json").document if one["name"] == "plan"]
    assert [one["package"] for one in lines] == ["standfast", "third"]
    for one in lines:
        assert "'standfast'" in one["error"]["message"]
        assert "'third'" in one["error"]["message"]
    assert standfast("plugins", "show", "guard").status == 0
    assert standfast("plugins", "show", "plan").status == 1


def test_all_hooks_are_listed_in_a_table(standfast: Any) -> None:
    """Ours: the table has the parameters, the return value, the order and the effect of a failure."""
    document = standfast("plugins", "list", "--hooks", "--json").document
    assert [one["name"] for one in document] == list(HOOKS)
    shown = standfast("plugins", "list", "--hooks").stdout
    for kind in HOOKS.values():
        for words in (f"def {kind.name}(", kind.answers, *kind.takes, kind.order):
            assert words in shown
    assert "if it fails, the turn fails" in shown
    assert "if it fails, it is only logged" in shown


def test_a_plugin_is_shown_with_everything_it_provides(standfast: Any) -> None:
    """Ours: hooks in order, slots, tools with contracts, actions, options with defaults, version."""
    document = standfast("plugins", "show", "plan", "--json").document
    assert (document["id"], document["version"], document["package"]) == ("plan", "1", "standfast")
    assert [one["name"] for one in document["hooks"]] == ["prompt_contributor", "after_tool_call"]
    assert document["hooks"][1]["on_failure"] == "that call fails"
    (tool,) = document["tools"]
    assert tool["signature"].startswith("update_plan(items: ")
    assert (tool["contract"]["side_effect"], tool["contract"]["idempotent"]) == ("none", True)
    assert [(one["name"], one["kind"]) for one in document["actions"]] == [
        ("plan.show", "query"),
        ("plan.set", "command"),
    ]
    (option,) = document["options"]
    assert (option["name"], option["type"], option["default"]) == ("max_items", "int", "50")
    shown = standfast("plugins", "show", "plan").stdout
    for words in ("max_items", "50", "prompt_contributor", "update_plan(", "plan.set", "largest number"):
        assert words in shown


def test_exclusive_slots_are_shown(standfast: Any) -> None:
    """Ours: a class is named by its module, and a filled slot is marked."""
    protocol = "standfast.protocols.standard.plugin:StandardProtocol"
    document = standfast("plugins", "show", protocol, "--json").document
    assert document["slots"] == ["protocol_session", "protocol_driver"]
    assert "protocol_driver" in standfast("plugins", "show", protocol).stdout


def test_a_class_in_the_current_directory_can_be_inspected(
    standfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a plugin can be inspected before it is packaged."""
    (tmp_path / "tiny_plugin_here.py").write_text(
        "from standfast import Plugin, hook\n"
        "class Tiny(Plugin):\n"
        "    summary = 'Small.'\n"
        "    def __init__(self, words): self.words = words\n"
        "    @hook('context_transform', priority=7)\n"
        "    async def first(self, ctx, messages): return messages\n"
        "ready = Tiny('hello')\n"
    )
    monkeypatch.chdir(tmp_path)
    document = standfast("plugins", "show", "tiny_plugin_here:ready", "--json").document
    assert (document["id"], document["package"], document["hooks"][0]["priority"]) == ("tiny", None, 7)
    assert document["options"][0]["default"] is None
    assert "by priority (7)" in standfast("plugins", "show", "tiny_plugin_here:ready").stdout
    refused = standfast("plugins", "show", "tiny_plugin_here:Tiny", "--json")
    assert "pass an instance with its options" in refused.document["error"]["hint"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("guart", "did you mean guard?"),
        ("no_such_module:Plugin", "No module named"),
        ("json:Nothing", "Nothing"),
        ("json:loads", "is not a plugin"),
        ("json:", "cannot be loaded"),
        (":", "cannot be loaded"),
    ],
)
def test_a_name_that_is_not_a_plugin_is_an_error_with_a_hint(standfast: Any, name: str, words: str) -> None:
    """Ours: the error says what to do."""
    ran = standfast("plugins", "show", name, "--json")
    assert ran.status == 1
    error = ran.document["error"]
    assert words in error["message"] + str(error["hint"])


@pytest.mark.slow
def test_ctrl_c_works_while_a_plugin_is_imported(
    offer: Offer, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ours: a plugin that hangs on import can be interrupted without a traceback."""
    source = "import signal, sys\nprint('importing', file=sys.stderr, flush=True)\nsignal.pause()\n"
    offer("asleep", "asleep_third:Asleep", source)
    running = start("plugins", "list", "--json")
    assert running.stderr is not None
    assert running.stderr.readline() == "importing\n"
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=30)
    assert (running.returncode, "CANCELLED" in stdout, "Traceback" in stderr) == (1, True, False)
