"""A code step beside those of other frameworks, in one run. `python bench/peers [--rounds 6]`

Whole runs of an agent with a model that is not there: user text 200 characters, one reply whose code calls
a tool once, tool result 100 characters. Ours is durable, on a file that is synced; the others keep nothing.
Each framework has processes of its own, rounds alternate, and only the ratios within a round count. The
others are installed into a virtual environment in `build/` first.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parent.parent / "build" / "peers"
PEERS = {"pydantic-ai code mode": "pydantic_ai_step.py", "smolagents": "smolagents_step.py"}
TARGETS = {"pydantic-ai code mode": 10.0, "smolagents": 1.0}


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


def measured(python: Path, program: str) -> float:
    ran = subprocess.run([python, HERE / program], check=True, capture_output=True, text=True)
    return float(ran.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    others = installed()
    ours: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in PEERS}
    for number in range(1, rounds + 1):
        mine = measured(Path(sys.executable), "holdfast_step.py")
        ours.append(mine)
        line = f"round {number}: holdfast {mine:.2f} ms"
        for name, program in PEERS.items():
            taken = measured(others, program)
            ratios[name].append(taken / mine)
            line += f", {name} {taken:.2f} ms ({taken / mine:.1f} x)"
        print(line, flush=True)
    print(f"holdfast, durable: median {statistics.median(ours):.2f} ms")
    for name, found in ratios.items():
        print(f"{name}: {statistics.median(found):.1f} x ours (target: more than {TARGETS[name]:.0f} x)")


if __name__ == "__main__":
    main()
