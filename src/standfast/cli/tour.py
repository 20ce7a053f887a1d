"""`standfast tour`: a first look at the real thing. Every result that is shown was just computed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import Grants, make_sandbox
from standfast.cli.options import Invocation, answers
from standfast.cli.output import Answer, console
from standfast.cli.report import call_text

if TYPE_CHECKING:
    from standfast.model import Approval
    from standfast.runtime.blocking import BlockingSandbox

_SESSION = "tour"
_TOOLS = str(Path(__file__).with_name("tour_tools.py"))
_TOTAL = 'total = fee() + refund("A1", 500)'
_TYPESCRIPT = """\
const fees: number[] = await Promise.all([fee(), fee()]);
fees.reduce((a, b) => a + b)"""
_PATIENCE_MS = 60_000
"""The first run of TypeScript on a machine compiles its engine."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was tried, and what came of it."""

    title: str
    code: str
    result: Any


@click.command("tour", epilog="\b\nExamples:\n  standfast tour\n  standfast tour --json\n")
@answers
def command(invocation: Invocation) -> Answer:
    """See it work: code, state, refusals, limits, and runs and turns that outlive their process.

    Uses a temporary data directory that is removed at the end, unless --data-dir is given.
    """
    with _place(invocation.given_data_dir) as home, _ledger() as ledger:
        tour = Tour(home, ledger, quiet=invocation.as_json)
        tour.walk()
    return Answer(tour.steps, lambda: None, 0 if tour.went_well else 1)


class Tour:
    """The steps, walked in order; each is shown when it has happened."""

    def __init__(self, home: Path, ledger: Path, *, quiet: bool) -> None:
        self.steps: list[Step] = []
        self.went_well = True
        self._home = home
        self._ledger = ledger
        self._quiet = quiet

    def walk(self) -> None:
        grants = Grants(tools=(_TOOLS,))
        with make_sandbox(self._home, grants) as box:
            box.destroy(_SESSION)
            self._walk_basics(box)
            waiting = self._stop_in_the_middle(box)
        approved = waiting is not None and self._continue_elsewhere(waiting)
        with make_sandbox(self._home, grants) as box:
            if approved:
                self._run(box, "The expression that was stopped has its value", "total", "ok")
            box.destroy(_SESSION)
        self._show_ledger()
        self._kill_an_agent()
        self._act_in_code()
        self._speak_typescript(grants)
        self._say_goodbye()

    def _walk_basics(self, box: BlockingSandbox) -> None:
        self._run(
            box, "Code runs in a sandbox", 'prices = [19, 5, 18]\nprint("adding up")\nsum(prices)', "ok"
        )
        self._run(box, "A session keeps its variables", "max(prices) * 2", "ok")
        self._run(box, "What is not granted is refused", 'open("/etc/passwd").read()', "permission_denied")
        self._run(
            box, "Limits hold, here 300 ms", "while True:\n    pass", "timeout", timeout_ms=300
        )  # fmt: skip

    def _stop_in_the_middle(self, box: BlockingSandbox) -> Approval | None:
        title = "A call that needs a person stops the run in the middle of the expression"
        self._run(box, title, _TOTAL, "waiting_for_approval")
        waiting = box.approvals(session=_SESSION, pending=True)
        if not waiting:
            return None
        self._say(f"waits: {call_text(waiting[0].capability, waiting[0].args, waiting[0].kwargs)}", "yellow")
        for line in self._ledger_lines():
            self._say(f"done so far: {line}", "dim")
        return waiting[0]

    def _continue_elsewhere(self, approval: Approval) -> bool:
        """Decide in a child process: this one has closed the sandbox and holds none of its state."""
        approved = self._asks_yes("Approve it? [Y/n] ")
        words = ["approve", approval.approval_id]
        if not approved:
            words = ["deny", approval.approval_id, "--reason", "denied on the tour"]
        title = "The sandbox is closed here; another process decides and continues the run"
        result = self._in_child(["approvals", *words])
        shown = ["standfast", "approvals", *(f"'{word}'" if " " in word else word for word in words)]
        self._record(Step(title, " ".join(shown), result), prompt="$ ")
        self.went_well &= result["status"] == ("ok" if approved else "permission_denied")
        return approved

    def _in_child(self, words: list[str]) -> dict[str, Any]:
        return self._answer_of(["standfast", *words, "--data-dir", str(self._home), "--json"])

    def _kill_an_agent(self) -> None:
        """A turn of an agent whose process dies inside a tool, and the process that goes on with it."""
        from standfast.cli.tour_agent import CRASH_VARIABLE, PROMPT

        words = ["standfast.cli.tour_agent", str(self._home)]
        killed = self._answer_of(words, {CRASH_VARIABLE: "1"})
        title = "An agent pays an invoice, and its process is killed (SIGKILL) in the middle of the payment"
        self._record(Step(title, PROMPT, {"status": killed["status"]}), prompt="you: ")
        told = self._answer_of(words)
        title = "Another process takes the turn up: the payment is not made twice, and the model is told"
        self._record(Step(title, "resume", told), prompt="")
        paid = [line for line in self._ledger_lines() if line.startswith("pay")]
        self._record(Step("What the tool wrote down", "cat ledger", paid), prompt="$ ")
        self.went_well &= (killed["status"], told["status"], len(paid)) == ("interrupted", "finished", 1)

    def _act_in_code(self) -> None:
        """An agent that writes a program, which stops at a call in one process and goes on in another."""
        from standfast.cli.tour_code import CODE

        words = ["standfast.cli.tour_code", str(self._home)]
        stopped = self._answer_of(words)
        title = "An agent acts in code, one reply for all of it: the program stops where it needs a person"
        self._record(Step(title, CODE, stopped))
        done = self._answer_of(words)
        title = "Another process approves, and the program goes on in the middle of its loop"
        self._record(Step(title, "approve pay_back", done), prompt="")
        paid = [line for line in self._ledger_lines() if line.startswith("pay back")]
        self.went_well &= (stopped["status"], done["status"], len(paid)) == ("waiting", "finished", 1)

    def _speak_typescript(self, grants: Grants) -> None:
        """The same sandbox in another language, where it is installed."""
        session = f"{_SESSION}-typescript"
        with make_sandbox(self._home, grants) as box:
            result = box.run(_TYPESCRIPT, session=session, language="typescript", timeout_ms=_PATIENCE_MS)
            box.destroy(session)
        if result.error is not None and result.error.code == "UNSUPPORTED_FEATURE":
            self._say("TypeScript is not installed here: pip install 'standfast[typescript]'", "dim")
            return
        self._record(Step("Code may be TypeScript: calls are promises there", _TYPESCRIPT, result))
        self.went_well &= result.result == 60

    def _answer_of(self, words: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
        """What a module of ours prints as JSON, run in a process of its own."""
        import msgspec

        command = [sys.executable, "-m", *words]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, check=False, env={**os.environ, **(environment or {})}
        )
        try:
            document: dict[str, Any] = msgspec.json.decode(done.stdout)
        except msgspec.DecodeError:
            document = {"error": {"code": "INTERRUPTED", "message": done.stderr.decode(errors="replace")}}
        return document if "status" in document else {"status": "interrupted", **document}

    def _show_ledger(self) -> None:
        lines = self._ledger_lines()
        fees = sum(line.startswith("fee") for line in lines)
        times = "once" if fees == 1 else f"{fees} times"
        self._record(Step(f"What the tools wrote down: fee() ran {times}", "cat ledger", lines), prompt="$ ")
        self.went_well &= fees == 1

    def _ledger_lines(self) -> list[str]:
        return self._ledger.read_text().splitlines() if self._ledger.exists() else []

    def _run(self, box: BlockingSandbox, title: str, code: str, expected: str, **settings: Any) -> None:
        result = box.run(code, session=_SESSION, **settings)
        self.went_well &= result.status == expected
        self._record(Step(title, code, result))

    # ── showing ──────────────────────────────────────────────────────────────────────────────────

    def _record(self, step: Step, *, prompt: str = ">>> ") -> None:
        self.steps.append(step)
        if not self._quiet:
            _show_step(len(self.steps), step, prompt)

    def _say(self, text: str, style: str) -> None:
        if not self._quiet:
            console().print(f"  {text}", style=style)

    def _asks_yes(self, question: str) -> bool:
        if self._quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return True
        return input(f"\n  {question}").strip().lower() in ("", "y", "yes")

    def _say_goodbye(self) -> None:
        if not self._quiet:
            console().print()
            self._say("Next: standfast chat, standfast repl, or standfast run --help", "bold")


@contextmanager
def _place(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="standfast-tour-") as scratch:
        yield Path(scratch)


@contextmanager
def _ledger() -> Iterator[Path]:
    """A ledger for this tour alone; the tools, here and in the child, find it by the environment."""
    from standfast.cli.tour_tools import LEDGER_VARIABLE

    with tempfile.TemporaryDirectory(prefix="standfast-ledger-") as scratch:
        ledger = Path(scratch) / "ledger.txt"
        os.environ[LEDGER_VARIABLE] = str(ledger)
        try:
            yield ledger
        finally:
            del os.environ[LEDGER_VARIABLE]


def _show_step(number: int, step: Step, prompt: str) -> None:
    from rich.text import Text

    shown = console()
    shown.print(Text(f"\n{number}. {step.title}", "bold cyan"))
    for index, line in enumerate(step.code.split("\n")):
        lead = prompt if index == 0 else "... "
        shown.print(Text.assemble((f"  {lead}", "dim"), line), soft_wrap=True)
    for text, style in _outcome(step.result):
        shown.print(Text(f"  {text}", style), soft_wrap=True)


def _outcome(result: Any) -> list[tuple[str, str]]:
    """The lines that tell what a step came to."""
    import json

    import msgspec

    if isinstance(result, list):
        return [(line, "") for line in result]
    result = msgspec.to_builtins(result)
    lines = [(line, "") for line in result.get("stdout", "").splitlines()]
    if result.get("result") is not None:
        lines.append((json.dumps(result["result"]), "bold"))
    if error := result.get("error"):
        lines.append(
            (f"{error['code']}: {error['message']}", "red" if "WAIT" not in error["code"] else "yellow")
        )
    return [*lines, (_status(result), "dim")]


def _status(result: dict[str, Any]) -> str:
    parts = [result["status"]]
    if metrics := result.get("metrics"):
        parts.append(f"{metrics['duration_ms']} ms")
    if result.get("snapshot_id"):
        parts.append(f"stored as {result['snapshot_id']}")
    return " · ".join(parts)
