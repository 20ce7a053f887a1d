"""The same program on three engines: stopped mid-expression, killed, approved by another process, finished.

    python examples/refund_on_every_engine.py

For each engine a first process runs the program up to the call that needs a person, and is killed with
SIGKILL. A second one approves that call: the expression resumes where it stopped. The file of effects shows
that what was called before is not called again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from standfast import BlockingSandbox, tool

PYTHON = 'paid = price("A1") + len(refund("A1")) + price("B2")\npaid'
TYPESCRIPT = 'const paid: number = await price("A1") + (await refund("A1")).length + await price("B2")\npaid'
PROGRAMS = {"monty": PYTHON, "cpython": PYTHON, "quickjs": TYPESCRIPT}
EFFECTS = Path("effects.txt")


@tool(side_effect="read", idempotent=False)
def price(order: str) -> int:
    """What an order cost, in cents."""
    note(f"price {order}")
    return {"A1": 300, "B2": 500}[order]


@tool(side_effect="external_system", approval="manual")
def refund(order: str) -> str:
    """Refund an order."""
    note(f"refund {order}")
    return f"refunded {order}"


def note(effect: str) -> None:
    with EFFECTS.open("a", encoding="utf-8") as file:
        print(effect, file=file)


def sandbox(engine: str) -> BlockingSandbox:
    language = "typescript" if engine == "quickjs" else "python"
    return BlockingSandbox(language=language, engine=engine, tools=[price, refund], data_dir=f"data-{engine}")


def ask(engine: str) -> None:
    """The first process: runs into the approval, and does not live to see it."""
    with sandbox(engine) as box:
        result = box.run(PROGRAMS[engine])
        print(f"{engine}: {result.status}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def approve(engine: str) -> None:
    """The second one."""
    with sandbox(engine) as box:
        (waiting,) = box.approvals(pending=True)
        result = box.approve(waiting.approval_id)
        print(f"{engine}: {result.status}, {result.result}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for engine in PROGRAMS:
            for step in ("ask", "approve"):
                command = [sys.executable, os.path.abspath(__file__), step, engine]
                subprocess.run(command, cwd=folder, check=step == "approve")
            effects = Path(folder) / EFFECTS
            print(f"{engine}: {', '.join(effects.read_text().splitlines())}", flush=True)
            effects.unlink()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", engine]:
            ask(engine)
        case ["approve", engine]:
            approve(engine)
        case _:
            main()
