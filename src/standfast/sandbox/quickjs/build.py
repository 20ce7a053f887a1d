"""The identity of the guest: the WebAssembly of the installed `quickjs-rs`, and the prelude.

This module imports neither that package nor wasmtime: checking whether a stored state matches needs neither.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path
from typing import Final

PACKAGE: Final = "quickjs_rs"
FORMAT: Final = 1
"""Increment this after a change to how guests are created or stored that changes neither file."""
_PRELUDE: Final = Path(__file__).with_name("prelude.js")


class GuestMissing(Exception):
    """The package with the guest is not installed, or its guest is not supported."""


def guest_wasm() -> bytes:
    """Return the WebAssembly that the package ships."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise GuestMissing("the package quickjs-rs is not installed")
    try:
        return Path(spec.origin).with_name("_guest.wasm").read_bytes()
    except OSError as error:
        raise GuestMissing(f"the package quickjs-rs has no WebAssembly file: {error}") from None


def prelude() -> bytes:
    """Return the prelude as one line, so that positions in later lines are in the session's code."""
    lines = (line.strip() for line in _PRELUDE.read_bytes().splitlines())
    return b" ".join(line for line in lines if not line.startswith(b"//"))


@functools.lru_cache(maxsize=1)
def build_id() -> bytes:
    """Return the build that a stored state must match: sixteen bytes, a digest of guest and prelude."""
    made = hashlib.sha256(hashlib.sha256(guest_wasm()).digest())
    made.update(hashlib.sha256(prelude()).digest())
    made.update(bytes([FORMAT]))
    return made.digest()[:16]
