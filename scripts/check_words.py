"""Count words that hide the actor or the thing, and fail if a file has more of them than it may.

usage: scripts/check_words.py [--list]

Name the actor (the caller, the driver, the model) and the thing (the result, the request) instead. Names of tests are
sentences too, so `_` counts as a space. `ALLOWED` has the places where such a word is correct.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASES = (
    "whoever",
    "whomever",
    "nobody",
    "somebody",
    "anybody",
    "who has it",
    "what came of",
    "came of it",
    "what it left",
    "what is told",
    "is told",
    "are told",
    "goes on",
    "went on",
    "is heard",
    "heard of",
    "so many",
)
WORDS = re.compile(
    rf"(?<![a-z])({'|'.join(PHRASES).replace(' ', '[ _]')})(?![a-z])",
    re.IGNORECASE,
)
PLACES = ("*.md", "src", "tests", "docs", "examples", "bench", "scripts")
ALLOWED = {
    "src/standfast/sandbox/cpython/jail.py": 2,  # the user `nobody` of the system
    "tests/machine/test_histories.py": 1,  # the name of a stored history
}
"""How many lines of a file may have such a word."""


def occurrences() -> dict[str, list[str]]:
    """Return the lines that have such a word, by file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PLACES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, list[str]] = {}
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix not in (".py", ".md") or path == Path(__file__).resolve() or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if WORDS.search(line):
                found.setdefault(name, []).append(f"{name}:{number}: {line.strip()}")
    return found


def main() -> int:
    """Print the lines of files that have too many, or every line; return the exit status."""
    found = occurrences()
    if "--list" in sys.argv:
        print(*(line for lines in found.values() for line in lines), sep="\n")
        return 0
    new = [line for name, lines in found.items() if len(lines) > ALLOWED.get(name, 0) for line in lines]
    if new:
        print(*new, sep="\n")
        print(f"{len(new)} lines hide who acts or what is meant; name the actor and the thing")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
