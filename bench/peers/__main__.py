"""A code step beside those of other frameworks, in one run. `python bench/peers [--rounds 6]`

Whole runs of an agent with a model that is not there: user text 200 characters, one reply whose code calls
a tool once, tool result 100 characters, other code in each run. Ours is durable, on a file that is synced;
the others keep nothing. Each framework has processes of its own, rounds alternate, and only the ratios within
a round count. The others are installed into a virtual environment in `build/` first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parent.parent / "build" / "peers"
OURS = {"standfast, durable": (), "standfast, durable, on uvloop": ("uvloop",)}
PEERS = {"pydantic-ai code mode": "pydantic_ai_step.py", "smolagents": "smolagents_step.py"}
TARGETS = {"pydantic-ai code mode": 10, "smolagents": 1}


def installed() -> Path:
    """The interpreter that has the other frameworks."""
    python = HOME / "bin" / "python"
    done = HOME / "installed"
    if not done.exists():
        print(f"installing the other frameworks into {HOME.relative_to(HERE.parent.parent)} ...", flush=True)
        venv.create(HOME, with_pip=True)
        packages = ["-r", str(HERE / "requirements.txt")]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python


def measured(python: Path, program: str, *arguments: str) -> float:
    command = [python, HERE / program, *arguments]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(ran.stdout.split()[-1])


def report(framework: str, metric: str, value: float) -> None:
    line = {"framework": framework, "workload": "code_step_1call", "metric": metric, "value": round(value, 4)}
    print(json.dumps(line), flush=True)


def say(framework: str, metric: str, value: float) -> None:
    print(f"{framework}: {metric} {value:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="print what the other benchmarks print")
    arguments = parser.parse_args()
    others = installed()
    took: dict[str, list[float]] = {name: [] for name in (*OURS, *PEERS)}
    for number in range(1, arguments.rounds + 1):
        for name, loop in OURS.items():
            took[name].append(measured(Path(sys.executable), "standfast_step.py", *loop))
        for name, program in PEERS.items():
            took[name].append(measured(others, program))
        words = [f"{name} {times[-1]:.2f} ms" for name, times in took.items()]
        print(f"round {number}: {'; '.join(words)}", file=sys.stderr, flush=True)
    show = report if arguments.json else say
    for name, times in took.items():
        show(name, "ms_median", statistics.median(times))
    for peer, target in TARGETS.items():
        for name in OURS:
            ratios = [theirs / ours for theirs, ours in zip(took[peer], took[name], strict=True)]
            show(name, f"times below {peer}, median (target: {target})", statistics.median(ratios))
            show(name, f"times below {peer}, worst round", min(ratios))


if __name__ == "__main__":
    main()
