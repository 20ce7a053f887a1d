"""Standfast beside its floor and other frameworks, in one run. `make bench-peers [ARGS="--quick ..."]`

Runs the same workloads (`measuring.py`) on each framework, with fake models and without a network. Within a
group of workloads the frameworks follow one another, and rounds alternate, so that all are measured under
the same load; compare within one run, on an idle machine. The others are installed into `.cache/peers` first.

Prints a Markdown table of the medians of the rounds; the JSON lines go to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from platform import python_version
from typing import Any

from comparison import markdown, problems
from environments import HOME, environment, interpreter_for
from measuring import GROUPS

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "how-it-works" / "performance.md"
FRAMEWORKS = (
    "floor",
    "standfast",
    "agent-framework",
    "openai-agents",
    "pydantic-ai",
    "langgraph",
    "agno",
    "smolagents",
)


def measure(framework: str, group: str, quick: bool) -> list[dict[str, Any]]:
    """Return the lines that the program of a framework prints for one group of workloads."""
    program = HERE / f"bench_{framework.replace('-', '_')}.py"
    command = [interpreter_for(framework), program, "--only", group, *(["--quick"] if quick else [])]
    ran = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        line = {"framework": framework, "variant": "default", "workload": group}
        return [{**line, "metric": "error", "value": f"exit status {ran.returncode}"}]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"framework"')]


def listed(kind: str, known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown {kind} {name!r}; write some of {', '.join(known)}")
        return names

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups, frameworks = listed("group", tuple(GROUPS)), listed("framework", FRAMEWORKS)
    parser.add_argument("--only", type=groups, default=list(GROUPS), help="groups of workloads, with commas")
    parser.add_argument(
        "--frameworks", type=frameworks, default=list(FRAMEWORKS), help="some of them, with commas"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each workload (default: 3; with --quick: 1)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, one round")
    parser.add_argument("--write", action="store_true", help="write the table of the documentation")
    parser.add_argument("--out", type=Path, default=HOME / "results.jsonl", help="file for the JSON lines")
    return parser.parse_args()


def conditions(lines: list[dict[str, Any]], asked: argparse.Namespace) -> str:
    """Return sentences that say under which conditions the table was measured."""
    rounds = "one round with `--quick`" if asked.quick else f"medians of {asked.rounds} rounds"
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"
    versions = {line["metric"]: line["value"] for line in lines if line["workload"] == "version"}
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    return f"Measured on {date.today()}: {rounds}, {machine}, Python {python_version()}. {named}".strip()


def write(table: str) -> None:
    """Replace the table of the page on performance."""
    begin, end = "<!-- measured: peers -->\n", "<!-- end -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


def main() -> None:
    asked = arguments()
    for framework in asked.frameworks:
        interpreter_for(framework)
    lines: list[dict[str, Any]] = []
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("w") as out:
        for number in range(1, (1 if asked.quick else asked.rounds) + 1):
            for group in asked.only:
                for framework in asked.frameworks:
                    print(f"round {number}: {group}, {framework}", file=sys.stderr, flush=True)
                    for line in measure(framework, group, asked.quick):
                        lines.append({**line, "round": number})
                        out.write(json.dumps(lines[-1]) + "\n")
                    out.flush()
    page = f"{markdown(lines, asked.frameworks)}\n\n{conditions(lines, asked)}"
    print(page)
    if asked.write:
        write(page)
    print(*problems(lines), f"JSON lines in {asked.out}", sep="\n")


if __name__ == "__main__":
    main()
