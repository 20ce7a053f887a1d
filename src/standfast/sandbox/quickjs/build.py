"""Which guest this is: the WebAssembly of the installed `quickjs-rs`, and the prelude.

Nothing here imports that package or wasmtime: checking whether a stored state fits needs neither.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path
from typing import Final

PACKAGE: Final = "quickjs_rs"
FORMAT: Final = 1
"""Counts changes of how a guest is made or stored that neither the WebAssembly nor the prelude shows."""
_PRELUDE: Final = Path(__file__).with_name("prelude.js")


class GuestMissing(Exception):
    """The package that has the guest is not installed, or has another guest than is known."""


def guest_wasm() -> bytes:
    """Return the guest as the package ships it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise GuestMissing("the package quickjs-rs is not installed")
    try:
        return Path(spec.origin).with_name("_guest.wasm").read_bytes()
    except OSError as error:
        raise GuestMissing(f"the package quickjs-rs has no guest: {error}") from None


def prelude() -> bytes:
    """Return the prelude as one line: places in later lines are in code of a session."""
    lines = (line.strip() for line in _PRELUDE.read_bytes().splitlines())
    return b" ".join(line for line in lines if not line.startswith(b"//"))


@functools.lru_cache(maxsize=1)
def build_id() -> bytes:
    """Return the build that a state must have been made by: sixteen bytes, of the guest and the prelude."""
    made = hashlib.sha256(hashlib.sha256(guest_wasm()).digest())
    made.update(hashlib.sha256(prelude()).digest())
    made.update(bytes([FORMAT]))
    return made.digest()[:16]
