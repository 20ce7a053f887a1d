"""`standfast tour`: a first look. Every result shown was just computed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import SandboxGrants, make_sandbox
from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput, console
from standfast.cli.report import call_text
from standfast.errors import Code

if TYPE_CHECKING:
    from standfast.model.approval import Approval
    from standfast.runtime.blocking import BlockingSandbox

_SESSION = "tour"
_TOOLS = str(Path(__file__).with_name("tour_tools.py"))
_TOTAL = 'total = fee() + refund("A1", 500)'
_TYPESCRIPT = """\
const fees: number[] = await Promise.all([fee(), fee()]);
fees.reduce((a, b) => a + b)"""
_PATIENCE_MS = 60_000
"""The first TypeScript run on a machine compiles its engine."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the tour, and its result."""

    title: str
    code: str
    result: Any


@click.command("tour", epilog="\b\nExamples:\n  standfast tour\n  standfast tour --json\n")
@answers
def command(invocation: Invocation) -> CommandOutput:
    """See it work: code, state, refusals, limits, and runs and turns that survive their process.

    Uses a temporary data directory that is removed at the end, unless --store is given.
    """
    from standfast.cli.tour_tools import LEDGER_VARIABLE

    with tempfile.TemporaryDirectory(prefix="standfast-tour-") as scratch:
        ledger = Path(scratch) / "ledger.txt"
        os.environ[LEDGER_VARIABLE] = str(ledger)  # read by the tools, here and in child processes
        try:
            home = invocation.given_data_dir or Path(scratch) / "data"
            tour = Tour(home, ledger, quiet=invocation.as_json)
            tour.walk()
        finally:
            del os.environ[LEDGER_VARIABLE]
    return CommandOutput(tour.steps, lambda: None, 0 if tour.went_well else 1)


class Tour:
    """The steps in order; each is shown when it is done."""

    def __init__(self, home: Path | str, ledger: Path, *, quiet: bool) -> None:
        self.steps: list[Step] = []
        self.went_well = True
        self._home = home
        self._ledger = ledger
        self._quiet = quiet

    def walk(self) -> None:
        grants = SandboxGrants(tools=(_TOOLS,))
        with make_sandbox(self._home, grants) as box:
            box.destroy(_SESSION)
            adding = 'prices = [19, 5, 18]\nprint("adding up")\nsum(prices)'
            self._run(box, "Code runs in a sandbox", adding, "ok")
            self._run(box, "A session keeps its variables", "max(prices) * 2", "ok")
            opening = 'open("/etc/passwd").read()'
            self._run(box, "Anything that is not granted is denied", opening, "permission_denied")
            endless = "while True:\n    pass"
            self._run(box, "Limits hold, here 300 ms", endless, "timeout", timeout_ms=300)
            waiting = self._stop_in_the_middle(box)
        approved = waiting is not None and self._continue_elsewhere(waiting)
        with make_sandbox(self._home, grants) as box:
            if approved:
                self._run(box, "The expression that was stopped has its value", "total", "ok")
            box.destroy(_SESSION)
        lines = self._ledger_lines()
        fees = sum(line.startswith("fee") for line in lines)
        times = "once" if fees == 1 else f"{fees} times"
        self._record(Step(f"What the tools wrote down: fee() ran {times}", "cat ledger", lines), prompt="$ ")
        self.went_well &= fees == 1
        self._kill_an_agent()
        self._act_in_code()
        self._speak_typescript(grants)
        if not self._quiet:
            console().print()
            self._say("Next: standfast chat, standfast repl, or standfast run --help", "bold")

    def _stop_in_the_middle(self, box: BlockingSandbox) -> Approval | None:
        title = "A call that needs approval stops the run in the middle of the expression"
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
        approved = True
        if not self._quiet and sys.stdin.isatty() and sys.stdout.isatty():
            approved = input("\n  Approve it? [Y/n] ").strip().lower() in ("", "y", "yes")
        words = ["approve", approval.approval_id]
        if not approved:
            words = ["deny", approval.approval_id, "--reason", "denied on the tour"]
        title = "The sandbox is closed here; another process decides and resumes the run"
        result = self._answer_of(["standfast", "approvals", *words, "--store", str(self._home), "--json"])
        shown = ["standfast", "approvals", *(f"'{word}'" if " " in word else word for word in words)]
        self._record(Step(title, " ".join(shown), result), prompt="$ ")
        self.went_well &= result["status"] == ("ok" if approved else "permission_denied")
        return approved

    def _kill_an_agent(self) -> None:
        """Kill an agent's process inside a tool, and resume its turn in another process."""
        from standfast.cli.tour_agent import CRASH_VARIABLE, PAY_PROMPT

        words = ["standfast.cli.tour_agent", str(self._home), "pay"]
        killed = self._answer_of(words, {CRASH_VARIABLE: "1"})
        title = "An agent pays an invoice, and its process is killed (SIGKILL) in the middle of the payment"
        self._record(Step(title, PAY_PROMPT, {"status": killed["status"]}), prompt="you: ")
        resumed = self._answer_of(words)
        title = "Another process resumes the turn: the payment is not made twice, and the model learns why"
        self._record(Step(title, "resume", resumed), prompt="")
        paid = [line for line in self._ledger_lines() if line.startswith("pay")]
        self._record(Step("What the tool wrote down", "cat ledger", paid), prompt="$ ")
        self.went_well &= (killed["status"], resumed["status"], len(paid)) == ("interrupted", "finished", 1)

    def _act_in_code(self) -> None:
        """Run an agent that writes a program, which stops at a call in one process and resumes in another."""
        from standfast.cli.tour_agent import CODE

        words = ["standfast.cli.tour_agent", str(self._home), "code"]
        stopped = self._answer_of(words)
        title = "An agent acts in code, one reply for all of it: the program stops where it needs approval"
        self._record(Step(title, CODE, stopped))
        done = self._answer_of(words)
        title = "Another process approves, and the program resumes in the middle of its loop"
        self._record(Step(title, "approve pay_back", done), prompt="")
        paid = [line for line in self._ledger_lines() if line.startswith("pay back")]
        self.went_well &= (stopped["status"], done["status"], len(paid)) == ("waiting", "finished", 1)

    def _speak_typescript(self, grants: SandboxGrants) -> None:
        """Run TypeScript in the same sandbox, if it is installed."""
        session = f"{_SESSION}-typescript"
        with make_sandbox(self._home, grants) as box:
            result = box.run(_TYPESCRIPT, session=session, language="typescript", timeout_ms=_PATIENCE_MS)
            box.destroy(session)
        if result.error is not None and result.error.code == Code.ENGINE_UNAVAILABLE:
            self._say("TypeScript is not installed here: pip install 'standfast[typescript]'", "dim")
            return
        self._record(Step("Code may be TypeScript: calls are promises there", _TYPESCRIPT, result))
        self.went_well &= result.result == 60

    def _answer_of(self, words: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
        """Run a module in its own process and return the JSON that it prints."""
        import msgspec

        command = [sys.executable, "-m", *words]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, check=False, env={**os.environ, **(environment or {})}
        )
        try:
            document: dict[str, Any] = msgspec.json.decode(done.stdout)
        except msgspec.DecodeError:
            document = {"error": {"code": Code.INTERRUPTED, "message": done.stderr.decode(errors="replace")}}
        return document if "status" in document else {"status": "interrupted", **document}

    def _ledger_lines(self) -> list[str]:
        return self._ledger.read_text().splitlines() if self._ledger.exists() else []

    def _run(self, box: BlockingSandbox, title: str, code: str, expected: str, **settings: Any) -> None:
        result = box.run(code, session=_SESSION, **settings)
        self.went_well &= result.status == expected
        self._record(Step(title, code, result))

    def _record(self, step: Step, *, prompt: str = ">>> ") -> None:
        """Record a step, and show its code and the lines of its result."""
        from rich.text import Text

        self.steps.append(step)
        if self._quiet:
            return
        shown = console()
        shown.print(Text(f"\n{len(self.steps)}. {step.title}", "bold cyan"))
        for index, line in enumerate(step.code.split("\n")):
            lead = prompt if index == 0 else "... "
            shown.print(Text.assemble((f"  {lead}", "dim"), line), soft_wrap=True)
        for text, style in _result_lines(step.result):
            shown.print(Text(f"  {text}", style), soft_wrap=True)

    def _say(self, text: str, style: str) -> None:
        if not self._quiet:
            console().print(f"  {text}", style=style)


def _result_lines(result: Any) -> list[tuple[str, str]]:
    """Return the lines that describe a step's result, each with its style."""
    import json

    import msgspec

    if isinstance(result, list):
        return [(line, "") for line in result]
    result = msgspec.to_builtins(result)
    lines = [(line, "") for line in result.get("stdout", "").splitlines()]
    if result.get("result") is not None:
        lines.append((json.dumps(result["result"]), "bold"))
    if error := result.get("error"):
        colour = "yellow" if "WAIT" in error["code"] else "red"
        lines.append((f"{error['code']}: {error['message']}", colour))
    parts = [result["status"]]
    if metrics := result.get("metrics"):
        parts.append(f"{metrics['duration_ms']} ms")
    if result.get("snapshot_id"):
        parts.append(f"stored as {result['snapshot_id']}")
    return [*lines, (" · ".join(parts), "dim")]
